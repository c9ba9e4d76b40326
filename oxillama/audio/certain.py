"""Functions whose bits are the same on every machine: of sums, products and quotients alone, which
IEEE 754 rounds in one way, and of decimal arithmetic, whose results are specified to the last
digit. NumPy's own cosines, logarithms and Fourier transforms may differ by instruction set.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import cache

import numpy as np

_DIGITS = 40
_PI = Decimal("3.14159265358979323846264338327950288419716939937510")
# log10(2) and log10(e)
_LOG_2, _LOG_E = 0.30102999566398119521, 0.43429448190325182765
_TERMS = 12  # of the series of a logarithm: the next one is below 1e-19 of the first


@cache
def cosines(count: int) -> np.ndarray:
    """cos(2 pi k / count) for k = 0 to count - 1, float64, each rounded once."""
    with localcontext() as context:
        context.prec = _DIGITS
        made = [_cosine(2 * _PI * k / count) for k in range(count)]
    out = np.array([float(each) for each in made])
    out.flags.writeable = False
    return out


def _cosine(x: Decimal) -> Decimal:
    """The series of the cosine, of a number below 2 pi."""
    total = term = Decimal(1)
    k = 0
    while abs(term) > Decimal(10) ** -(_DIGITS - 5):
        k += 2
        term = -term * x * x / (k * (k - 1))
        total += term
    # what is exactly 0 is not left as a trace of the series
    return total if abs(total) > Decimal(10) ** -(_DIGITS - 12) else Decimal(0)


def log10(x: np.ndarray) -> np.ndarray:
    """The decimal logarithm of float64 numbers above 0, to within a few units of the last place."""
    part, power = np.frexp(x)
    small = part < 0.70710678118654752
    part, power = np.where(small, part * 2.0, part), power - small
    s = (part - 1.0) / (part + 1.0)
    square = s * s
    total = np.full_like(x, 1.0 / (2 * _TERMS - 1))
    for k in range(_TERMS - 2, -1, -1):
        total = total * square
        total = total + 1.0 / (2 * k + 1)
    return power * _LOG_2 + (s * 2.0) * total * _LOG_E


class Spectrum:
    """The power of the first half of a discrete Fourier transform of real numbers, a row of them
    for each number of a frame: `side` * `side` numbers in two steps of `side` (Cooley and Tukey
    1965), each a sum in ascending order.
    """

    def __init__(self, side: int) -> None:
        self.side = side
        self._cos, self._wide = cosines(side), cosines(side * side)

    def power(self, frames: np.ndarray) -> np.ndarray:
        """float64 (side * side // 2 + 1, frames) of float64 (side * side, frames)."""
        side, count = self.side, frames.shape[1]
        x = frames.reshape(side, side, count)  # number 20 a + b at [a, b]
        re = np.empty((side, side, count))
        im = np.empty((side, side, count))
        for k in range(side // 2 + 1):
            re[k], im[k] = self._real(x, k)
            if 0 < k < side - k:
                re[side - k], im[side - k] = re[k], -im[k]
        for k in range(1, side):
            for b in range(1, side):
                c, s = self._turn(self._wide, k * b)
                re[k, b], im[k, b] = re[k, b] * c + im[k, b] * s, im[k, b] * c - re[k, b] * s
        out = np.empty((side * side // 2 + 1, count))
        for k in range(side // 2 + 1):
            real, imaginary = re[:, 0].copy(), im[:, 0].copy()
            for b in range(1, side):
                c, s = self._turn(self._cos, k * b)
                real += re[:, b] * c + im[:, b] * s
                imaginary += im[:, b] * c - re[:, b] * s
            made = real * real + imaginary * imaginary
            at = side * k
            out[at : at + side] = made[: len(out) - at]
        return out

    def _real(self, x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(real, imaginary) sums over `a` of x[a] times its turn."""
        re, im = x[0].copy(), np.zeros_like(x[0])
        for a in range(1, self.side):
            c, s = self._turn(self._cos, k * a)
            re += x[a] * c
            im -= x[a] * s
        return re, im

    def _turn(self, table: np.ndarray, number: int) -> tuple[float, float]:
        """(cosine, sine) of a number of parts of a circle; a table is a whole number of fours."""
        count = len(table)
        return float(table[number % count]), float(table[(number - count // 4) % count])
