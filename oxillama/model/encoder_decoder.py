"""Steps of a decoder behind an encoder: of a sequence's tokens the first are a source, which the
encoder reads, and the rest are what the decoder reads.

    tokens    s0 s1 s2 s3 | t0 t1 ...      s: source, all in one step     t0: the start token
    spans     (0, 4) of every row          where the source begins and ends
    programs  source      | target         over the same pages, one after the other
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from oxillama._core.adapters import AdapterSet
from oxillama._core.pool import PageMemory
from oxillama._core.tape import Batch, CancelFlag, Program


class SourcedAdapters(NamedTuple):
    """The adapters of a sequence's rows."""

    source: AdapterSet
    target: AdapterSet


class SourcedBatch(NamedTuple):
    """The rows of a step, apart."""

    source: Batch | None
    target: Batch


def sourced_batch(
    tokens: np.ndarray,
    positions: np.ndarray,
    tables: Sequence[np.ndarray],
    row_table: np.ndarray,
    wanted: np.ndarray,
    *,
    spans: np.ndarray,
    adapters: Sequence[SourcedAdapters | None] | None = None,
) -> SourcedBatch:
    """The parameters are those of `Batch`; spans: of each row where its sequence's source begins
    and ends. Only rows behind it may be wanted.
    """
    read = written = None
    if adapters is not None:
        read = [None if each is None else each.source for each in adapters]
        written = [None if each is None else each.target for each in adapters]
    within = positions < spans[1]
    if not within.any():
        return SourcedBatch(
            None,
            Batch(tokens, positions, tables, row_table, wanted, spans=spans, adapters=written),
        )
    source, target = np.flatnonzero(within), np.flatnonzero(~within)
    return SourcedBatch(
        Batch(tokens[source], positions[source], tables, row_table[source], [], adapters=read),
        Batch(
            tokens[target],
            positions[target],
            tables,
            row_table[target],
            np.searchsorted(target, wanted),
            spans=spans[:, target],
            adapters=written,
        ),
    )


class SourcedProgram:
    """Two programs over the same pages, stepped as one."""

    causal = True
    by_token = False
    carries = False

    def __init__(self, source: Program, target: Program) -> None:
        self.source, self.target = source, target
        self.representative = True  # of the last step: see `Program`
        self.vocab_size, self.hidden_size = target.vocab_size, target.hidden_size
        self.max_rows, self.served = target.max_rows, 0

    def step(
        self,
        batch: SourcedBatch,
        memory: PageMemory,
        *,
        output: str = "logits",
        cancel: CancelFlag | None = None,
    ) -> np.ndarray:
        """`Program.step` of the target, behind a step of the sources."""
        representative = True
        if batch.source is not None:
            self.source.step(batch.source, memory, output="hidden", cancel=cancel)
            representative = self.source.representative
        out = self.target.step(batch.target, memory, output=output, cancel=cancel)
        self.representative = representative and self.target.representative
        return out
