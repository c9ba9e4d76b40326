"""The processor of Gemma 3n."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxillama.audio.processors import Processor, around, processor, taken
from oxillama.audio.spectrogram import RATE, Magnitudes
from oxillama.media.tokens import MediaTokens
from oxillama.model.encoders.gemma4_audio import EPS, PERIOD
from oxillama.model.media_encoder import AudioEncoder, Joined, MediaRows
from oxillama.model.waves import turns

# its template writes the token of a row, which stands for the whole clip
_TOKENS = MediaTokens(("<audio_soft_token>",), "<audio_soft_token>", "\n\n<start_of_audio>", "\n\n")
GEMMA_3N = Magnitudes(
    window=512,
    sides=(32, 32),
    floor=1e-5,
    low=125,
    high=7600,
    centred=False,
    step=128,
    emphasis=0.97,
    least=True,
)
WINDOW = 30 * RATE  # samples, the most that the published models take
_ROWS = 188  # of a window
_EVERY = 4  # rows of the encoder of which one is heard


@dataclass(frozen=True)
class Filled:
    """Windows of 30 seconds, each under a spectrogram of its own and of as many rows; those that a
    shorter one does not have are a token of the encoder, and another one ends the clip. hard:
    float32 (2, width), that token and this one.
    """

    audio_tokens: MediaTokens
    bands: int
    hard: np.ndarray
    rate: int = RATE

    def windows(self, samples: np.ndarray) -> list[MediaRows]:
        """The windows of a clip; what is less than a frame at its end is in none."""
        mels = [
            GEMMA_3N.of(samples[at : at + WINDOW], self.bands)
            for at in range(0, len(samples), WINDOW)
        ]
        mels = [mel for mel in mels if len(mel)]
        return [self._laid_out(mel, last=mel is mels[-1]) for mel in mels]

    def _laid_out(self, mel: np.ndarray, *, last: bool) -> MediaRows:
        """The rows of a spectrogram, float32 (frames, bands)."""
        rows = taken(mel, around(*mel.shape, before=0))
        long, high = ((each + 1) // 2 for each in mel.shape)
        first, counted = _moments(long, high), _counted(long)
        second = Joined(around(long, high, before=0))
        long, high = (long + 1) // 2, (high + 1) // 2
        sides = np.concatenate([_counted(long), turns(np.arange(long), PERIOD)], axis=1)
        heard = np.arange(0, long, _EVERY)
        filled = np.full(_ROWS - len(heard), long)
        groups = np.concatenate([heard, filled, [long + 1] if last else []]).astype(np.int64)
        return MediaRows(
            rows,
            np.full(len(rows), -1, np.int32),
            groups[:, None],
            between=(
                Joined(first, columns=counted),
                second,
                Joined(_moments(long, high), columns=sides),
            ),
            given=self.hard,
        )


def _moments(long: int, high: int) -> np.ndarray:
    """(moments, places): the places of each moment."""
    return np.arange(long * high).reshape(long, high)


def _counted(count: int) -> np.ndarray:
    """float32 (moments, 2): one, and the share of a moment in a mean of those until then."""
    return np.stack([np.ones(count), 1 / np.arange(1, count + 1)], axis=1).astype(np.float32)


@processor("gemma3na")
def _gemma3na(e: AudioEncoder) -> Processor:
    # <end_of_audio> is the first of the tokens that the encoder's own table embeds
    table = e.array("mm.a.embedding.weight").astype(np.float64)[[-1, 0]]
    root = np.sqrt((table * table).mean(axis=1, keepdims=True) + EPS)
    hard = table / root * e.vector("mm.a.hard_emb_norm.weight", e.hidden)
    return Filled(_TOKENS, e.mels, hard.astype(np.float32))
