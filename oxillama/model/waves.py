"""Numbers for each distance between two rows as a sum of waves over the distance: what makes a
score by distance that depends on the query a product of further columns of queries and keys. The
bits are the same on every machine: of sums and products in a fixed order, and of decimal
arithmetic.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache

import numpy as np

from oxillama.decimals import digits

_PI = Decimal("3.14159265358979323846264338327950288")
_STEP = 64  # positions whose angles are sums of two


def heights(values: np.ndarray, first: int, period: int) -> np.ndarray:
    """The heights of waves whose sum has `values`, float64 (distances, width), at the distances
    from `first` on: float32 (period + 1, width), of the cosines that have 0 to period // 2 waves in
    a period, then of the sines, turned round, as a rotation of halves by the position of a query
    takes them. period: an odd number of distances, at least as many as there are values.
    """
    count = (period + 1) // 2
    made = np.zeros((2 * count, values.shape[1]))
    for distance, row in enumerate(values, first):
        cosine, sine = circle(period)[np.arange(count) * distance % period].T
        of_each = np.concatenate([cosine * np.where(np.arange(count), 2, 1), sine * -2]) / period
        made += of_each[:, None] * row
    return made.astype(np.float32)


def turns(positions: np.ndarray, period: int) -> np.ndarray:
    """What rows at positions are rotated by, and the further columns of keys there: float32 (rows,
    period + 1), the cosines of all waves and then their sines.
    """
    at = np.arange((period + 1) // 2) * positions[:, None] % period
    return np.concatenate([circle(period)[at, part] for part in (0, 1)], axis=1, dtype=np.float32)


@cache
def circle(period: int) -> np.ndarray:
    """(cosine, sine) of 0 to period - 1 parts of a circle, float64 (period, 2)."""
    with digits(35):
        made = [sine_and_cosine(2 * _PI * k / period)[::-1] for k in range(period)]
    return np.array(made, np.float64)


def positions(count: int, width: int) -> np.ndarray:
    """The same of positions from 0 to count - 1 for waves whose rates fall from one radian to the
    next row to almost one ten-thousandth (Vaswani et al. 2017, section 3.5): float32 (count,
    width), the cosines of all rates and then their sines.
    """
    steps = -(-count // _STEP)
    first, many = _fallen(width, steps)  # (2, rates, within a step or steps)
    first, many = first[:, :, None], many[:, :, :, None]
    sines = many[0] * first[1] + many[1] * first[0]
    cosines = many[1] * first[1] - many[0] * first[0]
    made = np.concatenate([cosines, sines], dtype=np.float32)
    return np.ascontiguousarray(made.reshape(width, -1).T[:count])


@cache
def _fallen(width: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """(sines and cosines) of each rate, float64 (2, width / 2, numbers): times 0 to _STEP - 1, and
    times as many steps.
    """
    held = []
    with digits(30):
        step = Decimal(10000).ln() * 2 / width
        for k in range(width // 2):
            fine = multiples(*sine_and_cosine((-step * k).exp()), _STEP + 1)
            held.append((fine[:_STEP], multiples(*fine[_STEP], steps)))
    first, many = (np.array([each[at] for each in held], np.float64) for at in (0, 1))
    return np.moveaxis(first, 2, 0), np.moveaxis(many, 2, 0)


def multiples(sine: Decimal, cosine: Decimal, count: int) -> list[tuple[Decimal, Decimal]]:
    """(sine, cosine) of 0 to count - 1 times an angle."""
    made = [(Decimal(0), Decimal(1))]
    while len(made) < count:
        s, c = made[-1]
        made.append((s * cosine + c * sine, c * cosine - s * sine))
    return made


def sine_and_cosine(x: Decimal) -> tuple[Decimal, Decimal]:
    """By their series, of a number from 0 to 2 pi."""
    sums, term, k = [Decimal(0), Decimal(0)], Decimal(1), 0
    while k < 2 or abs(term) > Decimal("1e-28"):
        sums[(k + 1) % 2] += term if k % 4 < 2 else -term
        k += 1
        term = term * x / k
    return sums[0], sums[1]
