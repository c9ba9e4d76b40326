"""Janus-Pro: a square in the middle of the mean colour."""

from __future__ import annotations

from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import ImageEncoder
from oxillama.vision.processors import Centred, Fit, Processor, processor

_JANUS = MediaTokens(
    ("<begin_of_image><image_placeholder><end_of_image>", "<image_placeholder>"),
    "<image_placeholder>",
    "<begin_of_image>",
    "<end_of_image>",
)


@processor("janus_pro")
def _janus_pro(e: ImageEncoder, fit: Fit | None) -> Processor:
    red, green, blue = (int(each * 255) for each in e.keys.numbers("image_mean", count=3))
    return Centred(_JANUS, e.image, e.patch, 1, "bicubic", fit or "pad", (red, green, blue))
