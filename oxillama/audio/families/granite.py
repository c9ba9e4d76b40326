"""The processor of Granite Speech."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

import numpy as np

from oxillama.audio.processors import Processor, processor, sided
from oxillama.audio.spectrogram import HOP, RATE, log_mel
from oxillama.media.tokens import MediaTokens
from oxillama.model.encoders.granite_speech import ROWS, period_of
from oxillama.model.media_builder import HIDDEN
from oxillama.model.media_encoder import AudioEncoder, Joined, MediaRows
from oxillama.model.waves import turns

_TOKENS = MediaTokens(("<|audio|>",), "<|audio|>")


@dataclass(frozen=True)
class Queried:
    """Pairs of frames in blocks, and windows of them with queries. layers: of the encoder; block:
    rows that see one another; future: rows that a convolution sees after one; window: rows of which
    queries, float32 (queries, width), are asked.
    """

    audio_tokens: MediaTokens
    bands: int
    layers: int
    block: int
    future: int
    window: int
    queries: np.ndarray
    rate: int = RATE

    def windows(self, samples: np.ndarray) -> list[MediaRows]:
        """A clip under one spectrogram, in parts of whole blocks and windows; a last frame without
        a partner is in none.
        """
        frames = (len(samples) // HOP + 1) // 2 * 2
        if len(samples) < HOP:
            return []
        mel = log_mel(samples, frames, self.bands, end=len(samples), wide=True)
        rows = mel.reshape(-1, 2 * self.bands)
        step = lcm(self.block, self.window)
        step *= ROWS // step
        return [self._laid_out(rows[at : at + step]) for at in range(0, len(rows), step)]

    def _laid_out(self, rows: np.ndarray) -> MediaRows:
        """The rows of a part: of each layer with further ones at the end, then of windows."""
        count, more = len(rows), self.future
        turn = turns(np.arange(count + more) % self.block, period_of(self.block))
        layer, last = sided(count, more, turn, block=self.block)
        first = np.concatenate([np.pad(rows, ((0, more), (0, 0))), layer.columns], axis=1)
        each = self.window + len(self.queries)
        number = np.arange(-(-count // self.window) * each).reshape(-1, each)
        return MediaRows(
            first,
            np.full(len(first), -1, np.int32),
            number[:, self.window :].reshape(-1, 1),
            spans=layer.spans,
            between=(*[layer] * (self.layers - 1), last, self._asked(count)),
        )

    def _asked(self, count: int) -> Joined:
        """The rows of windows, each before its queries; zeros complete the last window."""
        windows, asked = -(-count // self.window), len(self.queries)
        rows = np.arange(windows * self.window).reshape(windows, -1)
        rows = np.where(rows < count, rows, -1)
        groups = np.concatenate([rows, np.full((windows, asked), -1)], axis=1)
        begin = np.repeat(np.arange(windows) * groups.shape[1], groups.shape[1])
        asks = np.repeat([0.0, 1.0], [self.window, asked])
        columns = np.concatenate(
            [
                np.pad(self.queries, ((self.window, 0), (0, 0))),
                # what hides rows, and what hides queries
                (HIDDEN * (1 - asks))[:, None],
                (HIDDEN * asks)[:, None],
            ],
            axis=1,
        )
        return Joined(
            groups.reshape(-1, 1),
            columns=np.tile(columns, (windows, 1)).astype(np.float32),
            spans=np.stack([begin, begin + groups.shape[1]]).astype(np.int32),
        )


@processor("granite_speech")
def _granite_speech(e: AudioEncoder) -> Processor:
    keys = ("block_count", "chunk_size", "conv_kernel_size", "projector.window_size")
    layers, block, taps, window = (e.keys.integer(name) for name in keys)
    queries = e.array("a.proj_query")[0]
    return Queried(_TOKENS, e.mels // 2, layers, block, (taps - 1) // 2, window, queries)
