"""The processor of Nemotron Nano V2 VL (NVIDIA 2025, published image processor): the tiles of
InternVL.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import ImageEncoder, MediaRows
from oxillama.vision.processors import (
    DynamicTiles,
    Fit,
    Processor,
    processor,
)

_TOKENS = MediaTokens(("<img><image></img>", "<image>"), "<image>", "<img>", "</img>")
# The most tiles of an image in the published processor.
_MOST = 12


@dataclass(frozen=True)
class RadioTiles(DynamicTiles):
    """Tiles after several class tokens; classes, positions: of these and of patches, a row each."""

    classes: np.ndarray
    positions: np.ndarray

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """The class tokens, then patches line by line."""
        made = super().rows(pixels)
        patches, count = made.rows[1:], len(self.classes)
        colours = np.pad(patches, ((count, 0), (0, 0)))
        columns = np.concatenate([self.classes, self.positions])
        return replace(
            made,
            rows=np.concatenate([colours, columns], axis=1),
            tokens=np.full(len(colours), -1, np.int32),
            groups=made.groups + (count - 1),
        )


@processor("nemotron_v2_vl")
def _nemotron_v2_vl(e: ImageEncoder, fit: Fit | None) -> Processor:
    classes, positions = e.array("v.class_embd"), e.array("v.position_embd.weight")
    positions = positions.reshape(-1, positions.shape[-1])  # files have an axis of one before it
    tiles = (_TOKENS, e.image, e.patch, e.group, 1, _MOST, fit or "stretch")
    return RadioTiles(*tiles, classes, positions)
