"""Text as vectors: pooling of hidden rows that arrive in chunks, with the same bits as if they had come at once."""
from __future__ import annotations

from enum import Enum

import numpy as np

from oxillama.errors import EmptySequence


class PoolingMode(Enum):
    """How the rows of a text become one vector; NONE keeps them all."""

    LAST = "last"
    MEAN = "mean"
    MAX = "max"
    CLS = "cls"       # the first row
    NONE = "none"


class Pooler:
    """Collects hidden rows (rows, hidden) float32 in order of position, a chunk at a time; `result` is the pooled vector.

    Means are summed in double, row by row, so that chunks cannot be seen in the result.
    """

    __slots__ = ("_kept", "_rows", "mode", "normalize")

    def __init__(self, mode: PoolingMode, *, normalize: bool = True) -> None:
        self.mode, self.normalize = mode, normalize
        self._rows = 0
        self._kept: np.ndarray | list | None = None

    def add(self, first: int, rows: np.ndarray) -> None:
        """Rows of positions `first` on; rows that were added before are passed over."""
        rows = rows[self._rows - first:]
        if not len(rows):
            return
        self._rows += len(rows)
        if self.mode is PoolingMode.NONE:
            self._kept = [*(self._kept or ()), rows.copy()]
        elif self.mode is PoolingMode.LAST:
            self._kept = rows[-1].copy()
        elif self.mode is PoolingMode.CLS:
            self._kept = rows[0].copy() if self._kept is None else self._kept
        elif self.mode is PoolingMode.MAX:
            top = rows.max(axis=0)
            self._kept = top if self._kept is None else np.maximum(self._kept, top)
        else:
            total = np.zeros(rows.shape[1]) if self._kept is None else self._kept
            for row in rows:
                total = total + row
            self._kept = total

    def result(self) -> np.ndarray:
        """float32 (hidden,), or (rows, hidden) without pooling; of length 1 (each row) where normalised. EmptySequence without rows."""
        if self._kept is None:
            raise EmptySequence("embedding: found no tokens, wanted 1 or more")
        if self.mode is PoolingMode.NONE:
            out = np.concatenate(self._kept)
        elif self.mode is PoolingMode.MEAN:
            out = (self._kept / self._rows).astype(np.float32)
        else:
            out = self._kept
        if self.normalize:
            wide = out.astype(np.float64)
            size = np.sqrt((wide * wide).sum(axis=-1, keepdims=True))
            out = (wide / np.where(size > 0, size, 1.0)).astype(np.float32)
        return out
