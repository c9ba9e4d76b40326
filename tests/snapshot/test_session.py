"""Sessions as bytes: equal states make equal bytes, what does not fit is refused by name, and a
refusal changes nothing.
"""

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import oxillama
from oxillama import EngineSnapshot, InferenceEngine, SamplerConfig
from oxillama.engine.session import Session
from oxillama.errors import ConfigError, SnapshotIncompatible
from tests.engine.null import core as null_core
from tests.snapshot.saved import PROMPT, SEEDED, at, parts, remade, state_of

# ---- equal states, equal bytes
# --------------------------------------------------------------------------------------------------


def test_two_snapshots_of_one_state_are_equal_bytes_and_so_is_one_of_what_was_restored(engine):
    engine.generate(PROMPT, max_tokens=21, sampler=SEEDED)
    data = engine.snapshot()
    assert engine.snapshot() == data  # invariant 2
    session = engine.restore(data)
    assert session.snapshot() == data
    session.close()
    with InferenceEngine.resume(data, num_threads=2) as other:
        assert other.snapshot() == data and other.num_threads == 2


def test_restored_sessions_share_a_compiled_grammar_and_its_masks(engine):
    engine.generate("Once", max_tokens=3, regex="[ab]+c{9}", sampler=SEEDED)
    data, masker = engine.snapshot(), engine.loaded.required_vocabulary.masker
    one, two = engine.restore(data), engine.restore(data)
    assert one.grammar.grammar is two.grammar.grammar
    done = engine.generate(None, session=one, max_tokens=4)
    known = len(masker._masks)
    assert engine.generate(None, session=two, max_tokens=4).tokens == done.tokens
    assert len(masker._masks) == known
    one.close()
    two.close()


def test_earlier_owners_of_a_page_do_not_show(engine):
    """The last page's empty part is zero, whoever wrote there before."""
    engine.generate(PROMPT, max_tokens=5, sampler=SEEDED)
    data = engine.snapshot()
    with oxillama.load(num_threads=1, prefix_cache=False) as other:
        mine = other.session()
        # the second time in pages that were full
        for _ in range(2):
            other.generate(list(range(40, 100)), session=mine, max_tokens=1, sampler=SEEDED)
            mine.truncate(0)
            other.generate(PROMPT, session=mine, max_tokens=5, sampler=SEEDED)
            assert parts(mine.snapshot())[1]["kv"] == parts(data)[1]["kv"]
            mine.truncate(0)


def test_pages_in_use_are_all_that_is_saved(small):
    path, engine, session, data = small
    facts, sections = parts(data)
    memory = engine._loaded.core.memory
    assert (
        len(sections["kv"]) == memory.page_bytes
        and facts["kv"]["length"] == 5
        and len(data) < 1.02 * memory.page_bytes + 4096
    )
    kv = sections["kv"]
    assert kv == engine._loaded.core.snapshots._shared_pages(session)[0].read().tobytes()
    k = np.frombuffer(kv[: 2 * 32 * 16 * 2], np.float16).reshape(2, 32, 16)
    assert k[:, :, :5].any() and not k[:, :, 5:].any()


# ---- the whole state
# --------------------------------------------------------------------------------------------------


def test_every_field_of_a_session_is_known_to_be_saved_or_to_be_none_of_a_state():
    saved = {
        "adapters",
        "at_start",
        "grammar",
        "media",
        "kv",
        "pending",
        "sampler",
        "start",
        "stops",
        "text",
        "tokens",
    }
    assert set(Session.__slots__) == saved | {"__weakref__", "_owner", "busy", "closed", "origin"}


def test_a_session_that_has_not_drawn_goes_on_from_its_pending_logits(engine):
    engine.reset()
    wanted = engine.prefill(PROMPT)
    data = engine.snapshot()
    with InferenceEngine.resume(data) as other:
        assert np.array_equal(other._loaded.default_session.recent.pending, wanted)
        assert (
            other.generate(None, max_tokens=6, sampler=SEEDED).tokens
            == engine.generate(None, max_tokens=6, sampler=SEEDED).tokens
        )
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
    assert (found.tokens, found.text) == (
        rest.tokens,
        rest.text,
    ) and found.seed == done.seed == EngineSnapshot.inspect(data).facts["sampler"]["seed"]


def test_how_an_engine_speculates_is_no_part_of_a_state(engine):
    options = dict(sampler=SEEDED, max_tokens=6)
    engine.generate(PROMPT, **options)
    data = engine.snapshot()
    wanted = engine.generate(None, max_tokens=6).tokens
    for kind in (None, False, "lookup"):
        with oxillama.load(num_threads=1, speculative=kind) as other:
            assert other.generate(None, session=other.restore(data), max_tokens=6).tokens == wanted
            other.generate(PROMPT, **options)
            back = engine.restore(other.snapshot())
        assert engine.generate(None, session=back, max_tokens=6).tokens == wanted


def test_the_stop_buffer_and_an_unfinished_character_go_along(cases):
    """A stop string that ends after the snapshot is still one; a character whose bytes straddle it
    comes out whole.
    """
    with oxillama.load(cases / "arch" / "llama" / "q8_0.gguf") as engine:
        words = engine.tokenizer
        byte = {
            words.token_bytes(token): token
            for token in range(words.vocab_size)
            if len(words.token_bytes(token)) == 1
        }
        text = "ab\u4e16cdef"
        ids = [byte[bytes([each])] for each in text.encode()]

        def forced(tokens, row):
            row[:] = -1e9
            row[ids[len(tokens) - 2]] = 0.0

        options = dict(
            sampler=SamplerConfig.greedy(seed=1), stop=["cdx", "cde"], processors=[forced]
        )
        whole = engine.generate(
            words.encode("x", add_special=False)[:1] + [byte[b"x"]], max_tokens=9, **options
        )
        assert whole.text == "ab\u4e16" and whole.finish_reason == "stop"
        for count in range(1, len(whole.tokens)):
            shown = engine.generate(
                words.encode("x", add_special=False)[:1] + [byte[b"x"]], max_tokens=count, **options
            ).text
            data = engine.snapshot()
            rest = engine.generate(None, max_tokens=9)
            assert (
                rest.finish_reason == "stop"
                and rest.tokens == whole.tokens[count:]
                and (shown + rest.text)[:3] == whole.text
            )
            with InferenceEngine.resume(
                data, cases / "arch" / "llama" / "q8_0.gguf", processors=[forced]
            ) as other:
                found = other.generate(None, max_tokens=9)
                assert (found.tokens, found.text, found.finish_reason) == (
                    rest.tokens,
                    rest.text,
                    "stop",
                )


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
    with pytest.raises(
        SnapshotIncompatible,
        match="processors: the session had 1, restore was given 0; functions cannot be saved",
    ):
        engine.restore(data)
    engine.restore(data, processors=[nothing]).close()
    plain = engine.session()
    with pytest.raises(
        SnapshotIncompatible, match="processors: the session had no sampler, restore was given 1"
    ):
        engine.restore(plain.snapshot(), processors=[nothing])
    plain.close()


def test_a_constraint_on_tool_calls_goes_along(engine):
    tool = {
        "name": "look",
        "description": "",
        "parameters": {
            "type": "object",
            "properties": {"at": {"enum": ["sky", "sea"]}},
            "required": ["at"],
        },
    }
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
    other = engine._loaded.core.keep(
        engine._loaded.core.new_session([1, 2], adapters=("style", 0.5))
    )
    with pytest.raises(SnapshotIncompatible, match="adapters: found 2 without a fingerprint"):
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
    assert (
        engine.generate(None, max_tokens=5).tokens
        == engine.generate(PROMPT, max_tokens=200, sampler=SEEDED).tokens[begun - 5 : begun]
    )


# ---- refusals change nothing
# --------------------------------------------------------------------------------------------------


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
    assert state_of(engine) == before and session.snapshot() == data  # invariant 3
    engine.restore(bytes(saved)).close()


BIG = (2**31, 2**63, 2**64 - 1)
LIES = {
    **{
        f"{name} {value}": at(*path, value=value)
        for value in (*BIG, -1, None, True, "8", 1.5)
        for name, path in {
            "tokens": ("tokens",),
            "start": ("start",),
            "kv length": ("kv", "length"),
            "page_size": ("kv", "page_size"),
            "page_bytes": ("kv", "page_bytes"),
            "vocab": ("vocab",),
            "seed": ("sampler", "seed"),
        }.items()
        if (name, value) != ("seed", 2**63)
        and (name, value) != ("seed", 2**64 - 1)
        and (name, value) != ("seed", 2**31)
    },
    **{
        f"context {value}": at("engine", "context_size", value=value)
        for value in (*BIG, 0, -1, None, "8")
    },
    "kind": at("kind", value="prefix"),
    "no kind": lambda facts, _: facts.pop("kind"),
    "no model": lambda facts, _: facts.pop("model"),
    "no kv": lambda facts, _: facts.pop("kv"),
    "no engine": lambda facts, _: facts.pop("engine"),
    "layers": at("kv", "layers", value=[[2, 32, 31]]),
    "kv type": at("kv", "type", value="f32"),
    "adapters": at("adapters", value=["a"]),
    "tokenizer": at("tokenizer", value="0" * 64),
    "sampler gone": at("sampler", value=None),
    "sampler a list": at("sampler", value=[]),
    "config": at("sampler", "config", value={}),
    "temperature": at("sampler", "config", "temperature", value=0.5),
    "unknown field": at("sampler", "config", "heat", value=1),
    "logprobs": at("sampler", "logprobs", value=10**6),
    "processors": at("sampler", "processors", value=1),
    "constraint": at("constraint", value={"kind": "grammar"}),
    "text": at("text", value={"pending": "", "at_start": False, "shown": []}),
    "stops": at("stops", value={"stops": [], "tail": "abc", "held": 0}),
    "held": at("stops", "held", value=2),
    "stops a number": at("stops", value=3),
    "token of no vocabulary": lambda _, sections: sections.update(
        tokens=struct.pack("<6i", 1, 2, 3, 4, 5, 80)
    ),
    "negative token": lambda _, sections: sections.update(
        tokens=struct.pack("<6i", 1, 2, 3, 4, 5, -1)
    ),
    "too few tokens": lambda _, sections: sections.update(tokens=bytes(20)),
    "no pages": lambda _, sections: sections.pop("kv"),
    "half a page": lambda _, sections: sections.update(kv=sections["kv"][:-2]),
    "more pages": lambda _, sections: sections.update(kv=2 * sections["kv"]),
    "pending of another vocabulary": lambda _, sections: sections.update(pending=bytes(4)),
    "more of nothing": lambda _, sections: sections.update(more=b""),
    "no tokens": lambda _, sections: sections.pop("tokens"),
    "sampler state": lambda _, sections: sections.update(sampler=sections["sampler"][:-4]),
}


@pytest.mark.parametrize("name", LIES)
def test_a_snapshot_that_lies_under_right_hashes_is_refused(small, name):
    _, engine, session, data = small
    before = state_of(engine)
    with pytest.raises(SnapshotIncompatible):
        engine.restore(remade(data, LIES[name]))
    assert state_of(engine) == before


@pytest.mark.parametrize(
    "name, value",
    [
        ("tokenizer_path", "/etc/hostname"),
        ("model_path", "x"),
        ("num_threads", 64),
        ("sidecar", "auto"),
        ("prefix_cache", 3),
        ("prefill_chunk_size", 2**63),
        ("page_size", 2**31),
        ("max_pages", "8"),
        ("scheduler", {"max_batch_tokens": 2**40}),
        ("scheduler", {"heat": 1}),
        ("sampler", 3),
        ("heat", 1),
    ],
)
def test_a_config_that_a_snapshot_may_not_ask_for_is_refused_before_anything_is_made_of_it(
    small, name, value
):
    path, _, _, data = small
    wanted = {"scheduler": "max_rows|heat"}.get(name, name)
    with pytest.raises((SnapshotIncompatible, ConfigError), match=wanted):
        InferenceEngine.resume(remade(data, at("engine", name, value=value)), path)


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is enforced on Linux")
def test_lies_cost_no_memory(small, tmp_path):
    path, _, _, data = small
    (tmp_path / "data").write_bytes(data)
    code = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import oxillama
from tests.snapshot import test_session as t
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


def test_a_constraint_that_cannot_be_written_is_told():
    """Texts that differ from each other have no GBNF."""
    words = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    given = {"type": "object", "properties": {"n": words}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": given}}]
    asked = [{"role": "user", "content": "x"}]
    with oxillama.load() as engine, engine.session() as session:
        engine.chat(asked, session=session, tools=tools, tool_choice="required", max_tokens=2)
        with pytest.raises(SnapshotIncompatible, match="^constraint: cannot be saved: grammar: di"):
            session.snapshot()


def test_a_constraint_of_a_bound_of_hundreds_of_digits_is_saved():
    """Its rules are nested as deeply as it has digits."""
    least = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1e308}}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": least}}]
    asked = [{"role": "user", "content": "x"}]
    options = {"tools": tools, "tool_choice": "required", "temperature": 0}
    with oxillama.load() as engine, engine.session() as session:
        whole = engine.chat(asked, **options, max_tokens=24).tokens
        engine.chat(asked, session=session, **options, max_tokens=8)
        with engine.restore(session.snapshot()) as again:
            assert again.tokens == session.tokens
            assert engine.generate(None, session=again, max_tokens=16).tokens == whole[8:]
