"""Pixels laid out as an encoder takes them: a row a patch, and which rows make a feature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from oxillama.model.media_encoder import MediaRows

# learned positions, float32 (rows * columns, width), of a grid of (rows, columns) patches
Positions = Callable[[int, int], np.ndarray]


def patches_of(pixels: np.ndarray, patch: int) -> np.ndarray:
    """float32 (rows * columns of patches, 3 * patch * patch) of pixels (3, height, width): colour
    by colour, line by line, as the kernels of a convolution are: what is left over at the right and
    below is in none (384 pixels in patches of 14, as SigLIP has them).
    """
    _, height, width = pixels.shape
    rows, columns = height // patch, width // patch
    whole = pixels[:, : rows * patch, : columns * patch]
    cut = whole.reshape(3, rows, patch, columns, patch).transpose(1, 3, 0, 2, 4)
    return np.ascontiguousarray(cut, np.float32).reshape(rows * columns, -1)


def blocks_of(rows: int, columns: int, side: int) -> np.ndarray:
    """(blocks, side * side): the patches, numbered line by line, of each square of a grid."""
    numbers = np.arange(rows * columns).reshape(rows // side, side, columns // side, side)
    return numbers.transpose(0, 2, 1, 3).reshape(-1, side * side)


def nines(at: np.ndarray, step: int, blank: int) -> np.ndarray:
    """(places, 9): the rows around every `step`-th row and column of a rectangle of rows, line by
    line; `blank` beyond its edges.
    """
    wide = np.pad(at, 1, constant_values=blank)
    nine = np.lib.stride_tricks.sliding_window_view(wide, (3, 3))[::step, ::step]
    return nine.reshape(-1, 9)


def plain_rows(pixels: np.ndarray, patch: int, *, group: int, classed: bool) -> MediaRows:
    """Patches line by line; `group` of them make a feature. classed: after a class token, which
    makes none.
    """
    patches = patches_of(pixels, patch)
    rows, columns = pixels.shape[1] // patch, pixels.shape[2] // patch
    groups = blocks_of(rows, columns, round(group**0.5))
    tokens = np.full(len(patches) + classed, -1, np.int32)
    if classed:
        patches = np.concatenate([np.zeros((1, patches.shape[1]), np.float32), patches])
        tokens[0] = 0
    return MediaRows(patches, tokens, groups + classed)


def axial_rows(
    pixels: np.ndarray, patch: int, *, merge: int = 1, class_last: bool = False
) -> MediaRows:
    """Patches line by line, each with its row and column; squares of `merge` x `merge` make a
    feature. class_last: before a class token at row and column 0, where those of patches begin at
    1.
    """
    patches = patches_of(pixels, patch)
    rows, columns = pixels.shape[1] // patch, pixels.shape[2] // patch
    where = np.stack(np.divmod(np.arange(rows * columns, dtype=np.int32), np.int32(columns)))
    tokens = np.full(len(patches) + class_last, -1, np.int32)
    if class_last:
        patches = np.pad(patches, ((0, 1), (0, 0)))
        where = np.pad(where + 1, ((0, 0), (0, 1)))
        tokens[-1] = 0
    return MediaRows(patches, tokens, blocks_of(rows, columns, merge), rope=where)


def merged_rows(
    pixels: np.ndarray,
    patch: int,
    *,
    merge: int,
    window: int = 0,
    positions: Positions | None = None,
) -> MediaRows:
    """Patches in squares of `merge` x `merge`, each of which makes a feature, with row and column.

    window: squares of a window's side, 0 where all patches see each other; patches of a window
    follow one another, and features leave line by line all the same. positions: what is appended to
    the patches.
    """
    rows, columns = pixels.shape[1] // patch, pixels.shape[2] // patch
    squares = blocks_of(rows, columns, merge)
    across = columns // merge
    order = np.arange(len(squares))
    spans = None
    if window:
        down, right = np.divmod(order, across)
        home = down // window * (-(-across // window)) + right // window
        order = np.argsort(home, kind="stable")
        sizes = np.bincount(home) * merge * merge
        sizes = sizes[sizes > 0]
        ends = np.cumsum(sizes)
        spans = np.stack([np.repeat(ends - sizes, sizes), np.repeat(ends, sizes)]).astype(np.int32)
    numbers = squares[order].reshape(-1)
    patches = patches_of(pixels, patch)[numbers]
    if positions is not None:
        patches = np.concatenate([patches, positions(rows, columns)[numbers]], axis=1)
    where = np.stack(np.divmod(numbers, columns)).astype(np.int32)
    groups = np.empty((len(squares), merge * merge), np.int64)
    groups[order] = np.arange(len(numbers)).reshape(-1, merge * merge)
    tokens = np.full(len(patches), -1, np.int32)
    return MediaRows(patches, tokens, groups, rope=where, spans=spans)


def interpolated(grid: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """float32 (rows * columns, width): a square grid of learned positions (side, side, width) at as
    many places from corner to corner, between the four nearest (Qwen3-VL, published code).
    """
    side = len(grid)

    def along(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        places = np.linspace(0, side - 1, count, dtype=np.float32)
        low = places.astype(np.int64)
        return low, np.minimum(low + 1, side - 1), places - low

    top, bottom, down = along(rows)
    left, right, over = along(columns)
    down, over = down[:, None, None], over[None, :, None]
    made = (
        grid[top][:, left] * ((1 - down) * (1 - over))
        + grid[top][:, right] * ((1 - down) * over)
        + grid[bottom][:, left] * (down * (1 - over))
        + grid[bottom][:, right] * (down * over)
    )
    return made.reshape(rows * columns, -1).astype(np.float32)


def nearest(grid: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """float32 (rows * columns, width): of a square grid of learned positions (side, side, width)
    those at the same part of a side, rounded down (Dehghani et al. 2023, NaViT, section 3.2, as
    SigLIP has it in MiniCPM-V).
    """
    down, over = (np.arange(count) * len(grid) // count for count in (rows, columns))
    return grid[down][:, over].reshape(rows * columns, -1)


def resampled(
    grid: np.ndarray,
    rows: int,
    columns: int,
    *,
    kernel: Literal["linear", "bilinear", "cubic", "smooth", "faded"],
) -> np.ndarray:
    """float32 (rows * columns, width): a square grid of learned positions (side, side, width)
    resized like an image, its edges repeated beyond them. linear: over all places that a new one
    covers, where there are fewer of these (antialiasing); bilinear: over the two nearest along a
    side; cubic: over the four nearest (Keys 1981, with a = -0.75); smooth: cubic (a = -0.5) over
    all places that a new one covers; faded: as bilinear, with zeros beyond the edges.
    """
    down, over = (_weights(len(grid), count, kernel) for count in (rows, columns))
    made = _mixed(down, _mixed(over, grid.astype(np.float64).swapaxes(0, 1)).swapaxes(0, 1))
    return np.ascontiguousarray(made, np.float32).reshape(rows * columns, -1)


def _mixed(weights: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Sums of places along the first axis, in ascending order: BLAS has one of its own for each
    processor.
    """
    made = np.zeros((len(weights), *places.shape[1:]))
    for place, each in zip(places, weights.T):
        rows = np.flatnonzero(each)
        made[rows] += each[rows, None, None] * place
    return made


def _weights(side: int, count: int, kernel: str) -> np.ndarray:
    """(count, side): how much each old place along a side is worth in each new one."""
    step = side / count
    wide = max(step, 1.0) if kernel in ("linear", "smooth") else 1.0
    straight = kernel in ("linear", "bilinear", "faded")
    reach = wide if straight else 2.0 * wide
    centres = (np.arange(count) + 0.5) * step - 0.5
    low = np.floor(centres - reach).astype(int)
    taken = low[:, None] + np.arange(2 * int(np.ceil(reach)) + 2)
    away = np.abs(taken - centres[:, None]) / wide
    if straight:
        worth = np.clip(1 - away, 0, None)
    else:
        a = -0.75 if kernel == "cubic" else -0.5
        near = ((a + 2) * away - (a + 3)) * away**2 + 1
        far = a * (((away - 5) * away + 8) * away - 4)
        worth = np.where(away <= 1, near, np.where(away < 2, far, 0.0))
    if kernel != "cubic":
        worth *= (taken >= 0) & (taken < side)
    if kernel not in ("cubic", "faded"):
        worth /= worth.sum(axis=1, keepdims=True)
    made = np.zeros((count, side))
    np.add.at(made, (np.arange(count)[:, None], np.clip(taken, 0, side - 1)), worth)
    return made
