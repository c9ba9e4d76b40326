"""Waves over distances and positions: what they add up to."""

from hashlib import blake2b

import numpy as np

from oxillama.model.waves import heights, positions, turns


def test_waves_add_up_to_the_values_of_distances():
    """Whatever the position of a query, which its heights are turned by."""
    values = np.random.default_rng(0).normal(size=(5, 3))
    made = heights(values, -2, 7).astype(np.float64)
    turn = turns(np.arange(20), 7).astype(np.float64)
    for query in (2, 9):
        cosines, sines = np.split(turn[query], 2)
        first, second = made[:4], made[4:]
        turned = np.concatenate([
            first * cosines[:, None] - second * sines[:, None],
            first * sines[:, None] + second * cosines[:, None],
        ])  # fmt: skip
        for distance in range(-2, 3):
            found = turn[query - distance] @ turned
            assert np.abs(found - values[distance + 2]).max() < 1e-6


def test_positions_are_cosines_and_sines_of_falling_rates():
    found = positions(1000, 32)
    rates = 10000.0 ** (-np.arange(16) / 16)
    angles = np.arange(1000)[:, None] * rates
    assert np.abs(found - np.concatenate([np.cos(angles), np.sin(angles)], axis=1)).max() < 6e-8
    assert np.array_equal(found[:70], positions(70, 32))
    assert blake2b(found.tobytes(), digest_size=8).hexdigest() == "4bc5adf7aed554e2"
