"""The processor of Gemma 3n, whose encoder is a convolutional network: positions of the image and
the windows around them as rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxillama.media.features import MediaFeatures
from oxillama.media.tokens import MediaTokens
from oxillama.model.image_builder import Window
from oxillama.model.media_encoder import ImageEncoder, Joined, MediaRows
from oxillama.vision.processors import (
    Features,
    Fit,
    FixedSize,
    Grids,
    Processor,
    Size,
    expect,
    processor,
)

_STEM = Window(3, 2)  # of the first convolution, over pixels


@dataclass(frozen=True)
class Convolved(FixedSize):
    """An image of one size for a convolutional network. windows: how its tapes are joined; end: a
    row that follows the features.
    """

    windows: tuple[Window, ...] = ()
    end: np.ndarray | None = None

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """A row for each place that the first convolution leaves, then each window's."""
        expect(pixels, self.size)
        taken = _around(self.size, _STEM.side, _STEM.stride)
        flat = np.concatenate([pixels.reshape(3, -1), np.zeros((3, 1), np.float32)], axis=1)
        patches = np.ascontiguousarray(flat[:, taken].transpose(1, 0, 2)).reshape(len(taken), -1)
        side, skipped, joined = -(-self.size // _STEM.stride), 0, list[Joined]()
        for window in self.windows:
            made, side, after = _joined(window, side, skipped)
            joined.append(made)
            skipped = after
        *between, last = joined
        tokens = np.full(len(patches), -1, np.int32)
        return MediaRows(patches, tokens, last.groups, between=tuple(between))

    def pieces(self, image: Size, features: Features, grids: Grids) -> list[str | MediaFeatures]:
        """The features, and the row at their end."""
        rows = features[0] if self.end is None else np.concatenate([features[0], self.end])
        return [MediaFeatures(np.ascontiguousarray(rows))]


def _joined(window: Window, side: int, skipped: int) -> tuple[Joined, int, int]:
    """(the rows of a window over `side` x `side` places, whose first `skipped` rows are none of
    them; places along a side that are left; rows that are none of them).
    """
    if window.spread:
        row, column = np.divmod(np.arange(4 * side * side), 2 * side)
        groups = (row // 2 * side + column // 2 + skipped) * 4 + row % 2 * 2 + column % 2
        return Joined(groups[:, None]), 2 * side, 0
    if window.seen:
        count = side * side + skipped
        spans = np.stack([np.zeros(count), np.full(count, skipped)]).astype(np.int32)
        return Joined(np.arange(count)[:, None], spans=spans), side, skipped
    groups, after = _around(side, window.side, window.stride), 0
    if window.keyed:
        keys = _around(side, window.side, 2)
        groups = np.full((side * side, window.side**2), -1)
        groups[:, window.side**2 // 2] = np.arange(side * side)
        groups, after = np.concatenate([keys, groups]), len(keys)
    return Joined(np.where(groups < 0, -1, groups + skipped)), -(-side // window.stride), after


def _around(side: int, width: int, stride: int) -> np.ndarray:
    """(windows, width * width): the numbers of the places in each window, line by line, -1 outside
    the `side` x `side` of them.
    """
    count = -(-side // stride)
    before = max((count - 1) * stride + width - side, 0) // 2
    line = np.arange(count)[:, None] * stride - before + np.arange(width)
    rows, columns = line[:, None, :, None], line[None, :, None, :]
    inside = (rows >= 0) & (rows < side) & (columns >= 0) & (columns < side)
    return np.where(inside, rows * side + columns, -1).reshape(count * count, width * width)


# its template writes the token of a row, which stands for the whole image
_GEMMA_3N = MediaTokens(
    ("<image_soft_token>",), "<image_soft_token>", "\n\n<start_of_image>", "\n\n"
)


@processor("gemma3nv")
def _gemma3n(e: ImageEncoder, fit: Fit | None) -> Processor:
    # <end_of_image> is the first of the tokens that the encoder's own table embeds
    row = e.array("mm.embedding.weight")[0].astype(np.float64)
    weight = e.vector("mm.hard_emb_norm.weight", e.hidden)
    eps = e.keys.number("attention.layer_norm_epsilon")
    row = row / np.sqrt((row * row).mean() + eps) * weight
    # neither by BLAS nor by einsum, whose sums depend on the processor
    end = (e.array("mm.input_projection.weight").astype(np.float64) * row).sum(axis=1)
    end = (end / np.sqrt((end * end).mean() + eps)).astype(np.float32)[None]
    return Convolved(
        _GEMMA_3N,
        e.image,
        e.patch,
        1,
        "bilinear",
        fit or "stretch",
        (0, 0, 0),
        windows=e.windows,
        end=end,
    )
