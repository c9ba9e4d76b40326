"""The prefix tree's numbered invariants, by example and against a list of everything stored."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.engine.config import EngineConfig
from oxillama.engine.memory.pages import KvCachePool, PagedKvCache
from oxillama.engine.memory.prefix import PrefixKvCache
from oxillama.errors import ConfigError
from tests.engine.null import NullMemory, filled, read


def tree(**limits):
    return PrefixKvCache(KvCachePool(NullMemory()), **limits)


def store(cache, tokens, **more):
    """Evaluate tokens into pages (each position holds its token) and store them."""
    kv = PagedKvCache(cache.pool)
    kv.reserve(len(tokens))
    for position, token in enumerate(tokens):
        cache.pool.memory.pages[kv.pages[position // 16]][position % 16] = token
    kv.commit(len(tokens))
    stored = cache.insert(tokens, kv.pages, **more)
    kv.release()
    return stored


def taken(cache, hit):
    """The tokens that a hit's pages hold; gives its shares back."""
    kv = PagedKvCache(cache.pool)
    kv.adopt(hit.pages, hit.length)
    out = read(kv)
    kv.release()
    return out


def test_the_defaults_are_the_documented_ones():
    cache, config = tree(), EngineConfig()
    assert (cache.min_prefix_len, cache.max_entries, cache.max_pages) == (
        4,
        256,
        (512 << 20) // cache.pool.memory.page_bytes,
    )
    assert config.prefix_cache and config.prefix() == dict(
        min_prefix_len=4, max_entries=256, max_memory_bytes=512 << 20
    )


@pytest.mark.parametrize("limits", (dict(max_entries=2), dict(max_memory_bytes=7 * 1024)))
def test_eviction_comes_before_any_share_is_taken(limits, monkeypatch):
    cache, most = tree(**limits), 0
    hold = PrefixKvCache._hold

    def held(self, pages):
        nonlocal most
        hold(self, pages)
        most = max(most, self.pages_used)
        # the new leaf is not yet among them
        assert self.entries < cache.max_entries

    monkeypatch.setattr(PrefixKvCache, "_hold", held)
    for value in range(6):
        # 4 pages each
        store(cache, [value] * 50)
    assert most <= min(cache.max_pages, 8) and cache.evictions >= 4


def test_hits_are_token_granular_and_leave_the_last_token():
    cache = tree()
    tokens = list(range(100, 150))
    store(cache, tokens)
    # invariant 4
    assert taken(cache, cache.lookup(tokens)) == tokens[:49]
    assert taken(cache, cache.lookup([*tokens, 1, 2])) == tokens
    assert taken(cache, cache.lookup([*tokens[:21], 7, 7])) == tokens[:21]
    assert cache.lookup([1, 2, 3, 4, 5]).length == 0 and cache.lookup(tokens[:4]).length == 0
    assert (cache.hits, cache.misses, cache.tokens_saved) == (3, 2, 49 + 50 + 21)


def test_branches_inside_a_page_keep_their_own_tokens():
    cache = tree()
    base = list(range(20))
    for end in ([50] * 20, [60] * 3, [50] * 10 + [61] * 30):
        store(cache, base + end)
    assert taken(cache, cache.lookup([*base, *[50] * 20, 1])) == [*base, *[50] * 20]
    assert taken(cache, cache.lookup([*base, 60, 60, 60, 1])) == [*base, 60, 60, 60]
    assert taken(cache, cache.lookup([*base, *[50] * 10, *[61] * 30, 1])) == [
        *base,
        *[50] * 10,
        *[61] * 30,
    ]
    assert cache.entries == 3


def test_short_prefixes_are_no_hits():
    cache = tree(min_prefix_len=10)
    store(cache, list(range(30)))
    assert cache.lookup([*range(9), 99]).length == 0 and cache.lookup([*range(10), 99]).length == 10
    assert store(cache, [5] * 9) == 0


def test_keys_separate():
    cache = tree()
    store(cache, list(range(30)), key="a")
    # invariant 5
    assert cache.lookup(list(range(30)), key="b").length == 0
    assert cache.lookup(list(range(30)), key="a").length == 29


def test_the_least_recently_used_leaf_goes_before_anything_is_taken():
    cache = tree(max_entries=2)
    store(cache, [1] * 20)
    store(cache, [2] * 20)
    # one is the younger now (a share stays out)
    cache.pool.free(cache.lookup([1] * 20).pages[0])
    store(cache, [3] * 20)
    assert (
        cache.match([2] * 20) == 0 and cache.match([1] * 20) == 19 and cache.match([3] * 20) == 19
    )
    assert cache.entries == 2 and cache.evictions == 1


def test_memory_is_bounded():
    cache = tree(max_memory_bytes=5 * 1024)
    for value in range(10):
        store(cache, [value] * 33)
        # invariant 3
        assert cache.memory_bytes <= 5 * 1024
    # more than all of it
    assert store(cache, [99] * 100) == 0
    assert cache.pool.pages_used == cache.pages_used


def test_nothing_is_stored_without_entries():
    cache = tree(max_entries=0)
    assert store(cache, [1] * 40) == 0 and cache.pool.pages_used == 0


def test_freeing_pages_counts_what_really_went():
    cache = tree()
    store(cache, [1] * 32)
    held = cache.lookup([1] * 33)
    store(cache, [2] * 64)
    assert cache.free_pages(4) == 4 and cache.pool.pages_used == 2
    assert taken(cache, held) == [1] * 32 and cache.pool.pages_used == cache.pages_used


def test_recurrent_state_counts_up_to_its_checkpoints():
    cache = tree(stateful=True)
    tokens = list(range(64))
    store(cache, tokens, checkpoints={16: "s16", 48: "s48"})
    hit = cache.lookup(tokens)
    assert (hit.length, hit.checkpoint) == (48, "s48")
    assert taken(cache, hit) == tokens[:48]
    # a split above 48 leaves 16 with the upper part
    store(cache, [*tokens[:30], *[9] * 10])
    hit = cache.lookup([*tokens[:30], *[9] * 10])
    assert (hit.length, hit.checkpoint) == (16, "s16")
    assert taken(cache, hit) == tokens[:16]


@pytest.mark.parametrize(
    ("name", "value"), (("min_prefix_len", 0), ("max_entries", -1), ("max_memory_bytes", 1.5))
)
def test_impossible_limits_raise(name, value):
    with pytest.raises(ConfigError, match=name):
        tree(**{name: value})


def children_differ(cache):
    """Invariants 1 and 2, all over the tree."""
    shares = {}
    nodes = list(cache._roots.values())
    while nodes:
        node = nodes.pop()
        assert [child.tokens[0] for child in node.children.values()] == list(node.children)
        for page in node.pages:
            shares[page] = shares.get(page, 0) + 1
        end = node.start + len(node.tokens)
        assert len(node.pages) == (-(-end // 16) - node.start // 16 if node.tokens else 0)
        nodes.extend(node.children.values())
    assert shares == cache._shares


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 2), st.integers(0, 40)),
        max_size=14,
    ),
    st.integers(1, 6),
    st.integers(3, 30),
)
def test_any_history_finds_true_prefixes_within_the_limits(history, entries, pages):
    cache = tree(max_entries=entries, max_memory_bytes=pages * 1024, min_prefix_len=1)
    for one, first, two, second in history:
        tokens = [one] * first + [two] * second
        best = cache.match(tokens) if tokens else 0
        if tokens:
            hit = cache.lookup(tokens)
            assert hit.length == best < len(tokens)
            assert taken(cache, hit) == tokens[: hit.length]
            stored = store(cache, tokens)
            assert stored in (0, len(tokens)) or stored < len(tokens)
            if stored == len(tokens):
                assert cache.match([*tokens, 9]) == len(tokens)
        children_differ(cache)
        assert cache.entries <= entries and cache.pages_used <= pages
        assert cache.pool.pages_used == cache.pages_used
    cache.clear()
    assert cache.pool.pages_used == 0 and cache.entries == 0


def test_a_stored_sequence_outlives_its_session():
    pool = KvCachePool(NullMemory())
    cache = PrefixKvCache(pool)
    kv = filled(pool, 40, 7)
    cache.insert([7 + p for p in range(40)], kv.pages)
    kv.release()
    assert pool.pages_used == 3
    assert taken(cache, cache.lookup([7 + p for p in range(41)])) == [7 + p for p in range(40)]
