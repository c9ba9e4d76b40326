"""Sessions as bytes: equal states make equal bytes, what does not fit is refused by name, and a refusal changes nothing."""
import errno
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

import oxillama
from oxillama import EngineSnapshot, InferenceEngine, SamplerConfig
from oxillama._core.kernels import PANEL_LAYOUT
from oxillama.engine import durable
from oxillama.engine.envelope import Envelope, dump_facts, seal
from oxillama.engine.session import Session
from oxillama.engine.snapshot import KIND
from oxillama.errors import ConfigError, EngineError, ModelFingerprintMismatch, PoolError, SnapshotIncompatible
from tests.engine.null import core as null_core
from tests.engine.test_durable import Failing
from tests.model import tiny

SEEDED = SamplerConfig(temperature=1.0, seed=5)
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def engine():
    with oxillama.load(num_threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """(path of a tiny model without a vocabulary, an engine over it, a session that has drawn some tokens, its snapshot)."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    others = {name: None for name in tiny.shapes("llama") if name.startswith(("blk.1.", "blk.2."))}
    tiny.write(path, "llama", keys={"llama.block_count": 1}, tensors=others)
    with oxillama.load(path, num_threads=1) as engine:
        session = engine.session()
        engine.generate([1, 2, 3], session=session, max_tokens=3, sampler=SEEDED)
        yield path, engine, session, session.snapshot()


def parts(data) -> tuple[dict, dict]:
    """(facts, sections) of a snapshot."""
    with Envelope.open(KIND, data) as saved:
        found = {name: bytes(saved.read(name, at_most=1 << 30)) for name in saved.sections}
    return json.loads(found.pop("facts")), found


def remade(data, change) -> bytes:
    """The snapshot with its facts and sections changed by a function, under hashes that fit."""
    facts, sections = parts(data)
    change(facts, sections)
    return b"".join(seal(KIND, {"facts": dump_facts(facts), **sections}))


def at(*path, value):
    """A change of one fact."""
    def change(facts, sections):
        for name in path[:-1]:
            facts = facts[name]
        facts[path[-1]] = value
    return change


# ---- equal states, equal bytes -------------------------------------------------------------------------------------------------------


def test_two_snapshots_of_one_state_are_equal_bytes_and_so_is_one_of_what_was_restored(engine):
    engine.generate(PROMPT, max_tokens=21, sampler=SEEDED)
    data = engine.snapshot()
    assert engine.snapshot() == data                               # invariant 2
    session = engine.restore(data)
    assert session.snapshot() == data
    session.close()
    with InferenceEngine.resume(data, num_threads=2) as other:
        assert other.snapshot() == data and other.num_threads == 2


def test_earlier_owners_of_a_page_do_not_show(engine):
    """The last page's empty part is zero, whoever wrote there before."""
    engine.generate(PROMPT, max_tokens=5, sampler=SEEDED)
    data = engine.snapshot()
    with oxillama.load(num_threads=1, prefix_cache=False) as other:
        mine = other.session()
        for _ in range(2):                                         # the second time in pages that were full
            other.generate(list(range(40, 100)), session=mine, max_tokens=1, sampler=SEEDED)
            mine.truncate(0)
            other.generate(PROMPT, session=mine, max_tokens=5, sampler=SEEDED)
            assert parts(mine.snapshot())[1]["kv"] == parts(data)[1]["kv"]
            mine.truncate(0)


def test_pages_in_use_are_all_that_is_saved(small):
    path, engine, session, data = small
    facts, sections = parts(data)
    memory = engine._loaded.core.memory
    assert len(sections["kv"]) == memory.page_bytes and facts["kv"]["length"] == 5 and len(data) < 1.02 * memory.page_bytes + 4096
    kv = sections["kv"]
    assert kv == engine._loaded.core.snapshots._shared_pages(session).read().tobytes()
    k = np.frombuffer(kv[:2 * 32 * 16 * 2], np.float16).reshape(2, 32, 16)
    assert k[:, :, :5].any() and not k[:, :, 5:].any()


# ---- the whole state -----------------------------------------------------------------------------------------------------------------


def test_every_field_of_a_session_is_known_to_be_saved_or_to_be_none_of_a_state():
    saved = {"adapters", "at_start", "grammar", "kv", "pending", "sampler", "start", "stops", "text", "tokens"}
    assert set(Session.__slots__) == saved | {"__weakref__", "owner", "busy"}


def test_a_session_that_has_not_drawn_goes_on_from_its_pending_logits(engine):
    engine.reset()
    wanted = engine.prefill(PROMPT)
    data = engine.snapshot()
    with InferenceEngine.resume(data) as other:
        assert np.array_equal(other._loaded.live.recent.pending, wanted)
        assert other.generate(None, max_tokens=6, sampler=SEEDED).tokens == engine.generate(None, max_tokens=6, sampler=SEEDED).tokens
        assert other.kv_cache_seq_len() == engine.kv_cache_seq_len()
        ids = engine.tokenize("and", add_special=False)
        assert np.array_equal(other.prefill(ids), engine.prefill(ids))


def test_an_empty_session_is_one_too(engine):
    session = engine.session()
    again = engine.restore(session.snapshot())
    assert len(again) == 0 and again.snapshot() == session.snapshot()
    again.close()
    session.close()


def test_a_seed_drawn_from_the_system_is_part_of_the_state(engine):
    done = engine.generate(PROMPT, max_tokens=4)
    data = engine.snapshot()
    rest = engine.generate(None, max_tokens=8)
    with InferenceEngine.resume(data) as other:
        found = other.generate(None, max_tokens=8)
    assert (found.tokens, found.text) == (rest.tokens, rest.text) and found.seed == done.seed == EngineSnapshot.inspect(data).facts["sampler"]["seed"]


def test_the_stop_buffer_and_an_unfinished_character_go_along(cases):
    """A stop string that ends after the snapshot is still one; a character whose bytes straddle it comes out whole."""
    with oxillama.load(cases / "arch" / "llama" / "q8_0.gguf") as engine:
        words = engine.tokenizer
        byte = {words.token_bytes(token): token for token in range(words.vocab_size) if len(words.token_bytes(token)) == 1}
        text = "ab\u4e16cdef"
        ids = [byte[bytes([each])] for each in text.encode()]

        def forced(tokens, row):
            row[:] = -1e9
            row[ids[len(tokens) - 2]] = 0.0
        options = dict(sampler=SamplerConfig.greedy(seed=1), stop=["cdx", "cde"], processors=[forced])
        whole = engine.generate(words.encode("x", add_special=False)[:1] + [byte[b"x"]], max_tokens=9, **options)
        assert whole.text == "ab\u4e16" and whole.finish_reason == "stop"
        for count in range(1, len(whole.tokens)):
            shown = engine.generate(words.encode("x", add_special=False)[:1] + [byte[b"x"]], max_tokens=count, **options).text
            data = engine.snapshot()
            rest = engine.generate(None, max_tokens=9)
            assert rest.finish_reason == "stop" and rest.tokens == whole.tokens[count:] and (shown + rest.text)[:3] == whole.text
            with InferenceEngine.resume(data, cases / "arch" / "llama" / "q8_0.gguf", processors=[forced]) as other:
                found = other.generate(None, max_tokens=9)
                assert (found.tokens, found.text, found.finish_reason) == (rest.tokens, rest.text, "stop")


def test_the_first_text_loses_its_space_once_however_often_it_is_stopped(engine):
    whole = engine.generate([1], max_tokens=6, sampler=SEEDED)
    for count in range(6):
        begun = engine.generate([1], max_tokens=count, sampler=SEEDED)
        with InferenceEngine.resume(engine.snapshot()) as other:
            assert begun.text + other.generate(None, max_tokens=6 - count).text == whole.text


def test_reports_of_logprobs_go_on(engine):
    options = dict(sampler=SEEDED, logprobs=3)
    whole = engine.generate(PROMPT, max_tokens=7, **options)
    engine.generate(PROMPT, max_tokens=3, **options)
    with InferenceEngine.resume(engine.snapshot()) as other:
        assert other.generate(None, max_tokens=4).logprobs == whole.logprobs[3:]


def test_functions_must_be_given_again(engine):
    def nothing(tokens, row):
        return None
    engine.generate(PROMPT, max_tokens=3, sampler=SEEDED, processors=[nothing])
    data = engine.snapshot()
    with pytest.raises(SnapshotIncompatible, match="processors: the session had 1, restore was given 0; functions cannot be saved"):
        engine.restore(data)
    engine.restore(data, processors=[nothing]).close()
    plain = engine.session()
    with pytest.raises(SnapshotIncompatible, match="processors: the session had no sampler, restore was given 1"):
        engine.restore(plain.snapshot(), processors=[nothing])
    plain.close()


def test_a_constraint_on_tool_calls_goes_along(engine):
    tool = {"name": "look", "description": "", "parameters": {"type": "object", "properties": {"at": {"enum": ["sky", "sea"]}}, "required": ["at"]}}
    constraint = oxillama.TriggeredGrammar("hermes", [tool])
    opening = engine.tokenize("<tool_call>", add_special=False, parse_special=False)
    options = dict(sampler=SEEDED, grammar=constraint)

    def push(tokens, row):
        if len(tokens) - 1 < len(opening):
            row[:] = -1e9
            row[opening[len(tokens) - 1]] = 0.0
    whole = engine.generate([1], max_tokens=24, processors=[push], **options)
    assert "<tool_call>" in whole.text
    for count in (1, len(opening), len(opening) + 1, 18):
        engine.generate([1], max_tokens=count, processors=[push], **options)
        with InferenceEngine.resume(engine.snapshot(), processors=[push]) as other:
            assert other.generate(None, max_tokens=24 - count).tokens == whole.tokens[count:]


def test_what_cannot_be_saved_is_refused_by_name(small):
    path, engine, session, _ = small
    other = engine._loaded.core.keep(engine._loaded.core.new_session([1, 2], adapters=("style", 0.5)))
    with pytest.raises(SnapshotIncompatible, match="adapters: found 2, a session with adapters cannot be saved"):
        other.snapshot()
    other.close()
    other = session.fork()
    other.grammar = object()
    with pytest.raises(SnapshotIncompatible, match="constraint: a object cannot be saved"):
        other.snapshot()
    other.close()
    with pytest.raises(ConfigError, match="compress: found 'gzip'"):
        session.snapshot(compress="gzip")
    bare = null_core()
    with pytest.raises(SnapshotIncompatible, match="made without a model file"):
        bare.new_session([1]).snapshot()
    bare.close()


def test_a_stream_that_was_left_early_can_be_saved_at_once(engine):
    for piece in engine.stream(PROMPT, max_tokens=200, sampler=SEEDED):
        if len(piece.text):
            break
    data = engine.snapshot()
    begun = parts(data)[0]["tokens"]
    assert engine.generate(None, max_tokens=5).tokens == engine.generate(PROMPT, max_tokens=200, sampler=SEEDED).tokens[begun - 5:begun]


# ---- refusals change nothing ---------------------------------------------------------------------------------------------------------


def state_of(engine) -> tuple:
    core = engine._loaded.core
    return core.pool.pages_used, len(core.room.sessions), core.metrics().pages_leaked, core.prefix.entries, core.memory.capacity


def test_every_byte_counts_and_a_refusal_leaves_every_session_as_it_was(small):
    _, engine, session, data = small
    before, saved = state_of(engine), bytearray(data)
    for place in range(len(data)):
        saved[place] ^= 1 << place % 8
        with pytest.raises(SnapshotIncompatible):
            engine.restore(bytes(saved))
        saved[place] = data[place]
    for length in range(len(data)):
        with pytest.raises(SnapshotIncompatible):
            engine.restore(memoryview(data)[:length])
    assert state_of(engine) == before and session.snapshot() == data       # invariant 3
    engine.restore(bytes(saved)).close()


BIG = (2**31, 2**63, 2**64 - 1)
LIES = {
    **{f"{name} {value}": at(*path, value=value) for value in (*BIG, -1, None, True, "8", 1.5) for name, path in {
        "tokens": ("tokens",), "start": ("start",), "kv length": ("kv", "length"), "page_size": ("kv", "page_size"),
        "page_bytes": ("kv", "page_bytes"), "vocab": ("vocab",), "seed": ("sampler", "seed")}.items() if (name, value) != ("seed", 2**63)
       and (name, value) != ("seed", 2**64 - 1) and (name, value) != ("seed", 2**31)},
    **{f"context {value}": at("engine", "context_size", value=value) for value in (*BIG, 0, -1, None, "8")},
    "kind": at("kind", value="prefix"), "no kind": lambda facts, _: facts.pop("kind"), "no model": lambda facts, _: facts.pop("model"),
    "no kv": lambda facts, _: facts.pop("kv"), "no engine": lambda facts, _: facts.pop("engine"), "layers": at("kv", "layers", value=[[2, 32, 31]]),
    "kv type": at("kv", "type", value="f32"), "adapters": at("adapters", value=["a"]), "tokenizer": at("tokenizer", value="0" * 64),
    "sampler gone": at("sampler", value=None), "sampler a list": at("sampler", value=[]), "config": at("sampler", "config", value={}),
    "temperature": at("sampler", "config", "temperature", value=0.5), "unknown field": at("sampler", "config", "heat", value=1),
    "logprobs": at("sampler", "logprobs", value=10**6), "processors": at("sampler", "processors", value=1),
    "constraint": at("constraint", value={"kind": "grammar"}), "text": at("text", value={"pending": "", "at_start": False, "shown": []}),
    "stops": at("stops", value={"stops": [], "tail": "abc", "held": 0}), "held": at("stops", "held", value=2), "stops a number": at("stops", value=3),
    "token of no vocabulary": lambda _, sections: sections.update(tokens=struct.pack("<6i", 1, 2, 3, 4, 5, 80)),
    "negative token": lambda _, sections: sections.update(tokens=struct.pack("<6i", 1, 2, 3, 4, 5, -1)),
    "too few tokens": lambda _, sections: sections.update(tokens=bytes(20)), "no pages": lambda _, sections: sections.pop("kv"),
    "half a page": lambda _, sections: sections.update(kv=sections["kv"][:-2]), "more pages": lambda _, sections: sections.update(kv=2 * sections["kv"]),
    "pending of another vocabulary": lambda _, sections: sections.update(pending=bytes(4)),
    "more of nothing": lambda _, sections: sections.update(more=b""), "no tokens": lambda _, sections: sections.pop("tokens"),
    "sampler state": lambda _, sections: sections.update(sampler=sections["sampler"][:-4]),
}


@pytest.mark.parametrize("name", LIES)
def test_a_snapshot_that_lies_under_right_hashes_is_refused(small, name):
    _, engine, session, data = small
    before = state_of(engine)
    with pytest.raises(SnapshotIncompatible):
        engine.restore(remade(data, LIES[name]))
    assert state_of(engine) == before


@pytest.mark.parametrize("name, value", [("tokenizer_path", "/etc/hostname"), ("model_path", "x"), ("num_threads", 64), ("sidecar", "auto"),
                                         ("prefix_cache", 3), ("prefill_chunk_size", 2**63), ("page_size", 2**31), ("max_pages", "8"),
                                         ("scheduler", {"max_batch_tokens": 2**40}), ("scheduler", {"heat": 1}), ("sampler", 3), ("heat", 1)])
def test_a_config_that_a_snapshot_may_not_ask_for_is_refused_before_anything_is_made_of_it(small, name, value):
    path, _, _, data = small
    wanted = {"scheduler": "max_rows|heat"}.get(name, name)
    with pytest.raises((SnapshotIncompatible, ConfigError), match=wanted):
        InferenceEngine.resume(remade(data, at("engine", name, value=value)), path)


def test_lies_cost_no_memory(small, tmp_path):
    path, _, _, data = small
    (tmp_path / "data").write_bytes(data)
    code = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import oxillama
from tests.engine import test_snapshot as t
engine = oxillama.load({str(path)!r}, num_threads=1)
data = open({str(tmp_path / "data")!r}, "rb").read()
engine.restore(data).close()
used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20),) * 2)
refused = 0
for name, lie in t.LIES.items():
    try:
        engine.restore(t.remade(data, lie))
    except t.SnapshotIncompatible:
        refused += 1
assert refused == len(t.LIES), refused
engine.restore(data).close()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_pool_without_room_refuses_and_takes_nothing(small):
    path, engine, session, data = small
    with oxillama.load(path, max_pages=3, num_threads=1) as tight:
        held = tight.session()
        tight.prefill(list(range(40)), session=held)
        held.busy = True                                           # a request that runs cannot lend its pages
        before = state_of(tight)
        with pytest.raises(PoolError, match="the snapshot's 5 tokens need 1 pages, 0 can be had"):
            tight.restore(data)
        assert state_of(tight) == before
        held.busy = False
        before = state_of(tight)
        with pytest.raises(SnapshotIncompatible, match="section kv: its BLAKE3 hash"):
            tight.restore(data[:-1] + bytes([data[-1] ^ 1]))       # who would give a page up for it keeps it until it is verified
        assert state_of(tight) == before and len(held.kv.pages) == 3
        again = tight.restore(data)                                # an idle one can, and goes on with the same bits
        assert parts(again.snapshot())[1] == parts(data)[1] and not held.kv.pages
        assert np.array_equal(tight.prefill([7], session=held), engine.logits([*range(40), 7])[-1])


def test_other_sessions_run_on_while_one_is_saved_and_restored(engine):
    wanted = engine.generate(PROMPT, max_tokens=120, sampler=SEEDED).tokens
    engine.generate("A dragon", max_tokens=40, sampler=SEEDED)
    data = engine.snapshot()
    rest = engine.generate(None, max_tokens=20).tokens
    running = [engine.submit(PROMPT, max_tokens=120, sampler=SEEDED, cache_prompt=False) for _ in range(3)]
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
            assert session.snapshot() == data and EngineSnapshot.inspect(data).facts["kv"]["type"] == kv_type
            assert engine.generate(None, session=session, max_tokens=30 - count).tokens == whole[count:]
            session.close()


def plain(engine, **options):
    return engine.generate(PROMPT, sampler=SEEDED, **options)


def streamed(engine, **options):
    return list(engine.stream(PROMPT, sampler=SEEDED, **options))


@pytest.mark.parametrize("door", [plain, streamed])
@pytest.mark.parametrize("config, options", [({"prefix_cache": False}, {}), ({}, {"cache_prompt": False}), ({"prefix_max_bytes": 1 << 14}, {})],
                         ids=["no cache", "not for this prompt", "too small a cache"])
def test_what_nobody_else_stores_the_last_session_keeps_until_the_next(config, options, door):
    with oxillama.load(num_threads=1, **config) as engine:
        door(engine, max_tokens=20, **options)
        whole, pages = engine.snapshot(), engine.metrics().pages_used
        assert EngineSnapshot.inspect(whole).facts["kv"]["length"] == EngineSnapshot.inspect(whole).facts["tokens"] - 1
        door(engine, max_tokens=9, **options)
        data = engine.snapshot()
        assert 0 < engine.metrics().pages_used <= pages and engine.metrics().pages_leaked == 0
        session = engine.session()
        engine.generate(PROMPT, session=session, max_tokens=9, sampler=SEEDED, **options)
        assert session.snapshot() == data                          # what a session of one's own would keep
        session = engine.restore(data)
        engine.generate(None, session=session, max_tokens=11)
        assert session.snapshot() == whole
        running = [threading.Thread(target=door, args=(engine,), kwargs={"max_tokens": 30, **options}) for _ in range(3)]
        for each in running:
            each.start()
        for each in running:
            each.join()
        door(engine, max_tokens=1, **options)
        assert engine.metrics().pages_leaked == 0 and len(engine._loaded.live._kept) == 1


@pytest.mark.parametrize("kv_type", ["f16", "f32", "q8_0", "q4_0"])
def test_pages_of_coded_types_name_the_layout_of_their_panels_and_no_other_is_taken(kv_type):
    """Coded keys lie in panels, whose bytes may change; floats and halves lie as they always did, and their files keep their bytes."""
    with oxillama.load(kv_type=kv_type, num_threads=1) as engine:
        engine.generate(PROMPT, max_tokens=5, sampler=SEEDED)
        data, before = engine.snapshot(), state_of(engine)
        kv = parts(data)[0]["kv"]
        if kv_type in ("f16", "f32"):
            assert kv.keys() == {"length", "type", "page_size", "layers", "page_bytes"}
            with pytest.raises(SnapshotIncompatible, match=f"kv layout: the snapshot has {PANEL_LAYOUT}, this engine None"):
                engine.restore(remade(data, at("kv", "layout", value=PANEL_LAYOUT)))
            return
        assert kv["layout"] == PANEL_LAYOUT
        for found in (PANEL_LAYOUT + 1, PANEL_LAYOUT - 1, float(PANEL_LAYOUT)):
            with pytest.raises(SnapshotIncompatible, match=f"kv layout: the snapshot has {found}, this engine {PANEL_LAYOUT}"):
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


# ---- another engine, another model ---------------------------------------------------------------------------------------------------


def test_an_engine_that_cannot_stand_in_refuses_by_name(small):
    path, _, _, data = small
    for config, wanted in ((dict(kv_type="f32"), "kv type: the snapshot has 'f16', this engine 'f32'"),
                           (dict(page_size=32), "kv page_size: the snapshot has 16, this engine 32"),
                           (dict(context_size=128), "context_size: the snapshot has 256, this engine 128")):
        with pytest.raises(SnapshotIncompatible, match=wanted):
            InferenceEngine.resume(data, path, **config)
    with InferenceEngine.resume(data, path, context_size=1000, prefill_chunk_size=7, max_pages=50) as other:
        assert other.context_size == 1000 and other.engine_config.prefill_chunk_size == 7
    with pytest.raises(ConfigError, match="heat: is no field of EngineConfig"):
        InferenceEngine.resume(data, path, heat=1)


def test_an_engine_is_resumed_as_it_was_configured(small):
    path = small[0]
    config = dict(context_size=200, prefill_chunk_size=9, kv_type="f32", page_size=32, sampler=SamplerConfig(temperature=0.3, stop=("x",), logit_bias={3: 1.0}))
    with oxillama.load(path, num_threads=1, **{**config, "sampler": config["sampler"].replace(stop=())}) as engine:
        engine.prefill([1, 2, 3])
        with InferenceEngine.resume(engine.snapshot(), path) as other:
            assert other.engine_config.to_dict() == {**engine.engine_config.to_dict(), "context_size": 200}
            assert other.engine_config.sampler == engine.engine_config.sampler


def test_a_copy_of_the_model_is_the_model_and_an_edit_is_not(small, tmp_path):
    path, engine, session, data = small
    copy = tmp_path / "elsewhere.gguf"
    shutil.copy(path, copy)
    os.utime(copy, (1, 1))
    with InferenceEngine.resume(data, copy) as other:
        assert other.snapshot() == data
    with InferenceEngine.resume(data, path.read_bytes()) as other:
        assert other.generate(None, max_tokens=4).tokens == engine.generate(None, session=session.fork(), max_tokens=4).tokens
    edited = bytearray(path.read_bytes())
    edited[-5] ^= 1
    copy.write_bytes(edited)
    with pytest.raises(ModelFingerprintMismatch, match="the first bytes differ") as caught:
        InferenceEngine.resume(data, copy)
    assert caught.value.expected == EngineSnapshot.inspect(data).model and caught.value.found.head != caught.value.expected.head
    with oxillama.load(copy) as other, pytest.raises(ModelFingerprintMismatch):
        other.restore(data)


def test_a_model_file_that_was_written_to_after_it_was_loaded_is_not_vouched_for(small, tmp_path):
    copy = tmp_path / "model.gguf"
    shutil.copy(small[0], copy)
    with oxillama.load(copy) as other:
        other.prefill([1, 2])
        with open(copy, "r+b") as file:
            file.seek(-4, 2)
            file.write(b"\0\0\0\0")
        os.utime(copy, ns=(5, 5))
        with pytest.raises(SnapshotIncompatible, match="was changed since it was loaded"):
            other.snapshot()


def test_a_fingerprint_of_every_byte_is_kept_and_checked(small):
    path, engine, session, data = small
    whole = session.snapshot(full=True)
    assert EngineSnapshot.inspect(whole).model.full == blake3(path.read_bytes()).hexdigest()
    engine.restore(whole).close()
    wrong = remade(whole, at("model", "full", value="0" * 64))
    with pytest.raises(ModelFingerprintMismatch, match="the whole file differ"):
        engine.restore(wrong)
    with pytest.raises(ModelFingerprintMismatch, match="the whole file differ"):
        InferenceEngine.resume(wrong, path)


def test_another_vocabulary_than_the_models_own_must_be_there_again(tmp_path):
    source = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
              "truncation": None, "padding": None, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(source))
    with oxillama.load(tokenizer_path=path) as engine:
        engine.prefill([0, 1])
        data = engine.snapshot()
    with pytest.raises(SnapshotIncompatible, match="tokenizer: the snapshot has '[0-9a-f]+', this engine None"):
        InferenceEngine.resume(data)
    with InferenceEngine.resume(data, tokenizer_path=path) as other:
        assert other.snapshot() == data


# ---- files -----------------------------------------------------------------------------------------------------------------------------


def test_pages_can_be_stored_with_zstd_which_the_header_says(engine):
    engine.generate(PROMPT, max_tokens=20, sampler=SEEDED)
    plain, packed = engine.snapshot(), engine.snapshot(compress="zstd")
    assert len(packed) < len(plain) and EngineSnapshot.inspect(packed).encodings["kv"] == "zstd" and engine.snapshot(compress="zstd") == packed
    assert "kv" in EngineSnapshot.inspect(packed).display() and "zstd" in EngineSnapshot.inspect(packed).display()
    session = engine.restore(packed)
    assert session.snapshot() == plain
    session.close()


def test_a_header_is_read_without_the_pages(small, tmp_path):
    path = tmp_path / "saved"
    _, engine, session, data = small
    session.snapshot_to_file(path)
    assert path.read_bytes() == data
    found = EngineSnapshot.inspect(path)
    assert found.facts["tokens"] == 6 and found.version == 1 and found.file_size == len(data) and sum(found.sections.values()) < len(data)
    broken = bytearray(data)
    broken[-1] ^= 1
    path.write_bytes(broken)
    assert EngineSnapshot.inspect(path) == found
    with pytest.raises(SnapshotIncompatible, match="section kv"):
        engine.restore_from_file(path)
    with pytest.raises(FileNotFoundError):
        engine.restore_from_file(tmp_path / "none")


@pytest.mark.parametrize("step", range(1, 10))       # open, four sections, header, fsync, close, rename
def test_the_old_snapshot_loads_after_a_save_that_failed_at_any_step(small, tmp_path, monkeypatch, step):
    path, engine, session, data = small
    file = tmp_path / "saved"
    file.write_bytes(data)
    other = engine.session()
    engine.prefill([5, 6, 7], session=other)
    monkeypatch.setattr(durable, "os", Failing(step, OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        session.fork().snapshot_to_file(file)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["saved"]
    assert engine.restore_from_file(file).snapshot() == data
    other.snapshot_to_file(file)
    assert engine.restore_from_file(file).tokens == [5, 6, 7]


# ---- older versions --------------------------------------------------------------------------------------------------------------------

GOLDEN = sorted((Path(__file__).parent / "golden").glob("snapshot-v*.oxisnap"))


def test_there_is_a_golden_file_of_every_version():
    assert [path.stem for path in GOLDEN] == [f"snapshot-v{version}" for version in range(1, KIND.version + 1)]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_file_goes_on_as_it_did_when_it_was_made(path):
    wanted = json.loads(path.with_suffix(".json").read_text())
    with InferenceEngine.resume_from_file(path) as engine:
        if path.stem == f"snapshot-v{KIND.version}":
            again, made = parts(engine.snapshot())[1], parts(path.read_bytes())[1]
            assert again.keys() == made.keys() and all(again[name] == made[name] for name in ("tokens", "sampler", "kv"))
        done = engine.generate(None, max_tokens=len(wanted["tokens"]))
        assert (list(done.tokens), done.finish_reason) == (wanted["tokens"], wanted["reason"])
