"""Pages out of the pool as bytes and back: `PageCopy` reads pages, `fill_pages` writes them into others.

The bytes are those of `PageMemory.export`, page after page; what a page has room for and does not hold is zero, so that equal sequences
give equal bytes and nothing of an earlier owner gets out.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from oxillama._core.pool import PageMemory
from oxillama.engine.pages import KvCachePool

_PIECE = 4 << 20            # bytes of pages that are copied at a time


class PageCopy:
    """Shares of pages, the first `filled[i]` tokens of each: whoever writes meanwhile gets copies, so they can be read without a lock."""

    __slots__ = ("filled", "pages", "pool")

    def __init__(self, pool: KvCachePool, pages: Sequence[int], filled: Sequence[int]) -> None:
        self.pool, self.pages, self.filled = pool, list(pages), list(filled)

    @classmethod
    def of_sequence(cls, pool: KvCachePool, pages: Sequence[int], length: int) -> PageCopy:
        """The pages of one sequence of `length` positions."""
        return cls(pool, pages, [min(pool.page_size, length - at * pool.page_size) for at in range(len(pages))])

    def read(self) -> np.ndarray:
        """uint8 (pages * page_bytes,)."""
        out = np.empty(self.nbytes, np.uint8)
        self._into(memoryview(out), 0)
        return out

    @property
    def nbytes(self) -> int:
        """Bytes of the pages."""
        return len(self.pages) * self.pool.memory.page_bytes

    def pieces(self) -> Iterator[memoryview]:
        """The same bytes as `read`, some pages at a time; a piece stays as it is until the next but one is asked for."""
        size = self.pool.memory.page_bytes
        many = max(1, _PIECE // size)
        scratch = [memoryview(np.empty(many * size, np.uint8)) for _ in range(2)]
        for start in range(0, len(self.pages), many):
            out = scratch[start // many % 2][:min(many, len(self.pages) - start) * size]
            self._into(out, start)
            yield out

    def _into(self, out: memoryview, start: int) -> None:
        """Fill `out` with whole pages, from page number `start` of this copy on."""
        memory, size = self.pool.memory, self.pool.memory.page_bytes
        for at in range(len(out) // size):
            page, filled = self.pages[start + at], self.filled[start + at]
            whole = filled == self.pool.page_size
            out[at * size:(at + 1) * size] = memory.export(page) if whole else _filled_part(memory, page, filled)

    def release(self) -> None:
        """Give the shares back; under the engine's lock, once."""
        for page in self.pages:
            self.pool.free(page)
        self.pages = []


def _filled_part(memory: PageMemory, page: int, tokens: int) -> bytes:
    """The bytes of a page's first `tokens` tokens, zero elsewhere, in whatever way this memory lays them out."""
    scratch = PageMemory(memory.kv_layers, memory.kv_type, memory.page_size)
    scratch.ensure(2)
    scratch.load(0, memory.export(page))
    scratch.copy(0, 1, tokens=tokens)
    return scratch.export(1)


def fill_pages(memory: Any, pages: Sequence[int], data: memoryview) -> None:
    """Fill pages, in order, from what `PageCopy.read` gave."""
    size = memory.page_bytes
    for index, page in enumerate(pages):
        memory.load(page, data[index * size:(index + 1) * size])
