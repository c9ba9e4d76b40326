"""Rows of numbers to blocks of any GGUF format and back: `formats`, `dequantize`, `quantize`.

The work is done by `oxillama._core.codecs`, a row at a time on all cores; here arguments are
checked and named.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Any

import numpy as np

from oxillama._core.codecs import codec_table, first_beyond, quantise_rows, unpack_rows
from oxillama.errors import QuantError


@dataclass(frozen=True, slots=True)
class Format:
    """One format: `columns` neighbouring numbers of a row share a block of `block_bytes` bytes.

    `limit` is the largest magnitude that `quantize` accepts: beyond it the scales of the format
    would overflow.
    """

    name: str
    id: int
    columns: int
    block_bytes: int
    limit: float

    @property
    def bits(self) -> float:
        """Bits per number."""
        return 8 * self.block_bytes / self.columns

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` numbers; QuantError if it is not a whole number of blocks."""
        if columns < 1 or columns % self.columns:
            raise QuantError(
                f"row of {columns} columns, {self.name} needs a multiple of {self.columns}"
            )
        return columns // self.columns * self.block_bytes

    def row_columns(self, row_bytes: int) -> int:
        """Numbers in a row of `row_bytes` bytes; QuantError if it is not a whole number of
        blocks.
        """
        if row_bytes < 1 or row_bytes % self.block_bytes:
            raise QuantError(
                f"row of {row_bytes} bytes, {self.name} needs a multiple of {self.block_bytes}"
            )
        return row_bytes // self.block_bytes * self.columns


_LARGEST_HALF = 65504.0  # scales are halves, and no scale exceeds the largest number of its block
_LARGEST_FLOAT = float(np.finfo(np.float32).max)


def _largest_of_scale(levels: int) -> float:
    """The largest number whose float32 scale, a `levels`-th of it, times `levels` is finite."""
    scale = np.nextafter(np.float32(_LARGEST_FLOAT) / np.float32(levels), np.float32(0))
    exact = float(scale) * levels
    found = np.float32(exact)
    return float(found if float(found) <= exact else np.nextafter(found, np.float32(0)))


_LIMITS = {
    "F32": _LARGEST_FLOAT,
    "BF16": float.fromhex("0x1.fep+127"),
    "Q8_K": _largest_of_scale(127),
    "MXFP4": 2.0**60,  # squares must stay finite while the scale is chosen
    "NVFP4": 2688.0,  # 448, the largest ue4m3, times 6, the largest e2m1
}
_FORMATS = MappingProxyType(
    {
        name: Format(name, number, columns, block_bytes, _LIMITS.get(name, _LARGEST_HALF))
        for name, number, columns, block_bytes in codec_table()
    }
)
_ALIASES = {"Q1_0_G128": "Q1_0"}


def formats() -> Mapping[str, Format]:
    """All formats by name, in the order of their numbers in GGUF files."""
    return _FORMATS


def format_named(name: str) -> Format:
    """The format called `name`, in any case, as GGUF files and users write it; raises QuantError
    for an unknown one.
    """
    found = (
        _FORMATS.get(_ALIASES.get(name.upper(), name.upper())) if isinstance(name, str) else None
    )
    if found is None:
        raise QuantError(
            f"unknown format {name!r}, wanted one of {', '.join((*_FORMATS, *_ALIASES))}"
        )
    return found


def dequantize(blocks: Any, format: str, *, num_threads: int = 0) -> np.ndarray:
    """The float32 numbers of stored rows, bit-equal to ggml's.

    `blocks`: uint8, (..., row bytes), or bytes for one row. Returns (..., columns). QuantError if
    the rows are not whole blocks.
    """
    kind = format_named(format)
    if isinstance(blocks, (bytes, bytearray, memoryview)):
        blocks = np.frombuffer(blocks, np.uint8)
    if not isinstance(blocks, np.ndarray) or blocks.dtype != np.uint8 or blocks.ndim == 0:
        raise QuantError(
            f"dequantize: blocks are {_shown(blocks)}, wanted a uint8 array (rows, row bytes)"
        )
    columns = kind.row_columns(blocks.shape[-1])
    rows = np.ascontiguousarray(blocks).reshape(-1, blocks.shape[-1])
    out = np.empty((len(rows), columns), np.float32)
    unpack_rows(rows, kind.name, out, num_threads)
    return out.reshape(*blocks.shape[:-1], columns)


def quantize(rows: Any, format: str, imatrix: Any = None, *, num_threads: int = 0) -> np.ndarray:
    """The blocks that represent float rows best in `format`: the least squared error, each column
    weighted by `imatrix`.

    `rows`: floats, (..., columns), taken as float32. `imatrix`: importances (columns,), at least 0,
    the same for every row; None, or all 0, weights all columns equally. Returns uint8 (..., row
    bytes). QuantError for rows that are not whole blocks, for importances that do not fit, and for
    a number that is NaN, infinite or beyond the format's `limit`, naming its position.
    """
    kind = format_named(format)
    if not isinstance(rows, np.ndarray) or rows.dtype.kind != "f" or rows.ndim == 0:
        raise QuantError(
            f"quantize: rows are {_shown(rows)}, wanted an array of floats (rows, columns)"
        )
    columns = rows.shape[-1]
    row_bytes = kind.row_bytes(columns)
    with np.errstate(over="ignore"):  # what overflows float32 is found below
        flat = np.ascontiguousarray(rows, np.float32).reshape(-1, columns)
    weights = None if imatrix is None else _importances(imatrix, columns)
    bad = first_beyond(flat, kind.limit)
    if bad is not None:
        where = (*(int(i) for i in np.unravel_index(bad[0], rows.shape[:-1])), bad[1])
        value = float(flat[bad])
        wanted = f"at most {kind.limit:g} in magnitude" if abs(value) < inf else "a finite number"
        raise QuantError(
            f"quantize: rows[{', '.join(map(str, where))}] is {value:g}, {kind.name} wants {wanted}"
        )
    out = np.empty((len(flat), row_bytes), np.uint8)
    quantise_rows(flat, kind.name, weights, out, num_threads)
    return out.reshape(*rows.shape[:-1], row_bytes)


def _importances(imatrix: Any, columns: int) -> np.ndarray:
    try:
        weights = np.ascontiguousarray(imatrix, np.float32)
    except (TypeError, ValueError):
        raise QuantError(
            f"quantize: imatrix is {_shown(imatrix)}, wanted {columns} numbers"
        ) from None
    if weights.shape != (columns,):
        raise QuantError(f"quantize: imatrix of shape {weights.shape}, wanted ({columns},)")
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise QuantError(
            f"quantize: imatrix[{bad[0]}] is {weights[bad[0]]:g}, wanted a finite number of at "
            "least 0"
        )
    top = float(weights.max())
    return weights / np.float32(top) if top > 0 else weights  # so that sums of squares stay finite


def _shown(value: Any) -> str:
    return (
        f"{value.dtype} {value.shape}"
        if isinstance(value, np.ndarray)
        else f"a {type(value).__name__}"
    )
