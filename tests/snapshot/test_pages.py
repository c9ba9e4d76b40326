"""Pages in snapshots: of every type and size, saved and filled while others run, refused where
there is no room.
"""

import threading

import numpy as np
import pytest

import oxillama
from oxillama import EngineSnapshot
from oxillama._core.kernels import PANEL_LAYOUT
from oxillama.errors import EngineError, PoolError, SnapshotIncompatible
from tests.snapshot.saved import PROMPT, SEEDED, at, parts, remade, state_of


def test_a_pool_without_room_gives_a_session_its_pages_when_it_goes_on(small):
    path, engine, session, data = small
    with oxillama.load(path, max_pages=3, num_threads=1) as tight:
        held = tight.session()
        tight.prefill(list(range(40)), session=held)
        # a request that runs cannot lend its pages
        held.busy = True
        later = tight.restore(data)
        assert later.tokens == session.tokens and not later.kv.pages and len(held.kv.pages) == 3
        held.busy = False
        wanted = engine.generate(None, session=session.fork(), max_tokens=6).tokens
        assert tight.generate(None, session=later, max_tokens=6).tokens == wanted
        later.close()
        tight.reset()
        held.truncate(0)
        tight.prefill(list(range(40)), session=held)
        before = state_of(tight)
        with pytest.raises(SnapshotIncompatible, match="section kv: its BLAKE3 hash"):
            # who would give a page up for it keeps it until it is verified
            tight.restore(data[:-1] + bytes([data[-1] ^ 1]))
        assert state_of(tight) == before and len(held.kv.pages) == 3
        # an idle one can, and goes on with the same bits
        again = tight.restore(data)
        assert parts(again.snapshot())[1] == parts(data)[1] and not held.kv.pages
        assert np.array_equal(tight.prefill([7], session=held), engine.logits([*range(40), 7])[-1])


def test_a_snapshot_that_needs_more_pages_than_there_can_be_is_refused(small):
    path, engine, _, _ = small
    whole = engine.session()
    engine.prefill(list(range(40)), session=whole)
    with oxillama.load(path, max_pages=2, num_threads=1) as tight:
        before = state_of(tight)
        with pytest.raises(PoolError, match="40 tokens need 3 pages, max_pages is 2"):
            tight.restore(whole.snapshot())
        assert state_of(tight) == before
    whole.close()


def test_other_sessions_run_on_while_one_is_saved_and_restored(engine):
    wanted = engine.generate(PROMPT, max_tokens=120, sampler=SEEDED).tokens
    engine.generate("A dragon", max_tokens=40, sampler=SEEDED)
    data = engine.snapshot()
    rest = engine.generate(None, max_tokens=20).tokens
    running = [
        engine.submit(PROMPT, max_tokens=120, sampler=SEEDED, cache_prompt=False) for _ in range(3)
    ]
    rounds = 0
    while not all(request.done for request in running) or rounds < 3:
        session = engine.restore(data)
        assert session.snapshot() == data
        rounds += 1
        if rounds == 3:
            assert engine.generate(None, session=session, max_tokens=20).tokens == rest
        session.close()
    assert [request.result().tokens for request in running] == [wanted] * 3
    assert engine.metrics().pages_leaked == 0


@pytest.mark.parametrize("page_size", [16, 32])
@pytest.mark.parametrize("kv_type", ["f32", "q8_0", "q4_0"])
def test_pages_of_every_type_and_size_go_along(kv_type, page_size):
    with oxillama.load(kv_type=kv_type, page_size=page_size, num_threads=1) as engine:
        whole = engine.generate(PROMPT, max_tokens=30, sampler=SEEDED).tokens
        for count in (0, 11, 12, 27):
            engine.generate(PROMPT, max_tokens=count, sampler=SEEDED)
            data = engine.snapshot()
            session = engine.restore(data)
            assert (
                session.snapshot() == data
                and EngineSnapshot.inspect(data).facts["kv"]["type"] == kv_type
            )
            assert (
                engine.generate(None, session=session, max_tokens=30 - count).tokens
                == whole[count:]
            )
            session.close()


def plain(engine, **options):
    return engine.generate(PROMPT, sampler=SEEDED, **options)


def streamed(engine, **options):
    return list(engine.stream(PROMPT, sampler=SEEDED, **options))


@pytest.mark.parametrize("run", [plain, streamed])
@pytest.mark.parametrize(
    "config, options",
    [
        ({"prefix_cache": False}, {}),
        ({}, {"cache_prompt": False}),
        ({"prefix_max_bytes": 1 << 14}, {}),
    ],
    ids=["no cache", "not for this prompt", "too small a cache"],
)
def test_what_nobody_else_stores_the_last_session_keeps_until_the_next(config, options, run):
    with oxillama.load(num_threads=1, **config) as engine:
        run(engine, max_tokens=20, **options)
        whole, pages = engine.snapshot(), engine.metrics().pages_used
        assert (
            EngineSnapshot.inspect(whole).facts["kv"]["length"]
            == EngineSnapshot.inspect(whole).facts["tokens"] - 1
        )
        run(engine, max_tokens=9, **options)
        data = engine.snapshot()
        assert 0 < engine.metrics().pages_used <= pages and engine.metrics().pages_leaked == 0
        session = engine.session()
        engine.generate(PROMPT, session=session, max_tokens=9, sampler=SEEDED, **options)
        # what a session of one's own would keep
        assert session.snapshot() == data
        session = engine.restore(data)
        engine.generate(None, session=session, max_tokens=11)
        assert session.snapshot() == whole
        running = [
            threading.Thread(target=run, args=(engine,), kwargs={"max_tokens": 30, **options})
            for _ in range(3)
        ]
        for each in running:
            each.start()
        for each in running:
            each.join()
        run(engine, max_tokens=1, **options)
        assert engine.metrics().pages_leaked == 0 and len(engine._loaded.default_session._kept) == 1


@pytest.mark.parametrize("kv_type", ["f16", "f32", "q8_0", "q4_0"])
def test_pages_of_coded_types_name_the_layout_of_their_panels_and_no_other_is_taken(kv_type):
    """Coded keys lie in panels, whose bytes may change; floats and halves lie as they always did,
    and their files keep their bytes.
    """
    with oxillama.load(kv_type=kv_type, num_threads=1) as engine:
        engine.generate(PROMPT, max_tokens=5, sampler=SEEDED)
        data, before = engine.snapshot(), state_of(engine)
        kv = parts(data)[0]["kv"]
        if kv_type in ("f16", "f32"):
            assert kv.keys() == {"length", "type", "page_size", "layers", "page_bytes"}
            with pytest.raises(
                SnapshotIncompatible,
                match=f"kv layout: the snapshot has {PANEL_LAYOUT}, this engine None",
            ):
                engine.restore(remade(data, at("kv", "layout", value=PANEL_LAYOUT)))
            return
        assert kv["layout"] == PANEL_LAYOUT
        for found in (PANEL_LAYOUT + 1, PANEL_LAYOUT - 1, float(PANEL_LAYOUT)):
            with pytest.raises(
                SnapshotIncompatible,
                match=f"kv layout: the snapshot has {found}, this engine {PANEL_LAYOUT}",
            ):
                engine.restore(remade(data, at("kv", "layout", value=found)))
        with pytest.raises(SnapshotIncompatible, match="kv layout: the snapshot has None"):
            engine.restore(remade(data, lambda facts, _: facts["kv"].pop("layout")))
        assert state_of(engine) == before


def test_many_threads_save_and_restore_at_once(engine):
    engine.generate(PROMPT, max_tokens=20, sampler=SEEDED)
    data, same = engine.snapshot(), []

    def work():
        for _ in range(10):
            session = engine.restore(data)
            same.append(session.snapshot() == data)
            session.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same == [True] * 40 and engine.metrics().pages_leaked == 0


def test_a_running_session_is_not_saved(engine):
    session = engine.session()
    request = engine.submit(PROMPT, session=session, max_tokens=300, sampler=SEEDED)
    with pytest.raises(EngineError, match="a request is running"):
        session.snapshot()
    request.cancel()
    assert len(session.snapshot()) > 1000
    session.close()
