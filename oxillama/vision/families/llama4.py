"""Llama 4: tiles of a canvas."""

from __future__ import annotations

from oxillama.model.image_encoder import ImageEncoder
from oxillama.vision.processors import CanvasTiles, Fit, ImageTokens, Processor, processor

_LLAMA_4 = ImageTokens(("<|image|>",), "<|patch|>", "<|image_start|>", "<|image_end|>")
_JANUS = ImageTokens(
    ("<begin_of_image><image_placeholder><end_of_image>", "<image_placeholder>"),
    "<image_placeholder>",
    "<begin_of_image>",
    "<end_of_image>",
)


@processor("llama4")
def _llama4(e: ImageEncoder, fit: Fit | None) -> Processor:
    return CanvasTiles(_LLAMA_4, e.image, e.patch, e.group, "bilinear", fit or "pad", (0, 0, 0))
