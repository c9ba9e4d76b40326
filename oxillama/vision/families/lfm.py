"""LFM2-VL: an image of about its own size, or tiles of it."""

from __future__ import annotations

from functools import partial

from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import ImageEncoder
from oxillama.vision.layout import resampled
from oxillama.vision.processors import Fit, Processor, TiledWhenLarge, processor

_LFM = MediaTokens(("<image>",), "<image>", "<|image_start|>", "<|image_end|>")
_LLAMA_4 = MediaTokens(("<|image|>",), "<|patch|>", "<|image_start|>", "<|image_end|>")
_JANUS = MediaTokens(
    ("<begin_of_image><image_placeholder><end_of_image>", "<image_placeholder>"),
    "<image_placeholder>",
    "<begin_of_image>",
    "<end_of_image>",
)


@processor("lfm2")
def _lfm2(e: ImageEncoder, fit: Fit | None) -> Processor:
    merge = round(e.group**0.5)
    unit = e.patch * merge
    least = e.keys.integer("image_min_pixels", default=64 * unit**2, minimum=1)
    most = e.keys.integer("image_max_pixels", default=256 * unit**2, minimum=least)
    return TiledWhenLarge(
        _LFM,
        e.patch,
        merge,
        least,
        most,
        fit or "stretch",
        positions=partial(resampled, e.grid("v.position_embd.weight"), kernel="linear"),
        filter="bilinear",
        placed=False,
        lowest=unit,
        thumbnail=e.keys.flag("use_thumbnail", default=True),
    )
