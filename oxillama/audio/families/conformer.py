"""The processor of LFM2-Audio."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxillama.audio.processors import Processor, around, processor, sided, taken
from oxillama.audio.spectrogram import HOP, RATE, Levelled, levelled
from oxillama.media.tokens import MediaTokens
from oxillama.model.encoders.conformer import ROWS
from oxillama.model.media_encoder import AudioEncoder, Joined, MediaRows
from oxillama.model.waves import positions

# there is nothing around a clip: what its rows are marked by is never evaluated
_LFM = MediaTokens(("<|audio|>",), "<|audio|>")
_EIGHTH = 8  # frames of a row


@dataclass(frozen=True)
class Subsampled:
    """Windows of four minutes, each under a spectrogram of its own. layers: of the encoder; future:
    rows that a convolution sees after one; width: floats of a row.
    """

    audio_tokens: MediaTokens
    bands: int
    made: Levelled
    layers: int
    future: int
    width: int
    rate: int = RATE

    def windows(self, samples: np.ndarray) -> list[MediaRows]:
        """The windows of a clip; one that is shorter than a frame makes no features."""
        step = (_EIGHTH * ROWS - 1) * HOP
        parts = [samples[at : at + step] for at in range(0, len(samples), step)]
        return [self._laid_out(self.made.of(part)) for part in parts if len(part) >= HOP]

    def _laid_out(self, mel: np.ndarray) -> MediaRows:
        """The rows of a spectrogram, float32 (frames, bands)."""
        rows = taken(mel, around(*mel.shape))
        long, high = ((each + 1) // 2 for each in mel.shape)
        between = []
        for _ in range(2):
            between.append(Joined(around(long, high)))
            long, high = (long + 1) // 2, (high + 1) // 2
        turn = positions(long + self.future, self.width)
        layer, last = sided(long, self.future, turn)
        moments = np.pad(
            np.arange(long * high).reshape(long, high),
            ((0, self.future), (0, 0)),
            constant_values=-1,
        )
        between.append(Joined(moments, columns=layer.columns, spans=layer.spans))
        between += [*[layer] * (self.layers - 1), last]
        tokens = np.full(len(rows), -1, np.int32)
        return MediaRows(rows, tokens, np.arange(long)[:, None], between=tuple(between))


@processor("lfm2a")
def _lfm2a(e: AudioEncoder) -> Processor:
    taps = e.array("a.blk.0.conv_dw.weight").shape[1]
    layers = e.keys.integer("block_count")
    return Subsampled(_LFM, e.mels, levelled(e.mels), layers, (taps - 1) // 2, e.hidden)
