"""The processors of Gemma 4 and of the unified Gemma 4."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxillama.audio.processors import Processor, around, processor, taken
from oxillama.audio.spectrogram import HOP, RATE, Magnitudes
from oxillama.media.tokens import MediaTokens
from oxillama.model.encoders.gemma4_audio import PERIOD, ROWS
from oxillama.model.media_encoder import AudioEncoder, Joined, MediaRows
from oxillama.model.waves import turns

_TOKENS = MediaTokens(("<|audio|>",), "<|audio|>", "<|audio>", "<audio|>")
GEMMA_4 = Magnitudes(window=320, sides=(16, 32), floor=1e-3)
_FRAMES = 4 * ROWS  # of a window


@dataclass(frozen=True)
class Conformed:
    """Windows of 30 seconds, each under a spectrogram of its own."""

    audio_tokens: MediaTokens
    bands: int
    made: Magnitudes
    rate: int = RATE

    def windows(self, samples: np.ndarray) -> list[MediaRows]:
        """The windows of a clip; what is less than a frame at its end is in none."""
        step = _FRAMES * HOP
        mels = (
            self.made.of(samples[at : at + step], self.bands) for at in range(0, len(samples), step)
        )
        return [self._laid_out(mel) for mel in mels if len(mel)]

    def _laid_out(self, mel: np.ndarray) -> MediaRows:
        """The rows of a spectrogram, float32 (frames, bands)."""
        rows = taken(mel, around(*mel.shape))
        long, high = ((each + 1) // 2 for each in mel.shape)
        second = Joined(around(long, high))
        long, high = (long + 1) // 2, (high + 1) // 2
        moments = Joined(
            np.arange(long * high).reshape(long, high), columns=turns(np.arange(long), PERIOD)
        )
        tokens = np.full(len(rows), -1, np.int32)
        return MediaRows(rows, tokens, np.arange(long)[:, None], between=(second, moments))


@processor("gemma4a")
def _gemma4a(e: AudioEncoder) -> Processor:
    return Conformed(_TOKENS, e.mels, GEMMA_4)


@dataclass(frozen=True)
class Sampled:
    """Samples as they are, `width` in a row, the last one filled with silence."""

    audio_tokens: MediaTokens
    width: int
    rate: int = RATE

    def windows(self, samples: np.ndarray) -> list[MediaRows]:
        """One window."""
        rows = np.pad(samples, (0, -len(samples) % self.width)).reshape(-1, self.width)
        tokens = np.full(len(rows), -1, np.int32)
        return [MediaRows(rows, tokens, np.arange(len(rows))[:, None])]


@processor("gemma4ua")
def _gemma4ua(e: AudioEncoder) -> Processor:
    return Sampled(_TOKENS, e.hidden)
