"""Windowed layers give keys back behind the window; what is asked for again is evaluated again."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oxillama
from oxillama import SamplerConfig, SchedulerConfig
from oxillama._core.attention import attend
from oxillama._core.pool import PageMemory
from oxillama.engine.memory import pages as paging
from oxillama.engine.memory.pages import KvCache, KvCachePool, PagedKvCache
from oxillama.engine.memory.prefix import PrefixKvCache
from oxillama.errors import ConfigError, InvalidSlot, NotSupported, PoolError, SnapshotIncompatible
from tests.model import tiny
from tests.snapshot import saved

GREEDY = SamplerConfig.greedy()
LAYERS, WINDOWS = [(1, 32, 32), (1, 32, 32), (2, 32, 32)], (0, 20, 12)


def pool_of(*, slack=0, **limits):
    pool = KvCachePool(PageMemory(LAYERS, windows=WINDOWS), **limits)
    pool.slack = slack
    return pool


def grown(pool, length, *, by=16):
    """A sequence that was written `by` tokens at a time."""
    kv = PagedKvCache(pool)
    while kv.length < length:
        to = min(length, kv.length + by)
        kv.reserve(to)
        kv.commit(to)
    return kv


def attached(pool):
    return {page for page in range(pool.memory.capacity) if pool.memory.attached(page)}


# ---- memory


def test_windows_that_are_no_numbers_are_refused():
    with pytest.raises(ConfigError, match="wanted 3 numbers"):
        PageMemory(LAYERS, windows=(0, 8))
    with pytest.raises(ConfigError, match="wanted 3 numbers"):
        PageMemory(LAYERS, windows=(0, -1, 8))


def test_a_page_without_windowed_layers_is_refused_wherever_they_are_asked_for():
    memory = PageMemory(LAYERS, windows=WINDOWS)
    memory.ensure(2)
    with pytest.raises(PoolError, match="page 1: holds no keys of other layers"):
        memory.export(1, bare=True)
    memory.attach(0, bare=True)
    memory.attach(1, bare=True)
    keys = np.ones((16, 1, 32), np.float32)
    memory.write([0], 0, 0, keys, keys)
    for call in (
        lambda: memory.write([0], 1, 0, keys, keys),
        lambda: memory.read(0, 1),
        lambda: memory.export(0),
        lambda: memory.copy(0, 1),
        lambda: memory.load(0, bytes(memory.page_bytes)),
        lambda: attend(keys, memory, [0], 1, window=20),
    ):
        with pytest.raises(PoolError, match="page 0: holds no keys of windowed layers"):
            call()
    memory.attach(0)
    memory.write([0], 1, 0, keys, keys)
    assert np.array_equal(attend(keys, memory, [0], 1, window=20), keys)
    memory.shed(0)
    assert np.array_equal(memory.read(0, 0)[0], keys) and not memory.attached(0)


def test_a_bare_export_holds_the_other_layers_and_loads_into_any_page():
    memory = PageMemory(LAYERS, windows=WINDOWS)
    memory.ensure(2)
    memory.attach(0)
    memory.attach(1, bare=True)
    rng = np.random.default_rng(0)
    for layer, (heads, *_) in enumerate(LAYERS):
        keys = rng.normal(size=(16, heads, 32)).astype(np.float32)
        memory.write([0], layer, 0, keys, keys)
    bare = memory.export(0, bare=True)
    assert len(bare) == memory.page_bytes - memory.near_bytes
    memory.load(1, bare, bare=True)
    assert memory.export(1, bare=True) == bare and not memory.attached(1)
    assert np.array_equal(memory.read(1, 0)[1], memory.read(0, 0)[1])


# ---- pages


def test_a_sequence_holds_its_window_and_no_more():
    pool = pool_of()
    kv = grown(pool, 200)
    # a row at 192 looks at 173 to 192: pages 10 and later
    assert (kv.shed, len(kv.pages), pool.near_used) == (10, 13, 3)
    assert attached(pool) == set(kv.pages[10:])
    kv.release()
    assert (pool.pages_used, pool.near_used, attached(pool)) == (0, 0, set())


def test_what_lies_before_a_window_given_back_is_gone_and_0_remains():
    pool = pool_of(slack=32)
    kv = grown(pool, 200)
    assert kv.floor == kv.shed * 16 + 19 <= 200 - 32
    twin, early = kv.fork(kv.floor), kv.fork(kv.floor - 1)
    assert (twin.length, early.length, early.pages) == (kv.floor, 0, [])
    with pytest.raises(NotSupported, match=f"position {kv.floor - 1} was given back"):
        kv.rewind(kv.floor - 1)
    with pytest.raises(PoolError, match="windowed layers hold positions 128 to 199"):
        KvCache.of(kv)
    kv.truncate(kv.floor)
    assert kv.length == twin.length
    kv.truncate(5)
    assert (kv.length, kv.pages, kv.shed) == (0, [], 0)
    twin.release()
    assert (pool.pages_used, pool.near_used) == (0, 0)


def test_a_near_part_that_nobody_owns_cannot_be_given_back():
    pool = pool_of()
    page = pool.alloc(bare=True)
    with pytest.raises(InvalidSlot, match=f"page {page}: its near part has no owner"):
        pool.free_near([page])


def test_a_page_whose_memory_is_refused_is_free(monkeypatch):
    pool = pool_of()
    kv, memory = grown(pool, 20), pool.memory

    class Refusing:
        def attach(self, page, *, bare):
            if page == 3:
                raise MemoryError(page)
            memory.attach(page, bare=bare)

        def __getattr__(self, name):
            return getattr(memory, name)

    with monkeypatch.context() as patched:
        patched.setattr(pool, "memory", Refusing())
        with pytest.raises(MemoryError, match="3"):
            kv.reserve(70)
    assert (pool.pages_used, pool.near_used, len(kv.pages)) == (2, 2, 2)
    assert attached(pool) == set(kv.pages)


def test_the_same_bytes_hold_more_sequences():
    whole = KvCachePool(PageMemory(LAYERS), max_pages=60)
    apart = pool_of(max_pages=60)
    for pool, sequences in ((whole, 4), (apart, 10)):
        held = []
        with pytest.raises(PoolError, match="all 60 pages"):
            while True:
                held.append(grown(pool, 240))
        assert len(held) == sequences


def test_memory_of_one_kind_is_given_to_the_other_within_the_limit():
    pool = pool_of(max_pages=40)
    memory, most = pool.memory, 40 * pool.memory.page_bytes
    long, short = grown(pool, 600), []

    def taken():
        whole, near = memory.made
        return whole * pool.bare_bytes + near * pool.near_bytes

    rng = np.random.default_rng(1)
    keys = rng.normal(size=(8, 1, 32)).astype(np.float16).astype(np.float32)
    memory.write(long.pages, 0, 580, keys, keys)
    memory.write(long.pages, 1, 580, keys, keys)
    with pytest.raises(PoolError, match="all 40 pages"):
        while True:  # many windows: of whole memory there is enough for no more than their pages
            short.append(grown(pool, 20))
            assert taken() <= most
    before = memory.made
    for each in short[:-1]:
        each.release()
    assert memory.made == before
    grown(pool, 1000)  # one long text: what was windows is pages now
    assert taken() <= most and memory.made[1] < before[1] and memory.made[0] > before[0]
    for layer in (0, 1):  # what moved has its bytes
        seen = attend(keys, memory, long.pages, layer, first=580, window=1)
        assert np.array_equal(seen, keys)
    pool.shrink_to_fit()
    assert memory.made == (pool.pages_used, pool.near_used)


def test_pages_have_their_bytes_while_others_move_them():
    memory = PageMemory(LAYERS, windows=WINDOWS)
    memory.ensure(40)
    wanted, stop, wrong = {}, threading.Event(), []
    for page in range(40):
        memory.attach(page)
        memory.load(page, bytes([page]) * memory.page_bytes)
    for page in range(20):
        memory.detach(page)
    wanted = {page: bytes([page]) * memory.page_bytes for page in range(20, 40)}

    def read():
        while not stop.is_set():
            wrong.extend(page for page in wanted if memory.export(page) != wanted[page])

    threads = [threading.Thread(target=read) for _ in range(2)]
    for each in threads:
        each.start()
    for at in range(100):
        memory.attach(at % 20)
        memory.attach((at + 7) % 20, bare=at % 2 == 0)
        memory.detach(at % 20)
        memory.compact()
    stop.set()
    for each in threads:
        each.join()
    assert not wrong and memory.made[0] >= 20


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_owners_of_near_parts_are_those_that_look_at_them(data):
    """Invariants 1, 6, 7, 8 and 9 of pages.py, whatever is done."""
    pool = pool_of(slack=data.draw(st.sampled_from([0, 16])), max_pages=40)
    tree = PrefixKvCache(pool, max_memory_bytes=12 * pool.memory.page_bytes, max_entries=4)
    live = [PagedKvCache(pool)]
    texts = {live[0]: []}
    for _ in range(30):
        kv = data.draw(st.sampled_from(live))
        match data.draw(st.sampled_from(["grow", "fork", "cut", "drop", "store", "hit"])):
            case "grow":
                to = kv.length + data.draw(st.integers(1, 40))
                try:
                    kv.reserve(to)
                except PoolError:
                    tree.free_pages(4)
                    continue
                kv.commit(to)
                more = data.draw(st.integers(0, 1))
                texts[kv] = texts[kv] + [more] * (to - len(texts[kv]))
            case "fork":
                twin = kv.fork(data.draw(st.integers(0, kv.length)))
                live.append(twin)
                texts[twin] = texts[kv][: twin.length]
            case "cut":
                kv.truncate(data.draw(st.integers(0, kv.length)))
                texts[kv] = texts[kv][: kv.length]
            case "drop":
                kv.release()
                texts[kv] = []
            case "store":
                tree.insert(texts[kv], kv.shareable_pages(), shed=kv.shed)
            case "hit":
                text = texts[kv] + [0]
                kv.release()
                hit = tree.lookup(text)
                kv.adopt(hit.pages, hit.length, shed=hit.shed)
                texts[kv] = text[: hit.length]
        near = {}
        for each in live:
            first = max(0, each.length - pool.window + 1) // 16
            assert each.shed <= first or not each.pages
            assert all(pool.memory.attached(page) for page in each.pages[each.shed :])
            for page in each.pages[each.shed :]:
                near[page] = near.get(page, 0) + 1
        for page, count in tree.near_shares.items():
            near[page] = near.get(page, 0) + count
        assert attached(pool) == set(near) and pool.near_used == len(near)
        assert all(pool.near_owners(page) == count for page, count in near.items())
        assert tree.memory_bytes <= tree.max_memory_bytes
        assert pool.pages_free >= 0
        assert pool.whole_pages(*pool.memory.made) <= 40
    for kv in live:
        kv.release()
    tree.clear()
    assert (pool.pages_used, pool.near_used) == (0, 0)


# ---- prefixes


def test_a_prefix_is_found_where_its_window_is_there():
    pool = pool_of()
    tree, text = PrefixKvCache(pool), list(range(200))
    kv = grown(pool, 200)
    tree.insert(text, kv.pages, shed=kv.shed)
    assert tree.match([*text, 0]) == 200
    # 180 looks at 161 and later, page 10 on; 170 at page 9, which nobody had any more
    assert tree.match([*text[:180], 999]) == 180
    assert tree.match([*text[:178], 999]) == 0
    again = grown(pool, 170, by=170)
    assert tree.insert(text[:170], again.pages, shed=again.shed) == 170
    assert tree.match([*text[:178], 999]) == 178
    assert tree.match([*text[:30], 999]) == 30
    kv.release()
    again.release()
    tree.clear()
    assert (pool.pages_used, pool.near_used) == (0, 0)


@pytest.mark.parametrize("for_pages", (True, False))
def test_a_full_cache_gives_up_what_lies_between_ends_before_it_gives_up_ends(for_pages):
    """Whether others need the pages or it stores more than its own limit."""
    pool = pool_of()
    bare, near = pool.bare_bytes, pool.near_bytes
    tree = PrefixKvCache(pool, max_memory_bytes=40 * (bare + near))
    texts = [[at] * 240 for at in range(2 if for_pages else 3)]
    for text in texts:  # chunk by chunk, as prompts are stored
        kv = PagedKvCache(pool)
        for to in range(48, 241, 48):
            kv.reserve(to)
            kv.commit(to)
            tree.insert(text[:to], kv.shareable_pages(), shed=kv.shed)
        kv.release()
    if for_pages:
        assert tree.memory_bytes == 30 * (bare + near)
        tree.free_pages(8)
    assert tree.evictions == 0 and tree.memory_bytes <= tree.max_memory_bytes
    assert [tree.match([*text, 9]) for text in texts] == [240] * len(texts)
    assert tree.pages_used == 15 * len(texts)
    assert tree.match([*texts[0][:100], 9]) == 0 and tree.match([*texts[1][:100], 9]) == 100
    tree.clear()


# ---- engines


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    made = tmp_path_factory.mktemp("windows") / "gemma3.gguf"
    tiny.write(made, "gemma3")
    return made


@pytest.fixture(params=[0, 64])
def slack(request, monkeypatch):
    monkeypatch.setattr(paging, "SLACK", request.param)
    return request.param


def ids_of(engine, count, step=7):
    return [(step * i + 3) % engine.config.vocab_size for i in range(count)]


def test_long_texts_have_the_bits_of_one_step(path, slack):
    with oxillama.load(path, prefix_cache=False) as one:
        ids = ids_of(one, 230)
        whole = one.logits(ids)
    for chunk in (1, 7, 64):
        with oxillama.load(path, prefix_cache=False, prefill_chunk_size=chunk) as engine:
            pool, session = engine._loaded.core.pool, engine.session()
            assert np.array_equal(engine.prefill(ids[:200], session=session), whole[199])
            assert pool.near_used < (200 - chunk) // 16 and session.kv.shed
            for length in (195, 150, 20):
                session.truncate(length)
                row = engine.prefill(ids[length : length + 30], session=session)
                assert np.array_equal(row, whole[length + 29])


def test_a_hit_and_a_fork_have_the_bits_of_an_evaluation(path, slack):
    with oxillama.load(path, prefill_chunk_size=16) as engine:
        ids = ids_of(engine, 200)
        session = engine.session()
        engine.prefill(ids, session=session)
        for length in (199, 140, 33):
            fork = session.fork()
            fork.truncate(length)
            wanted = engine.logits([*ids[:length], 1, 2])[-1]
            assert np.array_equal(engine.prefill([1, 2], session=fork), wanted)
            fork.close()
            done = engine.submit([*ids[:length], 1, 2, 3], max_tokens=1).result(60)
            # of a session that goes on whole pages are stored
            assert done.usage.cached_tokens >= min(length, 192)
        session.close()
        engine.reset()
        engine._loaded.core.clear_cache()
        pool = engine._loaded.core.pool
        assert (pool.pages_used, pool.near_used) == (0, 0)


def test_a_snapshot_holds_windows_alone_and_goes_on_with_the_same_tokens(path, slack, tmp_path):
    with oxillama.load(path, prefill_chunk_size=16, prefix_cache=False) as engine:
        memory, session = engine._loaded.core.memory, engine.session()
        engine.prefill(ids_of(engine, 200), session=session)
        data = session.snapshot()
        assert session.kv.shed and len(data) < 13 * memory.page_bytes
        session.snapshot_to_file(tmp_path / "one.snap")
        wanted = engine.generate(None, session=session, max_tokens=12, sampler=GREEDY).tokens
        engine.reset()
        session.close()
        pool = engine._loaded.core.pool
        assert (pool.pages_used, pool.near_used) == (0, 0)
    with oxillama.load(path) as other:
        for source in (data, tmp_path / "one.snap"):
            again = other.restore(source)
            assert again.kv.shed and again.kv.length == 200
            found = other.generate(None, session=again, max_tokens=12, sampler=GREEDY).tokens
            assert found == wanted
            again.close()
        other._loaded.core.clear_cache()
        assert other._loaded.core.pool.near_used == 0


def test_a_snapshot_that_lacks_windows_that_the_next_token_looks_at_is_refused(path, slack):
    with oxillama.load(path, prefill_chunk_size=16, prefix_cache=False) as engine:
        pool, session = engine._loaded.core.pool, engine.session()
        engine.prefill(ids_of(engine, 200), session=session)
        whole = engine._loaded.core.memory.page_bytes

        def less(facts, sections):
            """One page more without its windowed layers."""
            facts["kv"]["shed"] += 1
            sections["kv"] = sections["kv"][whole:]
            sections["kv_bare"] += bytes(pool.bare_bytes)

        data, shed = session.snapshot(), session.kv.shed
        engine.restore(saved.remade(data, lambda facts, sections: None)).close()
        last = (200 - pool.window + 1) // pool.page_size  # pages that may lack them
        while shed <= last:
            data, shed = saved.remade(data, less), shed + 1
        before = (pool.pages_used, pool.near_used)
        told = f"kv shed: found {shed} pages without windowed layers, of 200 tokens with a window"
        with pytest.raises(SnapshotIncompatible, match=told):
            engine.restore(data)
        with pytest.raises(SnapshotIncompatible, match="kv shed: found 14, wanted 0 to 13"):
            engine.restore(saved.remade(data, saved.at("kv", "shed", value=14)))
        assert (pool.pages_used, pool.near_used) == before


def test_a_session_cut_back_to_its_last_window_is_saved_without_keys(path, slack):
    """Its last token is evaluated again, and what that looks at may be gone."""
    with oxillama.load(path, prefill_chunk_size=5, prefix_cache=False) as engine:
        ids = ids_of(engine, 92)
        wanted = engine.logits(ids)
        for length in (70, 71, 72):
            session = engine.session()
            engine.prefill(ids[:92], session=session)
            session.truncate(length)
            again = engine.restore(session.snapshot())
            row = engine.prefill(ids[length:], session=again)
            assert np.array_equal(row, wanted[-1])


def test_a_snapshot_without_windows_is_refused_where_none_lie_apart(path):
    with oxillama.load(path, prefill_chunk_size=16) as engine:
        session = engine.session()
        engine.prefill(ids_of(engine, 200), session=session)
        data = session.snapshot()
    with oxillama.load(path) as other:
        other._loaded.core.memory = PageMemory(other._loaded.core.memory.kv_layers)
        with pytest.raises(SnapshotIncompatible, match="kv windows: the snapshot has"):
            other.restore(data)


def test_stored_prefixes_are_saved_with_the_windows_they_have(path, slack, tmp_path):
    with oxillama.load(path, prefill_chunk_size=16) as engine:
        ids, tree = ids_of(engine, 200), engine._loaded.core.prefix
        engine.prefill(ids, session=engine.session())
        whole = engine.logits(ids)
        tree.free_pages(3)
        assert len(tree.near_shares) < tree.pages_used
        engine.save_prefixes(tmp_path / "stored")
    with oxillama.load(path) as other:
        assert other.load_prefixes(tmp_path / "stored", trust=True) == 1
        row = other.prefill(ids, session=other.session())
        assert np.array_equal(row, whole[-1])
        assert other.metrics().kv_tokens_saved_total == 192  # whole pages
        other.reset()
        other._loaded.core.clear_cache()
        assert (other._loaded.core.pool.pages_used, other._loaded.core.pool.near_used) == (0, 0)


def test_requests_that_compete_for_few_pages_have_their_own_tokens(path, monkeypatch):
    monkeypatch.setattr(paging, "SLACK", 0)
    with oxillama.load(path, prefix_cache=False) as one:
        ids = ids_of(one, 200)
        wanted = one.generate(ids, max_tokens=20, sampler=GREEDY).tokens
    steps = SchedulerConfig(max_batch_tokens=32, max_batch_sequences=4)
    with oxillama.load(
        path, max_pages=16, prefix_cache=False, scheduler=steps, prefill_chunk_size=16
    ) as engine:
        jobs = [engine.submit(ids, max_tokens=20, sampler=GREEDY) for _ in range(4)]
        assert [job.result(60).tokens for job in jobs] == [wanted] * 4
        assert engine.metrics().pages_leaked == 0
