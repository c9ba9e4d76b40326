"""The spectrogram that Whisper's encoder reads (Radford et al. 2023, section 2.2): the logarithm of
the power in bands of the mel scale, ten milliseconds a frame.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import cache

import numpy as np

from oxillama.audio.certain import Spectrum, cosines, log10

RATE = 16000  # samples a second
HOP = 160  # samples a frame
_SIDE = 20  # of the transform: its square is the length of a frame's window
_WINDOW = _SIDE * _SIDE
_FLOOR, _RANGE = 1e-10, 8.0  # the least power, and the powers of ten below the largest one
_FRAMES = 1000  # that are transformed at once


def log_mel(samples: np.ndarray, frames: int, bands: int, *, end: int | None = None) -> np.ndarray:
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
        made[at : at + len(part)] = _powers(part, bands).T
    made = np.maximum(made, made.max() - _RANGE)
    return ((made + 4.0) / 4.0).astype(np.float32)


def _powers(windows: np.ndarray, bands: int) -> np.ndarray:
    """float64 (bands, frames): the logarithm of the power of each band."""
    hann = 0.5 - 0.5 * cosines(_WINDOW)
    power = Spectrum(_SIDE).power(np.ascontiguousarray(windows.T) * hann[:, None])
    out = np.empty((bands, len(windows)))
    for row, (first, weights) in zip(out, _filters(bands)):
        row[:] = 0.0
        for at, weight in enumerate(weights, first):
            row += power[at] * weight
    return log10(np.maximum(out, _FLOOR))


@cache
def _filters(bands: int) -> list[tuple[int, list[float]]]:
    """(first number of the spectrum, weights) of each band: triangles of the same area over the mel
    scale of Slaney's toolbox, linear below 1000 Hz and logarithmic above.
    """
    edges = _edges(bands)
    hertz = np.arange(_WINDOW // 2 + 1) * (RATE / _WINDOW)
    made = []
    for low, middle, high in zip(edges[:-2], edges[1:-1], edges[2:]):
        rising, falling = (hertz - low) / (middle - low), (high - hertz) / (high - middle)
        weights = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (high - low))
        inside = np.flatnonzero(weights)
        first = int(inside[0]) if len(inside) else 0
        made.append((first, weights[inside].tolist()))
    return made


def _edges(bands: int) -> list[float]:
    """The edges of the bands in Hz, from 0 to half the rate."""
    with localcontext() as context:
        context.prec = 40
        step = Decimal("6.4").ln() / 27
        most = 15 + (Decimal(RATE // 2) / 1000).ln() / step
        mels = [most * at / (bands + 1) for at in range(bands + 2)]
        return [
            float(mel * 200 / 3 if mel < 15 else 1000 * ((mel - 15) * step).exp()) for mel in mels
        ]
