"""LLaVA 1.5 and 1.6: a square, and tiles of one of several grids."""

from __future__ import annotations

from dataclasses import replace

from oxillama.errors import ModelError
from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import ImageEncoder
from oxillama.vision.processors import (
    CLIP_MEAN,
    AnyResolution,
    Fit,
    FixedSize,
    Processor,
    processor,
)

_LLAVA = MediaTokens(("<image>",), "<image>")
_QWEN = MediaTokens(
    ("<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>"),
    "<|image_pad|>",
    "<|vision_start|>",
    "<|vision_end|>",
)


@processor("mlp")
def _llava(e: ImageEncoder, fit: Fit | None) -> Processor:
    square = FixedSize(
        _LLAVA,
        e.image,
        e.patch,
        1,
        "bicubic",
        fit or "pad",
        CLIP_MEAN,
        classed="v.class_embd" in e.reader.tensors,
    )
    kind = e.keys.text("mm_patch_merge_type", default="flat")
    points = e.keys.integers("image_grid_pinpoints", default=())
    if kind == "flat" and not points:
        return square
    if kind != "spatial_unpad" or len(points) % 2 or not points:
        raise ModelError(
            f"clip.vision.mm_patch_merge_type: found {kind!r:.60} with {len(points)} numbers of "
            f"pinpoints, wanted 'spatial_unpad' with pairs of them, or 'flat' without any"
        )
    pairs = tuple(zip(points[::2], points[1::2]))
    for pair in pairs:
        if min(pair) < e.image or pair[0] % e.image or pair[1] % e.image:
            raise ModelError(
                f"clip.vision.image_grid_pinpoints: found {pair}, wanted multiples of {e.image}"
            )
    return AnyResolution(
        **vars(replace(square, fit="stretch")),
        pinpoints=pairs,
        newline=e.optional_vector("model.image_newline", e.width),
    )
