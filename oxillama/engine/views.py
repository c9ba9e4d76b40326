"""Ways to look at paged keys and values: contiguous for tests and exports, by block table for a
step.

A step is handed a `BatchedKvView`: a `KvSlot` per row, no contiguous copy. Sequences need not fill
their last page, and rows of several sequences stand side by side without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oxillama.engine.pages import PagedKvCache
from oxillama.errors import PoolError


@dataclass(frozen=True, slots=True)
class KvSlot:
    """Where one row's keys and values go: position `position` of a sequence lies in `page` at
    `offset`.
    """

    table: int  # which block table of the step
    position: int
    page: int
    offset: int


class BatchedKvView:
    """The rows of a step over the block tables of its sequences: what the attention kernel is
    handed, as arrays and as slots.

    tables: int32 page ids per sequence; positions, row_table: int32 (rows,). Rows of a sequence are
    contiguous and ascending.
    """

    __slots__ = ("page_size", "positions", "row_table", "tables")

    def __init__(self, parts: Sequence[tuple[PagedKvCache, int, int]]) -> None:
        """parts: (cache, first position, rows) of each sequence; its pages must be reserved."""
        if not parts:
            raise PoolError("view: found no sequence, wanted 1 or more")
        self.page_size = parts[0][0].pool.page_size
        for cache, start, rows in parts:
            if cache.pool.page_size != self.page_size:
                raise PoolError(
                    f"view: found pages of {cache.pool.page_size} and of {self.page_size} tokens, wanted one size"
                )
            if start < 0 or rows < 1 or start + rows > len(cache.pages) * self.page_size:
                raise PoolError(
                    f"view: found rows {start} to {start + rows}, wanted them within {len(cache.pages)} reserved pages"
                )
        self.tables = [cache.table for cache, _, _ in parts]
        self.positions = np.concatenate(
            [np.arange(start, start + rows, dtype=np.int32) for _, start, rows in parts]
        )
        self.row_table = np.repeat(
            np.arange(len(parts), dtype=np.int32), [rows for _, _, rows in parts]
        )

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, row: int) -> KvSlot:
        """The slot of one row."""
        table, position = int(self.row_table[row]), int(self.positions[row])
        return KvSlot(
            table,
            position,
            int(self.tables[table][position // self.page_size]),
            position % self.page_size,
        )


class KvCache:
    """A contiguous float32 copy of a sequence's keys and values: layer l is `k[l]` (tokens,
    kv_heads, k_dim) and `v[l]` likewise.
    """

    __slots__ = ("k", "length", "v")

    def __init__(self, k: list[np.ndarray], v: list[np.ndarray]) -> None:
        if len(k) != len(v) or any(len(a) != len(b) for a, b in zip(k, v)):
            raise PoolError(
                "cache: found keys and values of different lengths, wanted one of each per layer and token"
            )
        self.k, self.v = k, v
        self.length = len(k[0]) if k else 0

    @classmethod
    def of(cls, cache: PagedKvCache) -> KvCache:
        """Read a paged cache out of its pages."""
        memory, size = cache.pool.memory, cache.pool.page_size
        pages = cache.pages[: -(-cache.length // size)]
        k, v = [], []
        for layer in range(len(memory.kv_layers)):
            parts = [memory.read(page, layer) for page in pages]
            for out, which in ((k, 0), (v, 1)):
                dims = memory.kv_layers[layer]
                rows = [part[which] for part in parts] or [
                    np.empty((0, dims[0], dims[1 + which]), np.float32)
                ]
                out.append(np.concatenate(rows)[: cache.length])
        return cls(k, v)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the copy."""
        return sum(array.nbytes for array in (*self.k, *self.v))

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on."""
        if not 0 <= length <= self.length:
            raise PoolError(f"truncate: found length {length}, wanted 0 to {self.length}")
        self.k, self.v, self.length = (
            [a[:length] for a in self.k],
            [a[:length] for a in self.v],
            length,
        )
