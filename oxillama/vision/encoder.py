"""`Vision`: an mmproj file, which turns images into the pieces of a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from blake3 import blake3

from oxillama.errors import ImageError, ModelError
from oxillama.gguf import GgufReader
from oxillama.media.features import MediaFeatures
from oxillama.media.piece_cache import KeptPieces, Pieces
from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import ImageEncoder, load_encoder
from oxillama.model.reference import Difference
from oxillama.vision import families as _families  # noqa: F401  (importing it registers them)
from oxillama.vision.processors import DynamicResolution, Fit, Processor, processor_of
from oxillama.vision.reading import ImageLimits, read_image


class Vision:
    """An encoder with its family's processor; safe to call from any thread.

    The same image gives the same features, bit for bit, whatever else runs and however many threads
    there are.
    """

    def __init__(
        self,
        source: Any,
        *,
        num_threads: int = 0,
        limits: ImageLimits | None = None,
        fit: Fit | None = None,
    ) -> None:
        """source: the path of an mmproj file, or its bytes. fit: "stretch" or "pad", in place of
        what the family's reference does.
        """
        if fit not in (None, "stretch", "pad"):
            raise ImageError(f"image_fit: found {fit!r}, wanted 'stretch', 'pad' or None")
        reader = source if isinstance(source, GgufReader) else GgufReader(source)
        self.limits = limits or ImageLimits()
        self.encoder: ImageEncoder = load_encoder(reader, num_threads=num_threads)
        self.processor: Processor = processor_of(self.encoder, fit)
        self.encoder.check_keys()
        self._mean, self._std = (
            np.array(self.encoder.keys.numbers(f"image_{name}", count=3), np.float32)
            for name in ("mean", "std")
        )
        if not (self._std > 0).all():
            raise ModelError(
                f"clip.vision.image_std: found {self._std.tolist()}, wanted numbers above 0"
            )
        self._kept = KeptPieces()

    @property
    def width(self) -> int:
        """Floats of a row of features."""
        return self.encoder.width

    @property
    def axes(self) -> int:
        """Positions of a row: 1, 3 (M-RoPE) or 4 (XD-RoPE)."""
        return self.processor.axes if isinstance(self.processor, DynamicResolution) else 1

    @property
    def image_tokens(self) -> MediaTokens:
        """How prompts hold images."""
        return self.processor.image_tokens

    def pixels(self, image: Any, *, name: str = "image") -> list[np.ndarray]:
        """The normalised pixels, float32 (3, height, width), of each view that the encoder sees
        of an image; what an image may be is said in `reading`.
        """
        return [
            self._normalised(tile)
            for tile in self.processor.tiles(read_image(image, self.limits, name=name))
        ]

    def features(self, pixels: np.ndarray) -> np.ndarray:
        """Features, float32 (features, width), of normalised pixels (3, height, width)."""
        return self.encoder.encode(self.processor.rows(np.asarray(pixels, np.float32)))

    def diagnose(self, image: Any) -> Iterator[Difference]:
        """Each op of the compiled encoder and projector against its numpy meaning, over the first
        view that they see of an image.
        """
        return self.encoder.diagnose(self.processor.rows(self.pixels(image)[0]))

    def pieces(self, image: Any, *, name: str = "image") -> Pieces:
        """The pieces of a prompt for an image: texts, in which control tokens are recognised, and
        features. Those of recent images are cached.
        """
        read = read_image(image, self.limits, name=name)
        tiles = self.processor.tiles(read)
        key = _hash(read.size, tiles)
        found = self._kept.get(key)
        if found is not None:
            return found
        return self._kept.keep(key, tuple(self._encoded(read.size, tiles)))

    def _encoded(self, size: tuple[int, int], tiles: list[Any]) -> Iterator[str | MediaFeatures]:
        patch, tokens = self.encoder.patch, self.processor.image_tokens
        made = [self.features(self._normalised(tile)) for tile in tiles]
        grids = [(tile.height // patch, tile.width // patch) for tile in tiles]
        if tokens.before:
            yield tokens.before
        yield from self.processor.pieces(size, made, grids)
        if tokens.after:
            yield tokens.after

    def _normalised(self, image: Any) -> np.ndarray:
        scaled = np.asarray(image, np.float32) / np.float32(255)
        return np.ascontiguousarray(((scaled - self._mean) / self._std).transpose(2, 0, 1))


def _hash(size: tuple[int, int], tiles: list[Any]) -> bytes:
    hashed = blake3(repr((size, [tile.size for tile in tiles])).encode())
    for tile in tiles:
        hashed.update(tile.tobytes())
    return hashed.digest()
