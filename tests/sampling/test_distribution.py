"""What a sampler draws from, as numbers, and tokens that were drawn elsewhere: the same law comes
out, and the same stream goes on.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.errors import SamplingError
from oxillama.sampling import Distribution, Sampler, SamplerConfig, SamplerStage

VOCAB = 48
CONFIGS = {
    "greedy": SamplerConfig.greedy(),
    "plain": SamplerConfig(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0),
    "truncated": SamplerConfig(
        temperature=0.7, top_k=9, top_p=0.9, min_p=0.02, typical_p=0.95, repetition_penalty=1.2
    ),
    "chance": SamplerConfig(
        temperature=1.3, top_k=0, xtc_probability=0.5, xtc_threshold=0.05, dynatemp_range=0.4
    ),
    "mirostat": SamplerConfig(temperature=0.9, mirostat=2, mirostat_tau=3.0),
    "mirostat 1": SamplerConfig(temperature=0.9, mirostat=1, mirostat_tau=3.0),
    "dry": SamplerConfig(
        temperature=0.8,
        dry_multiplier=0.8,
        dry_sequence_breakers=(),
        presence_penalty=0.4,
        frequency_penalty=0.1,
    ),
}


def row(seed: int, vocab: int = VOCAB) -> np.ndarray:
    """float32 (vocab,) of no particular shape."""
    return (2 * np.random.default_rng(seed).standard_normal(vocab)).astype(np.float32)


def bits(*tokens: int) -> np.ndarray:
    """The mask that allows these tokens."""
    mask = np.zeros((VOCAB + 31) // 32, np.uint32)
    for token in tokens:
        mask[token >> 5] |= np.uint32(1 << (token & 31))
    return mask


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20))
def test_a_forced_token_that_is_passed_over_leaves_what_drawing_it_would(config, seed, tokens):
    drawn, passed = (Sampler(config, VOCAB, seed=seed) for _ in range(2))
    for at, token in enumerate(tokens):
        # a free draw in between, so that a stream out of step would show
        if at % 3 == 2:
            token = drawn.sample(row(seed + at))
            assert passed.sample(row(seed + at)) == token
        else:
            assert drawn.sample(row(seed + at), bits(token)) == token
            assert passed.pass_over(token)
        drawn.accept(token)
        passed.accept(token)
        assert drawn.state() == passed.state()


def test_a_forced_token_is_not_passed_over_where_only_a_draw_can_tell():
    free = SamplerConfig(temperature=1.0)
    refusing = {
        "banned": Sampler(free.replace(banned_tokens=(5,)), VOCAB, seed=1),
        "biased away": Sampler(free.replace(logit_bias={5: -np.inf}), VOCAB, seed=1),
        "not allowed": Sampler(free.replace(allowed_tokens=(4, 6)), VOCAB, seed=1),
        "end too early": Sampler(free.replace(min_tokens=2), VOCAB, seed=1, eog_ids=(5,)),
        "processor": Sampler(free, VOCAB, seed=1, processors=[lambda ids, logits: None]),
        "stage": Sampler(
            free, VOCAB, seed=1, stages=[SamplerStage.python("mine", lambda ids, logits: None)]
        ),
        "report": Sampler(free, VOCAB, seed=1, logprobs=0),
    }
    for why, sampler in refusing.items():
        before = sampler.state()
        assert not sampler.pass_over(5), why
        assert sampler.state() == before, why


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_the_distribution_is_what_a_draw_is_made_from(config):
    for seed in range(20):
        drawing, telling = (Sampler(config, VOCAB, seed=seed, logprobs=VOCAB) for _ in range(2))
        token = drawing.sample(row(seed))
        own = telling.distribution(row(seed))
        report = drawing.logprobs
        assert sorted(own.ids.tolist()) == sorted(report.final_ids)
        assert own.share(token) == pytest.approx(np.exp(report.final), rel=1e-12)
        assert own.shares.sum() == pytest.approx(1.0, abs=1e-12)
        telling.sample_from(own)
        if config.temperature:
            assert telling.rng.raw_state() == drawing.rng.raw_state()


def judged(
    p: np.ndarray, q: np.ndarray, draws: int, config: SamplerConfig, seed: int
) -> np.ndarray:
    """Counts of tokens that come out when candidates from softmax(q) are judged against logits
    p.
    """
    target, draft = Sampler(config, len(p), seed=seed), Sampler(config, len(p), seed=seed + 1)
    counts, other = np.zeros(len(p)), draft.distribution(q)
    for _ in range(draws):
        counts[target.judge(p, None, draft.sample_from(other), other)] += 1
    return counts


def chi_square_bound(freedom: int) -> float:
    """Chi-square's 1 - 1e-6 quantile, by Wilson and Hilferty's cube root (1931)."""
    return freedom * (1 - 2 / (9 * freedom) + 4.7534 * np.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.parametrize(
    "config",
    [
        CONFIGS["plain"],
        CONFIGS["plain"].replace(top_k=5),
        CONFIGS["plain"].replace(top_p=0.8, temperature=1.7),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_judged_candidate_follows_the_targets_own_law(config, seed):
    vocab, draws = 12, 17_000  # six cases: 10^5 draws in all
    p, q = row(seed, vocab), row(seed + 100, vocab)
    counts = judged(p, q, draws, config, seed)
    own = Sampler(config, vocab, seed=0).distribution(p)
    expected = np.zeros(vocab)
    expected[own.ids] = own.shares * draws
    assert not counts[expected == 0].any()
    live = expected > 0
    statistic = ((counts[live] - expected[live]) ** 2 / expected[live]).sum()
    assert statistic < chi_square_bound(int(live.sum()) - 1)


def test_candidates_from_the_same_distribution_always_stay():
    target, draft = (
        Sampler(CONFIGS["plain"], VOCAB, seed=3),
        Sampler(CONFIGS["plain"], VOCAB, seed=4),
    )
    for seed in range(500):
        other = draft.distribution(row(seed))
        token = draft.sample_from(other)
        assert target.judge(row(seed), None, token, other) == token


def test_a_candidate_that_its_own_distribution_excludes_is_refused():
    target = Sampler(CONFIGS["plain"], VOCAB, seed=3)
    with pytest.raises(
        SamplingError,
        match="candidate 7: its distribution gives it probability 0.0, wanted above 0",
    ):
        target.judge(
            row(1), None, 7, Distribution(np.array([1, 2], np.int32), np.array([0.5, 0.5]))
        )


def test_a_judged_draw_is_reported_as_any_other():
    config = CONFIGS["truncated"]
    target, draft = Sampler(config, VOCAB, seed=3, logprobs=3), Sampler(config, VOCAB, seed=4)
    plain = Sampler(config, VOCAB, seed=9, logprobs=3)
    other = draft.distribution(row(5))
    token = target.judge(row(5), None, draft.sample_from(other), other)
    plain.sample(row(5))
    assert target.logprobs.token == token and target.logprobs.raw_ids == plain.logprobs.raw_ids
    assert target.logprobs.final_ids == plain.logprobs.final_ids
    assert target.logprobs.final_values == pytest.approx(plain.logprobs.final_values, rel=1e-9)
