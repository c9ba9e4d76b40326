"""Moves pages between the pool and bytes: `PageCopy` reads pages, `fill_pages` writes them.

The bytes are those of `PageMemory.export`, page after page. The unused part of a page is zero, so
that equal sequences give equal bytes and nothing of an earlier owner is revealed. Pages whose near
part was given back (`engine.memory.pages`) are bare: they are saved without their windowed layers,
in the section "kv_bare".
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
    copies, so the pages can be read without a lock. bare: without their near parts.
    """

    __slots__ = ("bare", "filled", "pages", "pool")

    def __init__(
        self, pool: KvCachePool, pages: Sequence[int], filled: Sequence[int], *, bare: bool = False
    ) -> None:
        self.pool, self.pages, self.filled, self.bare = pool, list(pages), list(filled), bare

    @classmethod
    def of_sequence(
        cls, pool: KvCachePool, pages: Sequence[int], length: int, *, shed: int = 0
    ) -> tuple[PageCopy, PageCopy]:
        """(whole pages, bare pages) of one sequence of `length` positions, whose first `shed` pages
        are bare.
        """
        size = pool.page_size
        filled = [min(size, length - at * size) for at in range(len(pages))]
        return (
            cls(pool, pages[shed:], filled[shed:]),
            cls(pool, pages[:shed], filled[:shed], bare=True),
        )

    @property
    def _size(self) -> int:
        memory = self.pool.memory
        return self.pool.bare_bytes if self.bare else memory.page_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the pages."""
        return len(self.pages) * self._size

    def read(self) -> np.ndarray:
        """All pages as stored in a file: uint8 (nbytes,)."""
        size, out = self._size, np.empty(self.nbytes, np.uint8)
        view = out.data
        for at, page in enumerate(self.pieces()):
            view[at * size : (at + 1) * size] = page
        return out

    def pieces(self) -> Iterator[memoryview]:
        """The same page by page."""
        memory = cast("PageMemory", self.pool.memory)
        for page, filled in zip(self.pages, self.filled):
            yield memoryview(
                memory.export(page, bare=self.bare)
                if filled == self.pool.page_size
                else _filled_part(memory, page, filled, bare=self.bare)
            )

    def release(self) -> None:
        """Release the shares; once, under the engine's lock."""
        if not self.bare:
            self.pool.free_near(self.pages)
        self.pool.free_all(self.pages)
        self.pages = []


def _filled_part(memory: PageMemory, page: int, tokens: int, *, bare: bool) -> bytes:
    """The bytes of a page's first `tokens` tokens and zero elsewhere, for any layout of this
    memory.
    """
    layers = [layer for layer, near in zip(memory.kv_layers, memory.windows) if not (bare and near)]
    scratch = PageMemory(layers, memory.kv_type, memory.page_size)
    scratch.ensure(2)
    scratch.load(0, memory.export(page, bare=bare))
    scratch.copy(0, 1, tokens=tokens)
    return scratch.export(1)


def fill_pages(
    memory: Any, pages: Sequence[int], saved: Envelope, *, bare: Sequence[int] = ()
) -> None:
    """Fill pages, in order, from the section "kv" of an envelope with the same number of pages, and
    bare ones from "kv_bare"; page numbers below 0 are skipped.

    The pages are written before their bytes are verified. They must belong to nobody else, and must
    be discarded if this raises.
    """
    _fill(memory, "kv", pages, memory.page_bytes, saved, bare=False)
    if bare and memory.page_bytes > memory.near_bytes:
        _fill(memory, "kv_bare", bare, memory.page_bytes - memory.near_bytes, saved, bare=True)


def _fill(
    memory: Any, name: str, pages: Sequence[int], size: int, saved: Envelope, *, bare: bool
) -> None:
    def into(at: int, piece: memoryview) -> None:
        first = at // size
        for index, page in enumerate(pages[first : first + len(piece) // size]):
            if page >= 0:
                memory.load(page, piece[index * size : (index + 1) * size], bare=bare)

    saved.read_pieces(name, into, exactly=len(pages) * size, unit=size)
