"""What a language model is given of an image or of audio in place of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from blake3 import blake3

Kind = Literal["image", "audio"]


@dataclass(frozen=True, eq=False)
class MediaFeatures:
    """Rows of one image (or of one tile) or of one clip of audio that replace tokens in a prompt.

    rows: float32 (rows, width), the width of an embedding, or that times 1 + the layers of the
    language model that add image features. positions: int32 (3, rows), time, height and width of
    each row relative to the beginning of the image, none larger than the number of rows (M-RoPE:
    Wang et al. 2024, Qwen2-VL, section 2.1); None if a row has only one position. together: its
    rows see each other in both directions. fixed: height and width are the same wherever the image
    begins, and a fourth position of each row is the number of such images before it (XD-RoPE of
    HunyuanOCR). kind: what they are of, which changes nothing about them.
    """

    rows: np.ndarray
    positions: np.ndarray | None = None
    together: bool = False
    fixed: bool = False
    kind: Kind = "image"

    def __post_init__(self) -> None:
        rows, positions = self.rows, self.positions
        if rows.dtype != np.float32 or rows.ndim != 2 or not rows.size:
            raise ValueError(f"rows: found {rows.dtype} {rows.shape}, wanted float32 (rows, width)")
        if positions is not None and (
            positions.dtype != np.int32 or positions.shape != (3, len(rows))
        ):
            raise ValueError(
                f"positions: found {positions.dtype} {positions.shape}, wanted int32 (3, "
                f"{len(rows)})"
            )
        if positions is not None and not 0 <= positions.min() <= positions.max() <= len(rows):
            raise ValueError(
                f"positions: found {positions.min()} to {positions.max()}, wanted 0 to {len(rows)}"
            )
        if self.fixed and positions is None:
            raise ValueError("fixed: found True without positions, wanted both")

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def digest(self) -> int:
        """A number that is the same for the same rows and positions, and for nothing else."""
        hashed = blake3(np.ascontiguousarray(self.rows).view(np.uint8).data)
        hashed.update(repr((self.rows.shape, self.together, self.positions is None)).encode())
        if self.fixed:
            hashed.update(b"fixed")
        if self.positions is not None:
            hashed.update(np.ascontiguousarray(self.positions).view(np.uint8).data)
        return int.from_bytes(hashed.digest(length=16), "little")

    @cached_property
    def advance(self) -> int:
        """How far positions have come after the rows."""
        return len(self) if self.positions is None else int(self.positions.max()) + 1

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return self.rows.nbytes
