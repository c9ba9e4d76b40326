"""Functions whose bits are the same on every machine: of sums, products and quotients alone, which
IEEE 754 rounds in one way, and of decimal arithmetic, whose results are specified to the last
digit. NumPy's own cosines, logarithms and Fourier transforms may differ by instruction set.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache

import numpy as np

from oxillama.decimals import digits

_DIGITS = 40
_PI = Decimal("3.14159265358979323846264338327950288419716939937510")
# log10(2), log10(e) and ln(2)
_LOG_2, _LOG_E = 0.30102999566398119521, 0.43429448190325182765
_LN_2 = 0.69314718055994530942
_TERMS = 12  # of the series of a logarithm: the next one is below 1e-19 of the first


@cache
def cosines(count: int) -> np.ndarray:
    """cos(2 pi k / count) for k = 0 to count - 1, float64, each rounded once."""
    with digits(_DIGITS):
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
    power, s, total = _parts(x)
    return power * _LOG_2 + (s * 2.0) * total * _LOG_E


def ln(x: np.ndarray) -> np.ndarray:
    """The same of the natural logarithm."""
    power, s, total = _parts(x)
    return power * _LN_2 + (s * 2.0) * total


def _parts(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(a power of 2, s, the series in s) of numbers above 0: 2 s times the series is the natural
    logarithm of what the power leaves.
    """
    part, power = np.frexp(x)
    small = part < 0.70710678118654752
    part, power = np.where(small, part * 2.0, part), power - small
    s = (part - 1.0) / (part + 1.0)
    square = s * s
    total = np.full_like(x, 1.0 / (2 * _TERMS - 1))
    for k in range(_TERMS - 2, -1, -1):
        total = total * square
        total = total + 1.0 / (2 * k + 1)
    return power, s, total


class Spectrum:
    """The power of the first half of a discrete Fourier transform of real numbers, a row of them
    for each number of a frame: `first` * `second` numbers, both a whole number of fours, in steps
    of these (Cooley and Tukey 1965), each a sum in ascending order.
    """

    def __init__(self, first: int, second: int) -> None:
        self.first, self.second = first, second
        self._cos = {each: cosines(each) for each in (first, second, first * second)}

    def power(self, frames: np.ndarray) -> np.ndarray:
        """float64 (numbers // 2 + 1, frames) of float64 (numbers, frames)."""
        first, second, count = self.first, self.second, frames.shape[1]
        x = frames.reshape(first, second, count)  # number second * a + b at [a, b]
        re = np.empty((first, second, count))
        im = np.empty((first, second, count))
        for k in range(first // 2 + 1):
            re[k], im[k] = self._real(x, k)
            if 0 < k < first - k:
                re[first - k], im[first - k] = re[k], -im[k]
        for k in range(1, first):
            for b in range(1, second):
                c, s = self._turn(first * second, k * b)
                re[k, b], im[k, b] = re[k, b] * c + im[k, b] * s, im[k, b] * c - re[k, b] * s
        out = np.empty((first * second // 2 + 1, count))
        for k in range(second // 2 + 1):
            real, imaginary = re[:, 0].copy(), im[:, 0].copy()
            for b in range(1, second):
                c, s = self._turn(second, k * b)
                real += re[:, b] * c + im[:, b] * s
                imaginary += im[:, b] * c - re[:, b] * s
            made = real * real + imaginary * imaginary
            at = first * k
            out[at : at + first] = made[: len(out) - at]
        return out

    def _real(self, x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(real, imaginary) sums over `a` of x[a] times its turn."""
        re, im = x[0].copy(), np.zeros_like(x[0])
        for a in range(1, self.first):
            c, s = self._turn(self.first, k * a)
            re += x[a] * c
            im -= x[a] * s
        return re, im

    def _turn(self, parts: int, number: int) -> tuple[float, float]:
        """(cosine, sine) of a number of parts of a circle."""
        table = self._cos[parts]
        return float(table[number % parts]), float(table[(number - parts // 4) % parts])
