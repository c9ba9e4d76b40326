"""What an op of the tape is, and the rows and state that its definition works on.

A `Frame` holds the rows of one step: `frame.slots[i]` is the float32 array (rows, width) of a slot,
`frame.keys[layer]` and `frame.values[layer]` are all keys and values stored so far,
`frame.states[i]` is recurrent state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from oxillama.model.tensors import Tensor

OUTPUT = -1  # the slot number of the program's own output rows


class RowDomain(Enum):
    """The rows that an op runs over.

    A routed value (one part per chosen expert) is a row whose parts are side by side, so routed
    rows need no kind of their own.
    """

    ALL = "all"  # every row of the step
    WANTED = "wanted"  # the rows whose output is asked
    SAME = "same"  # those of what it reads


@dataclass(slots=True)
class Frame:
    """The state of the reference interpreter: one sequence, its rows in this step, and what earlier
    steps stored.

    rope: positions (sections, rows) for the rotation; visible: keys that each row sees; embeds:
    rows that replace the embedding where a token is -1. Each is None if positions and tokens
    determine it.
    """

    tokens: np.ndarray
    positions: np.ndarray
    wanted: np.ndarray
    weights: Callable[[Tensor], np.ndarray]
    kv_type: str = "f16"
    slots: dict[Any, np.ndarray] = field(default_factory=dict)
    keys: dict[int, np.ndarray] = field(default_factory=dict)
    values: dict[int, np.ndarray] = field(default_factory=dict)
    states: dict[int, np.ndarray] = field(default_factory=dict)
    rope: np.ndarray | None = None
    visible: np.ndarray | None = None
    embeds: np.ndarray | None = None
    spans: np.ndarray | None = None  # (2, rows): first key, and the one after the last, of each row
    served: int = 0  # tokens that the sequence may have; 0: the last row says it


class Op:
    """The base class of every op of the tape; a subclass is added to `OPS` under its `name`.

    reads, writes: the parameters that hold slot numbers (`acts` holds one per format); state:
    whether its layer keeps something for every token, so that it must run over all rows.
    """

    name: ClassVar[str]
    reads: ClassVar[tuple[str, ...]] = ("x",)
    writes: ClassVar[tuple[str, ...]] = ("out",)
    state: ClassVar[bool] = False
    rows: ClassVar[RowDomain] = RowDomain.SAME
    # a static method of (frame, **parameters) that does in numpy what the op does
    meaning: ClassVar[Callable[..., None]]

    def __init_subclass__(cls, *, name: str) -> None:
        cls.name = name
        OPS[name] = cls

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        """Floats per row of the result, given those of the inputs."""
        return widths[0]

    @staticmethod
    def written(params: dict) -> np.ndarray | slice:
        """The columns of `out` that the op writes, if it leaves others unchanged."""
        return slice(None)


OPS: dict[str, type[Op]] = {}


def split_heads(f: Frame, slot: Any, heads: int) -> np.ndarray:
    """A slot's rows as float64 (rows, heads, columns of a head)."""
    rows = f.slots[slot].astype(np.float64)
    return rows.reshape(len(rows), heads, -1)


def begun(f: Frame, state: int, *shape: int) -> np.ndarray:
    """The state from which a sequence's rows continue."""
    fresh = f.positions[0] == 0 or state not in f.states
    return np.zeros(shape) if fresh else f.states[state]
