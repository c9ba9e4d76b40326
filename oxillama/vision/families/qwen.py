"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: an image of about its own size."""

from __future__ import annotations

from functools import partial

from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import ImageEncoder
from oxillama.vision.layout import interpolated
from oxillama.vision.processors import DynamicResolution, Fit, Processor, processor

QWEN = MediaTokens(
    ("<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>"),
    "<|image_pad|>",
    "<|vision_start|>",
    "<|vision_end|>",
)
_OMNI = MediaTokens(
    ("<|vision_bos|><|IMAGE|><|vision_eos|>", "<|IMAGE|>"),
    "<|IMAGE|>",
    "<|vision_bos|>",
    "<|vision_eos|>",
)


@processor("qwen2vl_merger", "qwen2.5vl_merger", "qwen2.5o", "qwen3vl_merger")
def _merged(e: ImageEncoder, fit: Fit | None) -> Processor:
    merge = round(e.group**0.5)
    area = (e.patch * merge) ** 2
    least = e.keys.integer("image_min_pixels", default=8 * area, minimum=1)
    most = e.keys.integer("image_max_pixels", default=4096 * area, minimum=least)
    window, positions = 0, None
    if e.spanned:
        window = e.keys.integer("window_size", default=112) // (e.patch * merge)
    if e.kind == "qwen3vl_merger":
        positions = partial(interpolated, e.grid("v.position_embd.weight"))
    tokens = _OMNI if e.kind == "qwen2.5o" else QWEN
    return DynamicResolution(
        tokens, e.patch, merge, least, most, fit or "stretch", window, positions
    )
