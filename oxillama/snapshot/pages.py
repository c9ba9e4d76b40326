"""Moves pages between the pool and bytes: `PageCopy` reads pages, `fill_pages` writes them.

The bytes are those of `PageMemory.export`, page after page. The unused part of a page is zero, so
that equal sequences give equal bytes and nothing of an earlier owner is revealed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from oxillama._core.pool import PageMemory
from oxillama.engine.memory.pages import KvCachePool
from oxillama.snapshot.container import Envelope


class PageCopy:
    """Shares of pages, the first `filled[i]` tokens of each. Others that write meanwhile get
    copies, so the pages can be read without a lock.
    """

    __slots__ = ("filled", "pages", "pool")

    def __init__(self, pool: KvCachePool, pages: Sequence[int], filled: Sequence[int]) -> None:
        self.pool, self.pages, self.filled = pool, list(pages), list(filled)

    @classmethod
    def of_sequence(cls, pool: KvCachePool, pages: Sequence[int], length: int) -> PageCopy:
        """The pages of one sequence of `length` positions."""
        return cls(
            pool,
            pages,
            [min(pool.page_size, length - at * pool.page_size) for at in range(len(pages))],
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the pages."""
        return len(self.pages) * self.pool.memory.page_bytes

    def read(self) -> np.ndarray:
        """All pages as stored in a file: uint8 (pages * page_bytes,)."""
        size, out = self.pool.memory.page_bytes, np.empty(self.nbytes, np.uint8)
        view = out.data
        for at, page in enumerate(self.pieces()):
            view[at * size : (at + 1) * size] = page
        return out

    def pieces(self) -> Iterator[memoryview]:
        """The same page by page."""
        memory = cast("PageMemory", self.pool.memory)
        for page, filled in zip(self.pages, self.filled):
            yield memoryview(
                memory.export(page)
                if filled == self.pool.page_size
                else _filled_part(memory, page, filled)
            )

    def release(self) -> None:
        """Release the shares; once, under the engine's lock."""
        for page in self.pages:
            self.pool.free(page)
        self.pages = []


def _filled_part(memory: PageMemory, page: int, tokens: int) -> bytes:
    """The bytes of a page's first `tokens` tokens and zero elsewhere, for any layout of this
    memory.
    """
    scratch = PageMemory(memory.kv_layers, memory.kv_type, memory.page_size)
    scratch.ensure(2)
    scratch.load(0, memory.export(page))
    scratch.copy(0, 1, tokens=tokens)
    return scratch.export(1)


def fill_pages(memory: Any, pages: Sequence[int], saved: Envelope) -> None:
    """Fill pages, in order, from the section "kv" of an envelope with the same number of pages;
    page numbers below 0 are skipped.

    The pages are written before their bytes are verified. They must belong to nobody else, and must
    be discarded if this raises.
    """
    size = memory.page_bytes

    def into(at: int, piece: memoryview) -> None:
        first = at // size
        for index, page in enumerate(pages[first : first + len(piece) // size]):
            if page >= 0:
                memory.load(page, piece[index * size : (index + 1) * size])

    saved.pour("kv", into, exactly=len(pages) * size, unit=size)
