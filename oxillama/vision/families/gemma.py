"""Gemma 3: a square whose rows see each other. Gemma 4: as large as its ratio allows."""

from __future__ import annotations

import numpy as np

from oxillama.errors import ModelError
from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import ImageEncoder
from oxillama.vision.processors import Fit, Fitted, FixedSize, Processor, processor

_GEMMA = MediaTokens(
    ("<start_of_image>",), "<image_soft_token>", "\n\n<start_of_image>", "<end_of_image>\n\n"
)
_GEMMA_4 = MediaTokens(("<|image|>",), "<|image|>", "<|image>", "<image|>")
_LFM = MediaTokens(("<image>",), "<image>", "<|image_start|>", "<|image_end|>")
_LLAMA_4 = MediaTokens(("<|image|>",), "<|patch|>", "<|image_start|>", "<|image_end|>")
_JANUS = MediaTokens(
    ("<begin_of_image><image_placeholder><end_of_image>", "<image_placeholder>"),
    "<image_placeholder>",
    "<begin_of_image>",
    "<end_of_image>",
)


@processor("gemma3")
def _gemma3(e: ImageEncoder, fit: Fit | None) -> Processor:
    return FixedSize(
        _GEMMA, e.image, e.patch, e.group, "bilinear", fit or "stretch", (0, 0, 0), together=True
    )


@processor("gemma4v")
def gemma4(e: ImageEncoder, fit: Fit | None) -> Fitted:
    merge = round(e.group**0.5)
    unit = e.patch * merge
    most = e.keys.integer("image_max_pixels", default=280 * unit**2, minimum=unit**2)
    # a side is at most as long as all features in one line
    table = e.array("v.position_embd.weight")[:, : most // unit**2 * merge].copy()
    if table.shape[1] < most // unit**2 * merge:
        raise ModelError(
            f"v.position_embd.weight: file has {table.shape[1]} places, an image of {most} pixels "
            f"needs {most // unit**2 * merge}"
        )

    def positions(rows: int, columns: int) -> np.ndarray:
        return (table[0, None, :columns] + table[1, :rows, None]).reshape(rows * columns, -1)

    return Fitted(
        _GEMMA_4,
        e.patch,
        merge,
        1,
        most,
        fit or "stretch",
        positions=positions,
        placed=False,
        # the rows of an image see each other but in E2B and E4B, which no key tells
        together=e.width not in (1536, 2560),
    )
