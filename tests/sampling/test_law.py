"""The sampling law: over the seeds that people use, the first three draws of every stage follow the
stage's distribution.

Three draws in a row are compared with the joint distribution that the definitions in
`sampling_oracle` give, by Pearson's chi-square: each draw alone, and all three together. The seeds
are fixed, so the outcome is too.
"""

import math
from collections import Counter

import numpy as np
import pytest

from oxillama._core.sampler import SamplerCore
from oxillama._core.xorshift import Xorshift64
from oxillama.sampling import STAGES, Sampler, SamplerConfig, SamplerStage
from oxillama.sampling.chain import compile_stages
from tests.reference import sampling_oracle as oracle

LOGITS = np.array([1.2, 0.7, 0.3, -0.2, -0.8, -1.5], np.float32)
VOCAB, DRAWS = len(LOGITS), 3
PROMPT = [0, 1, 2, 0, 1]
SEEDS = {
    "small": range(10_000),
    "consecutive": range(2**40 + 12_345, 2**40 + 22_345),
    "seconds": range(1_763_800_000, 1_763_810_000),
    "nanoseconds": range(1_763_800_000_123_456_789, 1_763_810_000_123_456_789, 1_000_000_000),
    "high bits": range(0, 10_000 << 50, 1 << 50),
}
TAU, ETA = 1.6, 0.4


def plain(*cuts):
    """A law that depends on nothing drawn before."""

    def law(d, history, mu):
        for cut, *numbers in cuts:
            d = cut(d, *numbers)
        return [(1.0, d)]

    return law


def coin(d, history, mu):
    return [(0.6, oracle.xtc(d, 0, 0.6, 0.1)), (0.4, d)]


def version_1(d, history, mu):
    k = oracle.mirostat_v1_k(d, mu, VOCAB)
    return [(1.0, d if k is None else oracle.top_k(d, max(1, int(k))))]


# stage -> (its numbers, token lists, law: [(chance, distribution)] of a row after a history)
LAWS = {
    "bias": (
        (),
        {"bias": {3: 1.0}, "bans": (1,)},
        lambda d, history, mu: [
            (
                1.0,
                oracle.start(LOGITS + np.array([0, 0, 0, 1, 0, 0], np.float32), removed=(1,)),
            )
        ],
    ),
    "penalties": (
        (1.3, 0.2, 0.1, 4),
        {},
        lambda d, history, mu: [(1.0, oracle.penalties(d, history, 1.3, 0.2, 0.1, 4))],
    ),
    "dry": (
        (0.9, 1.5, 2, -1),
        {},
        lambda d, history, mu: [(1.0, oracle.dry(d, history, 0.9, 1.5, 2, -1))],
    ),
    "mask": ((), {"allow": (0, 2, 4, 5)}, lambda d, *_: [(1.0, oracle.start(LOGITS, (1, 3)))]),
    "top_n_sigma": ((1.6,), {}, plain((oracle.top_n_sigma, 1.6))),
    "top_k": ((4,), {}, plain((oracle.top_k, 4))),
    "typical": ((0.8,), {}, plain((oracle.typical, 0.8))),
    "top_a": ((0.8,), {}, plain((oracle.top_a, 0.8))),
    "eta": ((0.3,), {}, plain((oracle.eta, 0.3))),
    "epsilon": ((0.09,), {}, plain((oracle.epsilon, 0.09))),
    "top_p": ((0.85,), {}, plain((oracle.top_p, 0.85))),
    "min_p": ((0.3,), {}, plain((oracle.min_p, 0.3))),
    "xtc": ((0.6, 0.1), {}, coin),
    "temperature": ((0.7, 0.0, 1.0), {}, plain((oracle.temperature, 0.7))),
    "dynamic temperature": ((1.0, 0.5, 1.0), {}, plain((oracle.temperature, 1.0, 0.5))),
    "mirostat": (
        (2, TAU, ETA),
        {},
        lambda d, history, mu: [(1.0, oracle.mirostat_v2_cut(d, mu))],
    ),
    "mirostat, version 1": ((1, TAU, ETA), {}, version_1),
    "no stage": ((), {}, plain()),
}


def stage_name(case):
    return {"dynamic temperature": "temperature", "mirostat, version 1": "mirostat"}.get(case, case)


def joint(law):
    """The probability of each three draws."""
    out = {}

    def go(path, chance, mu):
        if len(path) == DRAWS:
            out[path] = out.get(path, 0.0) + chance
            return
        for share, d in law(oracle.start(LOGITS), [*PROMPT, *path], mu):
            for token, p in zip(d[0], oracle.probs(d)):
                go((*path, int(token)), chance * share * p, mu - ETA * (-math.log2(p) - TAU))

    go((), 1.0, 2 * TAU)
    return out


def excess(found, wanted, seeds):
    """Pearson's chi-square as a standard normal deviate (Wilson and Hilferty 1931), cells that
    expect fewer than five pooled into one."""
    cells = [(found.get(key, 0), seeds * p) for key, p in wanted.items()]
    rare = [cell for cell in cells if cell[1] < 5]
    cells = [cell for cell in cells if cell[1] >= 5]
    if rare:
        cells.append(tuple(map(sum, zip(*rare))))
    assert set(found) <= set(wanted)
    degrees = len(cells) - 1
    chi = sum((n - e) ** 2 / e for n, e in cells)
    spread = 2 / (9 * degrees)
    return ((chi / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def drawn(case, seeds):
    """How often each three draws came, over the seeds."""
    numbers, lists, _ = LAWS[case]
    name = stage_name(case)
    stages = [] if name in ("bias", "mask", "no stage") else [SamplerStage(name, numbers)]
    core = SamplerCore(compile_stages(stages, VOCAB, **lists), 1)
    prompt, tau = np.array(PROMPT, np.int32), core.mu
    found = Counter()
    for seed in seeds:
        core.load(Xorshift64(seed).raw_state(), tau, 0, prompt)
        three = []
        for _ in range(DRAWS):
            three.append(core.sample(LOGITS))
            core.accept(three[-1])
        found[tuple(three)] += 1
    return found


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("case", LAWS)
def test_the_first_three_draws_follow_the_law_of_the_stage(case, seeds):
    wanted, found = joint(LAWS[case][2]), drawn(case, SEEDS[seeds])
    count = len(SEEDS[seeds])
    assert excess(found, wanted, count) < 4, "all three together"
    for at in range(DRAWS):
        one_found, one_wanted = Counter(), Counter()
        for key, n in found.items():
            one_found[key[at]] += n
        for key, p in wanted.items():
            one_wanted[key[at]] += p
        assert excess(one_found, one_wanted, count) < 4, f"draw {at + 1}"


def test_every_stage_has_its_law_here():
    assert {stage_name(case) for case in LAWS} == {*(stage.name for stage in STAGES), "no stage"}


def test_a_sampler_draws_from_the_stream_of_its_seed():
    """What the law is checked on is what requests draw from."""
    for seed in (0, 1, 2, 42, 1000, 2**31, 2**64 - 1):
        sampler = Sampler(SamplerConfig(seed=seed), VOCAB)
        assert sampler.rng.raw_state() == Xorshift64(seed).raw_state()
        sampler.reseed(seed + 1 & 2**64 - 1)
        assert sampler.rng.raw_state() == Xorshift64(seed + 1 & 2**64 - 1).raw_state()
