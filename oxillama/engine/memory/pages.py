"""Which page holds which token: reference-counted pages of one pool, and the block table of each
sequence.

    sequence A   tokens 0..15   16..31   32..40        table [3, 7, 8]    length 41
    sequence B   forked at 35                          table [3, 7, 8]    length 35
                                                              page 8 has two owners: whoever writes
                                                              first gets a copy

Memory itself is `_core.pool.PageMemory`; this module only counts.

Invariants (tests cite them by number):

1. A page is either free (count 0, on the free list once) or owned (count = number of tables that
name it). 2. A table of length n names exactly ceil(n / page_size) pages, or more only between
`reserve` and the `commit` that fills them. 3. A page whose count is above 1 is never written:
`reserve` replaces it by a copy of its filled part first. 4. A committed position is written again
only after a `truncate` below it. 5. Fork, truncate and release only change counts; no token is
copied before it would be written. 6. When every table is released, `pages_used` is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from oxillama.errors import Exhausted, InvalidSlot, PoolError, PositionBeyondEnd


class Memory(Protocol):
    """What the pool needs from page memory (`_core.pool.PageMemory`, or a stand-in that only
    counts).
    """

    capacity: int
    memory_bytes: int
    page_bytes: int

    def ensure(self, n_pages: int) -> None: ...
    def copy(self, src: int, dst: int, *, tokens: int) -> None: ...
    def release(self, keep_pages: int) -> None: ...


@runtime_checkable
class Rewindable(Protocol):
    """Memory of a sequence of `length` positions that can drop the last of them."""

    @property
    def length(self) -> int:
        """Positions held."""

    def rewind(self, length: int) -> None:
        """Keep only the first `length` positions; PositionBeyondEnd if there are fewer,
        NotSupported if this is impossible.
        """


def rewindable(memory: Any) -> bool:
    """Whether sequences in this memory can drop their last positions. A recurrent model has one
    state for the whole past, so its sequences go back to checkpoints and are evaluated again from
    there.
    """
    return bool(getattr(memory, "rewindable", True)) and not getattr(memory, "slot_layers", ())


class KvCachePool:
    """Pages of `page_size` tokens with an owner count each; at most `max_pages` (None: as many as
    memory allows).
    """

    __slots__ = ("_counts", "_free", "max_pages", "memory", "page_size")

    def __init__(
        self, memory: Memory, *, page_size: int = 16, max_pages: int | None = None
    ) -> None:
        if type(page_size) is not int or page_size < 16 or page_size % 16:
            raise PoolError(f"page_size: found {page_size!r}, wanted a multiple of 16")
        if max_pages is not None and (type(max_pages) is not int or max_pages < 1):
            raise PoolError(
                f"max_pages: found {max_pages!r}, wanted an integer of 1 or more, or None"
            )
        self.memory = memory
        self.page_size = page_size
        self.max_pages = max_pages
        self._counts: list[int] = []  # owners of every page ever made
        # free pages, last freed on top: its memory is the likeliest to be in cache
        self._free: list[int] = []

    @property
    def pages_used(self) -> int:
        """Pages with an owner."""
        return len(self._counts) - len(self._free)

    @property
    def pages_free(self) -> int | None:
        """Pages that can still be allocated, None if only memory is the limit."""
        return None if self.max_pages is None else self.max_pages - self.pages_used

    @property
    def memory_bytes(self) -> int:
        """Bytes of all pages, including free ones."""
        return self.memory.memory_bytes

    def alloc(self) -> int:
        """A free page, now with one owner; Exhausted (a PoolError) if there is none."""
        if self._free:
            page = self._free.pop()
            self._counts[page] = 1
            return page
        page = len(self._counts)
        if self.max_pages is not None and page >= self.max_pages:
            raise Exhausted(
                f"page pool exhausted: all {self.max_pages} pages of {self.page_size} tokens are "
                "owned"
            )
        self.memory.ensure(page + 1)
        self._counts.append(1)
        return page

    def share(self, page: int) -> None:
        """One more owner of a page."""
        self._owned(page)
        self._counts[page] += 1

    def free(self, page: int) -> None:
        """Remove one owner; the last one frees the page. InvalidSlot (a PoolError) for a page that
        is free already.
        """
        self._owned(page)
        self._counts[page] -= 1
        if not self._counts[page]:
            self._free.append(page)

    def share_all(self, pages: Sequence[int]) -> None:
        """Add one owner to each page. The caller knows that all are owned: the pages of a table or
        of a node of the prefix tree.
        """
        counts = self._counts
        for page in pages:
            counts[page] += 1

    def free_all(self, pages: Sequence[int]) -> None:
        """Remove one owner of each page; those without owners become free. As with `free`, a free
        page among them raises, and then nothing was freed.
        """
        counts, free, known = self._counts, self._free, len(self._counts)
        for at, page in enumerate(pages):
            left = counts[page] - 1 if 0 <= page < known else -1
            if left < 0:
                self._take_back(pages[:at])
                raise self._unowned(page)
            counts[page] = left
            if not left:
                free.append(page)

    def owners(self, page: int) -> int:
        """How many tables name the page."""
        return self._counts[page] if 0 <= page < len(self._counts) else 0

    def shrink_to_fit(self) -> None:
        """Give the memory above the highest owned page back to the system."""
        keep = len(self._counts)
        while keep and not self._counts[keep - 1]:
            keep -= 1
        if keep < len(self._counts):
            del self._counts[keep:]
            self._free = [page for page in self._free if page < keep]
            self.memory.release(keep)

    def _take_back(self, freed: Sequence[int]) -> None:
        """Undo `free_all` of the pages."""
        for page in reversed(freed):
            if not self._counts[page]:
                self._free.pop()  # they were put there in this order
            self._counts[page] += 1

    def _owned(self, page: int) -> None:
        if not 0 <= page < len(self._counts) or not self._counts[page]:
            raise self._unowned(page)

    def _unowned(self, page: int) -> InvalidSlot:
        return InvalidSlot(
            f"page {page}: nobody owns it, wanted an owned page (0 to {len(self._counts) - 1})"
        )


class PagedKvCache:
    """The block table of one sequence: `table[p // page_size]` is the page of position p, and
    `length` positions are filled.
    """

    __slots__ = ("_table", "length", "pages", "pool", "writable")

    # what sequences of recurrent models have besides (states.SequenceState)
    slot: int | None = None
    stateful: ClassVar[bool] = False

    def __init__(self, pool: KvCachePool) -> None:
        self.pool = pool
        self.length = 0
        self.pages: list[int] = []
        # positions from `length` to here may be written without asking again
        self.writable = 0
        self._table: np.ndarray | None = None

    @property
    def table(self) -> np.ndarray:
        """The pages as int32, for a step; cached until the pages change."""
        if self._table is None:
            self._table = np.array(self.pages, np.int32)
        return self._table

    def missing_pages(self, length: int) -> int:
        """How many pages `reserve(length)` would take from the pool, including copies of shared
        pages.
        """
        size = self.pool.page_size
        extra = max(0, -(-length // size) - len(self.pages))
        if (
            length > self.length
            and self.length % size
            and self.pool.owners(self.pages[self.length // size]) > 1
        ):
            extra += 1
        return extra

    def reserve(self, length: int) -> None:
        """Make positions `self.length` to `length - 1` writable. After a PoolError the table is
        unchanged.
        """
        if length <= self.writable:
            return
        size, taken = self.pool.page_size, []
        index, filled = divmod(self.length, size)
        shared = length > self.length and filled and self.pool.owners(self.pages[index]) > 1
        try:
            for _ in range(self.missing_pages(length)):
                taken.append(self.pool.alloc())
        except PoolError:
            for page in taken:
                self.pool.free(page)
            raise
        if shared:  # invariant 3
            own = taken.pop(0)
            self.pool.memory.copy(self.pages[index], own, tokens=filled)
            self.pool.free(self.pages[index])
            self.pages[index] = own
            self._table = None
        if taken:
            self.pages.extend(taken)
            self._table = None
        self.writable = len(self.pages) * size

    def commit(self, length: int) -> None:
        """Declare that positions up to `length - 1` have been written."""
        if not self.length <= length <= len(self.pages) * self.pool.page_size:
            raise PoolError(
                f"commit: found length {length}, wanted {self.length} to "
                f"{len(self.pages) * self.pool.page_size}"
            )
        self.length = length

    def truncate(self, length: int) -> None:
        """Drop positions from `length` on and release their pages."""
        if not 0 <= length <= self.length:
            raise PoolError(f"truncate: found length {length}, wanted 0 to {self.length}")
        self.length = length
        keep = -(-length // self.pool.page_size)
        if keep < len(self.pages):
            self.pool.free_all(self.pages[keep:])
            del self.pages[keep:]
            self._table = None
        self.writable = 0  # what is left may be shared

    def rewind(self, length: int) -> None:
        """`truncate` under the name of `Rewindable`."""
        if not 0 <= length <= self.length:
            raise PositionBeyondEnd(f"rewind: found position {length}, wanted 0 to {self.length}")
        self.truncate(length)

    def shareable_pages(self) -> list[int]:
        """The pages, for a caller that will share them; the next `reserve` checks the owners
        again.
        """
        self.writable = 0
        return self.pages

    def adopt(self, pages: list[int], length: int, checkpoint: Any = None) -> None:
        """Begin with `length` positions in pages whose ownership passes to this sequence; it must
        be empty. checkpoint: of recurrent state, which this class does not have.
        """
        if self.pages or len(pages) != -(-length // self.pool.page_size):
            raise PoolError(
                f"adopt: found {len(self.pages)} pages and {len(pages)} for {length} positions, "
                "wanted none and just enough"
            )
        self.pages, self.length, self._table, self.writable = list(pages), length, None, 0

    def fork(self, length: int | None = None) -> PagedKvCache:
        """Another sequence that shares the first `length` (default: all) positions. It only
        increments counts.
        """
        length = self.length if length is None else length
        if not 0 <= length <= self.length:
            raise PoolError(f"fork: found length {length}, wanted 0 to {self.length}")
        twin = PagedKvCache(self.pool)
        twin.length = length
        twin.pages = self.shareable_pages()[: -(-length // self.pool.page_size)]
        self.pool.share_all(twin.pages)
        return twin

    def release(self) -> None:
        """Release every page; the sequence is empty and can be used again."""
        self.pool.free_all(self.pages)
        self.pages, self.length, self._table, self.writable = [], 0, None, 0


class KvCache:
    """A contiguous float32 copy of a sequence's keys and values: layer l is `k[l]` (tokens,
    kv_heads, k_dim) and `v[l]` likewise.
    """

    __slots__ = ("k", "length", "v")

    def __init__(self, k: list[np.ndarray], v: list[np.ndarray]) -> None:
        if len(k) != len(v) or any(len(a) != len(b) for a, b in zip(k, v)):
            raise PoolError(
                "cache: found keys and values of different lengths, wanted one of each per layer "
                "and token"
            )
        self.k, self.v = k, v
        self.length = len(k[0]) if k else 0

    @classmethod
    def of(cls, cache: PagedKvCache) -> KvCache:
        """A copy of a paged cache."""
        memory: Any = cache.pool.memory  # which has bytes to read (`_core.pool.PageMemory`)
        size = cache.pool.page_size
        pages = cache.pages[: -(-cache.length // size)]
        k: list[np.ndarray] = []
        v: list[np.ndarray] = []
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
        """Drop tokens from `length` on."""
        if not 0 <= length <= self.length:
            raise PoolError(f"truncate: found length {length}, wanted 0 to {self.length}")
        self.k, self.v, self.length = (
            [a[:length] for a in self.k],
            [a[:length] for a in self.v],
            length,
        )
