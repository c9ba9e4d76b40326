"""InternVL: tiles in the grid that is nearest to an image's ratio."""

from __future__ import annotations

from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import ImageEncoder
from oxillama.vision.processors import DynamicTiles, Fit, Processor, processor

_INTERN = MediaTokens(
    ("<img><IMG_CONTEXT></img>", "<IMG_CONTEXT>", "<image>"), "<IMG_CONTEXT>", "<img>", "</img>"
)


@processor("internvl")
def _internvl(e: ImageEncoder, fit: Fit | None) -> Processor:
    least = e.keys.integer("preproc_min_tiles", default=1, minimum=1, maximum=256)
    most = e.keys.integer("preproc_max_tiles", default=12, minimum=least, maximum=256)
    return DynamicTiles(_INTERN, e.image, e.patch, e.group, least, most, fit or "stretch")
