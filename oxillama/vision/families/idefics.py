"""Idefics 3 and SmolVLM: tiles, each after its row and column."""

from __future__ import annotations

from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import ImageEncoder
from oxillama.vision.processors import Fit, Processor, SplitImage, processor

_IDEFICS = MediaTokens(("<image>",), "<image>")
_PIXTRAL = MediaTokens(("[IMG]",), "[IMG]", "", "[IMG_END]")
_INTERN = MediaTokens(
    ("<img><IMG_CONTEXT></img>", "<IMG_CONTEXT>", "<image>"), "<IMG_CONTEXT>", "<img>", "</img>"
)


@processor("idefics3")
def _idefics3(e: ImageEncoder, fit: Fit | None) -> Processor:
    longest = e.keys.integer("preproc_image_size", default=e.image, minimum=1, maximum=1 << 14)
    return SplitImage(_IDEFICS, e.image, e.patch, e.group, longest, fit or "stretch")
