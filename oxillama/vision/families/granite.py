"""The processor of Granite Vision 4: that of LLaVA 1.6, whose features are queries of windows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from oxillama.errors import ModelError
from oxillama.media.tokens import MediaTokens
from oxillama.model.media_builder import HIDDEN
from oxillama.model.media_encoder import ImageEncoder, Joined, MediaRows
from oxillama.vision.processors import AnyResolution, Fit, Processor, processor

_TOKENS = MediaTokens(("<image>",), "<image>")


@dataclass(frozen=True)
class QueriedTiles(AnyResolution):
    """window, query: patches and queries along a side of a window; places: what is added to the
    patches and to the queries of a window, (window^2 + query^2, width), of all projectors.
    """

    window: int = 1
    query: int = 1
    places: np.ndarray = field(default_factory=lambda: np.zeros((2, 0), np.float32))

    def rows(self, pixels: np.ndarray) -> MediaRows:
        """Patches line by line; then the patches and queries of each window."""
        made = super().rows(pixels)
        side, window, query = self.size // self.patch, self.window, self.query
        count, ratio = side // window, window // query
        number = np.arange(side * side).reshape(side, side)
        # (window, place in it, patches of the place)
        cut = number.reshape(count, window, count, window).transpose(0, 2, 1, 3)
        patches = np.repeat(cut.reshape(count**2, window**2, 1), ratio**2, axis=2)
        squares = cut.reshape(count**2, query, ratio, query, ratio).transpose(0, 1, 3, 2, 4)
        squares = squares.reshape(count**2, query**2, ratio**2)
        groups = np.concatenate([patches, squares], axis=1)
        each = groups.shape[1]
        asks = np.tile(np.arange(each) >= window**2, count**2)[:, None]
        columns = np.concatenate([asks, np.tile(self.places, (count**2, 1))], 1, dtype=np.float32)
        rows = np.arange(count**2 * each)[:, None]
        first = np.repeat(np.arange(count**2) * each, each)
        # what is passed through sees itself alone, then all see a window, whose queries are hidden
        own = np.stack([rows[:, 0], rows[:, 0] + 1])
        among = np.where(asks[:, 0], np.stack([first + window**2, first + each]), own)
        within = np.stack([first, first + each])
        hidden = np.where(asks, np.float32(HIDDEN), np.float32(0))
        queries = rows.reshape(count, count, each)[:, :, window**2 :]
        lines = queries.reshape(count, count, query, query).transpose(0, 2, 1, 3)
        between = (
            Joined(groups.reshape(-1, ratio**2), columns=columns, spans=among.astype(np.int32)),
            Joined(rows, columns=hidden, spans=within.astype(np.int32)),
        )
        return replace(made, groups=lines.reshape(-1, 1), between=between)


@processor("granite4_vision")
def _granite4_vision(e: ImageEncoder, fit: Fit | None) -> Processor:
    if fit is not None:
        raise ModelError(
            f"image_fit: found {fit!r}, wanted None: {e.kind} has a way for each of its images"
        )
    # how large an image is, said again
    e.keys.integer("preproc_image_size", default=e.image, minimum=e.image, maximum=e.image)
    points = e.keys.integers("image_grid_pinpoints", minimum=1, maximum=1 << 14)
    pairs = tuple(zip(points[1::2], points[::2]))
    for high, wide in pairs:
        if len(points) % 2 or high % e.image or wide % e.image:
            raise ModelError(
                f"clip.vision.image_grid_pinpoints: found {wide}, {high} of {len(points)} numbers, "
                f"wanted pairs of multiples of {e.image}"
            )
    count = len(e.keys.integers("feature_layer"))
    query, window = (e.keys.integer(f"projector.{name}_side") for name in ("query", "window"))
    places = [
        np.concatenate(
            [
                e.array(f"v.proj_blk.{at}.{name}", 1, side * side, e.hidden)[0]
                for name, side in (("img_pos", window), ("query", query))
            ]
        )
        for at in range(count)
    ]
    line = e.vector("v.image_newline", e.width // count)
    return QueriedTiles(
        _TOKENS,
        e.image,
        e.patch,
        1,
        "bicubic",
        "stretch",
        (0, 0, 0),
        pinpoints=pairs,
        newline=np.tile(line, count),
        window=window,
        query=query,
        places=np.concatenate(places, axis=1),
    )
