"""Text as vectors: pooling of hidden rows that arrive in chunks, with the same bits as if they had
come at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

import numpy as np

from oxillama.engine.engine import EngineCore
from oxillama.engine.request import Request, all_finished
from oxillama.engine.rows import submit_rows
from oxillama.errors import ConfigError, EmptySequence


class PoolingMode(Enum):
    """How the rows of a text become one vector; NONE keeps them all."""

    LAST = "last"
    MEAN = "mean"
    MAX = "max"
    CLS = "cls"  # the first row
    NONE = "none"


class Pooler:
    """Collects hidden rows (rows, hidden) float32 in order of position, a chunk at a time; `result`
    is the pooled vector.

    Means are summed in double, row by row, so that chunks cannot be seen in the result.
    """

    __slots__ = ("_kept", "_rows", "mode", "normalize")

    def __init__(self, mode: PoolingMode, *, normalize: bool = True) -> None:
        self.mode, self.normalize = mode, normalize
        self._rows = 0
        self._kept: Any = None

    def add(self, first: int, rows: np.ndarray) -> None:
        """Rows of positions `first` on; rows that were added before are passed over."""
        rows = rows[self._rows - first :]
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
        """float32 (hidden,), or (rows, hidden) without pooling; of length 1 (each row) where
        normalised. EmptySequence without rows.
        """
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


def submit_embedding(
    core: EngineCore,
    ids: Sequence[int],
    *,
    mode: PoolingMode | str,
    normalize: bool,
    owner: Any = None,
) -> tuple[Request, Pooler]:
    """Start an embedding of token ids: the request, and the pooler that has the vector when it is
    done.
    """
    try:
        pooler = Pooler(PoolingMode(mode), normalize=normalize)
    except ValueError:
        raise ConfigError(
            f"mode: found {mode!r}, wanted one of {', '.join(each.value for each in PoolingMode)}"
        ) from None
    if not isinstance(normalize, bool):
        raise ConfigError(f"normalize: found {normalize!r}, wanted True or False")
    if not ids:
        raise EmptySequence("embed: found no tokens, wanted 1 or more")
    return submit_rows(core, ids, pooler.add, hidden=True, owner=owner), pooler


def all_pooled(work: Iterable[tuple[Request, Pooler]]) -> list[np.ndarray]:
    """The vectors of embeddings, begun as they are taken; an error of one cancels all."""
    poolers: list[Pooler] = []

    def begun() -> Iterator[Request]:
        for request, pooler in work:
            poolers.append(pooler)
            yield request

    all_finished(begun())
    return [pooler.result() for pooler in poolers]
