"""Cuts a clip into windows and lays out their frames, as each family's reference does.

A processor decides what of a clip the encoder sees at a time (`windows`); what comes of the windows
follows one another in the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from oxillama.audio.spectrogram import HOP, RATE, log_mel, summed
from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import AudioEncoder, Joined, MediaRows

_KERNEL = 3  # places along a side of kernels: of Whisper's convolutions, and of two dimensions


class Processor(Protocol):
    """The processing of a clip before its encoder."""

    @property
    def audio_tokens(self) -> MediaTokens:
        """The tokens of prompts around a clip."""

    @property
    def rate(self) -> int:
        """Samples a second that it takes."""

    def windows(self, samples: np.ndarray) -> list[MediaRows]:
        """What the encoder sees of samples, float32 (samples,), one window after the other; some
        may have no features.
        """


@dataclass(frozen=True)
class Windows:
    """Whisper's encoder over windows as long as its learned positions reach, each under
    convolutions of its own, which see zeros beyond it: Voxtral, whose last window is filled with
    silence.

    positions: float32 (rows, width), of the rows that the second convolution leaves; stack: rows
    that make a feature; alone: whether each window has a spectrogram of its own.
    """

    audio_tokens: MediaTokens
    bands: int
    positions: np.ndarray
    stack: int
    rate: int = RATE
    alone: bool = False

    @property
    def frames(self) -> int:
        """Frames of a window."""
        return 2 * len(self.positions)

    def windows(self, samples: np.ndarray) -> list[MediaRows]:
        """The windows of a clip."""
        groups = stacked(len(self.positions), self.stack)
        return [laid_out([(mel, self.positions)], groups) for mel, _ in self._filled(samples)]

    def _filled(self, samples: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
        """(the spectrogram of a window, the rows where the clip is), the last one filled with
        silence.
        """
        step = self.frames * HOP
        parts = [samples[at : at + step] for at in range(0, len(samples), step)]
        count = len(parts)
        if self.alone:
            mels = [log_mel(self._taken(each), self.frames, self.bands, end=step) for each in parts]
        else:
            mel = log_mel(samples, count * self.frames, self.bands, end=count * step)
            mels = np.split(mel, count)
        for mel, part in zip(mels, parts):
            yield mel, (-(-len(part) // HOP) + 1) // 2

    def _taken(self, part: np.ndarray) -> np.ndarray:
        """The samples of a window that are heard."""
        return part


@dataclass(frozen=True)
class Standard(Windows):
    """The same of samples less their mean, by their deviation: MERaLiON 2."""

    def _taken(self, part: np.ndarray) -> np.ndarray:
        exact = part.astype(np.float64)
        exact -= summed(exact) / len(exact)
        exact /= np.sqrt(summed(exact * exact) / len(exact) + 1e-7)
        return exact.astype(np.float32)


@dataclass(frozen=True)
class Heard(Windows):
    """The same; of the last window only the rows where the clip is are keys and make features, but
    the convolutions see the silence that follows them: Qwen2-Audio and, alone, Audio Flamingo 3.
    """

    def windows(self, samples: np.ndarray) -> list[MediaRows]:
        """The windows of a clip."""
        return [
            # the frames that the convolutions of these rows see
            laid_out([(mel[: 2 * rows + 1], self.positions[:rows])], stacked(rows, self.stack))
            for mel, rows in self._filled(samples)
        ]


@dataclass(frozen=True)
class Kept(Windows):
    """The same; all rows of the last window are keys, of which those where the clip is make
    features: GLM-ASR.
    """

    def windows(self, samples: np.ndarray) -> list[MediaRows]:
        """The windows of a clip."""
        return [
            laid_out([(mel, self.positions)], stacked(rows, self.stack))
            for mel, rows in self._filled(samples)
        ]


@dataclass(frozen=True)
class Ended(Windows):
    """The same of a clip that nothing follows: the last window is as long as what is left, and rows
    of zeros complete its last feature: Ultravox.
    """

    def windows(self, samples: np.ndarray) -> list[MediaRows]:
        """The windows of a clip."""
        count = -(-len(samples) // HOP)
        mel = log_mel(samples, count, self.bands, end=count * HOP)
        made = []
        for at in range(0, count, self.frames):
            window = mel[at : at + self.frames]
            rows = (len(window) + 1) // 2
            groups = stacked(rows, self.stack, filled=True)
            made.append(laid_out([(window, self.positions[:rows])], groups))
        return made


@dataclass(frozen=True)
class Parts(Windows):
    """Short windows that follow one another in a step of the encoder: Qwen2.5-Omni. part: frames of
    one, of which the last may have fewer.
    """

    part: int = 200

    def windows(self, samples: np.ndarray) -> list[MediaRows]:
        """As many short windows at a time as the learned positions are long."""
        count = -(-len(samples) // HOP)
        mel = log_mel(samples, count, self.bands)
        made = []
        step = self.frames // self.part * self.part
        for at in range(0, count, step):
            starts = range(at, min(at + step, count), self.part)
            mels = [mel[start : start + self.part] for start in starts]
            parts = [(each, self.positions[: (len(each) + 1) // 2]) for each in mels]
            rows = sum(len(positions) for _, positions in parts)
            made.append(laid_out(parts, stacked(rows, self.stack), spanned=True))
        return made


def laid_out(
    parts: Sequence[tuple[np.ndarray, np.ndarray]], groups: np.ndarray, *, spanned: bool = False
) -> MediaRows:
    """The rows of Whisper's encoder over parts that see themselves alone: of each its spectrogram,
    (frames, bands), which is zeros beyond, and the positions of its rows, (rows, width).
    """
    rows, joined, spans = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    at = begin = 0
    for mel, positions in parts:
        kept = len(positions)
        count = min(2 * kept, len(mel))  # rows of the first convolution
        around = np.lib.stride_tricks.sliding_window_view(
            np.pad(mel, ((1, 1), (0, 0))), _KERNEL, axis=0
        )
        rows.append(around[:count].reshape(count, -1))
        near = 2 * np.arange(kept)[:, None] - 1 + np.arange(_KERNEL)
        joined.append(np.where((near < 0) | (near >= count), -1, near + at))
        spans.append(np.repeat([[begin], [begin + kept]], kept, axis=1))
        at, begin = at + count, begin + kept
    between = Joined(
        np.concatenate(joined),
        columns=np.concatenate([positions for _, positions in parts]),
        spans=np.concatenate(spans, axis=1).astype(np.int32) if spanned else None,
    )
    taken = np.ascontiguousarray(np.concatenate(rows), np.float32)
    return MediaRows(taken, np.full(len(taken), -1, np.int32), groups, between=(between,))


def stacked(rows: int, stack: int, *, filled: bool = False) -> np.ndarray:
    """(features, stack): rows that follow one another; what is left over at the end is in none, or
    (filled) completed with rows of zeros.
    """
    count = -(-rows // stack) if filled else rows // stack
    made = np.arange(count * stack)
    return np.where(made < rows, made, -1).reshape(count, stack)


def around(high: int, wide: int, *, before: int = 1) -> np.ndarray:
    """(places, 9): the numbers of the places around every other one of `high` x `wide`, row by row;
    -1 beyond them. before: rows of the three that are before a place's own, 1 or 0.
    """
    at = np.arange(high * wide).reshape(high, wide)
    at = np.pad(at, ((before, 2 - before), (1, 1)), constant_values=-1)
    nine = np.lib.stride_tricks.sliding_window_view(at, (_KERNEL, _KERNEL))[::2, ::2]
    return nine.reshape(-1, _KERNEL**2)


def sided(
    count: int, more: int, turn: np.ndarray, *, block: int = 0, filled: int = 0
) -> tuple[Joined, Joined]:
    """The rows of a tape of a Conformer's layer, which are pairs of those of the layer before,
    `more` of them at the end beyond the clip; and those of what follows the last layer. turn:
    float32 (rows, width), what queries are turned by; block: rows that see one another, 0: all do;
    filled: rows after the `count` of the clip that see those and one another.
    """
    whole = count + filled
    at = np.arange(whole + more)
    begin = at // (block or count) * (block or count)
    end = np.minimum(begin + (block or count), count)
    spans = np.where(at < count, [begin, end], [np.zeros_like(at), np.full_like(at, whole)])
    spans = np.where(at < whole, spans, [at, at + 1])
    pairs = np.where(at[:, None] < whole, np.stack([at, at + more], axis=1), -1)
    sides = np.concatenate([at[:, None] < count, turn], axis=1, dtype=np.float32)
    # after the last one nothing is convolved
    return Joined(pairs, columns=sides, spans=spans.astype(np.int32)), Joined(pairs[:whole])


def taken(mel: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The numbers of a spectrogram, row by row, at places, 0 beyond it."""
    return np.append(mel.reshape(-1), np.float32(0))[places]


_MAKERS: dict[str, Callable[[AudioEncoder], Processor]] = {}


def processor(*kinds: str) -> Callable[[Callable[[AudioEncoder], Processor]], Any]:
    """Register the decorated function as what makes the processors of these kinds of encoders."""

    def register(make: Callable[[AudioEncoder], Processor]) -> Any:
        _MAKERS.update(dict.fromkeys(kinds, make))
        return make

    return register


def processor_of(encoder: AudioEncoder) -> Processor:
    """The processor of an encoder's family."""
    return _MAKERS[encoder.kind](encoder)
