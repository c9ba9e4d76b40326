"""The processor of Step3-VL and Step 3.7 (StepFun 2026, published image processor): tiles of a
window that fits an image, then the image whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from oxillama.errors import ImageError, ModelError
from oxillama.media.features import MediaFeatures
from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import ImageEncoder, Joined, MediaRows
from oxillama.vision.layout import Positions, axial_rows, nines, resampled
from oxillama.vision.processors import (
    Features,
    Fit,
    Grids,
    Processor,
    Size,
    processor,
    resized,
)
from oxillama.vision.reading import pillow

# What templates write for an image is the token of a row; marks around tiles are in the pieces.
_TOKENS = MediaTokens(("<im_patch>",), "<im_patch>")
# A tile's side by that of an image whole: 504 of 728 pixels in the published models.
_TILE = (9, 13)


@dataclass(frozen=True)
class WindowTiles:
    """Tiles of windows of an image, line by line, each between two marks, with another one after
    each line but the last; then the image whole between two marks.

    longest: what the longer side of an image is made smaller to.
    """

    image_tokens: MediaTokens
    size: int
    tile: int
    longest: int
    patch: int
    fit: Fit
    positions: Positions
    widths: tuple[int, int]

    def tiles(self, image: Any) -> list[Any]:
        """The tiles, and last the image whole."""
        side = max(image.size)
        if _thin(image.size):
            # at the upper left of a black square
            square = pillow().new("RGB", (side, side))
            square.paste(image)
            image = square
        wide, high = self.reduced(image.size)
        whole = resized(resized(image, (wide, high), "bilinear"), (self.size,) * 2, "bilinear")
        if self.fit == "pad":
            whole = resized(image, (self.size, self.size), "bilinear", fit="pad")
        window, across, down = self.windows(image.size)
        if not window:
            return [whole]
        sheet = resized(image, (across, down), "bilinear")
        made = [
            sheet.crop((x, y, min(x + window, across), min(y + window, down)))
            for y in range(0, down, window)
            for x in range(0, across, window)
        ]
        return [*(resized(each, (self.tile, self.tile), "bilinear") for each in made), whole]

    def reduced(self, size: Size) -> Size:
        """The (width, height) of an image that is no longer than `longest`."""
        scale = self.longest / max(size)
        return size if scale >= 1 else (int(size[0] * scale), int(size[1] * scale))

    def windows(self, size: Size) -> tuple[int, int, int]:
        """(side of a window, width and height that windows cut), 0 for the side of an image that is
        only seen whole. A side is a whole number of windows, one more if over a fifth of one is
        left.
        """
        wide, high = self.reduced((max(size),) * 2 if _thin(size) else size)
        short, long = min(wide, high), max(wide, high)
        if long <= self.size:
            window = short if long / short > 1.5 else 0
        else:
            window = min(short, self.tile) if long / short > 4 else self.tile
        if not window:
            return 0, wide, high
        across, down = (
            window * (each // window + (each % window > 0.2 * window)) if each >= window else each
            for each in (wide, high)
        )
        return window, across, down

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """Patches line by line, with row and column; then the places of both convolutions."""
        side = pixels.shape[1]
        if side not in (self.size, self.tile) or pixels.shape != (3, side, side):
            raise ImageError(
                f"pixels: found {pixels.shape}, wanted (3, {self.size}, {self.size}) or "
                f"(3, {self.tile}, {self.tile}) for this encoder"
            )
        made = axial_rows(pixels, self.patch)
        count = side // self.patch
        half = -(-count // 2)
        first, second = (
            nines(np.arange(each * each).reshape(each, each), 2, each * each)
            for each in (count, half)
        )
        blank, other = (np.zeros((1, width), np.float32) for width in self.widths)
        patches = np.concatenate([made.rows, self.positions(count, count)], axis=1)
        between = (Joined(first, given=blank),)
        return replace(made, rows=patches, groups=second, between=between, given=other)

    def pieces(self, image: Size, features: Features, grids: Grids) -> list[str | MediaFeatures]:
        """The tiles and the whole, each between its marks."""
        window, width, _ = self.windows(image)
        across = -(-width // window) if window else 0
        out, count = list[str | MediaFeatures](), len(features) - 1
        for at, rows in enumerate(features[:-1], 1):
            out += ["<patch_start>", MediaFeatures(rows), "<patch_end>"]
            if at % across == 0 and at < count:
                out.append("<patch_newline>")
        return [*out, "<im_start>", MediaFeatures(features[-1]), "<im_end>"]


def _thin(size: Size) -> bool:
    """Whether a side is below 32 pixels and the other more than four times as long."""
    return min(size) < 32 and max(size) > 4 * min(size)


@processor("step3vl")
def _step3vl(e: ImageEncoder, fit: Fit | None) -> Processor:
    over, under = _TILE
    tile = e.image * over // under
    if e.image * over % under or e.image % e.patch or tile % e.patch:
        raise ModelError(
            f"clip.vision.image_size: found {e.image}, wanted a multiple of {under} whose "
            f"{over}/{under} are whole patches of {e.patch} pixels"
        )
    longest = e.keys.integer("preproc_image_size", minimum=e.image, maximum=1 << 14)
    positions = partial(resampled, e.grid("v.position_embd.weight"), kernel="bilinear")
    widths = (e.tapes[0].width, e.tapes[1].width)
    return WindowTiles(
        _TOKENS, e.image, tile, longest, e.patch, fit or "stretch", positions, widths
    )
