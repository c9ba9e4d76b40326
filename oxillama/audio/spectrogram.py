"""Spectrograms of ten milliseconds a frame: the logarithm of the power in bands of the mel scale,
as Whisper's encoder reads it (Radford et al. 2023, section 2.2), or of the magnitude, as Gemma's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from functools import cache

import numpy as np

from oxillama.audio.portable_math import Spectrum, cosines, ln, log10
from oxillama.decimals import digits

RATE = 16000  # samples a second
HOP = 160  # samples a frame
_SIDES = (20, 20)  # of the transform: their product is the length of a frame's window
_WINDOW = 400
_LONGER = (16, 32)
TAPER, NUMBERS = _WINDOW, math.prod(_LONGER) // 2 + 1  # of a frame, and of its spectrum
_FLOOR, _RANGE = 1e-10, 8.0  # the least power, and the powers of ten below the largest one
_FRAMES = 1000  # that are transformed at once
# of NeMo's: of the sample before that is subtracted, to powers, and to deviations
_EMPHASIS, _ADDED, _LEAST = 0.97, 2.0**-24, 1e-5


def log_mel(
    samples: np.ndarray, frames: int, bands: int, *, end: int | None = None, wide: bool = False
) -> np.ndarray:
    """float32 (frames, bands) of float32 samples, which zeros follow: at most `_RANGE` powers of
    ten below the largest value of the clip, plus 4, by 4. Before the first sample is a mirror image
    of what follows it, and so it is at the sample `end`, of at least as many as there are.
    """
    half = _WINDOW // 2
    signal = np.zeros(max(len(samples), frames * HOP, end or 0, half + 1) + 2 * half)
    signal[half : half + len(samples)] = samples
    signal[:half] = signal[2 * half : half : -1]
    sounding = len(samples) + half
    if end is not None:
        signal[half + end : 2 * half + end] = signal[half + end - 2 : end - 2 : -1]
        # otherwise zeros are mirrored
        sounding = end + half if len(samples) > end - _WINDOW else sounding
    windows = np.lib.stride_tricks.sliding_window_view(signal, _WINDOW)[::HOP]
    # of the frames after it every one is the same
    count = min(frames, -(-sounding // HOP))
    made = np.full((frames, bands), log10(np.array([_FLOOR]))[0])
    for at in range(0, count, _FRAMES):
        part = windows[at : min(at + _FRAMES, count)]
        made[at : at + len(part)] = _powers(part, bands, wide).T
    made = np.maximum(made, made.max() - _RANGE)
    return ((made + 4.0) / 4.0).astype(np.float32)


def _powers(windows: np.ndarray, bands: int, wide: bool) -> np.ndarray:
    """float64 (bands, frames): the logarithm of the power of each band."""
    hann = 0.5 - 0.5 * cosines(_WINDOW)
    sides, size = (_LONGER, math.prod(_LONGER)) if wide else (_SIDES, _WINDOW)
    tapered = np.ascontiguousarray(windows.T) * hann[:, None]
    power = Spectrum(*sides).power(np.pad(tapered, ((0, size - _WINDOW), (0, 0))))
    filters = _triangles(bands, size) if wide else _filters(bands)
    return log10(np.maximum(_banded(power, filters), _FLOOR))


def _banded(spectrum: np.ndarray, filters: list[tuple[int, list[float]]]) -> np.ndarray:
    """float64 (bands, frames): the sums of a spectrum (numbers, frames) under filters."""
    out = np.zeros((len(filters), spectrum.shape[1]))
    for row, (first, weights) in zip(out, filters):
        for at, weight in enumerate(weights, first):
            row += spectrum[at] * weight
    return out


@dataclass(frozen=True)
class Magnitudes:
    """The spectrogram of Gemma's encoders (Google 2026, published code, feature extraction): frames
    of `window` samples, filled up with zeros to the length of the transform, the product of
    `sides`; the natural logarithm of a band's magnitude plus `floor`, in bands from `low` to `high`
    Hz.

    centred: half a window of zeros is before the clip; step: samples that its length is a multiple
    of, with zeros at its end; emphasis: what is subtracted of the sample before, and of a frame's
    first one; least: `floor` is the least magnitude of a band, not added to it.
    """

    window: int
    sides: tuple[int, int]
    floor: float
    low: int = 0
    high: int = RATE // 2
    centred: bool = True
    step: int = 1
    emphasis: float = 0.0
    least: bool = False

    @property
    def _before(self) -> int:
        return self.window // 2 if self.centred else 0

    def frames(self, samples: int) -> int:
        """Frames of so many samples: those that end, with one sample more, in the clip."""
        filled = -(-samples // self.step) * self.step
        return max(0, (filled + self._before - self.window - 1) // HOP + 1)

    def of(self, samples: np.ndarray, bands: int) -> np.ndarray:
        """float32 (frames, bands) of float32 samples."""
        count, window, size = self.frames(len(samples)), self.window, math.prod(self.sides)
        made = np.empty((count, bands), np.float32)
        if not count:
            return made
        after = -len(samples) % self.step
        signal = np.pad(samples.astype(np.float64), (self._before, after))
        windows = np.lib.stride_tricks.sliding_window_view(signal, window)[::HOP]
        # the published code has it in 32 bits
        hann = (0.5 - 0.5 * cosines(window)).astype(np.float32).astype(np.float64)
        transform = Spectrum(*self.sides)
        filters = _triangles(bands, size, self.low, self.high)
        for at in range(0, count, _FRAMES):
            part = windows[at : min(at + _FRAMES, count)]
            filled = np.zeros((size, len(part)))
            filled[:window] = self._emphasised(part.T) * hann[:, None]
            magnitude = _banded(np.sqrt(transform.power(filled)), filters)
            above = np.maximum(magnitude, self.floor) if self.least else magnitude + self.floor
            made[at : at + len(part)] = ln(above).T
        return made

    def _emphasised(self, frames: np.ndarray) -> np.ndarray:
        """Frames (window, frames) less what is before each sample."""
        if not self.emphasis:
            return frames
        return np.concatenate(
            [frames[:1] * (1.0 - self.emphasis), frames[1:] - self.emphasis * frames[:-1]]
        )


@dataclass(frozen=True)
class Levelled:
    """The spectrogram of NeMo's encoders (NVIDIA, published code): samples less a share of the one
    before each, in frames of 400 samples around every 160th, with zeros beyond the clip; the
    natural logarithm of a band's power plus 2**-24, less its mean, by its deviation.

    taper: float64 (400,); filters: as those of `_filters`, of a transform of 512 numbers.
    """

    taper: np.ndarray
    filters: list[tuple[int, list[float]]]

    def of(self, samples: np.ndarray) -> np.ndarray:
        """float32 (frames, bands) of float32 samples: a frame for each whole hop, of which the mean
        and the deviation are, and one of zeros.
        """
        count, half = len(samples) // HOP, _WINDOW // 2
        signal = np.zeros(len(samples) + _WINDOW)
        signal[half : half + len(samples)] = samples
        signal[half + 1 : half + len(samples)] -= _EMPHASIS * signal[half : half + len(samples) - 1]
        windows = np.lib.stride_tricks.sliding_window_view(signal, _WINDOW)[: count * HOP : HOP]
        transform = Spectrum(*_LONGER)
        made = np.zeros((count + 1, len(self.filters)))
        for at in range(0, count, _FRAMES):
            tapered = windows[at : at + _FRAMES].T * self.taper[:, None]
            filled = np.pad(tapered, ((0, math.prod(_LONGER) - _WINDOW), (0, 0)))
            banded = _banded(transform.power(filled), self.filters)
            made[at : at + banded.shape[1]] = ln(banded + _ADDED).T
        whole = made[:count]
        whole -= summed(whole) / max(count, 1)
        deviation = np.sqrt(summed(whole * whole) / max(count - 1, 1))
        whole /= deviation + _LEAST
        return made.astype(np.float32)


def summed(rows: np.ndarray) -> np.ndarray:
    """The sum of numbers or of rows, one after the other."""
    return np.add.accumulate(rows, axis=0)[-1] if len(rows) else np.zeros(rows.shape[1:])


def filters_of(table: np.ndarray) -> list[tuple[int, list[float]]]:
    """Filters, as those of `_filters`, of float32 (bands, numbers)."""
    made = []
    for row in table.astype(np.float64):
        inside = np.flatnonzero(row)
        first, end = (int(inside[0]), int(inside[-1]) + 1) if len(inside) else (0, 0)
        made.append((first, row[first:end].tolist()))
    return made


def levelled(bands: int) -> Levelled:
    """With the triangles of Slaney's toolbox and a taper whose first and last numbers are zero."""
    taper = 0.5 - 0.5 * cosines(_WINDOW - 1)[np.arange(_WINDOW) % (_WINDOW - 1)]
    return Levelled(taper, _between(_edges(bands), math.prod(_LONGER), even=True))


@cache
def _filters(bands: int) -> list[tuple[int, list[float]]]:
    """(first number of the spectrum, weights) of each band: triangles of the same area over the mel
    scale of Slaney's toolbox, linear below 1000 Hz and logarithmic above.
    """
    return _between(_edges(bands), _WINDOW, even=True)


@cache
def _triangles(
    bands: int, size: int, low: int = 0, high: int = RATE // 2
) -> list[tuple[int, list[float]]]:
    """The same as triangles of height 1 over the scale of O'Shaughnessy (1987), from `low` to
    `high` Hz, of a transform of `size` numbers.
    """
    with digits(40):
        least, most = ((1 + Decimal(end) / 700).log10() for end in (low, high))
        step = (most - least) / (bands + 1)
        edges = [700 * (10 ** (least + step * at) - 1) for at in range(bands + 2)]
    return _between([float(each) for each in edges], size, even=False)


def _between(edges: list[float], size: int, *, even: bool) -> list[tuple[int, list[float]]]:
    """Filters of a transform of `size` numbers between edges in Hz; even: of the same area."""
    hertz = np.arange(size // 2 + 1) * (RATE / size)
    made = []
    for low, middle, high in zip(edges[:-2], edges[1:-1], edges[2:]):
        rising, falling = (hertz - low) / (middle - low), (high - hertz) / (high - middle)
        weights = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (high - low) if even else 1)
        inside = np.flatnonzero(weights)
        first = int(inside[0]) if len(inside) else 0
        made.append((first, weights[inside].tolist()))
    return made


def _edges(bands: int) -> list[float]:
    """The edges of the bands in Hz, from 0 to half the rate."""
    with digits(40):
        step = Decimal("6.4").ln() / 27
        most = 15 + (Decimal(RATE // 2) / 1000).ln() / step
        mels = [most * at / (bands + 1) for at in range(bands + 2)]
        return [
            float(mel * 200 / 3 if mel < 15 else 1000 * ((mel - 15) * step).exp()) for mel in mels
        ]
