"""Reads safetensors files: a header that is checked whole, then tensors as views of the mapped
file.

Layout (https://github.com/huggingface/safetensors#format): eight bytes with the header's length, a
JSON object of name -> {dtype, shape, data_offsets}, then the bytes of all tensors.
"""

from __future__ import annotations

import json
import math
import os
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from oxillama._core.filemap import FileMap
from oxillama.durable import open_without_waiting
from oxillama.errors import ConvertError
from oxillama.quant import quantize

MAX_HEADER = 100_000_000  # bytes; the format's own limit
# numpy has no bfloat16 and no floats of 8 bits: their bits are held as integers
DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E8M0": np.dtype("u1"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("u1"),
}


def _e4m3() -> np.ndarray:
    """The numbers of the OCP 8-bit float: 4 bits of exponent, no infinities, NaN where all are
    set.
    """
    codes = np.arange(128)
    exponent, fraction = np.maximum(codes >> 3, 1), codes & 7
    sizes = np.ldexp((codes >= 8) * 8.0 + fraction, exponent - 10).astype(np.float32)
    sizes[127] = np.nan
    return np.concatenate([sizes, -sizes])


def _e8m0() -> np.ndarray:
    """The powers of two of the OCP scale: 2**-127 to 2**127, then NaN."""
    powers = np.ldexp(np.float64(1), np.arange(256) - 127)
    powers[255] = np.nan
    return powers.astype(np.float32)


_NUMBERS = {"F8_E4M3": _e4m3(), "F8_E8M0": _e8m0()}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as a file holds it: `data` in the file's own numbers (bfloat16 and floats of 8 bits
    as their bits).
    """

    dtype: str  # a key of DTYPES
    data: np.ndarray
    file: FileMap | None = None  # where `data` lies; None: in memory

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    def floats(self) -> np.ndarray:
        """Its numbers as float32, exactly where float32 holds them."""
        if self.dtype == "BF16":
            return (self.data.astype(np.uint32) << 16).view(np.float32)
        if self.dtype in _NUMBERS:
            return _NUMBERS[self.dtype][self.data]
        return self.data.astype(np.float32)

    def as_type(self, kind: str) -> np.ndarray:
        """Its numbers as F32, F16 or BF16 (the bits), rounded to nearest even; as I32, or blocks of
        Q8_0.
        """
        if self.dtype == kind:
            return self.data
        if kind == "I32":
            return self.data.astype(np.int32)
        if kind == "Q8_0":
            return quantize(self.floats(), kind)
        return rounded(self.floats(), kind)


class Tensor(Protocol):
    """What a folder's tensors have in common, stored as floats (`StoredTensor`) or quantised
    (`quantised.Quantised`). `data` are the numbers in the type `dtype`.
    """

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def data(self) -> np.ndarray: ...
    def floats(self) -> np.ndarray: ...
    def as_type(self, kind: str) -> np.ndarray: ...


def rounded(values: np.ndarray, kind: str) -> np.ndarray:
    """Float32 numbers as F32, F16 or BF16 (the bits), rounded to nearest even."""
    if kind == "F32":
        return values
    if kind == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    bits = np.ascontiguousarray(values).view(np.uint32)
    near = bits >> 16
    near &= 1
    near += np.uint32(0x7FFF)
    near += bits
    near >>= 16
    made = near.astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():
        made[nan] = bits[nan] >> 16 | 64
    return made


_EXPONENTS = {"F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}  # all bits of them: no number


def check_finite(name: str, numbers: np.ndarray, kind: str, start: int = 0) -> None:
    """ConvertError for a NaN or an infinity among F32, F16 or BF16 (the bits), as a new file holds
    them; start: how many numbers of the tensor come before. A number alone may be infinite: a limit
    that nothing is beyond.
    """
    exponent = _EXPONENTS.get(kind)
    if exponent is None:
        return
    bits = np.ascontiguousarray(numbers).reshape(-1).view(np.uint32 if kind == "F32" else np.uint16)
    step = 1 << 16  # few enough for the caches
    for at in range(0, len(bits), step):
        held = np.bitwise_and(bits[at : at + step], exponent)
        if held.max() != exponent:
            continue
        found = at + int(held.argmax())
        value = float(StoredTensor(kind, bits[found : found + 1].view(DTYPES[kind])).floats()[0])
        if np.isnan(value) or start or len(bits) > 1:
            raise ConvertError(
                f"{name}: number {start + found} is {value:g} in {kind}, wanted finite numbers"
            )


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of one file by name; ConvertError where the header does not describe the
    bytes.
    """
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConvertError(f"{path}: not a regular file, wanted a safetensors file")
            size = status.st_size
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else -1
            if not 0 < length <= min(MAX_HEADER, size - 8):
                raise ConvertError(
                    f"{path}: header of {length} bytes in a file of {size}, wanted a safetensors "
                    "file"
                )
            header = _object(path, file.read(length))
            mapped = FileMap(file.fileno(), str(path))
    except OSError as error:
        raise ConvertError(f"{path}: cannot be read: {error.strerror or error}") from error
    header.pop("__metadata__", None)
    for name in header:
        if not name.isprintable():
            raise ConvertError(f"{path}: found a tensor named {name!r:.80}, wanted printable names")
    found = {
        name: _tensor(f"{path.name}: {name}", about, mapped, 8 + length, size)
        for name, about in header.items()
    }
    end = 0
    for begin, stop, name in sorted((*about["data_offsets"], n) for n, about in header.items()):
        if begin < end:
            raise ConvertError(f"{path.name}: {name}: shares its bytes with another tensor")
        end = stop
    return found


def check_unchanged(tensors: Iterable[StoredTensor]) -> None:
    """Raise ConvertError if a file was changed after its tensors were read."""
    for file in {tensor.file: None for tensor in tensors if tensor.file is not None}:
        change = file.change()
        if change is not None:
            raise ConvertError(change)


def _object(path: Path, text: bytes) -> dict:
    def unique(pairs: list[tuple[str, object]]) -> dict:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name appears twice")
        return found

    try:
        header = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"{path}: its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise ConvertError(f"{path}: header: found {type(header).__name__}, wanted an object")
    return header


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _tensor(label: str, about: object, mapped: FileMap, start: int, size: int) -> StoredTensor:
    if not isinstance(about, dict) or set(about) != {"dtype", "shape", "data_offsets"}:
        raise ConvertError(f"{label}: found {about!r:.80}, wanted dtype, shape and data_offsets")
    dtype, shape, offsets = about["dtype"], about["shape"], about["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ConvertError(f"{label}: dtype {dtype!r:.80}, wanted one of {', '.join(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > 8 or not all(map(_is_size, shape)):
        raise ConvertError(f"{label}: shape {shape!r:.80}, wanted a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise ConvertError(f"{label}: data_offsets {offsets!r:.80}, wanted two offsets")
    begin, stop = offsets
    item = np.dtype(DTYPES[dtype])
    # numpy multiplies the sizes beside one of 0 too
    if math.prod(one or 1 for one in shape) * item.itemsize >= 1 << 62:
        raise ConvertError(f"{label}: shape {shape!r:.80}, wanted at most 2^62 bytes")
    count = math.prod(shape)
    nbytes = count * item.itemsize
    if stop - begin != nbytes or start + stop > size:
        raise ConvertError(
            f"{label}: bytes {begin} to {stop} of {size - start}, "
            f"wanted {nbytes} for {dtype} of shape {shape}"
        )
    data = np.frombuffer(memoryview(mapped), item, count, start + begin)
    return StoredTensor(dtype, data.reshape(shape), mapped)
