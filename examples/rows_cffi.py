"""The C table from cffi: rows of GGUF blocks to numpy and back, with no copy in between.

The declarations are the part of oxillama.h between its first `typedef` and the inline function.
"""

from pathlib import Path

import cffi
import numpy as np

import oxillama
import oxillama.capi

header = (Path(oxillama.get_include()) / "oxillama.h").read_text()
declarations = header[header.index("enum {") : header.index("#ifdef Py_PYTHON_H")]
ffi = cffi.FFI()
ffi.cdef(declarations)
ox = ffi.cast("const oxillama_api *", oxillama.capi.address())


def quantise(rows: np.ndarray, format: str) -> np.ndarray:
    """Float32 rows (rows, columns) as blocks (rows, row bytes)."""
    per_block, size = ffi.new("int64_t *"), ffi.new("int64_t *")
    _check(ox.format(format.encode(), per_block, size))
    out = np.empty((len(rows), rows.shape[1] // per_block[0] * size[0]), np.uint8)
    source = ffi.from_buffer("float[]", rows)
    _check(
        ox.quantise(
            format.encode(), source, *rows.shape, ffi.NULL, ffi.from_buffer("char[]", out), 0
        )
    )
    return out


def dequantise(blocks: np.ndarray, columns: int, format: str) -> np.ndarray:
    """Blocks (rows, row bytes) as float32 (rows, columns)."""
    out = np.empty((len(blocks), columns), np.float32)
    source = ffi.from_buffer("char[]", blocks)
    _check(
        ox.dequantise(
            format.encode(), source, len(blocks), columns, ffi.from_buffer("float[]", out), 0
        )
    )
    return out


def _check(status: int) -> None:
    if status:
        raise ValueError(ffi.string(ox.error()).decode())


if __name__ == "__main__":
    rows = np.random.default_rng(1).standard_normal((4, 256), np.float32)
    blocks = quantise(rows, "Q8_0")
    print(float(np.abs(dequantise(blocks, 256, "Q8_0") - rows).max()))
