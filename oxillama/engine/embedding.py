"""Text as vectors: pooling of hidden rows that arrive in chunks, with the same bits as if they had
come at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama.engine.engine import EngineCore
from oxillama.engine.request import Request, all_finished
from oxillama.engine.rows import submit_rows
from oxillama.errors import ConfigError, EmptySequence

if TYPE_CHECKING:
    from oxillama.model.load import Model


class PoolingMode(Enum):
    """How the rows of a text become one vector; NONE keeps them all, RANK gives the scores of the
    model's classifier in place of a vector.
    """

    LAST = "last"
    MEAN = "mean"
    MAX = "max"
    CLS = "cls"  # the first row
    NONE = "none"
    RANK = "rank"

    @classmethod
    def of(cls, value: PoolingMode | str) -> PoolingMode:
        """The mode of that name; ConfigError for a name that is none."""
        try:
            return cls(value)
        except ValueError:
            raise ConfigError(
                f"pooling: found {value!r}, wanted one of {', '.join(each.value for each in cls)}"
            ) from None


class Pooler:
    """Collects hidden rows (rows, hidden) float32 in order of position, a chunk at a time; `result`
    is the pooled vector.

    Means are summed in double, row by row, so that chunks cannot be seen in the result. then: what is
    done to the pooled vector before it is normalised, nothing without pooling.
    """

    __slots__ = ("_kept", "_rows", "_then", "mode", "normalize")

    def __init__(
        self,
        mode: PoolingMode,
        *,
        normalize: bool = True,
        then: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        if mode is PoolingMode.RANK:
            raise ConfigError("pooling: found rank, wanted that of the classifier's rows")
        self.mode, self.normalize, self._then = mode, normalize, then
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
        if self._then is not None and self.mode is not PoolingMode.NONE:
            out = self._then(out)
        if self.normalize:
            wide = out.astype(np.float64)
            size = np.sqrt((wide * wide).sum(axis=-1, keepdims=True))
            out = (wide / np.where(size > 0, size, 1.0)).astype(np.float32)
        return out


def pooling_of(model: Model, asked: PoolingMode | str | None) -> PoolingMode:
    """The mode asked for, else the file's own, else the mean of the rows."""
    return PoolingMode.of(model.config.pooling or "mean" if asked is None else asked)


def pooler_of(
    model: Model | None, mode: PoolingMode | str | None, normalize: bool | None
) -> Pooler:
    """What pools the rows of a text as asked; ConfigError for what the model cannot do.

    normalize: None for vectors of length 1, and for scores as they are.
    """
    mode = PoolingMode.of(mode or "mean") if model is None else pooling_of(model, mode)
    if normalize is not None and not isinstance(normalize, bool):
        raise ConfigError(f"normalize: found {normalize!r}, wanted True, False or None")
    if mode is not PoolingMode.RANK:
        then = None if model is None else model.projection
        return Pooler(mode, normalize=normalize is not False, then=then)
    head = None if model is None else model.classifier
    if head is None:
        name = "this model" if model is None else model.config.architecture
        raise ConfigError(
            f"pooling: found rank, {name} has no classifier in its file (cls.output.weight)"
        )
    if normalize:
        raise ConfigError("normalize: found True beside rank, wanted False: scores are no vector")
    return Pooler(PoolingMode(head.pooling), normalize=False, then=head)


def submit_embedding(
    core: EngineCore,
    ids: Sequence[int],
    *,
    mode: PoolingMode | str | None = None,
    normalize: bool | None = None,
    model: Model | None = None,
    owner: Any = None,
    adapters: Any = None,
) -> tuple[Request, Pooler]:
    """Start an embedding of token ids: the request, and the pooler that has the vector when it is
    done.
    """
    pooler = pooler_of(model, mode, normalize)
    if not ids:
        raise EmptySequence("embed: found no tokens, wanted 1 or more")
    return submit_rows(core, ids, pooler.add, hidden=True, owner=owner, adapters=adapters), pooler


def all_pooled(work: Iterable[tuple[Request, Pooler]]) -> list[np.ndarray]:
    """The vectors of embeddings, begun as they are taken; an error of one cancels all."""
    poolers: list[Pooler] = []

    def begun() -> Iterator[Request]:
        for request, pooler in work:
            poolers.append(pooler)
            yield request

    all_finished(begun())
    return [pooler.result() for pooler in poolers]
