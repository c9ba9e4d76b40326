"""The facts every sampler must honour, and the probability vectors that other programs computed."""

import json
import math

import numpy as np
import pytest

from oxillama._core.sampler import SamplerCore
from oxillama.errors import ConfigError, SamplingError
from oxillama.sampling import Sampler, SamplerChain, SamplerConfig, SamplerStage
from oxillama.sampling.chain import compile_stages
from tests.reference import sampling_oracle as oracle


def row(*values):
    return np.array(values, np.float32)


def bitset(vocab, allowed):
    bits = np.zeros((vocab + 31) // 32, np.uint32)
    for token in allowed:
        bits[token // 32] |= np.uint32(1 << (token % 32))
    return bits


def outcome(stages, logits, *, history=(), seed=1, **lists):
    """{id: probability} after the stages."""
    core = SamplerCore(compile_stages(stages, len(logits), **lists), seed)
    core.accept_prompt(np.array(history, np.int32))
    assert core.sample(np.asarray(logits, np.float32), None, len(logits)) >= 0
    _, _, ids, values = core.last
    return {i: math.exp(v) for i, v in zip(ids, values)}


def test_greedy_takes_the_largest():
    assert Sampler(SamplerConfig.greedy(), 5).sample(row(0.1, 0.5, 0.3, 0.8, 0.2)) == 3
    assert Sampler(SamplerConfig(temperature=0), 4).sample(row(1, 5, 3, 2)) == 1


def test_greedy_ties_go_to_the_lowest_id():
    assert Sampler(SamplerConfig.greedy(), 5).sample(row(0, 7, 7, 7, 1)) == 1
    assert Sampler(SamplerConfig.greedy(), 3).sample(row(-0.0, 0.0, -0.0)) == 0


def test_top_k_1_and_top_p_and_min_p_of_a_dominant_logit():
    for seed in range(50):
        assert Sampler(SamplerConfig(top_k=1, seed=seed), 3).sample(row(1, 5, 3)) == 1
        assert Sampler(SamplerConfig(top_p=0.5, seed=seed), 5).sample(row(100, 0, 0, 0, 0)) == 0
        assert Sampler(SamplerConfig(min_p=0.1, seed=seed), 4).sample(row(10, -10, -10, -10)) == 0


def test_repetition_penalty_moves_greedy_on():
    s = Sampler(SamplerConfig(temperature=0, repetition_penalty=100), 4)
    s.accept_prompt([1])
    assert s.sample(row(1, 5, 4.9, 1)) == 2


def test_repetition_penalty_counts_a_token_once():
    stage = [SamplerStage.of("penalties", repetition=1.3)]
    assert outcome(stage, row(1, 2, -1), history=[1, 1, 1, 2]) == outcome(
        stage, row(1, 2, -1), history=[1, 2]
    )


def test_equal_logits_are_drawn_about_equally():
    s = Sampler(SamplerConfig(seed=42, top_p=1, repetition_penalty=1), 4)
    counts = np.bincount([s.sample(row(1, 1, 1, 1)) for _ in range(1000)], minlength=4)
    assert all(100 <= c <= 400 for c in counts)


def test_all_banned_but_one():
    s = Sampler(SamplerConfig(banned_tokens=[0, 1, 2, 4]), 5)
    assert {s.sample(row(9, 9, 9, -9, 9)) for _ in range(50)} == {3}
    s = Sampler(SamplerConfig(allowed_tokens=[3]), 5)
    assert {s.sample(row(9, 9, 9, -9, 9)) for _ in range(50)} == {3}


def test_bias_wins_and_a_ban_beats_it():
    assert Sampler(SamplerConfig.greedy(logit_bias={2: 100}), 3).sample(row(10, 10, 0)) == 2
    s = Sampler(SamplerConfig(logit_bias={0: 999}, banned_tokens=[0]), 3)
    assert 0 not in {s.sample(row(10, 1, 1)) for _ in range(200)}
    s = Sampler(SamplerConfig.greedy(logit_bias={0: -math.inf}), 3)
    assert s.sample(row(10, 1, 2)) == 2


def test_a_bias_of_minus_infinity_is_a_ban():
    s = Sampler(
        SamplerConfig(
            logit_bias={0: -math.inf, 1: -math.inf}, top_k=0, top_p=1, temperature=1e30, seed=1
        ),
        3,
        logprobs=3,
    )
    s.sample(row(10, 1, 2))
    assert s.logprobs.final_ids == (2,)
    with pytest.raises(SamplingError, match="banned tokens leave 0"):
        Sampler(SamplerConfig(logit_bias={0: -math.inf}), 1).sample(row(1))


def test_a_bias_that_overflows_stays_finite():
    s = Sampler(SamplerConfig.greedy(logit_bias={1: 3e38, 2: -3e38}), 3)
    assert s.sample(row(1, 3e38, -3e38)) == 1


def test_mask_beats_the_largest_logit():
    s = Sampler(SamplerConfig.greedy(), 40)
    logits = np.zeros(40, np.float32)
    logits[33] = 100
    assert s.sample(logits, bitset(40, [7, 39])) == 7
    logits[39] = 1
    assert s.sample(logits, bitset(40, [7, 39])) == 39


def test_mirostat_v2_holds_to_a_dominant_logit():
    logits = np.zeros(100, np.float32)
    logits[17] = 20
    s = Sampler(SamplerConfig.mirostat_v2(0.5, seed=3), 100)
    assert sum(s.sample(logits) == 17 for _ in range(100)) > 90


def test_neutral_stages_change_nothing():
    config = SamplerConfig(
        temperature=1,
        top_k=0,
        top_p=1,
        repetition_penalty=1,
        dry_multiplier=0,
        xtc_probability=0,
        typical_p=1,
        top_a=0,
        eta_cutoff=0,
        epsilon_cutoff=0,
    )
    s = Sampler(config, 4, logprobs=4)
    s.sample(row(1, 2, 3, 0.5))
    assert s.stage_names == ("bias", "mask")
    assert (s.logprobs.final_ids, s.logprobs.final_values) == (
        s.logprobs.raw_ids,
        s.logprobs.raw_values,
    ) and s.logprobs.raw_ids == (2, 1, 0, 3)


def test_dry_fact():
    got = outcome(
        [SamplerStage.of("dry", multiplier=2.0, base=1.75, allowed_length=2)],
        row(0, 0, 5, 5),
        history=[0, 1, 2, 0, 1],
    )
    want = oracle.probs((None, np.array([0, 0, 3.0, 5.0])))
    assert got == pytest.approx(dict(enumerate(want)), rel=1e-12)


def test_xtc_fact():
    got = outcome([SamplerStage.of("xtc", probability=1.0, threshold=0.1)], row(3, 2, 1, 0))
    assert sorted(got) == [1, 2, 3]
    assert sorted(
        outcome([SamplerStage.of("xtc", probability=1.0, threshold=0.7)], row(3, 2, 1, 0))
    ) == [0, 1, 2, 3]
    assert sorted(
        outcome([SamplerStage.of("xtc", probability=0.0, threshold=0.1)], row(3, 2, 1, 0))
    ) == [0, 1, 2, 3]


def test_xtc_spares_special_tokens():
    got = outcome(
        [SamplerStage.of("xtc", probability=1.0, threshold=0.05)], row(3, 2, 1, 0), special=[0]
    )
    assert sorted(got) == [0, 2, 3]


def test_typical_and_top_a_facts():
    assert sorted(outcome([SamplerStage.of("typical", p=0.3)], np.zeros(8))) == [0, 1, 2]
    assert sorted(outcome([SamplerStage.of("top_a", a=1.0)], row(10, -10, -10, -10))) == [0]


EXTREME = [
    {"top_k": 1},
    {"top_p": 0.0},
    {"min_p": 1.0},
    {"typical_p": 0.0},
    {"top_a": 1e9},
    {"eta_cutoff": 1.0},
    {"epsilon_cutoff": 1.0},
    {"top_n_sigma": 1e-6},
    {"temperature": 1e-30},
    {"temperature": 1e-9},
    {"temperature": 1e30, "top_k": 1},
    {"repetition_penalty": 1e30},
    {"repetition_penalty": 1e-6},
    {"frequency_penalty": 1e38},
    {"dry_multiplier": 1e38, "dry_base": 1e30},
]


@pytest.mark.parametrize("fields", EXTREME, ids=lambda f: "-".join(f))
def test_extreme_numbers_keep_the_most_likely_allowed_token(fields):
    config = SamplerConfig(
        **{
            "seed": 1,
            "repetition_penalty": 1,
            "dry_sequence_breakers": (),
            "banned_tokens": [9],
            **fields,
        }
    )
    s = Sampler(config, 64)
    s.accept_prompt([1, 2, 1, 2])
    logits = np.linspace(-1, 1, 64, dtype=np.float32)
    logits[9], logits[40] = 50, 30
    # its own favourite is the token nearest to the entropy: here the dominant one
    if "typical_p" in fields:
        logits[40] = 60
    assert {s.sample(logits) for _ in range(20)} == {40}


def test_everything_banned_says_so():
    with pytest.raises(SamplingError, match="banned tokens leave 0"):
        Sampler(SamplerConfig(banned_tokens=[0, 1, 2]), 3).sample(row(1, 2, 3))
    with pytest.raises(SamplingError, match="the mask leaves 0"):
        Sampler(SamplerConfig(), 3).sample(row(1, 2, 3), np.zeros(1, np.uint32))
    with pytest.raises(SamplingError, match="0 of 3 logits are finite"):
        Sampler(SamplerConfig(), 3).sample(np.full(3, -np.inf, np.float32))
    with pytest.raises(SamplingError, match="the mask leaves 1, banned tokens leave 0"):
        Sampler(SamplerConfig(ignore_eos=True), 3, eog_ids=[2]).sample(row(1, 2, 3), bitset(3, [2]))
    with pytest.raises(SamplingError, match="min_tokens bans end of generation, leaving 0"):
        Sampler(SamplerConfig(min_tokens=2), 3, eog_ids=[2]).sample(row(1, 2, 3), bitset(3, [2]))
    with pytest.raises(SamplingError, match="allowed_tokens leave 1, the mask leaves 0"):
        Sampler(SamplerConfig(allowed_tokens=[1]), 3).sample(row(1, 2, 3), bitset(3, [2]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, np.array(0xFFC00000, np.uint32).view(np.float32)])
@pytest.mark.parametrize("at", [0, 5, 999])
def test_nan_and_infinity_raise_wherever_they_stand(bad, at):
    logits = np.zeros(1000, np.float32)
    logits[at] = bad
    with pytest.raises(SamplingError, match=rf"logits\[{at}\]: found (nan|inf), wanted finite"):
        Sampler(SamplerConfig(), 1000).sample(logits)
    with pytest.raises(SamplingError, match="logits"):
        Sampler(SamplerConfig.greedy(), 1000).sample(logits, bitset(1000, [7]))


def test_min_tokens_and_ignore_eos_hold_back_the_end():
    s = Sampler(SamplerConfig.greedy(min_tokens=3, stop_token_ids=[1]), 4, eog_ids=[3])
    drawn = []
    s.accept_prompt([0, 0, 0, 0])
    for _ in range(5):
        drawn.append(s.sample(row(0, 5, 1, 9)))
        s.accept(drawn[-1])
    assert drawn == [2, 2, 2, 3, 3]
    assert (
        Sampler(SamplerConfig.greedy(ignore_eos=True), 4, eog_ids=[3, 1]).sample(row(0, 5, 1, 9))
        == 2
    )


def test_shapes_and_ids_are_checked_at_the_door():
    s = Sampler(SamplerConfig(), 33)
    with pytest.raises(SamplingError, match="found 32, wanted the vocabulary size 33"):
        s.sample(np.zeros(32, np.float32))
    with pytest.raises(SamplingError, match="found 1 words, wanted 2"):
        s.sample(np.zeros(33, np.float32), np.zeros(1, np.uint32))
    with pytest.raises(SamplingError, match="wanted logits"):
        s.sample(np.zeros((1, 33), np.float32))
    with pytest.raises(SamplingError, match="accept: found token 33"):
        s.accept(33)
    with pytest.raises(SamplingError, match="accept_prompt: found token -1"):
        s.accept_prompt([3, -1])
    for field in ({"banned_tokens": [33]}, {"logit_bias": {33: 1.0}}, {"allowed_tokens": [40]}):
        with pytest.raises(ConfigError, match="found token"):
            Sampler(SamplerConfig(**field), 33)


def test_other_programs_vectors(cases):
    """Probabilities before and after each sampler: equal within 1e-5."""
    tested = 0
    for case in json.loads((cases / "sampling" / "sampling.json").read_text()):
        if "probs" not in case:
            continue
        history, lists = case.get("last_tokens", ()), {}
        kind = case["test"].removeprefix("test_")
        if kind == "temp_ext":
            stages = [
                SamplerStage.of(
                    "temperature", t=case["temp"], range=case["delta"], exponent=case["exponent"]
                )
            ]
        elif kind == "top_k":
            stages = [SamplerStage.of("top_k", k=case["k"])] if case["k"] else []
        elif kind in ("min_p", "typical"):
            stages = [SamplerStage.of(kind, p=case["p"])]
        elif kind == "xtc":
            stages = [SamplerStage.of("xtc", probability=1.0, threshold=case["t"])]
        elif kind == "top_n_sigma":
            stages = [SamplerStage.of("top_n_sigma", n=case["n"])]
        elif kind == "penalties":
            stages = [
                SamplerStage.of(
                    "penalties",
                    repetition=case["repeat_penalty"],
                    frequency=case["alpha_frequency"],
                    presence=case["alpha_presence"],
                    window=len(history),
                )
            ]
        else:
            assert kind == "dry"
            lists["breakers"] = case["seq_breakers"]
            stages = [
                SamplerStage.of(
                    "dry",
                    multiplier=case["dry_multiplier"],
                    base=case["dry_base"],
                    allowed_length=case["dry_allowed_length"],
                    last_n=case["dry_penalty_last_n"],
                )
            ]
        got = outcome(stages, np.log(np.array(case["probs"], np.float32)), history=history, **lists)
        want = [
            p / sum(case["expected"])
            for p in case["expected"]
            if p or len(got) == len(case["expected"])
        ]
        assert sorted(got.values()) == pytest.approx(sorted(want), abs=1e-5), case
        tested += 1
    assert tested >= 20


def test_other_programs_queues(cases):
    """Chains over 10,000 tokens whose probability grows with the id: what survives is the same set
    as the definition gives.
    """
    letters = {"k": "top_k", "p": "top_p", "m": "min_p"}
    tested = 0
    for case in json.loads((cases / "sampling" / "sampling.json").read_text()):
        if case["test"] != "test_sampler_queue":
            continue
        with np.errstate(divide="ignore"):
            logits = np.log(np.arange(case["n_vocab"], dtype=np.float32))
        numbers = {
            "top_k": {"k": case["top_k"]},
            "top_p": {"p": case["top_p"]},
            "min_p": {"p": case["min_p"]},
        }
        names = [letters[c] for c in case["samplers"]]
        want = oracle.start(logits)
        for name in names:
            want = getattr(oracle, name)(want, *numbers[name].values())
        got = outcome([SamplerStage.of(name, **numbers[name]) for name in names], logits)
        assert sorted(got) == sorted(want[0])
        tested += 1
    assert tested >= 5


def test_reach_of_a_mass_is_not_lost_to_float32():
    """0.4 + 0.3 reaches 0.7 although their float32 logarithms say 0.69999999."""
    probs = np.log(np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    for p, survivors in ((0.0, [3]), (0.4, [3]), (0.7, [2, 3]), (0.8, [1, 2, 3]), (0.9, [1, 2, 3])):
        assert sorted(outcome([SamplerStage.of("top_p", p=p)], probs)) == survivors
    assert sorted(outcome([SamplerStage.of("min_p", p=0.5)], probs)) == [1, 2, 3]


def test_own_stage_in_a_chain():
    def only_even(ids, logits):
        logits[ids % 2 == 1] = -np.inf

    chain = (
        SamplerChain(seed=1)
        .push(SamplerStage.of("top_k", k=3))
        .push(SamplerStage.python("only_even", only_even))
    )
    assert chain.stage_names == ("bias", "mask", "top_k", "only_even")
    assert {chain.sample(row(0, 5, 4, 3, 2)) for _ in range(20)} == {2}
