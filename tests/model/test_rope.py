"""Rotations that a loader asks for in place of the file's: by the formulas of their papers, to the
bit where the file could have said the same.
"""

import math

import numpy as np
import pytest

import oxillama
from oxillama.errors import ConfigError, ModelError
from oxillama.gguf import GgufReader
from oxillama.model.builder import Builder, architecture, recorders
from oxillama.model.drafts import early_exit
from oxillama.model.load import load_model
from oxillama.model.record import record
from oxillama.model.reference import Reference
from oxillama.model.rope import RopeOverrides
from tests.model import tiny
from tests.model.invented import invent
from tests.model.stepping import batch_of, logits, memory_of

HALF = tiny.HEAD_DIM // 2
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
PLAIN = 10000.0 ** (-np.arange(HALF) / HALF)  # RoFormer, section 3.4.2


def tables(tape) -> list[tuple[np.ndarray, float]]:
    """(inverse frequencies, magnitude) of each rotation of a tape."""
    return [
        (op.params["inv_freq"], op.params["mscale"]) for op in tape.ops if op.name == "rope_table"
    ]


def recorded(path, **given):
    return record(GgufReader(path), rope=RopeOverrides(**given))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    tiny.write(path, "llama")
    return path


@pytest.mark.parametrize(
    ("given", "wanted", "magnitude", "context"),
    [
        ({}, PLAIN, 1.0, 256),
        ({"rope_freq_base": 500000}, 500000.0 ** (-np.arange(HALF) / HALF), 1.0, 256),
        ({"rope_freq_scale": 0.25}, PLAIN / 4, 1.0, 1024),
        # 1 / (1 / 49) is not 49 in floats
        ({"rope_freq_scale": 1 / 49}, PLAIN / 49, 1.0, 49 * 256),
        # a context is never less than the file's
        ({"rope_freq_scale": 2.0}, PLAIN * 2, 1.0, 256),
        ({"rope_scaling": "none"}, PLAIN, 1.0, 256),
        (
            {"rope_scaling": "yarn", "rope_freq_scale": 0.125, "yarn_ext_factor": 0},
            PLAIN / 8,
            1.0,
            2048,
        ),
        (
            {
                "rope_scaling": "yarn",
                "yarn_orig_ctx": 100,
                "rope_freq_scale": 0.125,
                "yarn_ext_factor": 0,
                "yarn_attn_factor": 1.5,
            },
            PLAIN / 8,
            1.5,
            800,
        ),
    ],
)
def test_what_is_asked_for_is_what_positions_are_rotated_by(
    llama, given, wanted, magnitude, context
):
    config, tape = recorded(llama, **given)
    ((found, factor),) = tables(tape)
    assert (
        np.array_equal(found, wanted.astype(np.float32))
        and factor == magnitude
        and config.context_length == context
    )


def test_yarn_keeps_fast_pairs_stretches_slow_ones_and_raises_the_temperature(llama):
    """Peng et al. 2023, sections 3.2 to 3.4, each pair by its own rotations over the original
    context.
    """
    factor, original, fast, slow = 8.0, 128, 4.0, 0.5
    given = {
        "rope_scaling": "yarn",
        "rope_freq_scale": 1 / factor,
        "yarn_orig_ctx": original,
        "yarn_beta_fast": fast,
        "yarn_beta_slow": slow,
    }
    config, tape = recorded(llama, **given)
    ((found, magnitude),) = tables(tape)

    # where theta_pair * original = 2 pi rotations
    def pair(rotations):
        return HALF * math.log(original / (2 * math.pi * rotations)) / math.log(10000.0)

    low, high = math.floor(pair(fast)), math.ceil(pair(slow))
    assert 0 < low < high < HALF - 1
    for i in range(HALF):
        stretched = min(max((i - low) / (high - low), 0.0), 1.0)
        assert found[i] == pytest.approx(PLAIN[i] * (1 - stretched + stretched / factor), rel=1e-6)
    assert np.array_equal(found[: low + 1], PLAIN[: low + 1].astype(np.float32))
    assert np.array_equal(found[high:], (PLAIN[high:] / factor).astype(np.float32))
    assert magnitude == 0.1 * math.log(factor) + 1 and config.context_length == 1024


def test_a_file_may_say_that_yarn_s_ramp_begins_and_ends_between_pairs(tmp_path):
    """As that of gpt-oss as published (OpenAI 2025, gpt_oss/torch/model.py) does."""
    keys = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 8.0,
        "llama.rope.scaling.original_context_length": 128,
        "llama.rope.scaling.yarn_beta_fast": 4.0,
        "llama.rope.scaling.yarn_beta_slow": 0.5,
        "llama.rope.scaling.yarn_truncate": False,
    }
    tiny.write(tmp_path / "m.gguf", "llama", keys=keys)
    ((found, _),) = tables(recorded(tmp_path / "m.gguf")[1])
    low, high = (
        HALF * math.log(128 / (2 * math.pi * rotations)) / math.log(10000.0)
        for rotations in (4.0, 0.5)
    )
    stretched = np.clip((np.arange(HALF) - low) / (high - low), 0.0, 1.0)
    np.testing.assert_allclose(found, PLAIN * (1 - stretched + stretched / 8.0), rtol=1e-6)
    ((plain, _),) = tables(recorded(tmp_path / "m.gguf", rope_scaling="none")[1])
    assert np.array_equal(plain, PLAIN.astype(np.float32))
    tiny.write(tmp_path / "m.gguf", "llama", keys=dict(list(keys.items())[:-1]))
    ((rounded, _),) = tables(recorded(tmp_path / "m.gguf")[1])
    assert not np.array_equal(found, rounded)


OWN = [
    ("llama", {"rope.freq_base": 10000.0}, {"rope_freq_base": 10000}),
    (
        "llama",
        {"rope.scaling.type": "linear", "rope.scaling.factor": 49.0},
        {"rope_scaling": "linear", "rope_freq_scale": 1 / 49},
    ),
    (
        "qwen2",
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 6.5,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_ext_factor": 0.75,
            "rope.scaling.yarn_attn_factor": 0.5,
            "rope.scaling.yarn_beta_fast": 16.0,
            "rope.scaling.yarn_beta_slow": 2.0,
        },
        {
            "rope_scaling": "yarn",
            "rope_freq_scale": 1 / 6.5,
            "yarn_orig_ctx": 64,
            "yarn_ext_factor": 0.75,
            "yarn_attn_factor": 0.5,
            "yarn_beta_fast": 16,
            "yarn_beta_slow": 2,
        },
    ),
    (
        "gemma3",
        {"rope.freq_base": 5e5, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
        {"rope_freq_base": 5e5, "rope_freq_scale": 0.125},
    ),
]


@pytest.mark.parametrize(("arch", "keys", "given"), OWN)
def test_a_file_says_and_its_loader_says_are_the_same_bits(arch, keys, given, tmp_path):
    said = {f"{arch}.{key}": value for key, value in keys.items()}
    told, plain = tmp_path / "told.gguf", tmp_path / "plain.gguf"
    tiny.write(told, arch, keys=said)
    tiny.write(plain, arch)
    own = load_model(GgufReader(told), num_threads=1)
    wanted = logits(own, TOKENS)
    again = load_model(GgufReader(told), num_threads=1, rope=RopeOverrides(**given))
    # equal to the file's own: nothing changes
    assert np.array_equal(logits(again, TOKENS), wanted) and again.config == own.config
    over = load_model(GgufReader(plain), num_threads=2, rope=RopeOverrides(**given))
    assert np.array_equal(logits(over, TOKENS), wanted)
    if len(keys) > 1:
        assert not np.array_equal(
            logits(load_model(GgufReader(plain), num_threads=1), TOKENS), wanted
        )
    assert [each[0].tobytes() for each in tables(over.tape)] == [
        each[0].tobytes() for each in tables(own.tape)
    ]


def test_the_compiled_tape_follows_the_reference_under_overrides(llama):
    model = load_model(
        GgufReader(llama),
        num_threads=1,
        rope=RopeOverrides(rope_scaling="yarn", rope_freq_scale=0.125, yarn_orig_ctx=64),
    )
    ids = np.array([(7 * i + 3) % tiny.VOCAB for i in range(48)])
    wanted = Reference(model.tape, model.reader, kv_type="f32").logits(ids)
    with oxillama.load(
        llama,
        num_threads=1,
        kv_type="f32",
        rope_scaling="yarn",
        rope_freq_scale=0.125,
        yarn_orig_ctx=64,
    ) as engine:
        found = engine.logits(ids)
    assert np.abs(found - wanted).max() <= 2e-5 * np.abs(wanted).max()


def test_a_yarn_file_without_its_yarn_is_its_plain_twin(tmp_path):
    keys = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 64,
    }
    tiny.write(tmp_path / "yarn.gguf", "llama", keys=keys)
    config, tape = recorded(tmp_path / "yarn.gguf", rope_scaling="none")
    assert (
        np.array_equal(tables(tape)[0][0], PLAIN.astype(np.float32))
        and tables(tape)[0][1] == 1.0
        and config.context_length == 256
    )
    assert recorded(tmp_path / "yarn.gguf", rope_freq_scale=1 / 16)[0].context_length == 1024
    # nothing of the scaling has changed
    assert recorded(tmp_path / "yarn.gguf", rope_freq_base=5e5)[0].context_length == 256


def test_gemma_3_changes_the_base_of_its_global_layers_alone(tmp_path):
    tiny.write(tmp_path / "m.gguf", "gemma3")
    windowed, whole = (
        table[0]
        for table in tables(
            recorded(tmp_path / "m.gguf", rope_freq_base=3e6, rope_freq_scale=0.5)[1]
        )
    )
    assert np.array_equal(windowed, PLAIN.astype(np.float32))
    assert np.array_equal(whole, (3e6 ** (-np.arange(HALF) / HALF) / 2).astype(np.float32))


@pytest.mark.parametrize("arch", ["gemma3", "gemma3n", "gemma4"])
def test_windowed_layers_of_gemma_have_a_base_of_their_own_without_a_key(arch, tmp_path):
    """The published one, whatever that of global layers is."""
    changed = {f"{arch}.rope.freq_base": 5e5}
    _, tape = record(invent(tmp_path / "m.gguf", arch, changed=changed))
    bases = {round(float(table[1] ** (-len(table)))) for table, _ in tables(tape)}
    assert 10_000 in bases and len(bases) == 2


def test_first_layers_are_rotated_as_the_whole_model_is(llama):
    rope = RopeOverrides(rope_freq_scale=0.25)
    early = early_exit(load_model(GgufReader(llama), num_threads=1, rope=rope), 1, num_threads=1)
    assert early.rope == rope and early.config.context_length == 1024
    assert tables(early.tape)[0][0].tobytes() == (PLAIN / 4).astype(np.float32).tobytes()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rope_freq_base": 0}, ("rope_freq_base", "found 0", "above 0")),
        ({"rope_freq_base": math.inf}, ("rope_freq_base", "inf")),
        ({"rope_freq_base": 10**400}, ("rope_freq_base",)),
        ({"rope_freq_scale": math.nan}, ("rope_freq_scale", "nan")),
        ({"rope_freq_scale": 5e-324}, ("rope_freq_scale", "5e-324")),
        ({"rope_freq_scale": True}, ("rope_freq_scale", "True")),
        ({"rope_freq_scale": "0.5"}, ("rope_freq_scale", "'0.5'")),
        ({"rope_scaling": "longrope"}, ("rope_scaling", "'longrope'", "none, linear, yarn")),
        ({"rope_scaling": "none", "rope_freq_scale": 0.5}, ("rope_freq_scale", "0.5", "'none'")),
        (
            {"rope_scaling": "linear", "yarn_orig_ctx": 64},
            ("yarn_orig_ctx", "64", "'linear'", "'yarn'"),
        ),
        ({"rope_scaling": "yarn", "yarn_orig_ctx": 0}, ("yarn_orig_ctx", "found 0")),
        ({"rope_scaling": "yarn", "yarn_orig_ctx": 6.5}, ("yarn_orig_ctx", "6.5")),
        ({"rope_scaling": "yarn", "yarn_ext_factor": -1}, ("yarn_ext_factor", "-1", "0 or more")),
        ({"rope_scaling": "yarn", "yarn_attn_factor": 0}, ("yarn_attn_factor", "found 0")),
    ],
)
def test_a_setting_that_cannot_be_is_refused_before_a_file_is_opened(given, words):
    with pytest.raises(ConfigError) as caught:
        oxillama.EngineConfig(**given)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("keys", "given", "words"),
    [
        ({}, {"yarn_beta_fast": 16.0}, ("yarn_beta_fast", "16.0", "the file's own", "'linear'")),
        (
            {"llama.rope.scaling.type": "none"},
            {"rope_freq_scale": 0.5},
            ("rope_freq_scale", "0.5", "the file's own", "'none'"),
        ),
        (
            {},
            {"rope_scaling": "yarn", "yarn_beta_fast": 0.5},
            ("yarn_beta_fast", "0.5", "yarn_beta_slow of 1"),
        ),
        ({}, {"rope_freq_scale": 1e-9}, ("rope_freq_scale", "1e-09", "context")),
        ({}, {"rope_freq_scale": 1e300}, ("llama.rope", "1e+300", "float32")),
        (
            {},
            {"rope_scaling": "yarn", "rope_freq_base": 1.0},
            ("rope.freq_base", "found 1", "yarn"),
        ),
    ],
)
def test_what_does_not_go_with_a_file_is_refused_by_name(keys, given, words, tmp_path):
    tiny.write(tmp_path / "m.gguf", "llama", keys=keys)
    with pytest.raises((ConfigError, ModelError)) as caught:
        recorded(tmp_path / "m.gguf", **given)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    "given", [{"rope_freq_base": 5e5}, {"rope_freq_scale": 0.5}, {"rope_scaling": "none"}]
)
def test_a_model_that_rotates_nothing_by_it_refuses_an_override(given, tmp_path, monkeypatch):
    """All layers windowed: the one base there is, is the windows' own; and an architecture whose
    positions are learned has none at all.
    """
    tiny.write(
        tmp_path / "m.gguf", "gemma3", keys={"gemma3.attention.sliding_window_pattern": 1 << 20}
    )
    with pytest.raises(
        ConfigError,
        match=f"{next(iter(given))}: found .*, this gemma3 rotates no layer by it, wanted None",
    ):
        recorded(tmp_path / "m.gguf", **given)
    monkeypatch.setattr("oxillama.model.builder._ARCHITECTURES", dict(recorders()))

    @architecture("learned")
    def learned(b: Builder):
        return b.logits(b.embed())

    layers = {name: None for name in tiny.shapes("learned") if name.startswith("blk.")}
    unused = {name: None for name in tiny.metadata("learned") if "rms_eps" not in name}
    kept = ("block_count", "context_length", "embedding_length")
    unused = {name: value for name, value in unused.items() if not name.endswith(kept)}
    tiny.write(tmp_path / "l.gguf", "learned", tensors=layers, keys=unused)
    assert recorded(tmp_path / "l.gguf")[0].architecture == "learned"
    with pytest.raises(ConfigError, match="this learned rotates no layer by it"):
        recorded(tmp_path / "l.gguf", **given)


LONG = {"rope_factors_short.weight": (HALF,), "rope_factors_long.weight": (HALF,)}


def longrope(path, original):
    """A tiny model whose sequences of more than `original` tokens have other frequencies."""
    key = {"llama.rope.scaling.original_context_length": original}
    tiny.write(path, "llama", keys=key, tensors=LONG)
    return path


def test_long_sequences_have_factors_of_their_own(tmp_path):
    path = longrope(tmp_path / "m.gguf", 64)
    short, far = (GgufReader(path).data(name).view(np.float32) for name in LONG)
    table = next(op for op in recorded(path)[1].ops if op.name == "rope_table").params
    assert np.array_equal(table["inv_freq"], (PLAIN / short.astype(np.float64)).astype(np.float32))
    assert np.array_equal(table["far"], (PLAIN / far.astype(np.float64)).astype(np.float32))
    assert table["near"] == 64


def test_factors_of_long_sequences_come_with_those_of_short_ones(tmp_path):
    tiny.write(tmp_path / "m.gguf", "llama", tensors={"rope_factors_long.weight": (HALF,)})
    with pytest.raises(
        ModelError, match=r"rope_factors_short\.weight: the file has no such tensor"
    ):
        recorded(tmp_path / "m.gguf")


def test_a_factor_beside_those_of_longrope_is_refused(tmp_path):
    """It would be ignored. The file's own as well as the caller's."""
    keys = {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 1.0}
    tiny.write(tmp_path / "m.gguf", "llama", keys=keys, tensors=LONG)
    recorded(tmp_path / "m.gguf", rope_freq_scale=1.0)
    words = "rope_freq_scale: found 0.25 and the file's own rope_scaling 'longrope', wanted 'lin"
    with pytest.raises(ConfigError, match=words):
        recorded(tmp_path / "m.gguf", rope_freq_scale=0.25)
    tiny.write(
        tmp_path / "n.gguf", "llama", keys={**keys, "llama.rope.scaling.factor": 4.0}, tensors=LONG
    )
    with pytest.raises(ModelError, match="llama.rope.scaling.factor: found 4 and the factors of "):
        recorded(tmp_path / "n.gguf")


def test_a_whole_sequence_is_rotated_by_its_length_and_a_served_one_by_what_it_may_become(tmp_path):
    """Beside models all of whose sequences are short, or long."""
    ids = np.arange(70, dtype=np.int32) * 7 % tiny.VOCAB
    model, short, far = (
        load_model(GgufReader(longrope(tmp_path / f"{original}.gguf", original)), num_threads=2)
        for original in (64, 256, 1)
    )
    far.program.served = 70
    memory = memory_of(model, 9)
    parts = [(ids[:64], 0, range(4)), (ids[:65], 0, range(4, 9))]
    found = model.program.step(batch_of(parts, memory), memory)
    assert np.array_equal(found[:64], logits(short, ids[:64]))
    assert np.array_equal(found[64:], logits(far, ids[:65]))
    assert not np.array_equal(logits(short, ids[:64]), logits(far, ids[:64]))
    for served, wanted in ((64, short), (65, far)):
        model.program.served = served
        for chunk in (1, 7, 512):
            assert np.array_equal(logits(model, ids[:64], chunk=chunk), logits(wanted, ids[:64]))
    reference = model.reference().logits(ids[:20])
    assert np.abs(reference - logits(far, ids[:20])).max() < 1e-4 * np.abs(reference).max()


def test_dynamic_ntk_grows_the_base_with_the_context(tmp_path):
    keys = {"rope.scaling.type": "dynamic", "rope.scaling.factor": 3.0}
    keys["rope.scaling.original_context_length"] = 64
    tiny.write(tmp_path / "m.gguf", "llama", keys={f"llama.{k}": v for k, v in keys.items()})
    base = 10000.0 * (3.0 * 256 / 64 - 2.0) ** (2 * HALF / (2 * HALF - 2))
    ((inv_freq, magnitude),) = tables(recorded(tmp_path / "m.gguf")[1])
    assert np.allclose(inv_freq, base ** (-np.arange(HALF) / HALF), rtol=1e-6)
    assert magnitude == 1.0
