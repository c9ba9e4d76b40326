"""A config is a frozen value: defaults as published, every field checked by name, and equal after a
trip through JSON.
"""

import dataclasses
import json
import math
import pickle

import pytest

from oxillama.errors import ConfigError
from oxillama.sampling import DRY_BREAKERS, REORDERABLE, SamplerConfig
from oxillama.sampling.chain import stages_of


def test_defaults():
    c = SamplerConfig()
    assert (
        c.temperature,
        c.top_k,
        c.top_p,
        c.min_p,
        c.repetition_penalty,
        c.repetition_window,
    ) == (0.7, 40, 0.9, 0.0, 1.0, 64)
    assert (
        c.frequency_penalty,
        c.presence_penalty,
        c.seed,
        c.mirostat,
        c.mirostat_tau,
        c.mirostat_eta,
    ) == (0.0, 0.0, None, 0, 5.0, 0.1)
    assert (c.typical_p, c.top_a, c.eta_cutoff, c.epsilon_cutoff, c.top_n_sigma) == (
        1.0,
        0.0,
        0.0,
        0.0,
        None,
    )
    assert (c.dry_multiplier, c.dry_base, c.dry_allowed_length, c.dry_penalty_last_n) == (
        0.0,
        1.75,
        2,
        -1,
    )
    assert (
        c.xtc_probability,
        c.xtc_threshold,
        c.logit_bias,
        c.banned_tokens,
        c.allowed_tokens,
    ) == (0.0, 0.1, {}, (), None)
    assert (c.ignore_eos, c.min_tokens, c.stop, c.stop_token_ids, c.samplers) == (
        False,
        0,
        (),
        (),
        None,
    )
    assert c.dry_sequence_breakers == DRY_BREAKERS == ("\n", ":", '"', "*")


def test_frozen_and_slotted():
    c = SamplerConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        c.top_k = 3
    assert not hasattr(c, "__dict__")
    assert hash(c) == hash(SamplerConfig()) and c == SamplerConfig()


BAD = [
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", "1"),
    ("top_k", -1),
    ("top_k", 1.5),
    ("top_k", True),
    ("top_p", 1.01),
    ("top_p", -0.1),
    ("min_p", 1.5),
    ("repetition_penalty", 0),
    ("repetition_window", -2),
    ("frequency_penalty", math.inf),
    ("presence_penalty", None),
    ("seed", -1),
    ("seed", 2**64),
    ("seed", 1.5),
    ("mirostat", 3),
    ("mirostat_tau", -1),
    ("mirostat_eta", math.nan),
    ("typical_p", 2),
    ("top_a", -1),
    ("eta_cutoff", 2),
    ("epsilon_cutoff", -1),
    ("top_n_sigma", 0),
    ("top_n_sigma", -1),
    ("dry_multiplier", -1),
    ("dry_base", 0.5),
    ("dry_allowed_length", 0),
    ("dry_penalty_last_n", -2),
    ("dry_sequence_breakers", "\n"),
    ("dry_sequence_breakers", [""]),
    ("dry_sequence_breakers", [[-1]]),
    ("dry_sequence_breakers", [[]]),
    ("dry_sequence_breakers", [[True]]),
    ("dry_sequence_breakers", [[2**31]]),
    ("xtc_probability", 1.1),
    ("xtc_threshold", -0.1),
    ("dynatemp_range", -1),
    ("dynatemp_exponent", -1),
    ("logit_bias", [1]),
    ("logit_bias", {-1: 0}),
    ("logit_bias", {2**31: 0}),
    ("logit_bias", {1: math.nan}),
    ("logit_bias", {1: math.inf}),
    ("banned_tokens", "12"),
    ("banned_tokens", [-1]),
    ("banned_tokens", [2**31]),
    ("allowed_tokens", []),
    ("allowed_tokens", [1.5]),
    ("ignore_eos", 1),
    ("min_tokens", -1),
    ("stop", [""]),
    ("stop", 3),
    ("stop", ["\ud800"]),
    ("dry_sequence_breakers", ["\n", "a\udfff"]),
    ("stop_token_ids", [None]),
    ("samplers", ["nope"]),
    ("samplers", ["top_k", "top_k"]),
    ("samplers", "top_k"),
    ("samplers", ["bias"]),
]


@pytest.mark.parametrize("name, value", BAD)
def test_bad_values_raise_naming_field_found_and_wanted(name, value):
    with pytest.raises(ConfigError, match=f"^{name}.*: found .*, wanted ") as error:
        SamplerConfig(**{name: value})
    assert "\n" not in str(error.value)


def test_every_number_is_checked():
    for field in dataclasses.fields(SamplerConfig):
        with pytest.raises(ConfigError):
            SamplerConfig(**{field.name: object()})


def test_round_trip_through_json():
    c = SamplerConfig(
        temperature=0.3,
        seed=2**64 - 1,
        logit_bias={5: 1.5, 2: -math.inf},
        banned_tokens=[3, 3, 1],
        allowed_tokens=[1, 2],
        stop="end",
        stop_token_ids=[9],
        samplers=["min_p", "temperature"],
        top_n_sigma=1.0,
        min_tokens=3,
        dry_sequence_breakers=["\n", b"\xff:", [1, 2]],
        ignore_eos=True,
    )
    assert json.loads(json.dumps(c.to_dict())) == c.to_dict()
    assert SamplerConfig.from_dict(c.to_dict()) == c
    assert (
        c.banned_tokens == (3, 1)
        and c.stop == ("end",)
        and c.dry_sequence_breakers == ("\n", b"\xff:", (1, 2))
    )
    assert SamplerConfig.from_dict({}) == SamplerConfig()
    assert pickle.loads(pickle.dumps(c)) == c
    assert set(c.to_dict()) == {f.name for f in dataclasses.fields(c)}


def test_unknown_fields_raise():
    wrong = "top_q: is not a field of SamplerConfig; did you mean top_p"
    with pytest.raises(ConfigError, match=wrong):
        SamplerConfig.from_dict({"top_q": 1})
    with pytest.raises(ConfigError, match=wrong):
        SamplerConfig().replace(top_q=1)
    with pytest.raises(ConfigError):
        SamplerConfig.from_dict([1])


def test_presets():
    g = SamplerConfig.greedy()
    assert (g.temperature, g.repetition_penalty) == (0.0, 1.0)
    assert (
        SamplerConfig().repetition_penalty
        == SamplerConfig(temperature=0.0).repetition_penalty
        == 1.0
    )
    assert SamplerConfig(temperature=0.0, repetition_penalty=1.1).repetition_penalty == 1.1
    m = SamplerConfig.mirostat_v2(3.0, 0.2, seed=5)
    assert (
        m.mirostat,
        m.mirostat_tau,
        m.mirostat_eta,
        m.top_k,
        m.top_p,
        m.temperature,
        m.seed,
    ) == (2, 3.0, 0.2, 0, 1.0, 1.0, 5)


def test_values_are_copied():
    bias = {1: 2.0}
    c = SamplerConfig(logit_bias=bias)
    bias[3] = 1.0
    assert c.logit_bias == {1: 2.0}


def test_reorderable_stages_exclude_the_guarantees():
    assert not {"bias", "mask", "mirostat"} & set(REORDERABLE)


# a field that differs from the neutral config, and the one stage that it runs
ALONE = [
    ({"repetition_penalty": 1.2}, "penalties", (1.2, 0, 0, 64)),
    ({"frequency_penalty": -0.5}, "penalties", (1, -0.5, 0, 64)),
    ({"presence_penalty": 0.5, "repetition_window": -1}, "penalties", (1, 0, 0.5, -1)),
    ({"dry_multiplier": 0.8}, "dry", (0.8, 1.75, 2, -1)),
    ({"top_n_sigma": 1.5}, "top_n_sigma", (1.5,)),
    ({"top_k": 1}, "top_k", (1,)),
    ({"typical_p": 0.9}, "typical", (0.9,)),
    ({"top_a": 0.1}, "top_a", (0.1,)),
    ({"eta_cutoff": 0.2}, "eta", (0.2,)),
    ({"epsilon_cutoff": 0.3}, "epsilon", (0.3,)),
    ({"top_p": 0.0}, "top_p", (0,)),
    ({"min_p": 0.4}, "min_p", (0.4,)),
    ({"xtc_probability": 0.5}, "xtc", (0.5, 0.1)),
    ({"temperature": 2.0}, "temperature", (2, 0, 1)),
    ({"dynatemp_range": 0.3, "dynatemp_exponent": 2.0}, "temperature", (1, 0.3, 2)),
    ({"mirostat": 1, "mirostat_tau": 3.0}, "mirostat", (1, 3, 0.1)),
]


@pytest.mark.parametrize("fields, stage, values", ALONE)
def test_a_field_that_is_not_neutral_runs_its_stage(fields, stage, values):
    config = SamplerConfig.greedy(**{"temperature": 1.0, **fields})
    assert [(each.name, each.values) for each in stages_of(config)] == [(stage, values)]
    greedy = stages_of(config.replace(temperature=0.0))
    kept = [(stage, values)] if stage in ("penalties", "dry") else []
    assert [(each.name, each.values) for each in greedy] == [*kept, ("temperature", (0, 0, 1))]


@pytest.mark.parametrize(
    "fields",
    (
        {},
        {"repetition_penalty": 1.2, "presence_penalty": 0.5, "repetition_window": 0},
        {"dry_multiplier": 0.8, "dry_penalty_last_n": 0},
        {"xtc_threshold": 0.3, "dynatemp_exponent": 2.0, "mirostat_tau": 3.0, "dry_base": 2.0},
    ),
)
def test_a_field_without_a_stage_runs_none(fields):
    assert stages_of(SamplerConfig.greedy(temperature=1.0, **fields)) == ()
    assert len(stages_of(SamplerConfig.greedy(**fields))) == 1
