"""The page table's numbered invariants, by example and by a machine that tries everything."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from oxillama.engine.memory.pages import KvCachePool, PagedKvCache
from oxillama.errors import Exhausted, InvalidSlot, PoolError
from tests.engine.null import NullMemory, filled, read, write


def test_a_page_freed_twice_raises():
    pool = KvCachePool(NullMemory())
    page = pool.alloc()
    pool.free(page)
    with pytest.raises(PoolError.InvalidSlot, match=f"page {page}: has no owner"):
        pool.free(page)
    with pytest.raises(PoolError, match="page 7"):
        pool.share(7)
    pages = [pool.alloc(), pool.alloc()]
    pool.share_all(pages)
    pool.free_all(pages)
    assert [pool.owners(page) for page in pages] == [1, 1]
    pool.free_all(pages)
    with pytest.raises(PoolError, match="has no owner"):
        pool.free_all(pages)
    assert pool.pages_used == 0


@pytest.mark.parametrize("wrong", (99, -1))
def test_pages_freed_together_with_one_that_is_free_are_all_kept(wrong):
    pool = KvCachePool(NullMemory())
    one, two, free = pool.alloc(), pool.alloc(), pool.alloc()
    pool.free(free)
    pool.share(one)
    for freed in ([one, two, one, free], [two, wrong], [two, one, two]):
        with pytest.raises(InvalidSlot, match="has no owner"):
            pool.free_all(freed)
        assert (pool.owners(one), pool.owners(two), pool.owners(free), pool.pages_used) == (
            2,
            1,
            0,
            2,
        )
    # the free list is as it was
    assert pool.alloc() == free and pool.alloc() == 3


def test_memory_is_what_was_ever_owned_until_it_is_given_back():
    memory = NullMemory()
    pool = KvCachePool(memory)
    cache = filled(pool, 100)
    assert pool.memory_bytes == 7 * memory.page_bytes
    cache.release()
    assert pool.memory_bytes == 7 * memory.page_bytes and pool.pages_used == 0
    pool.shrink_to_fit()
    assert pool.memory_bytes == 0


def test_an_exhausted_pool_raises_and_takes_nothing():
    pool = KvCachePool(NullMemory(), max_pages=3)
    cache = filled(pool, 20)
    with pytest.raises(Exhausted, match="all 3 pages of 16 tokens are owned"):
        cache.reserve(100)
    assert pool.pages_used == 2 and len(cache.pages) == 2 and pool.pages_free == 1


@pytest.mark.parametrize("part", ("ensure", "copy"))
def test_memory_that_is_refused_leaves_a_table_and_its_pool_as_they_were(part, monkeypatch):
    """Also by an error that is no PoolError."""
    pool = KvCachePool(NullMemory())
    one = filled(pool, 20)
    two, made = one.fork(), getattr(pool.memory, part)

    def refusing(*given, **more):
        made(*given, **more)
        if part == "copy" or given[0] == 4:
            raise MemoryError(part)

    with monkeypatch.context() as patched:
        patched.setattr(pool.memory, part, refusing)
        with pytest.raises(MemoryError, match=part):
            two.reserve(70)
    assert (pool.pages_used, two.pages, pool.owners(one.pages[1])) == (2, one.pages, 2)
    write(two, 70, 0)
    assert read(two) == list(range(70)) and read(one) == list(range(20))
    one.release()
    two.release()
    assert pool.pages_used == 0


def test_pages_shared_by_a_fork_are_never_written():
    pool = KvCachePool(NullMemory())
    one = filled(pool, 20)
    two = one.fork()
    one.reserve(20)  # which are there
    assert pool.pages_used == 2 and pool.memory.copied == 0
    write(two, 25, 1000)
    assert pool.memory.copied == 4 and pool.pages_used == 3
    assert read(one) == list(range(20)) and read(two) == list(range(20)) + [
        1000 + p for p in range(20, 25)
    ]
    write(one, 22, 5000)
    assert pool.memory.copied == 4  # its page has one owner again
    one.release()
    two.release()
    assert pool.pages_used == 0


def test_a_fork_at_a_page_boundary_copies_nothing():
    pool = KvCachePool(NullMemory())
    one = filled(pool, 32)
    two = one.fork(16)
    write(two, 40, 9)
    assert pool.memory.copied == 0 and two.pages[0] == one.pages[0] and two.pages[1] != one.pages[1]


def test_truncate_gives_pages_back():
    pool = KvCachePool(NullMemory())
    cache = filled(pool, 50)
    cache.truncate(17)
    assert pool.pages_used == 2 and read(cache) == list(range(17))
    with pytest.raises(PoolError, match="length 18, wanted 0 to 17"):
        cache.truncate(18)
    cache.truncate(0)
    assert pool.pages_used == 0


def test_pages_in_use_are_tokens_over_page_size_and_one():
    pool = KvCachePool(NullMemory(32), page_size=32)
    caches = [filled(pool, n) for n in (1, 31, 32, 33, 100)]
    assert pool.pages_used <= sum(c.length for c in caches) / 32 + len(caches)


def test_shrinking_releases_memory_above_the_highest_owned_page():
    memory = NullMemory()
    pool = KvCachePool(memory)
    low, high = filled(pool, 16), filled(pool, 160)
    high.release()
    pool.shrink_to_fit()
    assert memory.capacity == 1 and read(low) == list(range(16))
    assert read(filled(pool, 40, 3)) == [3 + p for p in range(40)]


@pytest.mark.parametrize("size", (0, 8, 24, -16, 16.0, "16", True, None))
def test_a_page_size_that_is_no_multiple_of_16_raises(size):
    with pytest.raises(PoolError, match="page_size: found .* multiple of 16"):
        KvCachePool(NullMemory(), page_size=size)


@pytest.mark.parametrize("pages", (0, -1, 2.5, "2", True))
def test_a_pool_that_can_hold_nothing_raises(pages):
    with pytest.raises(PoolError, match="max_pages: found"):
        KvCachePool(NullMemory(), max_pages=pages)


class PageMachine(RuleBasedStateMachine):
    """Random appends, forks, truncations and releases against plain lists."""

    def __init__(self):
        super().__init__()
        self.pool = KvCachePool(NullMemory(), max_pages=24)
        self.caches: list[tuple[PagedKvCache, list[int]]] = [(PagedKvCache(self.pool), [])]
        self.value = 0

    @rule(index=st.integers(0, 99), rows=st.integers(1, 70))
    def append(self, index, rows):
        cache, held = self.caches[index % len(self.caches)]
        self.value += 1000
        before = (list(cache.pages), cache.length)
        try:
            write(cache, cache.length + rows, self.value)
        except PoolError:
            assert (list(cache.pages), cache.length) == before
            return
        held.extend(self.value + p for p in range(len(held), len(held) + rows))

    @precondition(lambda self: len(self.caches) < 8)
    @rule(index=st.integers(0, 99), share=st.floats(0, 1))
    def fork(self, index, share):
        cache, held = self.caches[index % len(self.caches)]
        copied, used = self.pool.memory.copied, self.pool.pages_used
        length = int(share * cache.length)
        self.caches.append((cache.fork(length), held[:length]))
        assert (self.pool.memory.copied, self.pool.pages_used) == (copied, used)  # invariant 5

    @rule(index=st.integers(0, 99), share=st.floats(0, 1))
    def truncate(self, index, share):
        cache, held = self.caches[index % len(self.caches)]
        del held[int(share * cache.length) :]
        cache.truncate(int(share * cache.length))

    @precondition(lambda self: len(self.caches) > 1)
    @rule(index=st.integers(0, 99))
    def release(self, index):
        cache, _ = self.caches.pop(index % len(self.caches))
        cache.release()
        assert cache.pages == [] and cache.length == 0

    @invariant()
    def counts_are_the_tables_that_name_a_page(self):
        owners = {}
        for cache, _ in self.caches:
            for page in cache.pages:
                owners[page] = owners.get(page, 0) + 1
        assert {page: self.pool.owners(page) for page in owners} == owners  # invariant 1
        # invariant 6, and no page lost
        assert self.pool.pages_used == len(owners)

    @invariant()
    def tables_name_just_enough_pages_that_hold_what_was_written(self):
        for cache, held in self.caches:
            # invariant 2
            assert len(cache.pages) == -(-cache.length // 16)
            assert list(cache.table) == cache.pages
            # invariants 3 and 4
            assert read(cache) == held


TestPageMachine = PageMachine.TestCase
TestPageMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
