"""Pixtral and Mistral Small; LightOnOCR: an image of about its own size, line by line."""

from __future__ import annotations

from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import ImageEncoder
from oxillama.vision.processors import Fit, Processor, RowSeparated, processor

_PIXTRAL = MediaTokens(("[IMG]",), "[IMG]", "", "[IMG_END]")
_INTERN = MediaTokens(
    ("<img><IMG_CONTEXT></img>", "<IMG_CONTEXT>", "<image>"), "<IMG_CONTEXT>", "<img>", "</img>"
)
_LIGHTON = MediaTokens(("<|image_pad|>",), "<|image_pad|>")


@processor("pixtral")
def _pixtral(e: ImageEncoder, fit: Fit | None) -> Processor:
    line = e.vector("v.token_embd.img_break", e.width)
    return RowSeparated(_PIXTRAL, e.image, e.patch, round(e.group**0.5), fit or "stretch", line)


@processor("lightonocr")
def _lightonocr(e: ImageEncoder, fit: Fit | None) -> Processor:
    longest = e.keys.integer("preproc_image_size", default=e.image, minimum=1, maximum=1 << 14)
    merge = round(e.group**0.5)
    return RowSeparated(_LIGHTON, longest, e.patch, merge, fit or "stretch", None)
