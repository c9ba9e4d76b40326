"""The processors of DeepSeek-OCR and DeepSeek-OCR 2: tiles, then the image whole; patches in
windows, with all that SAM needs to know of their places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxillama.errors import ImageError, ModelError
from oxillama.media.features import MediaFeatures
from oxillama.media.tokens import MediaTokens
from oxillama.model.encoders.deepseek_ocr import Sam, columns_of, sam_of
from oxillama.model.media_builder import HIDDEN
from oxillama.model.media_encoder import ImageEncoder, Joined, MediaRows
from oxillama.vision.layout import nines, patches_of, resampled
from oxillama.vision.processors import (
    Features,
    Fit,
    Grids,
    Processor,
    Size,
    nearest_grid,
    processor,
    resized,
)

_TOKENS = MediaTokens(("<image>",), "<image>")
_GREY = (127, 127, 127)
# rows of the encoder after SAM, given how many are SAM's: what follows these, and how many of all
# make no feature, the first ones
After = Callable[[int], tuple[Joined, int]]


@dataclass(frozen=True)
class SamTiles:
    """An image that is larger than a tile as tiles of the grid nearest to its ratio, then the image
    whole, and a row at the end.

    places: learned positions of SAM, (side, side, width); inner: widths of what its convolutions
    read; newline: what ends each line of features, of all tiles as one view: DeepSeek-OCR. In
    DeepSeek-OCR 2 nothing does, and the features of one tile follow those of another.
    """

    image_tokens: MediaTokens
    sam: Sam
    least: int
    most: int
    fit: Fit | None
    places: np.ndarray
    inner: tuple[int, int, int]
    after: After
    end: np.ndarray
    newline: np.ndarray | None = None

    def tiles(self, image: Any) -> list[Any]:
        """The tiles, line by line, and last the image whole."""
        side = self.sam.side * self.sam.patch
        whole = [self._whole(image, side)]
        across, down = self.grid(image.size)
        if not across:
            return whole
        side = self.sam.tile * self.sam.patch
        sheet = resized(
            image, (across * side, down * side), "bicubic", fit=self.fit or "stretch", colour=_GREY
        )
        boxes = ((x * side, y * side) for y in range(down) for x in range(across))
        return [*(sheet.crop((x, y, x + side, y + side)) for x, y in boxes), *whole]

    def _whole(self, image: Any, side: int) -> Any:
        """The image as a square: in DeepSeek-OCR as Pillow pads one, in DeepSeek-OCR 2 as
        transformers does; they place an odd line differently.
        """
        if self.fit == "stretch":
            return resized(image, (side, side), "bicubic")
        if self.newline is not None:
            from PIL import Image, ImageOps

            return ImageOps.pad(image, (side, side), Image.Resampling.BICUBIC, color=_GREY)
        scale = side / max(image.size)
        wide, high = (max(1, round(each * scale)) for each in image.size)
        made = resized(image, (wide, high), "bicubic")
        return resized(made, (side, side), "bicubic", fit="pad", colour=_GREY)

    def grid(self, size: Size) -> tuple[int, int]:
        """(tiles across, tiles down), (0, 0) of an image that is none larger than a tile."""
        side = self.sam.tile * self.sam.patch
        return nearest_grid(*size, side, self.least, self.most) if max(size) > side else (0, 0)

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """Patches window by window, which are filled up with rows that are none."""
        sam = self.sam
        count = {each * sam.patch: each for each in (sam.side, sam.tile)}.get(pixels.shape[1])
        if count is None or pixels.shape != (3, pixels.shape[1], pixels.shape[1]):
            raise ImageError(
                f"pixels: found {pixels.shape}, wanted (3, {sam.side * sam.patch}, the same) or "
                f"(3, {sam.tile * sam.patch}, the same) for this encoder"
            )
        near = sam.window
        windows = -(-count // near)
        row, column = (
            each.reshape(windows, near, windows, near).transpose(0, 2, 1, 3).reshape(-1)
            for each in np.indices((windows * near,) * 2)
        )
        real = (row < count) & (column < count)
        number = np.where(real, row * count + column, 0)
        first = np.arange(len(row)) // near**2 * near**2
        # experts of both sizes stand one after another
        start = 0 if count == sam.side else sam.side
        held = {
            "patch": patches_of(pixels, sam.patch)[number] * real[:, None],
            "position": resampled(self.places, count, count, kernel="smooth")[number],
            "real": real,
            "hidden": np.where(real, 0.0, HIDDEN),
            "row": np.where(real, row, 0) + start,
            "column": np.where(real, column, 0) + start,
            "row_within": row % near,
            "column_within": column % near,
            "at": _ones(row, column, real, -(-sam.side // 16) * 16),
            "at_within": _ones(row % near, column % near, real | True, -(-near // 16) * 16),
        }
        parts = [np.reshape(held[name], (len(row), width)) for name, width in columns_of(sam)]
        at = np.empty((count, count), np.int64)
        at[row[real], column[real]] = np.flatnonzero(real)
        between, rows = [], len(row)
        for step, width in zip((1, 2, 2), self.inner):
            between.append(Joined(nines(at, step, rows), given=np.zeros((1, width), np.float32)))
            at = np.arange(len(between[-1].groups)).reshape((-(-len(at) // step),) * 2)
            rows = at.size
        after, skipped = self.after(rows)
        features = np.arange(skipped, len(after.groups))[:, None]
        return MediaRows(
            np.concatenate(parts, axis=1, dtype=np.float32),
            np.full(len(row), -1, np.int32),
            features,
            spans=np.stack([first, first + near**2]).astype(np.int32),
            between=(*between, after),
        )

    def pieces(self, image: Size, features: Features, grids: Grids) -> list[str | MediaFeatures]:
        """The features of the tiles, those of the whole, and the row at the end."""
        whole, tiles, line = features[-1], features[:-1], self.newline
        if line is None:
            return [MediaFeatures(np.concatenate([*features, self.end]))]
        parts = []
        if tiles:
            across, down = self.grid(image)
            side = round(len(tiles[0]) ** 0.5)
            sheet = np.stack(tiles).reshape(down, across, side, side, -1)
            sheet = sheet.transpose(0, 2, 1, 3, 4).reshape(down * side, across * side, -1)
            parts.append(_lined(sheet, line))
        side = round(len(whole) ** 0.5)
        parts.append(_lined(whole.reshape(side, side, -1), line))
        return [MediaFeatures(np.concatenate([*parts, self.end]))]


def _lined(sheet: np.ndarray, line: np.ndarray) -> np.ndarray:
    """Features (rows, columns, width), each line ended, one after another."""
    ends = np.broadcast_to(line, (len(sheet), 1, sheet.shape[2]))
    return np.concatenate([sheet, ends], axis=1).reshape(-1, sheet.shape[2])


def _ones(row: np.ndarray, column: np.ndarray, real: np.ndarray, width: int) -> np.ndarray:
    """(rows, 2 * width): a one at the row and a one at the column of what is a patch."""
    made = np.zeros((len(row), 2 * width), np.float32)
    every = np.flatnonzero(real)
    made[every, row[every]] = made[every, width + column[every]] = 1.0
    return made


def _made(e: ImageEncoder, fit: Fit | None, most: int, after: After, lined: bool) -> Processor:
    def shape(name: str, dimensions: int) -> tuple[int, ...]:
        return tuple(e.reader.tensors[name].shape)

    sam = sam_of(shape, e.keys, e.kind)
    least = e.keys.integer("preproc_min_tiles", default=2, minimum=1, maximum=256)
    most = e.keys.integer("preproc_max_tiles", default=most, minimum=least, maximum=256)
    inner = tuple(tape.width for tape in e.tapes[:3])
    places = e.array("v.sam.pos_embd.weight")[0]
    return SamTiles(
        _TOKENS,
        sam,
        least,
        most,
        fit,
        places,
        (inner[0], inner[1], inner[2]),
        after,
        _row(e, "v.view_seperator", e.width)[None],
        _row(e, "v.image_newline", e.width) if lined else None,
    )


def _row(e: ImageEncoder, name: str, size: int) -> np.ndarray:
    """A tensor of the file with `size` floats in any shape, as one row."""
    held = e.array(name).reshape(-1)
    if len(held) != size:
        found = tuple(e.reader.tensors[name].shape)
        raise ModelError(f"{name}: file has {found}, {e.kind} needs {size} floats")
    return held


@processor("deepseekocr")
def _deepseekocr(e: ImageEncoder, fit: Fit | None) -> Processor:
    table = e.array("v.position_embd.weight")
    side = round((len(table) - 1) ** 0.5)
    grid = table[1:].reshape(side, side, -1)
    first = _row(e, "v.class_embd", e.hidden)[None]

    def after(count: int) -> tuple[Joined, int]:
        """The class token, then the rows of SAM, all with positions."""
        here = round(count**0.5)
        places = np.concatenate([table[:1], resampled(grid, here, here, kernel="smooth")])
        order = np.concatenate([[count], np.arange(count)])[:, None]
        return Joined(order, given=first, columns=places), 1

    return _made(e, fit, 9, after, True)


@processor("deepseekocr2")
def _deepseekocr2(e: ImageEncoder, fit: Fit | None) -> Processor:
    queries = {}
    for name in ("v.resample_query_768.weight", "v.resample_query_1024.weight"):
        if name not in e.reader.tensors or e.reader.tensors[name].shape[-1] != e.hidden:
            raise ModelError(f"{name}: {e.kind} needs rows of {e.hidden} of this name")
        held = e.array(name)
        queries[len(held)] = held

    def after(count: int) -> tuple[Joined, int]:
        """The rows of SAM, then as many queries, each of which sees those before it too."""
        if count not in queries:
            raise ModelError(
                f"v.resample_query_768.weight: file has queries for {sorted(queries)} rows, an "
                f"image has {count}"
            )
        last = np.concatenate([np.full(count, count), np.arange(count + 1, 2 * count + 1)])
        spans = np.stack([np.zeros_like(last), last]).astype(np.int32)
        order = np.arange(2 * count)[:, None]
        return Joined(order, given=queries[count], spans=spans), count

    return _made(e, fit, 6, after, False)
