"""The table of every tensor type a GGUF file can hold: number, name, block columns and block bytes.

`TENSOR_TYPES` is the ordered table; `type_by_id` and `type_by_name` look one up or raise. The
numbers are those of ggml's own enumeration; those of `WITHDRAWN` ggml has taken back, and files of
them are refused by that name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from oxillama.errors import GgufError


@dataclass(frozen=True, slots=True)
class TensorType:
    """One tensor type: `columns` neighbouring values of a row are stored together in `block_bytes`
    bytes.
    """

    id: int
    name: str
    columns: int
    block_bytes: int
    # of one stored value, where numpy has such a type (BF16: its bits)
    dtype: np.dtype | None = None

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of a tensor of `shape` (rows outermost); raises GgufError where a row is not a
        whole number of blocks.
        """
        columns = shape[-1] if len(shape) else 1
        if columns % self.columns:
            raise GgufError(
                f"row of {columns} values, {self.name} needs a multiple of {self.columns}"
            )
        return prod(shape) // self.columns * self.block_bytes

    def shape_of_bytes(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape in values of a uint8 array of `shape`, whose last axis is the bytes of a
        row.
        """
        if not len(shape) or shape[-1] % self.block_bytes:
            raise GgufError(
                f"uint8 shape {tuple(shape)}, {self.name} needs rows of a multiple of "
                f"{self.block_bytes} bytes"
            )
        return (*shape[:-1], shape[-1] // self.block_bytes * self.columns)


def _plain(number: int, name: str, dtype: str) -> TensorType:
    kind = np.dtype(dtype)
    return TensorType(number, name, 1, kind.itemsize, kind)


TENSOR_TYPES: tuple[TensorType, ...] = (
    _plain(0, "F32", "<f4"),
    _plain(1, "F16", "<f2"),
    TensorType(2, "Q4_0", 32, 18),
    TensorType(3, "Q4_1", 32, 20),
    TensorType(6, "Q5_0", 32, 22),
    TensorType(7, "Q5_1", 32, 24),
    TensorType(8, "Q8_0", 32, 34),
    TensorType(9, "Q8_1", 32, 36),  # two halves and 32 bytes
    TensorType(10, "Q2_K", 256, 84),
    TensorType(11, "Q3_K", 256, 110),
    TensorType(12, "Q4_K", 256, 144),
    TensorType(13, "Q5_K", 256, 176),
    TensorType(14, "Q6_K", 256, 210),
    TensorType(15, "Q8_K", 256, 292),
    TensorType(16, "IQ2_XXS", 256, 66),
    TensorType(17, "IQ2_XS", 256, 74),
    TensorType(18, "IQ3_XXS", 256, 98),
    TensorType(19, "IQ1_S", 256, 50),
    TensorType(20, "IQ4_NL", 32, 18),
    TensorType(21, "IQ3_S", 256, 110),
    TensorType(22, "IQ2_S", 256, 82),
    TensorType(23, "IQ4_XS", 256, 136),
    _plain(24, "I8", "i1"),
    _plain(25, "I16", "<i2"),
    _plain(26, "I32", "<i4"),
    _plain(27, "I64", "<i8"),
    _plain(28, "F64", "<f8"),
    TensorType(29, "IQ1_M", 256, 56),
    _plain(30, "BF16", "<u2"),
    TensorType(34, "TQ1_0", 256, 54),
    TensorType(35, "TQ2_0", 256, 66),
    TensorType(39, "MXFP4", 32, 17),
    TensorType(40, "NVFP4", 64, 36),
    TensorType(41, "Q1_0", 128, 18),
    TensorType(42, "Q2_0", 64, 18),
)
WITHDRAWN = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
_BY_ID = {kind.id: kind for kind in TENSOR_TYPES}
_BY_NAME = {kind.name: kind for kind in TENSOR_TYPES}
# The type a numpy array is written as when none is named; BF16 has no dtype of its own, so uint16
# never means it silently.
_BY_DTYPE = {
    kind.dtype: kind for kind in TENSOR_TYPES if kind.dtype is not None and kind.name != "BF16"
}


def type_by_id(number: int) -> TensorType:
    """The type with ggml's `number`; raises GgufError for one that is unknown or withdrawn."""
    found = _BY_ID.get(number)
    if found is None:
        which = (
            f"tensor type {number} ({WITHDRAWN[number]}), withdrawn by ggml"
            if number in WITHDRAWN
            else f"unknown tensor type {number}"
        )
        raise GgufError(
            f"{which}, wanted one of the {len(TENSOR_TYPES)} known types (0 to "
            f"{TENSOR_TYPES[-1].id})"
        )
    return found


def type_by_name(name: str) -> TensorType:
    """The type called `name`, in capitals as in `Q4_K`; raises GgufError for an unknown one."""
    found = _BY_NAME.get(name)
    if found is None:
        raise GgufError(f"unknown tensor type {name!r}, wanted one of {', '.join(_BY_NAME)}")
    return found


def type_by_dtype(dtype: np.dtype) -> TensorType:
    """The unquantised type that stores `dtype` as it is; raises GgufError where there is none."""
    found = _BY_DTYPE.get(dtype.newbyteorder("<"))
    if found is None:
        raise GgufError(f"no tensor type stores numpy {dtype} as it is; name one with type_name")
    return found
