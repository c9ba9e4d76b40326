"""The processors of encoders made for documents (PaddleOCR-VL, dots.ocr, HunyuanOCR), and of
others that read images of about their own size between limits of the file (EXAONE 4.5,
dots3-note) or rounded up (Youtu-VL).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from oxillama.media.features import MediaFeatures
from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import ImageEncoder, Joined, MediaRows
from oxillama.vision.layout import resampled
from oxillama.vision.processors import (
    DynamicResolution,
    Features,
    Fit,
    Grids,
    Processor,
    Size,
    processor,
)

_PADDLE = MediaTokens(
    ("<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>", "<|IMAGE_PLACEHOLDER|>"),
    "<|IMAGE_PLACEHOLDER|>",
    "<|IMAGE_START|>",
    "<|IMAGE_END|>",
)
_DOTS = MediaTokens(
    ("<|img|><|imgpad|><|endofimg|>", "<|imgpad|>"), "<|imgpad|>", "<|img|>", "<|endofimg|>"
)
_HUNYUAN = MediaTokens(
    (
        "<｜hy_place▁holder▁no▁100｜><｜hy_place▁holder▁no▁102｜><｜hy_place▁holder▁no▁101｜>",
        "<｜hy_place▁holder▁no▁102｜>",
    ),
    "<｜hy_place▁holder▁no▁102｜>",
    "<｜hy_place▁holder▁no▁100｜>",
    "<｜hy_place▁holder▁no▁101｜>",
)
_YOUTU = MediaTokens(
    ("<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>"),
    "<|image_pad|>",
    "<|vision_start|>",
    "<|vision_end|>",
)
# The most patches of an image of Youtu-VL, and how much smaller one is made each time it has more:
# of the published processor.
_MOST_PATCHES, _STEP = 36864, 0.02
_EXAONE = MediaTokens(
    ("<vision><|image_pad|></vision>", "<|image_pad|>"),
    "<|image_pad|>",
    "<vision>",
    "</vision>",
)


def _limits(e: ImageEncoder) -> tuple[int, int]:
    """The fewest and the most pixels of an image, which the file must say."""
    least = e.keys.integer("image_min_pixels", minimum=1, maximum=1 << 30)
    return least, e.keys.integer("image_max_pixels", minimum=least, maximum=1 << 30)


@dataclass(frozen=True)
class SideBySide(DynamicResolution):
    """An image of about its own size, each side of which is first made as long as a feature, the
    height before the width: PaddleOCR-VL (published image processor).
    """

    def sides(self, width: int, height: int) -> Size:
        """The (width, height) of the view."""
        unit = self.patch * self.merge
        if height < unit:
            width, height = round(width * unit / height), unit
        if width < unit:
            width, height = unit, round(height * unit / width)
        return super().sides(width, height)


@processor("paddleocr")
def _paddleocr(e: ImageEncoder, fit: Fit | None) -> Processor:
    least, most = _limits(e)
    return SideBySide(
        _PADDLE,
        e.patch,
        round(e.group**0.5),
        least,
        most,
        fit or "stretch",
        positions=partial(resampled, e.grid("v.position_embd.weight"), kernel="bilinear"),
    )


@processor("dots_ocr", "dots3note_v")
def _dots_ocr(e: ImageEncoder, fit: Fit | None) -> Processor:
    least, most = _limits(e)
    merge = round(e.group**0.5)
    return DynamicResolution(_DOTS, e.patch, merge, least, most, fit or "stretch", placed=False)


@dataclass(frozen=True)
class Lined(DynamicResolution):
    """An image of about its own size, whose lines of features are each ended by a row, between two
    rows of its own: HunyuanOCR. Each feature and each end of a line is at its row and column, the
    same wherever the image begins (XD-RoPE).

    newline: what ends a line, float32 (1, width); around: the rows before and after, (2, width).
    """

    newline: np.ndarray | None = None
    around: np.ndarray | None = None

    @property
    def axes(self) -> int:
        """Positions of each row of features."""
        return 4

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """Patches square by square; then the rows of the lines, and last those of the image."""
        made = super().rows(pixels)
        down, across = (side // self.patch // self.merge for side in pixels.shape[1:])
        lines = np.arange(down * across).reshape(down, across)
        lines = np.pad(lines, ((0, 0), (0, 1)), constant_values=down * across).reshape(-1, 1)
        ends = np.array([len(lines), len(lines) + 1])
        whole = np.concatenate([ends[:1], np.arange(len(lines)), ends[1:]])[:, None]
        between = (Joined(made.groups), Joined(lines, given=self.newline))
        return replace(made, rope=None, groups=whole, between=between, given=self.around)

    def pieces(self, image: Size, features: Features, grids: Grids) -> list[str | MediaFeatures]:
        """The row before, the lines, the row after."""
        down, across = (each // self.merge for each in grids[0])
        count = down * (across + 1)
        row, column = np.divmod(np.arange(count, dtype=np.int32), np.int32(across + 1))
        where = np.stack([np.arange(count, dtype=np.int32), row, column])
        first, lines, last = np.split(features[0], [1, count + 1])
        return [
            MediaFeatures(first),
            MediaFeatures(lines, where, fixed=True),
            MediaFeatures(last),
        ]


@processor("hunyuanvl")
def _hunyuanvl(e: ImageEncoder, fit: Fit | None) -> Processor:
    least, most = _limits(e)
    rows = [e.vector(name, e.width) for name in ("mm.image_begin", "mm.image_end")]
    return Lined(
        _HUNYUAN,
        e.patch,
        round(e.group**0.5),
        least,
        most,
        fit or "stretch",
        positions=partial(resampled, e.grid("v.position_embd.weight"), kernel="bilinear"),
        newline=e.vector("v.image_newline", e.tapes[1].width)[None],
        around=np.stack(rows),
    )


@processor("exaone4_5")
def _exaone45(e: ImageEncoder, fit: Fit | None) -> Processor:
    least, most = _limits(e)
    merge = round(e.group**0.5)
    window = e.keys.integer("window_size", default=112) if e.spanned else 0
    return DynamicResolution(
        _EXAONE,
        e.patch,
        merge,
        least,
        most,
        fit or "stretch",
        window // (e.patch * merge),
        placed=False,
    )


@dataclass(frozen=True)
class RoundedUp(DynamicResolution):
    """An image whose sides are rounded up to whole features: Youtu-VL (published image processor).
    One with more than `most` pixels is first made smaller, step by step. A patch holds the three
    colours of each pixel side by side.
    """

    def sides(self, width: int, height: int) -> Size:
        """The (width, height) of the view."""
        unit, scale = self.patch * self.merge, 1.0
        while True:
            wide, high = (
                max(unit, math.ceil(each * scale / unit) * unit) for each in (width, height)
            )
            if wide * high <= self.most:
                return wide, high
            scale -= _STEP

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """Patches square by square, window by window."""
        made = super().rows(pixels)
        turned = made.rows.reshape(-1, 3, self.patch**2).transpose(0, 2, 1)
        return replace(made, rows=np.ascontiguousarray(turned).reshape(len(turned), -1))


@processor("youtuvl")
def _youtuvl(e: ImageEncoder, fit: Fit | None) -> Processor:
    merge = round(e.group**0.5)
    window = e.keys.integer("window_size") // (e.patch * merge)
    most = max(_MOST_PATCHES, merge * merge) * e.patch**2
    return RoundedUp(
        *(_YOUTU, e.patch, merge, 1, most, fit or "stretch", window),
        filter="bilinear",
        placed=False,
    )
