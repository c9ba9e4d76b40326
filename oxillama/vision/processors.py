"""Turns an image into pixels, tiles and prompt pieces, as each family's reference does.

A processor decides which views of an image the encoder sees (`tiles`), how their pixels are laid
out (`rows`), and what replaces the image in the prompt (`pieces`): texts, in which control tokens
are recognised, and features. Sources: the image processors of transformers (CLIP, LLaVA-NeXT,
Qwen2-VL, Gemma 3, Idefics 3, Pixtral); padding and its colour are those of llama.cpp's mtmd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from oxillama.errors import ImageError
from oxillama.media.features import MediaFeatures
from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import ImageEncoder, MediaRows
from oxillama.vision.layout import (
    Positions,
    axial_rows,
    merged_rows,
    plain_rows,
)
from oxillama.vision.reading import pillow

Fit = Literal["stretch", "pad"]
Size = tuple[int, int]  # (width, height)
Features = Sequence[np.ndarray]  # of each view, float32 (features, width)
Grids = Sequence[tuple[int, int]]  # of each view, (rows, columns) of patches
Colour = tuple[int, int, int]
CLIP_MEAN: Colour = (122, 116, 104)  # of the colours CLIP was trained with


class Processor(Protocol):
    """The processing of an image before and after its encoder."""

    @property
    def image_tokens(self) -> MediaTokens:
        """The tokens of prompts around an image."""

    def tiles(self, image: Any) -> list[Any]:
        """The views of an RGB image (`PIL.Image`), each of a size that the encoder takes."""

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """Normalised pixels, float32 (3, height, width), laid out."""

    def pieces(self, image: Size, features: Features, grids: Grids) -> list[str | MediaFeatures]:
        """The pieces of the prompt for an image of (width, height), given the features of its tiles
        and the number of patches of each, (rows, columns).
        """


def resized(
    image: Any,
    size: tuple[int, int],
    filter: str,
    *,
    fit: Fit = "stretch",
    colour: Colour = (0, 0, 0),
) -> Any:
    """An image at another (width, height), by a filter of Pillow: stretched, or as large as it fits
    with its ratio, centred on a background of one colour.
    """
    module = pillow()
    how = getattr(module.Resampling, filter.upper())
    if image.size == size:
        return image
    if fit == "stretch":
        return image.resize(size, how)
    scale = min(size[0] / image.width, size[1] / image.height)
    inner = tuple(min(most, math.ceil(each * scale)) for most, each in zip(size, image.size))
    return _centred(image.resize(inner, how), size, colour)


def _centred(image: Any, size: Size, colour: Colour) -> Any:
    """An image in the middle of a background of (width, height)."""
    ground = pillow().new("RGB", size, colour)
    ground.paste(image, tuple((a - b) // 2 for a, b in zip(size, image.size)))
    return ground


def _cut(sheet: Any, side: int) -> list[Any]:
    """The squares of an image, line by line."""
    return [
        sheet.crop((x, y, x + side, y + side))
        for y in range(0, sheet.height, side)
        for x in range(0, sheet.width, side)
    ]


def nearest_grid(width: int, height: int, side: int, least: int, most: int) -> tuple[int, int]:
    """(tiles across, tiles down), `least` to `most` in all, whose ratio is nearest to that of an
    image's sides; of several the last one that has less than twice as many pixels as the image
    (Chen et al. 2024, InternVL 1.5, section 3.2).
    """
    best, nearest = (1, 1), math.inf
    numbers = range(1, most + 1)
    grids = [(x, y) for x in numbers for y in numbers if least <= x * y <= most]
    for grid in sorted(grids, key=math.prod):
        off = abs(width / height - grid[0] / grid[1])
        if off < nearest:
            best, nearest = grid, off
        elif off == nearest and width * height > 0.5 * side**2 * math.prod(grid):
            best = grid
    return best


@dataclass(frozen=True)
class FixedSize:
    """An image of one size, whole: LLaVA 1.5 (padded) and Gemma 3 (stretched)."""

    image_tokens: MediaTokens
    size: int
    patch: int
    group: int
    filter: str
    fit: Fit
    colour: Colour
    classed: bool = False
    together: bool = False

    def tiles(self, image: Any) -> list[Any]:
        """The image as a square."""
        square = (self.size, self.size)
        return [resized(image, square, self.filter, fit=self.fit, colour=self.colour)]

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """Patches line by line."""
        expect(pixels, self.size)
        return plain_rows(pixels, self.patch, group=self.group, classed=self.classed)

    def pieces(self, image: Size, features: Features, grids: Grids) -> list[str | MediaFeatures]:
        """The features of the square."""
        return [MediaFeatures(features[0], together=self.together)]


@dataclass(frozen=True)
class Centred(FixedSize):
    """The same, of sides that are rounded to whole pixels and at least `lowest`: Janus-Pro."""

    lowest: int = 14

    def tiles(self, image: Any) -> list[Any]:
        """The image as a square, its longer side as long as that (published image processor)."""
        if self.fit == "stretch":
            return super().tiles(image)
        scale = self.size / max(image.size)
        wide, high = (max(round(each * scale), self.lowest) for each in image.size)
        square = (self.size, self.size)
        return [_centred(resized(image, (wide, high), self.filter), square, self.colour)]


@dataclass(frozen=True)
class CanvasTiles(FixedSize):
    """Llama 4 (Meta 2025, published image processor): tiles of a canvas, at whose upper left the
    image is as large as fits, and after them, if there are several, the image as a square.

    most: tiles of the largest canvas.
    """

    most: int = 16

    def tiles(self, image: Any) -> list[Any]:
        """The tiles, line by line, and last the image whole."""
        side = self.size
        across, down = self.canvas(image.width, image.height)
        size = across * side, down * side
        if self.fit == "stretch":
            sheet = resized(image, size, self.filter)
        else:
            sheet = pillow().new("RGB", size, self.colour)
            sheet.paste(resized(image, self.inner(image.width, image.height), self.filter))
        if across * down == 1:
            return [sheet]
        return [*_cut(sheet, side), resized(image, (side, side), self.filter)]

    def canvas(self, width: int, height: int) -> tuple[int, int]:
        """(tiles across, tiles down): where an image is enlarged the least or, if none holds it,
        made smaller the least; of several the fewest tiles.
        """
        numbers = range(1, self.most + 1)
        # at the precision of the reference, which holds for equal what is equal at 32 bits
        whole = np.array([width, height], np.float32)
        scales = {
            (x, y): float((np.array([x, y], np.float32) * self.size / whole).min())
            for x in numbers
            for y in numbers
            if x * y <= self.most
        }
        larger = [scale for scale in scales.values() if scale >= 1]
        wanted = min(larger) if larger else max(scales.values())
        return min((grid for grid in scales if scales[grid] == wanted), key=math.prod)

    def inner(self, width: int, height: int) -> Size:
        """The (width, height) of the image on its canvas: no side is enlarged beyond a tile's."""
        across, down = self.canvas(width, height)
        wide, high = (
            min(max(each, self.size), tiles * self.size)
            for each, tiles in ((width, across), (height, down))
        )
        by_width, by_height = wide / width, high / height
        if by_width < by_height:
            return wide, max(1, min(math.floor(height * by_width), high))
        return max(1, min(math.floor(width * by_height), wide)), high

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """Patches line by line, with row and column, before the class token."""
        expect(pixels, self.size)
        return axial_rows(pixels, self.patch, merge=round(self.group**0.5), class_last=True)

    def pieces(self, image: Size, features: Features, grids: Grids) -> list[str | MediaFeatures]:
        """A separator after each tile, another one after the last of a line; the whole image after
        a marker of its own.
        """
        across, _ = self.canvas(*image)
        out = list[str | MediaFeatures]()
        for at, rows in enumerate(features[:-1], 1):
            out += [MediaFeatures(rows), f"<|tile_{'x' if at % across else 'y'}_separator|>"]
        return [*out, "<|image|>", MediaFeatures(features[-1])]


@dataclass(frozen=True)
class AnyResolution(FixedSize):
    """LLaVA 1.6 (Liu et al. 2024, "LLaVA-NeXT"): the image whole, then tiles of it at the size of
    `pinpoints` (height, width) that keeps the most of it, without the rows and columns that are
    padding, each line of features followed by `newline`.
    """

    pinpoints: tuple[tuple[int, int], ...] = ()
    newline: np.ndarray | None = None

    def tiles(self, image: Any) -> list[Any]:
        """The image as a square, then its tiles line by line."""
        height, width = self.best((image.height, image.width))
        sheet = resized(image, (width, height), self.filter, fit="pad")
        side = self.size
        return [resized(image, (side, side), self.filter), *_cut(sheet, side)]

    def best(self, size: tuple[int, int]) -> tuple[int, int]:
        """The pinpoint that keeps the most pixels of an image of (height, width), and of those the
        one that wastes the fewest.
        """

        def worth(point: tuple[int, int]) -> tuple[int, int]:
            scale = min(point[1] / size[1], point[0] / size[0])
            kept = min(int(size[1] * scale) * int(size[0] * scale), size[0] * size[1])
            return kept, kept - point[0] * point[1]

        return max(self.pinpoints, key=worth)

    def pieces(self, image: Size, features: Features, grids: Grids) -> list[str | MediaFeatures]:
        """The features of the whole, then those of the tiles as one view."""
        width, height = image
        best = self.best((height, width))
        down, across = best[0] // self.size, best[1] // self.size
        side = round(len(features[0]) ** 0.5)
        sheet = np.stack(features[1:]).reshape(down, across, side, side, -1)
        sheet = sheet.transpose(0, 2, 1, 3, 4).reshape(down * side, across * side, -1)
        sheet = _unpadded(sheet, height, width)
        if self.newline is not None:
            line = np.broadcast_to(self.newline, (len(sheet), 1, sheet.shape[2]))
            sheet = np.concatenate([sheet, line], axis=1)
        rows = np.concatenate([features[0], sheet.reshape(-1, sheet.shape[2])])
        return [MediaFeatures(np.ascontiguousarray(rows))]


def _unpadded(sheet: np.ndarray, height: int, width: int) -> np.ndarray:
    """The part of features (rows, columns, floats) that shows an image of that ratio and no
    padding.
    """
    rows, columns = sheet.shape[:2]
    if width / height > columns / rows:
        cut = (rows - int(round(height * (columns / width), 7))) // 2
        return sheet[cut : rows - cut]
    cut = (columns - int(round(width * (rows / height), 7))) // 2
    return sheet[:, cut : columns - cut]


@dataclass(frozen=True)
class DynamicResolution:
    """An image of about its own size, sides rounded to whole features: Qwen2-VL, 2.5 and 3.

    lowest: what a side is at least before the area is held against the limits.
    """

    image_tokens: MediaTokens
    patch: int
    merge: int
    least: int
    most: int
    fit: Fit
    window: int = 0
    positions: Positions | None = None
    filter: str = "bicubic"
    placed: bool = True
    lowest: int = 0
    together: bool = False

    @property
    def axes(self) -> int:
        """Positions of each row of features."""
        return 3 if self.placed else 1

    def tiles(self, image: Any) -> list[Any]:
        """The image at the size of `sides`."""
        return [resized(image, self.sides(image.width, image.height), self.filter, fit=self.fit)]

    def sides(self, width: int, height: int) -> tuple[int, int]:
        """The nearest multiples of a feature's side whose area is within the limits (Wang et al.
        2024, Qwen2-VL, published code `smart_resize`).
        """
        unit = self.patch * self.merge
        wide, high = (max(self.lowest, round(s / unit) * unit) for s in (width, height))
        if wide * high > self.most:
            beta = math.sqrt(width * height / self.most)
            wide, high = (max(unit, math.floor(s / beta / unit) * unit) for s in (width, height))
        elif wide * high < self.least:
            beta = math.sqrt(self.least / (width * height))
            wide, high = (math.ceil(s * beta / unit) * unit for s in (width, height))
        return wide, high

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """Patches square by square, window by window."""
        expect_multiples(pixels, self.patch * self.merge)
        return merged_rows(
            pixels,
            self.patch,
            merge=self.merge,
            window=self.window,
            positions=self.positions,
        )

    def pieces(self, image: Size, features: Features, grids: Grids) -> list[str | MediaFeatures]:
        """The features, each at its row and column where they are placed so (M-RoPE)."""
        if not self.placed:
            return [MediaFeatures(features[0], together=self.together)]
        down, across = (each // self.merge for each in grids[0])
        row, column = np.divmod(np.arange(down * across, dtype=np.int32), np.int32(across))
        where = np.stack([np.zeros_like(row), row, column])
        return [MediaFeatures(features[0], where)]


@dataclass(frozen=True)
class EnlargedFirst(DynamicResolution):
    """The same, of an image whose sides are first made as long as a feature: GLM-4.1V."""

    def sides(self, width: int, height: int) -> tuple[int, int]:
        """The (width, height) of the view (published image processor of GLM-4.1V)."""
        short, unit = min(width, height), self.patch * self.merge
        if short < unit:
            width, height = (int(each * (unit / short)) for each in (width, height))
        return super().sides(width, height)


@dataclass(frozen=True)
class Fitted(DynamicResolution):
    """Gemma 4 (Google 2026, published image processor): an image at the largest size of about its
    ratio that has at most `most` pixels, sides rounded down to whole features.
    """

    def sides(self, width: int, height: int) -> tuple[int, int]:
        """The (width, height) of the view."""
        unit = self.patch * self.merge
        factor = math.sqrt(self.most / (width * height))
        wide, high = (math.floor(factor * each / unit) * unit for each in (width, height))
        longest = self.most // unit**2 * unit
        if not high:
            return min(width // height * unit, longest), unit
        if not wide:
            return unit, min(height // width * unit, longest)
        return wide, high


@dataclass(frozen=True)
class TiledWhenLarge(DynamicResolution):
    """LFM2-VL (Liquid AI 2025, published image processor): an image of about its own size, and
    before it, if it has more than twice the pixels of the largest, 2 to 10 tiles of `side` pixels,
    each after a text that says which it is. thumbnail: whether the whole comes too then.
    """

    side: int = 512
    thumbnail: bool = True

    def tiles(self, image: Any) -> list[Any]:
        """The tiles, line by line, and last the image whole, if it is wanted."""
        whole = resized(image, self.sides(image.width, image.height), self.filter, fit=self.fit)
        if not self.is_large(image.width, image.height):
            return [whole]
        across, down = nearest_grid(image.width, image.height, self.side, 2, 10)
        sheet = resized(image, (across * self.side, down * self.side), self.filter, fit=self.fit)
        tiles = _cut(sheet, self.side)
        return [*tiles, whole] if self.thumbnail else tiles

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """Patches square by square, without rows and columns: SigLIP rotates nothing."""
        return replace(super().rows(pixels), rope=None)

    def is_large(self, width: int, height: int) -> bool:
        """Whether an image is cut into tiles."""
        unit = self.patch * self.merge
        wide, high = (max(self.patch, round(s / unit) * unit) for s in (width, height))
        return wide * high > 2 * self.most

    def pieces(self, image: Size, features: Features, grids: Grids) -> list[str | MediaFeatures]:
        """Each tile after its row and column, the whole image after a marker of its own."""
        if len(features) == 1:
            return [MediaFeatures(features[0])]
        across, down = nearest_grid(*image, self.side, 2, 10)
        out = list[str | MediaFeatures]()
        for at, rows in enumerate(features[: across * down]):
            row, column = divmod(at, across)
            out += [f"<|img_row_{row + 1}_col_{column + 1}|>", MediaFeatures(rows)]
        for rows in features[across * down :]:
            out += ["<|img_thumbnail|>", MediaFeatures(rows)]
        return out


@dataclass(frozen=True)
class RowSeparated:
    """An image of at most `size`, sides rounded up to whole features of `merge` x `merge` patches,
    with a separator row after each line of features except the last: Pixtral and Mistral Small 3.1;
    without separators (`line` None): LightOnOCR.
    """

    image_tokens: MediaTokens
    size: int
    patch: int
    merge: int
    fit: Fit
    line: np.ndarray | None

    def tiles(self, image: Any) -> list[Any]:
        """The image, made smaller where it is larger."""
        width, height = image.size
        ratio = max(width, height) / self.size
        if ratio > 1:
            width, height = (max(1, math.floor(each / ratio)) for each in (width, height))
        unit = self.patch * self.merge
        sides = tuple(-(-each // unit) * unit for each in (width, height))
        return [resized(image, (sides[0], sides[1]), "bicubic", fit=self.fit)]

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """Patches line by line, with row and column."""
        expect_multiples(pixels, self.patch * self.merge)
        return axial_rows(pixels, self.patch, merge=self.merge)

    def pieces(self, image: Size, features: Features, grids: Grids) -> list[str | MediaFeatures]:
        """The lines of features, each ended but the last."""
        if self.line is None:
            return [MediaFeatures(features[0])]
        down, across = (each // self.merge for each in grids[0])
        sheet = features[0].reshape(down, across, -1)
        ends = np.broadcast_to(self.line, (down, 1, sheet.shape[2]))
        rows = np.concatenate([sheet, ends], axis=1).reshape(down * (across + 1), -1)
        return [MediaFeatures(np.ascontiguousarray(rows[:-1]))]


@dataclass(frozen=True)
class DynamicTiles:
    """Tiles of one size in the grid whose ratio is closest to the image's, line by line, then, if
    there are several, the whole image; their features follow one another: InternVL.
    """

    image_tokens: MediaTokens
    size: int
    patch: int
    group: int
    least: int
    most: int
    fit: Fit

    def tiles(self, image: Any) -> list[Any]:
        """The tiles, and last the image whole."""
        side = self.size
        across, down = self.grid(image.width, image.height)
        sheet = resized(image, (across * side, down * side), "bicubic", fit=self.fit)
        if across * down == 1:
            return [sheet]
        return [*_cut(sheet, side), resized(image, (side, side), "bicubic", fit=self.fit)]

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """(tiles across, tiles down)."""
        return nearest_grid(width, height, self.size, self.least, self.most)

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """Patches line by line, after the class token."""
        expect(pixels, self.size)
        return plain_rows(pixels, self.patch, group=self.group, classed=True)

    def pieces(self, image: Size, features: Features, grids: Grids) -> list[str | MediaFeatures]:
        """The features of all views in one stretch."""
        return [MediaFeatures(np.concatenate(features))]


@dataclass(frozen=True)
class SplitImage:
    """Tiles of one size, line by line, then the image whole, each with a text that says which it
    is: Idefics 3 and SmolVLM. An image of one tile is sent as both, as llama.cpp's mtmd does.
    """

    image_tokens: MediaTokens
    size: int
    patch: int
    group: int
    longest: int
    fit: Fit

    def tiles(self, image: Any) -> list[Any]:
        """The tiles, and last the image whole."""
        wide, high = self.sides(image.width, image.height)
        sheet = resized(image, self.enlarged(image.width, image.height), "lanczos", fit=self.fit)
        sheet = resized(sheet, (wide, high), "lanczos")
        side = self.size
        return [*_cut(sheet, side), resized(sheet, (side, side), "lanczos")]

    def enlarged(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) with the longer side as long as `longest`, the other one even."""
        ratio = width / height
        if width >= height:
            other = int(self.longest / ratio)
            return self.longest, max(1, other + other % 2)
        other = int(self.longest * ratio)
        return max(1, other + other % 2), self.longest

    def sides(self, width: int, height: int) -> tuple[int, int]:
        """The (width, height) in whole tiles."""
        width, height = self.enlarged(width, height)
        ratio, side = width / height, self.size
        if width >= height:
            wide = -(-width // side) * side
            return wide, math.ceil(int(wide / ratio) / side) * side
        high = -(-height // side) * side
        return math.ceil(int(high * ratio) / side) * side, high

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """Patches line by line."""
        expect(pixels, self.size)
        return plain_rows(pixels, self.patch, group=self.group, classed=False)

    def pieces(self, image: Size, features: Features, grids: Grids) -> list[str | MediaFeatures]:
        """Each tile after its row and column, the whole image after a marker of its own."""
        wide, high = self.sides(*image)
        across = wide // self.size
        fake, out = "<fake_token_around_image>", list[str | MediaFeatures]()
        text = ""
        for at, rows in enumerate(features[:-1]):
            down, right = divmod(at, across)
            out += [
                f"{text}{fake}<row_{down + 1}_col_{right + 1}>",
                MediaFeatures(rows),
            ]
            text = "\n" if right + 1 == across else ""
        return [*out, f"{text}\n{fake}<global-img>", MediaFeatures(features[-1]), fake]


def expect(pixels: np.ndarray, side: int) -> None:
    """Raise ImageError for pixels that are no square of that side."""
    if pixels.shape != (3, side, side):
        raise ImageError(
            f"pixels: found {pixels.shape}, wanted (3, {side}, {side}) for this encoder"
        )


def expect_multiples(pixels: np.ndarray, unit: int) -> None:
    """Raise ImageError for pixels whose sides are not multiples of `unit`."""
    if pixels.shape[1] % unit or pixels.shape[2] % unit:
        raise ImageError(
            f"pixels: found {pixels.shape[2]} x {pixels.shape[1]}, wanted multiples of {unit}"
        )


_MAKERS: dict[str, Callable[[ImageEncoder, Fit | None], Processor]] = {}


def processor(
    *kinds: str,
) -> Callable[[Callable[[ImageEncoder, Fit | None], Processor]], Any]:
    """Register the decorated function as what makes the processors of these kinds of encoders."""

    def register(make: Callable[[ImageEncoder, Fit | None], Processor]) -> Any:
        _MAKERS.update(dict.fromkeys(kinds, make))
        return make

    return register


def processor_of(encoder: ImageEncoder, fit: Fit | None = None) -> Processor:
    """The processor of an encoder's family. fit: how an image becomes the size that is wanted, in
    place of what the family's reference does.
    """
    return _MAKERS[encoder.kind](encoder, fit)
