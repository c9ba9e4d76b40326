"""Sessions and stored prefixes are bound to the rotation that made their keys; drafts of the same
weights share it.
"""

import json

import pytest

import oxillama
from oxillama import InferenceEngine, SamplerConfig, SpeculativeConfig, SpeculativeEngine
from oxillama.engine.config import EngineConfig
from oxillama.errors import SnapshotIncompatible
from oxillama.quant import quantize_file
from oxillama.snapshot.container import Envelope
from oxillama.snapshot.session import KIND
from tests.model import tiny

SEEDED = SamplerConfig(temperature=1.0, seed=5)
YARN = {
    "rope_scaling": "yarn",
    "rope_freq_scale": 0.25,
    "yarn_orig_ctx": 100,
    "rope_freq_base": 20000,
}
PROMPT = [(7 * i + 3) % 80 for i in range(37)]


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    """(a session under overrides, what comes after it, the file of the prefixes)."""
    prefixes = tmp_path_factory.mktemp("spilt") / "prefixes"
    with oxillama.load(model, num_threads=1, **YARN) as engine:
        assert engine.context_size == 400
        engine.generate(PROMPT, max_tokens=6, sampler=SEEDED)
        data = engine.snapshot()
        engine.save_prefixes(prefixes)
        return data, engine.generate(None, max_tokens=20, sampler=SEEDED).tokens, prefixes


def facts(data) -> dict:
    with Envelope.open(KIND, data) as found:
        return json.loads(bytes(found.read("facts", at_most=1 << 20)))


def test_a_resumed_engine_rotates_as_the_one_that_was_saved(model, saved):
    data, rest, _ = saved
    with InferenceEngine.resume(data, model, num_threads=2) as engine:
        assert engine.snapshot() == data and engine.context_size == 400
        assert engine.engine_config.rope().given() == engine._loaded.model.rope.given() == YARN
        assert engine.generate(None, max_tokens=20, sampler=SEEDED).tokens == rest


@pytest.mark.parametrize(
    ("other", "detail"),
    [
        ({}, "kv rope_freq_base: the snapshot has 20000.0, this engine None"),
        (
            {**YARN, "rope_freq_base": 10000},
            "kv rope_freq_base: the snapshot has 20000.0, this engine 10000.0",
        ),
        ({**YARN, "yarn_orig_ctx": 64}, "kv yarn_orig_ctx: the snapshot has 100, this engine 64"),
        (
            {**YARN, "yarn_beta_fast": 16},
            "kv yarn_beta_fast: the snapshot has None, this engine 16.0",
        ),
    ],
)
def test_another_rotation_is_refused_with_both_values(model, saved, other, detail):
    data, _, prefixes = saved
    with oxillama.load(model, num_threads=1, context_size=400, **other) as engine:
        for refuse in (lambda: engine.restore(data), lambda: engine.load_prefixes(prefixes)):
            with pytest.raises(SnapshotIncompatible) as caught:
                refuse()
            assert caught.value.detail == detail
        assert engine._loaded.core.pool.pages_used == 0
    with pytest.raises(
        SnapshotIncompatible, match="kv yarn_orig_ctx: the snapshot has 100, this engine 101"
    ):
        InferenceEngine.resume(data, model, yarn_orig_ctx=101)


def test_stored_prefixes_serve_an_engine_that_rotates_alike(model, saved):
    with oxillama.load(model, num_threads=1, **YARN) as engine:
        assert engine.load_prefixes(saved[2]) >= 1
        done = engine.generate(PROMPT, max_tokens=6, sampler=SEEDED)
        assert done.usage.cached_tokens == len(PROMPT) - 1


def test_without_overrides_nothing_of_a_rotation_is_said_of_pages_and_absent_means_none(model):
    with oxillama.load(model, num_threads=1) as engine:
        engine.generate(PROMPT, max_tokens=2, sampler=SEEDED)
        told = facts(engine.snapshot())
    assert not [name for name in told["kv"] if name.startswith(("rope", "yarn"))]
    older = {
        name: value
        for name, value in told["engine"].items()
        if not name.startswith(("rope", "yarn"))
    }
    assert len(told["engine"]) - len(older) == 8 and EngineConfig.from_dict(
        older
    ) == EngineConfig.from_dict(told["engine"])


def test_equal_settings_are_equal_bytes_whatever_their_spelling():
    assert (
        EngineConfig(rope_freq_base=10000).to_dict()
        == EngineConfig(rope_freq_base=10000.0).to_dict()
    )
    assert json.dumps(EngineConfig(rope_freq_base=10000).to_dict()["rope_freq_base"]) == "10000.0"


def test_a_draft_by_first_layers_rotates_as_its_target():
    with oxillama.load(num_threads=1, rope_freq_scale=0.5) as target:
        plain = target.generate("Once upon a time", max_tokens=24, sampler=SEEDED).tokens
        with SpeculativeEngine(SpeculativeConfig(target, "early_exit:1")) as engine:
            assert (
                engine.generate("Once upon a time", max_tokens=24, sampler=SEEDED).tokens == plain
            )
            assert engine.drafter.core.context_size == target.context_size == 2048


def test_a_requantised_draft_rotates_as_its_target(model):
    with (
        oxillama.load(model, num_threads=1, **YARN) as target,
        SpeculativeEngine(SpeculativeConfig(target, "requantised")) as engine,
    ):
        assert (
            engine.drafter.core.snapshots.config.rope().given() == YARN
            and engine.drafter.core.context_size == 400
        )


def given(target, draft, config=None):
    """The overrides that a draft from a file runs under."""
    with SpeculativeEngine(SpeculativeConfig(target, draft), draft_config=config) as engine:
        return engine.drafter.core.snapshots.config.rope().given()


def test_a_draft_from_a_file_that_says_the_same_of_its_architecture_rotates_as_its_target(
    model, tmp_path
):
    draft = quantize_file(model, tmp_path / "draft.gguf", "Q8_0").path
    with oxillama.load(model, num_threads=1, **YARN) as target:
        assert given(target, draft) == YARN
        assert given(target, draft, EngineConfig(num_threads=1)) == YARN
        # its own word is whole
        assert given(target, draft, EngineConfig(rope_freq_base=30000)) == {
            "rope_freq_base": 30000.0
        }
        plain = target.generate(PROMPT, max_tokens=12, sampler=SEEDED).tokens
        assert (
            target.generate(PROMPT, max_tokens=12, sampler=SEEDED, speculative=draft).tokens
            == plain
        )
    with oxillama.load(model, num_threads=1) as target:
        assert given(target, draft) == {}


@pytest.mark.parametrize(
    ("arch", "keys"),
    [
        ("qwen3", {}),
        ("llama", {"llama.rope.freq_base": 20000.0}),
        ("llama", {"llama.context_length": 128}),
        ("llama", {"llama.rope.scaling.type": "linear"}),
        ("llama", {"llama.attention.layer_norm_rms_epsilon": 1e-6}),
    ],
)
def test_a_draft_of_anything_else_rotates_as_its_file_says(model, tmp_path, arch, keys):
    tiny.write(tmp_path / "draft.gguf", arch, keys=keys).close()
    with oxillama.load(model, num_threads=1, **YARN) as target:
        assert given(target, tmp_path / "draft.gguf") == {}


def test_sessions_are_bound_to_the_factors_of_short_or_of_long_sequences(tmp_path):
    """LongRoPE: a session of an engine of short sequences goes on in another such engine alone."""
    half = tiny.HEAD_DIM // 2
    tiny.write(
        tmp_path / "m.gguf",
        "llama",
        keys={"llama.rope.scaling.original_context_length": 64},
        tensors={f"rope_factors_{name}.weight": (half,) for name in ("short", "long")},
    )

    def engine(context):
        return oxillama.load(tmp_path / "m.gguf", num_threads=1, context_size=context)

    with engine(60) as short:
        short.generate(PROMPT, max_tokens=6, sampler=SEEDED)
        data = short.snapshot()
        rest = short.generate(None, max_tokens=9, sampler=SEEDED).tokens
    with engine(64) as other:
        session = other.restore(data)
        assert other.generate([], max_tokens=9, sampler=SEEDED, session=session).tokens == rest
    with engine(65) as far:
        with pytest.raises(SnapshotIncompatible) as caught:
            far.restore(data)
        assert (
            caught.value.detail == "kv rope_factors: the snapshot has 'short', this engine 'long'"
        )
