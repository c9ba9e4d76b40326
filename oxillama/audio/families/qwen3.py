"""The processor of Qwen3-ASR and Qwen3-Omni."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxillama.audio.processors import Processor, around, processor, taken
from oxillama.audio.spectrogram import HOP, RATE, log_mel
from oxillama.errors import ModelError
from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import AudioEncoder, Joined, MediaRows

_TOKENS = MediaTokens(
    ("<|audio_start|><|audio_pad|><|audio_end|>", "<|audio_pad|>"),
    "<|audio_pad|>",
    "<|audio_start|>",
    "<|audio_end|>",
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
