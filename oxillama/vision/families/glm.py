"""GLM-4.1V, GLM-4.5V and GLM-OCR: an image of about its own size."""

from __future__ import annotations

from functools import partial

from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import ImageEncoder
from oxillama.vision.layout import resampled
from oxillama.vision.processors import EnlargedFirst, Fit, Processor, processor

_GLM = MediaTokens(
    ("<|begin_of_image|><|image|><|end_of_image|>", "<|image|>"),
    "<|image|>",
    "<|begin_of_image|>",
    "<|end_of_image|>",
)


@processor("glm4v")
def _glm4v(e: ImageEncoder, fit: Fit | None) -> Processor:
    merge = round(e.group**0.5)
    area = (e.patch * merge) ** 2
    least = e.keys.integer("image_min_pixels", default=8 * area, minimum=1)
    most = e.keys.integer("image_max_pixels", default=6144 * area, minimum=least)
    positions = None
    if "v.position_embd.weight" in e.reader.tensors:
        table = e.grid("v.position_embd.weight")
        positions = partial(resampled, table, kernel="cubic")
    return EnlargedFirst(_GLM, e.patch, merge, least, most, fit or "stretch", positions=positions)
