"""Llama 4: tiles of a canvas."""

from __future__ import annotations

from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import ImageEncoder
from oxillama.vision.processors import CanvasTiles, Fit, Processor, processor

_LLAMA_4 = MediaTokens(("<|image|>",), "<|patch|>", "<|image_start|>", "<|image_end|>")
_JANUS = MediaTokens(
    ("<begin_of_image><image_placeholder><end_of_image>", "<image_placeholder>"),
    "<image_placeholder>",
    "<begin_of_image>",
    "<end_of_image>",
)


@processor("llama4")
def _llama4(e: ImageEncoder, fit: Fit | None) -> Processor:
    return CanvasTiles(_LLAMA_4, e.image, e.patch, e.group, "bilinear", fit or "pad", (0, 0, 0))
