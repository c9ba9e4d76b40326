"""Filling in masks without a model: what orders look at, and how many masks a pass fills. What a
model fills in: tests/engine/test_diffusion.py.
"""

import numpy as np
import pytest

from oxillama._core.sampler import certainty
from oxillama.errors import SamplingError
from oxillama.sampling import DiffusionConfig, Sampler, SamplerConfig
from oxillama.sampling.diffusion import Denoiser, shares

VOCAB, MASK = 50, 49


def test_certainty_is_that_of_the_softmax():
    row = np.random.default_rng(1).standard_normal(VOCAB).astype(np.float32) * 3
    row[7] = -np.inf
    p = np.exp(row.astype(np.float64))
    p /= p.sum()
    share, lead, entropy = certainty(row, 11)
    top = np.sort(p)[::-1]
    found = p[p > 0]
    assert share == pytest.approx(p[11], rel=1e-12)
    assert lead == pytest.approx(top[0] - top[1], rel=1e-12)
    assert entropy == pytest.approx(-(found * np.log(found)).sum(), rel=1e-12)
    assert certainty(row, 7)[0] == 0.0
    assert certainty(np.float32([2.0]), 0) == (1.0, 1.0, 0.0)
    for wrong, token in ((row, VOCAB), (np.float32([np.nan, 1]), 0)):
        with pytest.raises(SamplingError):
            certainty(wrong, token)


def filled(config, places, rows, *, prompt=(3, 4), seed=5):
    """The masks that each pass fills, if every pass gives the same rows for all places."""
    sampler = Sampler(SamplerConfig.greedy(), VOCAB, seed=seed)
    answer = Denoiser.of(prompt, places, config, mask=MASK, shifted=False, sampler=sampler)
    passes = []
    while answer.next is not None:
        before = answer.tokens == MASK
        answer.take(rows[answer.next.rows - len(prompt)])
        passes.append(np.flatnonzero(before & (answer.tokens != MASK)) - len(prompt))
    assert answer.final == len(answer.tokens) == len(prompt) + places
    return [each.tolist() for each in passes]


def rows_of(*peaks):
    """Rows whose likeliest token is so far above all others."""
    rows = np.zeros((len(peaks), VOCAB), np.float32)
    rows[np.arange(len(peaks)), np.arange(len(peaks))] = peaks
    return rows


@pytest.mark.parametrize("order", ["confidence", "entropy", "margin"])
def test_the_surest_places_come_first_and_of_equal_ones_the_earlier(order):
    rows = rows_of(1, 5, 2, 2, 4, 3)
    assert filled(DiffusionConfig(order=order, steps=3), 6, rows) == [[1, 4], [2, 5], [0, 3]]
    blocks = DiffusionConfig(order=order, block_length=3)
    assert filled(blocks, 6, rows) == [[1], [2], [0], [4], [5], [3]]


def test_places_fall_by_time_and_the_last_pass_fills_the_rest():
    rows = rows_of(*range(20, 0, -1))
    counts = [len(each) for each in filled(DiffusionConfig(eps=0.1, steps=4), 20, rows)]
    # t = 1, 0.775, 0.55, 0.325, 0.1: of 20 masks 0.225, of 16 0.29, of 12 0.41, and 8
    assert counts == [4, 4, 4, 8]
    # passes that would fill none are not run: 3 times 0.32 at the sixth, 0.48 at the seventh
    few = [len(each) for each in filled(DiffusionConfig(eps=0.01, steps=8), 3, rows)]
    assert few == [1, 2]


def test_an_order_by_chance_depends_on_the_seed_alone():
    rows = rows_of(*range(1, 13))
    for config in (
        DiffusionConfig(order="random", steps=4),
        DiffusionConfig(order="origin", steps=4),
        DiffusionConfig(order_temperature=0.5, steps=4),
    ):
        one = filled(config, 12, rows)
        assert one == filled(config, 12, rows) != filled(config, 12, rows, seed=6)
        assert sorted(sum(one, [])) == list(range(12))
    assert [len(each) for each in filled(DiffusionConfig(order="random", steps=4), 12, rows)] == [
        3
    ] * 4


def test_a_low_temperature_of_the_order_takes_the_first():
    rows = rows_of(1, 5, 2, 3, 4, 2.5)
    cold = DiffusionConfig(order_temperature=1e-4, steps=3)
    assert filled(cold, 6, rows) == filled(DiffusionConfig(steps=3), 6, rows)


def test_shares_are_even_and_the_first_ones_larger():
    assert shares(7, 3) == [3, 2, 2] and shares(2, 4) == [1, 1, 0, 0]
