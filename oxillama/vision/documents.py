"""The processors of encoders made for documents: PaddleOCR-VL, dots.ocr."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from oxillama.model.image_encoder import ImageEncoder
from oxillama.vision.layout import resampled
from oxillama.vision.processors import (
    DynamicResolution,
    Fit,
    ImageTokens,
    Processor,
    Size,
    processor,
)

_PADDLE = ImageTokens(
    ("<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>", "<|IMAGE_PLACEHOLDER|>"),
    "<|IMAGE_PLACEHOLDER|>",
    "<|IMAGE_START|>",
    "<|IMAGE_END|>",
)
_DOTS = ImageTokens(
    ("<|img|><|imgpad|><|endofimg|>", "<|imgpad|>"), "<|imgpad|>", "<|img|>", "<|endofimg|>"
)


def _limits(e: ImageEncoder) -> tuple[int, int]:
    """The fewest and the most pixels of a picture, which the file must say."""
    least = e.keys.integer("image_min_pixels", minimum=1, maximum=1 << 30)
    return least, e.keys.integer("image_max_pixels", minimum=least, maximum=1 << 30)


@dataclass(frozen=True)
class SideBySide(DynamicResolution):
    """An image of about its own size, each side of which is first made as long as a feature, the
    height before the width: PaddleOCR-VL (published image processor).
    """

    def sides(self, width: int, height: int) -> Size:
        """The (width, height) of the picture."""
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


@processor("dots_ocr")
def _dots_ocr(e: ImageEncoder, fit: Fit | None) -> Processor:
    least, most = _limits(e)
    merge = round(e.group**0.5)
    return DynamicResolution(
        _DOTS, e.patch, merge, least, most, fit or "stretch", placed=False
    )
