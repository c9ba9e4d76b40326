"""What a model says of every token of a text: logits or hidden rows, through the same steps as
everybody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from oxillama.engine.engine import EngineCore
from oxillama.engine.request import Request, finished


def submit_rows(
    core: EngineCore,
    ids: Sequence[int],
    sink: Callable[[int, np.ndarray], None],
    *,
    hidden: bool = False,
    value: Any = None,
    owner: Any = None,
    adapters: Any = None,
) -> Request:
    """Have `sink(first position, rows)` told of float32 (rows, vocabulary), or (rows, hidden), of
    every token in order, a chunk at a time.

    The request's result is `value`; it keeps `owner` alive while it runs.
    """
    request = core.request(core.new_session(ids, adapters=adapters), kind="rows")
    request.on_rows, request.hidden, request.value, request.cache, request.owner = (
        sink,
        hidden,
        value,
        False,
        owner,
    )
    return core.submit(request)


def all_logits(
    core: EngineCore, ids: Sequence[int], *, owner: Any = None, adapters: Any = None
) -> np.ndarray:
    """float32 (len(ids), vocabulary): row i predicts token i + 1."""
    out = np.empty((len(ids), core.program.vocab_size), np.float32)

    def rows(first: int, values: np.ndarray) -> None:
        out[first : first + len(values)] = values

    return finished(submit_rows(core, ids, rows, value=out, owner=owner, adapters=adapters))
