"""Which page holds which token: reference-counted pages of one pool, and the block table of each
sequence.

    sequence A   tokens 0..15   16..31   32..40        table [3, 7, 8]    length 41
    sequence B   forked at 35                          table [3, 7, 8]    length 35
                                                              page 8 has two owners: whoever writes
                                                              first gets a copy

Layers with a sliding window are looked at for the last tokens only. Where memory keeps them apart,
a page's part of them (`near`) has owners of its own: a sequence holds the near part of the pages
from `shed` on, gives more of them back as it grows, and memory takes them for other pages.

    window 32    tokens 0..15   16..31   32..47   48..63   64..70      table [3, 7, 8, 2, 6]
                 near part gone --------------->  held from here on    shed 2, back to 63 or to 0

A sequence cannot go back to a position whose window it has given back: `truncate` and `fork` go
back to 0 instead (see `length`), and the engine evaluates the tokens again, with the same bits.

Memory itself is `_core.pool.PageMemory`; this module only counts.

Invariants (tests cite them by number):

1. A page is either free (count 0, on the free list once) or owned (count = number of tables that
name it). 2. A table of length n names exactly ceil(n / page_size) pages, or more only between
`reserve` and the `commit` that fills them. 3. A page whose count is above 1 is never written:
`reserve` replaces it by a copy of its filled part first. 4. A committed position is written again
only after a `truncate` below it. 5. Fork, truncate and release only change counts; no token is
copied before it would be written. 6. When every table is released, `pages_used` is 0. 7. A near
part is attached exactly while it has an owner, and every owner of it owns its page. 8. A sequence
of length n owns the near parts of all positions that a row at n or later looks at. 9. The memory of
pages, free ones included, takes no more than `max_pages` whole ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from oxillama.errors import (
    Exhausted,
    InvalidSlot,
    NotSupported,
    PoolError,
    PositionBeyondEnd,
    not_pickled,
)

# tokens kept behind the window: rejected candidates and short edits go back without evaluation
SLACK = 64


class Memory(Protocol):
    """What the pool needs from page memory (`_core.pool.PageMemory`, or a stand-in that only
    counts). One whose windowed layers lie apart also has `window`, `near_bytes`, `made`, `attach`,
    `shed`, `detach` and `compact`.
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
    """Whether sequences in this memory can drop the positions of candidates. One of a recurrent
    model has a single state for the whole past, and spare slots for those after candidates.
    """
    return bool(getattr(memory, "rewindable", True))


class KvCachePool:
    """Reference-counted pages of `page_size` tokens (a multiple of 16); at most `max_pages` (None:
    as many as memory allows). `alloc` raises Exhausted, `free` InvalidSlot for a page without an
    owner; both are PoolErrors.
    """

    __slots__ = (
        "_counts",
        "_free",
        "_near",
        "bare_bytes",
        "max_pages",
        "memory",
        "near_bytes",
        "near_used",
        "page_size",
        "slack",
        "window",
    )

    __reduce__ = not_pickled(
        "pool: holds pages in memory of this process",
        "make one in each process",
    )

    def __init__(
        self, memory: Memory, *, page_size: int = 16, max_pages: int | None = None
    ) -> None:
        if type(page_size) is not int or page_size < 16 or page_size % 16:
            raise PoolError(f"page_size: found {page_size!r}, wanted a multiple of 16")
        if max_pages is not None and (type(max_pages) is not int or max_pages < 1):
            raise PoolError(
                f"max_pages: found {max_pages!r}, wanted an integer of 1 or more, or None"
            )
        if not hasattr(memory, "page_bytes"):
            raise PoolError(f"memory: found {memory!r:.50}, wanted memory of pages")
        self.memory: Any = memory
        self.page_size = page_size
        self.max_pages = max_pages
        self._counts: list[int] = []  # owners of every page ever made
        # free pages, last freed on top: its memory is the likeliest to be in cache
        self._free: list[int] = []
        self._near: list[int] = []  # owners of every page's near part
        # most tokens that windowed layers look back at, 0 where none lie apart
        self.window: int = getattr(memory, "window", 0)
        self.slack = SLACK
        self.near_used = 0  # near parts with an owner
        self.near_bytes: int = getattr(memory, "near_bytes", 0)
        self.bare_bytes = memory.page_bytes - self.near_bytes

    @property
    def pages_used(self) -> int:
        """Pages with an owner."""
        return len(self._counts) - len(self._free)

    @property
    def pages_free(self) -> int | None:
        """Whole pages that can still be allocated, None if only memory is the limit."""
        if self.max_pages is None:
            return None
        return self.max_pages - self.whole_pages(self.pages_used, self.near_used)

    def whole_pages(self, pages: int, near: int) -> int:
        """How many whole pages take the bytes of so many pages, and near parts of them."""
        if not self.window:
            return pages
        held = pages * self.bare_bytes + near * self.near_bytes
        return -(-held // self.memory.page_bytes)

    def near_pages(self, length: int, rows: int) -> int:
        """The most near parts that a sequence of `length` positions holds, with so many of them
        written by the last step.
        """
        most = (min(length, self.window + self.slack) + rows) // self.page_size + 2
        return min(-(-length // self.page_size), most) if self.window else 0

    @property
    def memory_bytes(self) -> int:
        """Bytes of all pages, including free ones."""
        return self.memory.memory_bytes

    def alloc(self, *, bare: bool = False) -> int:
        """A free page, now with one owner; bare: without its near part. Exhausted (a PoolError) if
        there is none.
        """
        near = self.near_used + (not bare and bool(self.window))
        if (
            self.max_pages is not None
            and self.whole_pages(self.pages_used + 1, near) > self.max_pages
        ):
            raise Exhausted(
                f"page pool exhausted: all {self.max_pages} pages of {self.page_size} tokens are "
                "owned"
            )
        if self._free:
            page = self._free.pop()
            self._counts[page] = 1
        else:
            page = len(self._counts)
            self.memory.ensure(page + 1)
            self._counts.append(1)
            self._near.append(0)
        if self.window:
            try:
                self._attach(page, near, bare=bare)
            except BaseException:
                self.free(page)
                raise
        return page

    def _attach(self, page: int, near: int, *, bare: bool) -> None:
        """Give a page memory; `near` parts will have an owner then. What was taken from the system
        stays within `max_pages` too: free memory of one kind is given back before more of the other
        is taken.
        """
        memory = self.memory
        made, made_near = (max(pair) for pair in zip(memory.made, (self.pages_used, near)))
        if self.max_pages is not None and self.whole_pages(made, made_near) > self.max_pages:
            memory.compact()
        try:
            memory.attach(page, bare=bare)
        except PoolError:  # the system refuses
            memory.compact()
            memory.attach(page, bare=bare)
        if not bare:
            self._near[page] = 1
            self.near_used = near

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
            if self.window:
                self.memory.detach(page)

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
        before = len(free)
        for at, page in enumerate(pages):
            left = counts[page] - 1 if 0 <= page < known else -1
            if left < 0:
                self._take_back(pages[:at])
                raise self._unowned(page)
            counts[page] = left
            if not left:
                free.append(page)
        if self.window:
            for page in free[before:]:
                self.memory.detach(page)

    def owners(self, page: int) -> int:
        """How many tables name the page."""
        return self._counts[page] if 0 <= page < len(self._counts) else 0

    def near_owners(self, page: int) -> int:
        """How many hold the page's near part."""
        return self._near[page] if 0 <= page < len(self._near) else 0

    def share_near(self, pages: Sequence[int]) -> None:
        """Add one owner to the near part of each page. The caller knows that all are owned."""
        if self.window:
            near = self._near
            for page in pages:
                near[page] += 1

    def free_near(self, pages: Sequence[int]) -> None:
        """Remove one owner of the near part of each page, before the page itself is freed; the last
        one gives it back to memory. InvalidSlot for one without an owner.
        """
        if not self.window:
            return
        for page in pages:
            left = self.near_owners(page) - 1
            if left < 0:
                raise InvalidSlot(f"page {page}: its near part has no owner, wanted an owned one")
            self._near[page] = left
            if not left:
                self.near_used -= 1
                self.memory.shed(page)

    def shrink_to_fit(self) -> None:
        """Give the memory above the highest owned page back to the system; where windowed layers
        lie apart, all that is free."""
        keep = len(self._counts)
        while keep and not self._counts[keep - 1]:
            keep -= 1
        if keep < len(self._counts) or self.window:
            del self._counts[keep:], self._near[keep:]
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
            f"page {page}: has no owner, wanted an owned page (0 to {len(self._counts) - 1})"
        )


class PagedKvCache:
    """The block table of one sequence: `table[p // page_size]` is the page of position p, and
    `length` positions are filled (Kwon et al. 2023, "Efficient Memory Management for Large Language
    Model Serving with PagedAttention").
    """

    __slots__ = ("_table", "length", "pages", "pool", "shed", "writable")

    # what sequences of recurrent models have besides (states.SequenceState)
    slot: int | None = None
    stateful: ClassVar[bool] = False

    __reduce__ = not_pickled(
        "cache: owns pages in memory of this process",
        "`fork()` makes another that shares them, KvCache.of(...) copies them",
    )

    def __init__(self, pool: KvCachePool) -> None:
        if not isinstance(pool, KvCachePool):
            raise PoolError(f"pool: found {pool!r:.50}, wanted a KvCachePool")
        self.pool = pool
        self.length = 0
        self.pages: list[int] = []
        self.shed = 0  # pages whose near part was given back, from the first on
        # positions from `length` to here may be written without asking again
        self.writable = 0
        self._table: np.ndarray | None = None

    @property
    def table(self) -> np.ndarray:
        """The pages as int32, for a step; cached until the pages change."""
        if self._table is None:
            self._table = np.array(self.pages, np.int32)
        return self._table

    @property
    def floor(self) -> int:
        """The first position, besides 0, that the sequence can go back to."""
        return self.shed * self.pool.page_size + self.pool.window - 1 if self.shed else 0

    def reachable(self, length: int) -> int:
        """`length`, or 0 where its window was given back."""
        return length if length >= self.floor else 0

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

    def reserve(self, length: int, *, bare: int = 0) -> None:
        """Make positions `self.length` to `length - 1` writable. After an error the table is
        unchanged. Near parts that no row looks at any more are given back. bare: of an empty
        sequence, how many pages, from the first on, come without their near part.
        """
        if length <= self.writable:
            return
        self._shed()
        size, taken = self.pool.page_size, []
        index, filled = divmod(self.length, size)
        shared = length > self.length and filled and self.pool.owners(self.pages[index]) > 1
        try:
            for at in range(self.missing_pages(length)):
                taken.append(self.pool.alloc(bare=at < bare))
            if shared:  # invariant 3
                self.pool.memory.copy(self.pages[index], taken[0], tokens=filled)
        except BaseException:
            self.pool.free_near(taken[bare:])
            self.pool.free_all(taken)
            raise
        if shared:
            own = taken.pop(0)
            self.pool.free_near(self.pages[index : index + 1])
            self.pool.free(self.pages[index])
            self.pages[index] = own
            self._table = None
        if taken:
            self.pages.extend(taken)
            self._table = None
            self.shed = max(self.shed, bare)
        self.writable = len(self.pages) * size

    def _shed(self) -> None:
        """Give back the near parts of pages wholly behind the window."""
        pool = self.pool
        if pool.window:
            behind = (self.length - pool.window + 1 - pool.slack) // pool.page_size
            if behind > self.shed:
                pool.free_near(self.pages[self.shed : behind])
                self.shed = behind

    def spare(self, count: int) -> bool:
        """Have what it takes to drop each of the next `count` rows of candidates, once they are
        written; False if there is too little of it.
        """
        return True

    def trail(self, length: int, count: int) -> Sequence[int]:
        """Where a step writes what is kept besides pages for each of `count` candidates after
        `length` tokens.
        """
        return ()

    def settle(self) -> None:
        """Give back what was kept to drop candidates."""

    def commit(self, length: int) -> None:
        """Declare that positions up to `length - 1` have been written."""
        if not self.length <= length <= len(self.pages) * self.pool.page_size:
            raise PoolError(
                f"commit: found length {length}, wanted {self.length} to "
                f"{len(self.pages) * self.pool.page_size}"
            )
        self.length = length

    def truncate(self, length: int) -> None:
        """Drop positions from `length` on and release their pages; all positions, where the window
        of `length` was given back.
        """
        if not 0 <= length <= self.length:
            raise PoolError(f"truncate: found length {length}, wanted 0 to {self.length}")
        self.length = length = self.reachable(length)
        keep = -(-length // self.pool.page_size)
        if keep < len(self.pages):
            self.pool.free_near(self.pages[max(keep, self.shed) :])
            self.pool.free_all(self.pages[keep:])
            del self.pages[keep:]
            self._table, self.shed = None, min(self.shed, keep)
        self.writable = 0  # what is left may be shared

    def drop(self, length: int) -> None:
        """Drop candidates from position `length` on; as `truncate`, but where that is possible
        their pages stay, to be written again.
        """
        if length < self.floor:
            self.truncate(length)
        else:
            self.length = length

    def rewind(self, length: int) -> None:
        """Go back to exactly `length` positions; NotSupported if its window was given back."""
        if not 0 <= length <= self.length:
            raise PositionBeyondEnd(f"rewind: found position {length}, wanted 0 to {self.length}")
        if self.reachable(length) != length:
            raise NotSupported(
                f"rewind: the window before position {length} was given back, wanted 0 or "
                f"{self.floor} to {self.length}"
            )
        self.truncate(length)

    def shareable_pages(self) -> list[int]:
        """The pages, for a caller that will share them; the next `reserve` checks the owners
        again.
        """
        self.writable = 0
        return self.pages

    def adopt(
        self, pages: list[int], length: int, checkpoint: Any = None, *, shed: int = 0
    ) -> None:
        """Begin with `length` positions in pages whose ownership passes to this sequence, with the
        near parts from page `shed` on; it must be empty. checkpoint: of recurrent state, which this
        class does not have.
        """
        if self.pages or len(pages) != -(-length // self.pool.page_size):
            raise PoolError(
                f"adopt: found {len(self.pages)} pages and {len(pages)} for {length} positions, "
                "wanted none and just enough"
            )
        self.pages, self.length, self._table, self.writable = list(pages), length, None, 0
        self.shed = shed

    def fork(self, length: int | None = None) -> PagedKvCache:
        """Another sequence that shares the first `length` (default: all) positions, or none where
        the window of `length` was given back. It only increments counts.
        """
        length = self.length if length is None else length
        if not 0 <= length <= self.length:
            raise PoolError(f"fork: found length {length}, wanted 0 to {self.length}")
        twin = PagedKvCache(self.pool)
        twin.length = length = self.reachable(length)
        twin.pages = self.shareable_pages()[: -(-length // self.pool.page_size)]
        twin.shed = min(self.shed, len(twin.pages))
        self.pool.share_all(twin.pages)
        self.pool.share_near(twin.pages[twin.shed :])
        return twin

    def release(self) -> None:
        """Release every page; the sequence is empty and can be used again."""
        self.pool.free_near(self.pages[self.shed :])
        self.pool.free_all(self.pages)
        self.pages, self.length, self._table, self.writable = [], 0, None, 0
        self.shed = 0


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
        """A copy of a paged cache; PoolError if windowed layers have given keys back."""
        if cache.shed:
            raise PoolError(
                f"cache: windowed layers hold positions {cache.shed * cache.pool.page_size} to "
                f"{cache.length - 1}, wanted all; a window of {cache.pool.window} is kept of them"
            )
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
                    np.empty((0, max(1, dims[0]), dims[1 + which]), np.float32)
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
