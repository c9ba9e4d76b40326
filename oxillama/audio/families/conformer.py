"""The processors of LFM2-Audio and Nemotron Nano VL."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxillama.audio.processors import Processor, around, processor, sided, taken
from oxillama.audio.spectrogram import (
    HOP,
    NUMBERS,
    RATE,
    TAPER,
    Levelled,
    filters_of,
    levelled,
)
from oxillama.errors import ModelError
from oxillama.media.tokens import MediaTokens
from oxillama.model.encoders.conformer import ROWS
from oxillama.model.media_encoder import AudioEncoder, Joined, MediaRows
from oxillama.model.waves import positions

# there is nothing around a clip: what its rows are marked by is never evaluated
_LFM = MediaTokens(("<|audio|>",), "<|audio|>")
_NEMOTRON = MediaTokens(
    ("<so_start><so_embedding><so_end>", "<so_embedding>"),
    "<so_embedding>",
    "<so_start>",
    "<so_end>",
)
_EIGHTH = 8  # frames of a row


@dataclass(frozen=True)
class Subsampled:
    """Windows of four minutes, each under a spectrogram of its own. layers: of the encoder; future:
    rows that a convolution sees after one; width: floats of a row; ended: the spectrogram's last
    frame, of zeros, is none of the clip. If a row begins there, it is masked: no other one sees it,
    its attention is the mean of all, and it makes a feature.
    """

    audio_tokens: MediaTokens
    bands: int
    made: Levelled
    layers: int
    future: int
    width: int
    ended: bool = False
    rate: int = RATE

    def windows(self, samples: np.ndarray) -> list[MediaRows]:
        """The windows of a clip; one that is shorter than a frame makes no features."""
        step = (_EIGHTH * ROWS - 1) * HOP
        parts = [samples[at : at + step] for at in range(0, len(samples), step)]
        return [self._laid_out(self.made.of(part)) for part in parts if len(part) >= HOP]

    def _laid_out(self, mel: np.ndarray) -> MediaRows:
        """The rows of a spectrogram, float32 (frames, bands)."""
        filled = 0
        if self.ended:
            mel = mel[:-1]
            filled = int(len(mel) % _EIGHTH == 0)
        rows = taken(mel, around(*mel.shape))
        long, high = ((each + 1) // 2 for each in mel.shape)
        between = []
        for _ in range(2):
            between.append(Joined(around(long, high)))
            long, high = (long + 1) // 2, (high + 1) // 2
        more = filled + self.future
        layer, last = sided(long, self.future, positions(long + more, self.width), filled=filled)
        moments = np.pad(
            np.arange(long * high).reshape(long, high), ((0, more), (0, 0)), constant_values=-1
        )
        between.append(Joined(moments, columns=layer.columns, spans=layer.spans))
        between += [*[layer] * (self.layers - 1), last]
        tokens = np.full(len(rows), -1, np.int32)
        return MediaRows(rows, tokens, np.arange(long + filled)[:, None], between=tuple(between))


def _subsampled(
    e: AudioEncoder, tokens: MediaTokens, made: Levelled, *, ended: bool = False
) -> Subsampled:
    taps = e.array("a.blk.0.conv_dw.weight").shape[-1]
    layers = e.keys.integer("block_count")
    return Subsampled(tokens, e.mels, made, layers, (taps - 1) // 2, e.hidden, ended)


@processor("lfm2a")
def _lfm2a(e: AudioEncoder) -> Processor:
    return _subsampled(e, _LFM, levelled(e.mels))


@processor("parakeet")
def _parakeet(e: AudioEncoder) -> Processor:
    table, taper = e.array("a.mel_filters"), e.array("a.window")
    for name, held, wanted in (
        ("a.mel_filters", table, (e.mels, NUMBERS)),
        ("a.window", taper, (TAPER,)),
    ):
        if held.size != np.prod(wanted) or held.shape[-len(wanted) :] != wanted:
            raise ModelError(f"{name}: file has {held.shape}, {e.kind} needs {wanted}")
    made = Levelled(taper.reshape(-1).astype(np.float64), filters_of(table.reshape(e.mels, -1)))
    return _subsampled(e, _NEMOTRON, made, ended=True)
