"""Processors of MiniCPM-V: an image at about its own ratio and, if it is large, slices of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from oxillama.media.features import MediaFeatures
from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import ImageEncoder, Joined, MediaRows
from oxillama.vision.layout import blocks_of, merged_rows, nearest, plain_rows
from oxillama.vision.processors import (
    Features,
    Fit,
    Grids,
    Processor,
    Size,
    expect_multiples,
    processor,
    resized,
)


@dataclass(frozen=True)
class Sliced:
    """MiniCPM-V (Yao et al. 2024, section 3.1, and published image processors): the image with the
    area of a square of `size`, or with its own if that is smaller and there are slices, then up to
    `most` slices of that area; sides are multiples of `unit`.

    layout: normalised pixels as rows.
    """

    image_tokens: MediaTokens
    size: int
    unit: int
    fit: Fit
    layout: Callable[[np.ndarray], MediaRows]
    most: int = 9

    def tiles(self, image: Any) -> list[Any]:
        """The image whole, then its slices line by line."""
        width, height = image.size
        across, down = self.grid(width, height)
        sliced = across * down > 0
        whole = resized(image, self.sides(width, height, sliced), "bicubic", fit=self.fit)
        if not sliced:
            return [whole]
        each = [max(round(a / b), 1) for a, b in ((width, across), (height, down))]
        wide, high = self.sides(each[0], each[1], False)
        sheet = resized(image, (wide * across, high * down), "bicubic", fit=self.fit)
        corners = [(x * wide, y * high) for y in range(down) for x in range(across)]
        return [whole, *(sheet.crop((x, y, x + wide, y + high)) for x, y in corners)]

    def sides(self, width: float, height: float, smaller: bool) -> Size:
        """The (width, height) of a view that is made as large as a square of `size`; smaller:
        only made smaller.
        """
        if not smaller or width * height > self.size**2:
            ratio = width / height
            height = int(self.size / math.sqrt(ratio))
            width = int(height * ratio)
        wide, high = (max(round(each / self.unit), 1) * self.unit for each in (width, height))
        return wide, high

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """(slices across, slices down), whose ratio is nearest to the image's, one more or less
        than squares of `size` have its area; (0, 0) for an image of at most one square.
        """
        count = min(math.ceil(width * height / self.size**2), self.most)
        if count <= 1:
            return 0, 0
        best, nearest = (1, 1), math.inf
        for total in (count - 1, count, count + 1):
            if total == 1 or total > self.most:
                continue
            for across in range(1, total + 1):
                if total % across == 0:
                    off = abs(math.log(width / height) - math.log(across / (total // across)))
                    if off < nearest:
                        best, nearest = (across, total // across), off
        return best

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """Patches with what the encoder takes beside them."""
        expect_multiples(pixels, self.unit)
        return self.layout(pixels)

    def pieces(self, image: Size, features: Features, grids: Grids) -> list[str | MediaFeatures]:
        """The whole image and each slice between tokens of their own, a line break after each line
        of slices but the last.
        """
        across, _ = self.grid(*image)
        out: list[str | MediaFeatures] = ["<image>", MediaFeatures(features[0]), "</image>"]
        for at, rows in enumerate(features[1:]):
            line = "\n" if at and at % across == 0 else ""
            out += [f"{line}<slice>", MediaFeatures(rows), "</slice>"]
        return out


_NUMBERED = "<image_id>{}</image_id>"
_MINICPM = MediaTokens(
    ("(<image>./</image>)", "<image>./</image>"), "<unk>", numbered=_NUMBERED, joint="\n"
)
_MINICPM_46 = MediaTokens(
    ("(<image>./</image>)", "<image>./</image>", "<|image_pad|>"),
    "<|image_pad|>",
    numbered=_NUMBERED,
)


def _waves(rows: int, columns: int, width: int) -> np.ndarray:
    """float32 (rows * columns, width): sines and cosines of a patch's column, then of its row
    (published code of MiniCPM-V's resampler; He et al. 2021, "Masked Autoencoders", appendix A).
    """
    rates = 10000.0 ** (-np.arange(width // 4) / (width // 4))

    def along(count: int) -> np.ndarray:
        angles = np.arange(count)[:, None] * rates
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)

    made = np.empty((rows, columns, width), np.float32)
    made[..., : width // 2] = along(columns)
    made[..., width // 2 :] = along(rows)[:, None]
    return made.reshape(rows * columns, width)


def _resampled_rows(
    pixels: np.ndarray, *, patch: int, table: np.ndarray, queries: np.ndarray
) -> MediaRows:
    """Patches line by line, then a row for each query, all of which see the patches alone; features
    are the rows of the queries.
    """
    laid = plain_rows(pixels, patch, group=1, classed=False)
    grid = pixels.shape[1] // patch, pixels.shape[2] // patch
    count, asked = len(laid.rows), len(queries)
    patches = np.concatenate(
        [laid.rows, nearest(table, *grid), _waves(*grid, queries.shape[1])], axis=1
    )
    brought = np.zeros((asked, patches.shape[1]), np.float32)
    brought[:, -queries.shape[1] :] = queries
    total = count + asked
    return MediaRows(
        np.concatenate([patches, brought]),
        np.full(total, -1, np.int32),
        np.arange(count, total)[:, None],
        spans=np.stack([np.zeros(total, np.int32), np.full(total, count, np.int32)]),
    )


@processor("resampler")
def _resampler(e: ImageEncoder, fit: Fit | None) -> Processor:
    layout = partial(
        _resampled_rows,
        patch=e.patch,
        table=e.grid("v.position_embd.weight"),
        queries=e.array("resampler.query"),
    )
    return Sliced(_MINICPM, e.image, e.patch, fit or "stretch", layout)


def _joined_rows(pixels: np.ndarray, *, patch: int, table: np.ndarray, twice: bool) -> MediaRows:
    """Patches in squares of 2 x 2, which are joined; twice: then squares of 2 x 2 of these."""
    laid = merged_rows(pixels, patch, merge=2, positions=partial(nearest, table))
    laid = replace(laid, rope=None)
    if not twice:
        return laid
    rows, columns = (side // patch // 2 for side in pixels.shape[1:])
    first = np.arange(len(laid.rows), dtype=np.int32) // 4 * 4
    return replace(
        laid,
        groups=blocks_of(rows, columns, 2),
        spans=np.stack([first, first + 4]),
        between=(Joined(laid.groups),),
    )


@processor("minicpmv4_6")
def _minicpmv46(e: ImageEncoder, fit: Fit | None) -> Processor:
    scale = e.keys.integer("projector.scale_factor")
    table = e.grid("v.position_embd.weight")
    layout = partial(_joined_rows, patch=e.patch, table=table, twice=scale == 4)
    return Sliced(_MINICPM_46, e.image, scale * e.patch, fit or "stretch", layout)
