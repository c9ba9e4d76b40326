"""The processors of Qwen3-ASR, Qwen3-Omni and dots3-note."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxillama.audio.processors import Processor, around, processor, taken
from oxillama.audio.spectrogram import HOP, RATE, log_mel
from oxillama.errors import ModelError
from oxillama.media.tokens import MediaTokens
from oxillama.model.encoders.qwen3_audio import MINUTE
from oxillama.model.media_encoder import AudioEncoder, Joined, MediaRows

_TOKENS = MediaTokens(
    ("<|audio_start|><|audio_pad|><|audio_end|>", "<|audio_pad|>"),
    "<|audio_pad|>",
    "<|audio_start|>",
    "<|audio_end|>",
)
_DOTS = MediaTokens(
    ("<|audio_comp_start|><|audio_comp_pad|><|audio_comp_end|>", "<|audio_comp_pad|>"),
    "<|audio_comp_pad|>",
    "<|audio_comp_start|>",
    "<|audio_comp_end|>",
)
# of the published models: frames of a part, which convolutions do not see beyond; parts whose rows
# see one another; samples that shorter clips are filled up to
_PART, _PARTS, _LEAST = 100, 8, 8000


@dataclass(frozen=True)
class Convolved:
    """Parts of a second under convolutions of their own, eight of them at a time. positions:
    float32 (rows, width), of the rows of a part.
    """

    audio_tokens: MediaTokens
    bands: int
    positions: np.ndarray
    rate: int = RATE

    def windows(self, samples: np.ndarray) -> list[MediaRows]:
        """The windows of a clip; less than a frame at its end is in none."""
        count = max(len(samples), _LEAST)
        frames = count // HOP
        parts = -(-frames // _PART)
        mel = np.zeros((parts * _PART, self.bands), np.float32)
        mel[:frames] = log_mel(samples, frames, self.bands, end=count)
        each = np.split(mel, parts)
        return [
            self._laid_out(each[at : at + _PARTS], frames - at * _PART)
            for at in range(0, parts, _PARTS)
        ]

    def _laid_out(self, parts: list[np.ndarray], frames: int) -> MediaRows:
        """The rows of parts, of which so many frames are of the clip."""
        high, wide = self.bands, _PART
        places = around(high, wide)
        columns = np.concatenate([taken(part.T, places) for part in parts])
        joined = []
        for _ in range(2):
            high, wide = (high + 1) // 2, (wide + 1) // 2
            joined.append(Joined(_repeated(around(high, wide), high * wide, len(parts))))
        high, wide = (high + 1) // 2, (wide + 1) // 2
        # of each moment all frequencies, where the clip is
        moments = np.arange(high * wide).reshape(high, wide).T
        kept = [_left(min(frames - at * _PART, _PART)) for at in range(len(parts))]
        joined.append(
            Joined(
                np.concatenate([moments[:n] + at * high * wide for at, n in enumerate(kept)]),
                columns=np.concatenate([self.positions[:n] for n in kept]),
            )
        )
        groups = np.arange(sum(kept))[:, None]
        tokens = np.full(len(columns), -1, np.int32)
        return MediaRows(columns, tokens, groups, between=tuple(joined))


def _left(frames: int) -> int:
    """Rows that three convolutions leave of some frames."""
    for _ in range(3):
        frames = (frames + 1) // 2
    return frames


def _repeated(groups: np.ndarray, size: int, parts: int) -> np.ndarray:
    """The groups of several parts of `size` rows each."""
    first = np.arange(parts)[:, None, None] * size
    return np.where(groups < 0, -1, groups + first).reshape(-1, groups.shape[1])


@processor("qwen3a")
def _qwen3a(e: AudioEncoder) -> Processor:
    positions, rows = e.array("a.position_embd.weight"), _left(_PART)
    if len(positions) < rows:
        raise ModelError(
            f"a.position_embd.weight: file has {len(positions)} rows, {e.kind} needs {rows}"
        )
    return Convolved(_TOKENS, e.mels, positions)


@dataclass(frozen=True)
class Minutes:
    """Windows of a minute, each under a spectrogram of its own and convolved as a whole."""

    audio_tokens: MediaTokens
    bands: int
    rate: int = RATE

    def windows(self, samples: np.ndarray) -> list[MediaRows]:
        """The windows of a clip; one that is shorter than a frame makes no features."""
        step = 8 * MINUTE * HOP
        parts = [samples[at : at + step] for at in range(0, len(samples), step)]
        return [self._laid_out(part) for part in parts if len(part) >= HOP]

    def _laid_out(self, part: np.ndarray) -> MediaRows:
        """The rows of a window; where what is less than a frame at its end begins one, it is zeros
        that others see.
        """
        # silence up to the end of a minute counts for the largest value
        mel = log_mel(part, 8 * MINUTE, self.bands, end=8 * MINUTE * HOP)[: len(part) // HOP]
        high, wide = self.bands, len(mel)
        rows, joined = taken(mel.T, around(high, wide)), []
        for _ in range(2):
            high, wide = (high + 1) // 2, (wide + 1) // 2
            joined.append(Joined(around(high, wide)))
        high, wide = (high + 1) // 2, (wide + 1) // 2
        moments = np.arange(high * wide).reshape(high, wide).T
        count = -(-len(part) // (8 * HOP))
        moments = np.pad(moments, ((0, count - wide), (0, 0)), constant_values=-1)
        joined.append(Joined(moments))
        tokens = np.full(len(rows), -1, np.int32)
        return MediaRows(rows, tokens, np.arange(count)[:, None], between=tuple(joined))


@processor("dots3note_a")
def _dots3note_a(e: AudioEncoder) -> Processor:
    return Minutes(_DOTS, e.mels)
