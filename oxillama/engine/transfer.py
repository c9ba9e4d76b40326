"""Pages out of the pool as bytes and back: `PageCopy` reads those of one sequence, `fill_pages` writes them into others.

The bytes are those of `PageMemory.export`, page after page in order of position; what the last page has room for and does not hold is zero,
so that equal sequences give equal bytes and nothing of an earlier owner gets out.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oxillama._core.pool import PageMemory
from oxillama.engine.pages import KvCachePool


class PageCopy:
    """Shares of the pages that hold `length` positions: whoever writes meanwhile gets copies, so they can be read without a lock."""

    __slots__ = ("length", "pages", "pool")

    def __init__(self, pool: KvCachePool, pages: Sequence[int], length: int) -> None:
        self.pool, self.pages, self.length = pool, list(pages), length

    def read(self) -> np.ndarray:
        """uint8 (pages * page_bytes,)."""
        memory, size = self.pool.memory, self.pool.memory.page_bytes
        out = np.empty(len(self.pages) * size, np.uint8)
        view = memoryview(out)
        for index, page in enumerate(self.pages):
            view[index * size:(index + 1) * size] = memory.export(page)
        left = self.length % self.pool.page_size
        if left:
            view[-size:] = _filled_part(memory, self.pages[-1], left)
        return out

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
