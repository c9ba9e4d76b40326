"""Processors of further families whose images keep about their own size."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from oxillama.errors import ImageError
from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import ImageEncoder, Joined, MediaRows
from oxillama.vision.families.gemma import gemma4
from oxillama.vision.families.qwen import QWEN
from oxillama.vision.layout import blocks_of, interpolated, merged_rows, resampled
from oxillama.vision.processors import (
    DynamicResolution,
    Fit,
    Fitted,
    Processor,
    Size,
    expect_multiples,
    processor,
    resized,
)
from oxillama.vision.reading import pillow


@dataclass(frozen=True)
class Cornered(DynamicResolution):
    """Kimi-VL and Kimi K2.5 (published image processors): an image of its own size, or made smaller
    so that its whole patches are at most `most` in area, at the upper left of a black background
    whose sides are whole features.

    side: patches along a side, at most. shrinks: whether images with a longer side are made
    smaller, and not refused.
    """

    side: int = 512
    shrinks: bool = True

    def tiles(self, image: Any) -> list[Any]:
        """The image on its background, or stretched over it."""
        inner = self.inner(image.width, image.height)
        size = self.sides(image.width, image.height)
        if self.fit == "stretch":
            return [resized(image, size, self.filter)]
        ground = pillow().new("RGB", size)
        ground.paste(resized(image, inner, self.filter))
        return [ground]

    def inner(self, width: int, height: int) -> Size:
        """The (width, height) of the image on its background."""
        patches = max(width // self.patch, 1) * max(height // self.patch, 1)
        scale = min(1.0, math.sqrt(self.most // self.patch**2 / patches))
        longest = self.side * self.patch
        if self.shrinks:
            scale = min(scale, longest / height, longest / width)
        wide, high = (max(1, int(each * scale)) for each in (width, height))
        return (min(wide, longest), min(high, longest)) if self.shrinks else (wide, high)

    def sides(self, width: int, height: int) -> Size:
        """The (width, height) of the background; ImageError for a side of too many patches."""
        unit = self.patch * self.merge
        wide, high = (-(-each // unit) * unit for each in self.inner(width, height))
        if not self.shrinks and max(wide, high) >= self.side * self.patch:
            raise ImageError(
                f"image: found {width} x {height} pixels, a side of {max(wide, high) // self.patch}"
                f" patches, wanted fewer than {self.side}"
            )
        return wide, high


_KIMI_VL = MediaTokens(
    ("<|media_start|>image<|media_content|><|media_pad|><|media_end|>", "<|media_pad|>"),
    "<|media_pad|>",
    "<|media_start|>image<|media_content|>",
    "<|media_end|>",
)
_KIMI_K25 = MediaTokens(
    ("<|media_begin|>image<|media_content|><|media_pad|><|media_end|>", "<|media_pad|>"),
    "<|media_pad|>",
    "<|media_begin|>image<|media_content|>",
    "<|media_end|>",
    needed="<|media_begin|>",  # GLM-5.2-Vision has the same encoder, and other views
)


@processor("kimivl", "kimik25")
def _kimi(e: ImageEncoder, fit: Fit | None) -> Processor:
    merge, newer = round(e.group**0.5), e.kind == "kimik25"
    # what the converter of Kimi K2.5 makes up; no image is enlarged
    e.keys.integer("image_min_pixels", default=0)
    most = e.keys.integer(
        "image_max_pixels", default=(16384 if newer else 4096) * e.patch**2, minimum=e.patch**2
    )
    table = e.array("v.position_embd.weight")
    side = math.isqrt(table.size // e.hidden)
    return Cornered(
        _KIMI_K25 if newer else _KIMI_VL,
        e.patch,
        merge,
        1,
        most,
        fit or "pad",
        positions=partial(resampled, table.reshape(side, side, -1), kernel="cubic"),
        placed=False,
        shrinks=newer,
    )


@dataclass(frozen=True)
class FittedPatches(Fitted):
    """The unified Gemma 4: the views of Gemma 4, in patches that nothing rotates."""

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """Patches line by line."""
        return replace(super().rows(pixels), rope=None)


@processor("gemma4uv")
def _gemma4_unified(e: ImageEncoder, fit: Fit | None) -> Processor:
    # in the published model the rows of an image see each other
    return FittedPatches(**{**vars(gemma4(e, fit)), "together": True})


_MINIMAX = MediaTokens(
    ("]<]image[>[",), "]<]image[>[", "]<]start of image[>[", "]<]end of image[>["
)


@processor("minimax_m3")
def _minimax_m3(e: ImageEncoder, fit: Fit | None) -> Processor:
    merge = round(e.group**0.5)
    area = (e.patch * merge) ** 2
    least = e.keys.integer("image_min_pixels", default=4 * area, minimum=1)
    most = e.keys.integer("image_max_pixels", default=576 * area, minimum=least)
    return DynamicResolution(_MINIMAX, e.patch, merge, least, most, fit or "stretch", placed=False)


@dataclass(frozen=True)
class NearestRatio(DynamicResolution):
    """Muse Glimmer (published image processor): an image of about its own size, or of at most
    `most` pixels; of the whole features above and below, those whose ratio is the image's.
    """

    def sides(self, width: int, height: int) -> Size:
        """The (width, height) of the view."""
        unit = self.patch * self.merge
        count = self.most // unit**2
        high, wide = height / unit, width / unit
        ratio = wide / high
        if high * wide > count:
            high = (count / ratio) ** 0.5
            wide = high * ratio
        # of two that are as near, the first one of a set, as in the reference
        rounded = {(f(high), g(wide)) for f in _ROUNDED for g in _ROUNDED}
        grids = [grid for grid in rounded if min(grid) >= 1 and grid[0] * grid[1] <= count]
        if not grids:
            grids = [(max(1, round(high)), max(1, round(wide)))]
        best = min(grids, key=lambda grid: abs(grid[0] / grid[1] - height / width))
        return best[1] * unit, best[0] * unit

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """Patches window by window; squares of them make features."""
        expect_multiples(pixels, self.patch * self.merge)
        laid = merged_rows(
            pixels, self.patch, merge=1, window=self.window, positions=self.positions
        )
        rows, columns = (side // self.patch for side in pixels.shape[1:])
        return replace(laid, groups=laid.groups[:, 0][blocks_of(rows, columns, self.merge)])


_ROUNDED = (math.floor, math.ceil)
_MUSE = MediaTokens(("<|patch|>",), "<|patch|>", "<|image_start|>", "<|image_end|>")


@processor("muse-glimmer")
def _muse_glimmer(e: ImageEncoder, fit: Fit | None) -> Processor:
    merge = round(e.group**0.5)
    area = (e.patch * merge) ** 2
    table = e.grid("v.position_embd.weight")
    return NearestRatio(
        _MUSE,
        e.patch,
        merge,
        1,
        e.keys.integer("image_max_pixels", default=4096 * area, minimum=area),
        fit or "stretch",
        window=len(table),
        positions=partial(resampled, table, kernel="faded"),
        filter="lanczos",
        placed=False,
    )


@processor("ling3vl")
def _ling3vl(e: ImageEncoder, fit: Fit | None) -> Processor:
    merge = round(e.group**0.5)
    area = (e.patch * merge) ** 2
    least = e.keys.integer("image_min_pixels", default=4 * area, minimum=1)
    most = e.keys.integer("image_max_pixels", default=4096 * area, minimum=least)
    positions = partial(interpolated, e.grid("v.position_embd.weight"))
    return DynamicResolution(
        QWEN, e.patch, merge, least, most, fit or "stretch", positions=positions
    )


@dataclass(frozen=True)
class TurnedRows(DynamicResolution):
    """MiMo-V2.5: patches square by square, line by line; turns: how often tapes have them column by
    column, or line by line again.
    """

    turns: int = 0

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """Patches, each with a number that is 1 for the first."""
        laid = super().rows(pixels)
        first = np.zeros((len(laid.rows), 1), np.float32)
        first[0] = 1
        unit = self.merge**2
        rows, columns = (side // self.patch // self.merge for side in pixels.shape[1:])
        squares = np.arange(rows * columns).reshape(rows, columns).T.reshape(-1)
        turned = (squares[:, None] * unit + np.arange(unit)).reshape(-1)
        orders = (turned, np.argsort(turned))
        where, between = laid.rope, list[Joined]()
        for at in range(self.turns):
            order = orders[at % 2]
            where = None if where is None else np.ascontiguousarray(where[:, order])
            between.append(Joined(order[:, None], rope=where))
        patches = np.concatenate([laid.rows, first], axis=1)
        groups = orders[1][laid.groups] if self.turns % 2 else laid.groups
        return replace(laid, rows=patches, groups=groups, between=tuple(between))


@processor("mimovl")
def _mimovl(e: ImageEncoder, fit: Fit | None) -> Processor:
    least = e.keys.integer("image_min_pixels", minimum=1)
    most = e.keys.integer("image_max_pixels", minimum=least)
    return TurnedRows(
        QWEN,
        e.patch,
        e.keys.integer("spatial_merge_size", default=2),
        least,
        most,
        fit or "stretch",
        placed=False,
        turns=len(e.tapes) - 2,
    )
