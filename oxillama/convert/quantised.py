"""Quantised weights of a folder as matrices of floats; `methods` has a reader for each method.

`dequantised` takes the tensors as the files hold them and gives those that the model has: a weight
with its scales becomes one `Quantised` tensor under the name of the weight, and everything else
stays as it is. So nothing behind it knows of quantisation. A weight is codes times scales, (code -
zero point) * scale; the product is computed in float32, some rows at a time, when it is read. What
is not understood is a ConvertError before anything is written: an unknown method or format, a scale
without its weight, a weight without its scale, shapes that do not belong together.

Scales of activations and of keys and values say how to round what a layer computes, not what its
weights are, and are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oxillama.convert.safetensors import StoredTensor, Tensor, rounded
from oxillama.errors import ConvertError

_AT_ONCE = 1 << 20  # numbers that are dequantised at a time, few enough for the caches
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_TYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}  # what a configuration may name
SCALES = ("F32", "BF16", "F16")
# of activations, and of keys and values in the cache
UNREAD = re.compile(
    r".*((\.|_)(activation|input)_scale|\.(input_zero_point|input_global_scale|output_scale|"
    r"output_zero_point|[qkv]_scale|[qkv]_zero_point|kv_scale))\Z"
)

Rows = Callable[[int, int], np.ndarray]  # rows start to stop of a matrix, as a new array


@dataclass(frozen=True, slots=True)
class Grid:
    """A number for each block of `height` rows and `width` columns of a matrix (or of a stack of
    matrices of `rows` rows each), stored as (matrices * blocks down, blocks across).
    """

    # or a function that gives rows start to stop as new float32, where each row has its own
    values: StoredTensor | Rows
    rows: int
    height: int
    width: int
    columns: np.ndarray | None = None  # the block across of each column, where not in order
    # what all numbers are first multiplied or divided by
    whole: tuple[np.ufunc, np.float32] | None = None

    def of(self, start: int, stop: int) -> np.ndarray:
        """Float32 of rows start to stop, (rows, blocks across)."""
        if not isinstance(self.values, StoredTensor):
            return self.values(start, stop)
        row = np.arange(start, stop)
        down = -(-self.rows // self.height)
        at = row // self.rows * down + row % self.rows // self.height
        made = StoredTensor(self.values.dtype, self.values.data[at]).floats()
        if self.whole is not None:
            operation, number = self.whole
            operation(made, number, out=made)
        return made

    def apply(self, operation: np.ufunc, numbers: np.ndarray, start: int, stop: int) -> None:
        """numbers (rows, columns) of rows start to stop = operation(numbers, their grid's)."""
        grid = self.of(start, stop)
        columns = numbers.shape[1]
        if self.columns is not None:
            grid = grid[:, self.columns]
        elif grid.shape[1] > 1 and columns % self.width == 0:
            numbers = numbers.reshape(len(numbers), -1, self.width)
            grid = grid[:, :, None]
        elif grid.shape[1] > 1:
            grid = np.repeat(grid, self.width, axis=1)[:, :columns]
        operation(numbers, grid, out=numbers)


@dataclass(frozen=True, slots=True)
class Quantised:
    """A matrix, or a stack of them, that is stored as codes and scales. Rows of a stack are counted
    through.
    """

    dtype: str  # the float type that the configuration names, which a file keeps
    shape: tuple[int, ...]
    codes: Rows  # as float32
    scale: Grid
    zero: Grid | None = None
    # MXFP4: codes (rows, columns / 2) and scales (rows, columns / 32)
    mxfp4: tuple[np.ndarray, np.ndarray] | None = None
    span: tuple[int, int] | None = None  # lowest and highest code, where they are integers
    name: str = ""  # for errors

    @property
    def rows(self) -> int:
        """Of all matrices together."""
        return int(np.prod(self.shape[:-1]))

    def pieces(self, kind: str, start: int = 0, stop: int | None = None) -> Iterator[np.ndarray]:
        """Rows start to stop (rows, columns) as F32, F16 or BF16, some at a time."""
        stop = self.rows if stop is None else stop
        for at, end in self._some(start, stop, self.shape[-1]):
            numbers = self.codes(at, end)
            if self.zero is not None:
                self.zero.apply(np.subtract, numbers, at, end)
            self.scale.apply(np.multiply, numbers, at, end)
            yield rounded(numbers, kind)

    def matrix(self, kind: str, start: int, stop: int) -> np.ndarray:
        """Rows start to stop in one array."""
        made = np.empty((stop - start, self.shape[-1]), np.float32 if kind == "F32" else np.uint16)
        at = 0
        for piece in self.pieces(kind, start, stop):
            made[at : at + len(piece)] = piece.view(made.dtype)
            at += len(piece)
        return made.view(np.float16) if kind == "F16" else made

    def _some(self, start: int, stop: int, columns: int) -> Iterator[tuple[int, int]]:
        """Rows start to stop, as many at a time as make some numbers of `columns` each."""
        step = max(1, _AT_ONCE // columns)
        return ((at, min(stop, at + step)) for at in range(start, stop, step))

    def kept(self) -> str | None:
        """The GGUF type that holds exactly these numbers, None where none does. Q4_0 and Q8_0 hold
        integers whose scales float16 holds; all scales and zero points are read for this.
        """
        if self.mxfp4 is not None:
            return "MXFP4"
        if self.span is None or self.shape[-1] % 32:
            return None
        across = self.scale.of(0, 1).shape[1]
        grids = [self.scale, *([] if self.zero is None else [self.zero])]
        if any(
            one.columns is not None or one.whole is not None or (across > 1 and one.width % 32)
            for one in grids
        ):
            return None
        low, high = self.span if self.zero is None else (0, 0)
        for start, stop in self._some(0, self.rows, across):
            scale = self.scale.of(start, stop)
            with np.errstate(over="ignore"):
                if (scale.astype(np.float16) != scale).any() or not np.isfinite(scale).all():
                    return None
            if self.zero is not None:
                points = self.zero.of(start, stop)
                if (points != np.rint(points)).any():
                    return None
                low = min(low, self.span[0] - int(points.max()))
                high = max(high, self.span[1] - int(points.min()))
        if low >= -8 and high <= 7:
            return "Q4_0"
        return "Q8_0" if low >= -128 and high <= 127 else None

    def repacked(self, kind: str, start: int, stop: int) -> np.ndarray:
        """Rows start to stop as the bytes of the type that `kept` names."""
        if self.mxfp4 is not None:
            codes, scales = (part[start:stop] for part in self.mxfp4)
            return mxfp4_bytes(codes.reshape(*scales.shape, 16), scales, self.name)
        blocks = self.shape[-1] // 32
        made = np.empty((stop - start, blocks, 18 if kind == "Q4_0" else 34), np.uint8)
        for at, end in self._some(start, stop, self.shape[-1]):
            numbers = self.codes(at, end)
            if self.zero is not None:
                self.zero.apply(np.subtract, numbers, at, end)
            scale = self.scale.of(at, end).astype(np.float16)
            scale = np.repeat(scale, blocks // scale.shape[1], axis=1)
            codes = numbers.astype(np.int8).reshape(-1, blocks, 32)
            held = made[at - start : end - start]
            held[..., :2] = scale[..., None].view(np.uint8)
            if kind == "Q8_0":
                held[..., 2:] = codes.view(np.uint8)
                continue
            if codes.min() < -8 or codes.max() > 7:
                raise ConvertError(f"{self.name}: found codes beyond 4 bits, wanted -8 to 7")
            codes += 8
            held[..., 2:] = codes[..., :16] | codes[..., 16:] << 4
        return made.reshape(stop - start, -1)

    def floats(self) -> np.ndarray:
        return self.as_type("F32")

    def as_type(self, kind: str) -> np.ndarray:
        return self.matrix(kind, 0, self.rows).reshape(self.shape)

    @property
    def data(self) -> np.ndarray:
        return self.as_type(self.dtype)


def mxfp4_bytes(blocks: np.ndarray, scales: np.ndarray, name: str) -> np.ndarray:
    """GGUF's bytes of MXFP4 rows, (..., blocks * 17), from codes (..., blocks, 16) and scales (...,
    blocks) in the order of the OCP Microscaling Formats Specification 1.0. ConvertError, with the
    name, for a scale that is not a number.

    A byte of codes holds two neighbours, low bits first. A GGUF block is its scale, then 16 bytes
    of the numbers i (low bits) and i + 16.
    """
    if (scales == 255).any():
        raise ConvertError(f"{name}: found a scale of NaN, wanted powers of two")
    numbers = np.empty((*scales.shape, 32), np.uint8)
    numbers[..., ::2], numbers[..., 1::2] = blocks & 15, blocks >> 4
    made = np.empty((*scales.shape, 17), np.uint8)
    made[..., 0] = scales
    made[..., 1:] = numbers[..., :16] | numbers[..., 16:] << 4
    return made.reshape(*scales.shape[:-1], -1)


METHODS: dict[str, type[Reader]] = {}


def method(name: str) -> Callable[[type[Reader]], type[Reader]]:
    """Register the decorated class as the reader of a method."""

    def register(reader: type[Reader]) -> type[Reader]:
        METHODS[name] = reader
        return reader

    return register


def method_of(config: Mapping[str, Any], label: str) -> str | None:
    """The method by which a folder is quantised, None where its weights are floats; ConvertError
    for one that is not read.
    """
    said = config.get("quantization_config")
    if not said:
        return None
    named = said.get("quant_method") if isinstance(said, dict) else None
    if not isinstance(named, str) or (named != "mxfp4" and named not in METHODS):
        raise ConvertError(
            f"{label}: quantization_config: quant_method: found {named!r:.80}, wanted one of "
            f"{', '.join(sorted([*METHODS, 'mxfp4']))}, or float weights"
        )
    return named


def dequantised(
    stored: Mapping[str, StoredTensor], config: Mapping[str, Any], label: str
) -> dict[str, Tensor]:
    """The tensors of a model by name, in the order of the stored ones; label: the configuration's
    file, for errors. MXFP4 as gpt-oss has it is the family's to read.
    """
    named = method_of(config, label)
    if named is None or named == "mxfp4":
        return dict(stored)
    try:
        made = METHODS[named](stored, config, label).all()
    except ConvertError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConvertError(
            f"{label}: quantization_config: its values do not fit together: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not any(isinstance(one, Quantised) for one in made.values()):
        raise ConvertError(
            f"{label}: quantization_config: found {named}, and no weight that is so stored"
        )
    return made


class Reader:
    """What the methods share: the configuration, and the parts of a weight by name."""

    # ends of names that belong to a weight of another name
    parts: tuple[str, ...] = ()

    def __init__(
        self, stored: Mapping[str, StoredTensor], config: Mapping[str, Any], label: str
    ) -> None:
        self.stored = stored
        self.label = label
        self.said: Mapping[str, Any] = config["quantization_config"]
        self.used: set[str] = set()
        named = next((config[key] for key in ("dtype", "torch_dtype") if config.get(key)), None)
        if named is not None and named not in _TYPES:
            raise ConvertError(f"{label}: dtype: found {named!r:.80}, wanted {', '.join(_TYPES)}")
        self.dtype = _TYPES[named or "bfloat16"]
        self.config = config

    def all(self) -> dict[str, Tensor]:
        """Every tensor of the model by name."""
        made: dict[str, Tensor] = {}
        for name, tensor in self.stored.items():
            for found, value in self.read(name, tensor):
                if found in made:
                    raise ConvertError(f"{self.label}: {found}: found as floats and quantised")
                made[found] = value
        absent = [name for name in self.stored if self.is_part(name) and name not in self.used]
        if absent:
            raise ConvertError(
                f"{self.label}: {absent[0]}: found without the weight that it belongs to"
            )
        return made

    def read(self, name: str, tensor: StoredTensor) -> Iterator[tuple[str, Tensor]]:
        """What a stored tensor becomes: itself, a weight, or nothing where it is part of one."""
        raise NotImplementedError

    def is_part(self, name: str) -> bool:
        return name.endswith(self.parts)

    def part(self, name: str, weight: str, *dtypes: str) -> StoredTensor:
        """A tensor that a weight needs."""
        found = self.stored.get(name)
        if found is None:
            raise ConvertError(f"{self.label}: {weight}: found no {name}, wanted its scale")
        self.used.add(name)
        self.typed(name, found, *dtypes)
        return found

    def typed(self, name: str, tensor: StoredTensor, *dtypes: str) -> None:
        if tensor.dtype not in dtypes:
            raise ConvertError(
                f"{self.label}: {name}: dtype {tensor.dtype}, wanted {' or '.join(dtypes)}"
            )

    def shaped(self, name: str, tensor: StoredTensor, *wanted: tuple[int, ...]) -> None:
        if tensor.shape not in wanted:
            raise ConvertError(
                f"{self.label}: {name}: shape {list(tensor.shape)}, wanted "
                f"{' or '.join(str(list(one)) for one in dict.fromkeys(wanted))}"
            )

    def must_be(self, key: str, *wanted: Any) -> None:
        """ConvertError where the configuration has another value of a key."""
        value = self.said.get(key)
        if value is not None and value not in wanted:
            raise ConvertError(
                f"{self.label}: quantization_config: {key}: found {value!r:.80}, wanted "
                f"{' or '.join(map(repr, wanted)) or 'none'}"
            )

    def integer(self, found: Any, key: str) -> int:
        """A positive integer of the configuration."""
        if isinstance(found, bool) or not isinstance(found, int) or not 0 < found < 1 << 31:
            raise ConvertError(
                f"{self.label}: quantization_config: {key}: found {found!r:.80}, wanted a positive "
                "integer"
            )
        return found

    def fp4(
        self, name: str, packed: StoredTensor, scale_name: str, scale: StoredTensor, width: int
    ) -> Quantised:
        """E2M1 codes, two in a byte, with a scale for each `width` columns."""
        *outer, rows, half = packed.shape
        columns = 2 * half
        if columns % width:
            raise ConvertError(
                f"{self.label}: {name}: {columns} columns, wanted a multiple of {width}"
            )
        self.shaped(scale_name, scale, (*outer, rows, columns // width))
        codes = packed.data.view(np.uint8).reshape(-1, half)
        scales = StoredTensor(scale.dtype, scale.data.reshape(len(codes), -1))

        def read(start: int, stop: int) -> np.ndarray:
            made = np.empty((stop - start, half, 2), np.float32)
            made[..., 0] = _E2M1[codes[start:stop] & 15]
            made[..., 1] = _E2M1[codes[start:stop] >> 4]
            return made.reshape(-1, columns)

        mxfp4 = (codes, scales.data) if scale.dtype == "F8_E8M0" and width == 32 else None
        grid = Grid(scales, max(1, len(codes)), 1, width)
        return Quantised(self.dtype, (*outer, rows, columns), read, grid, mxfp4=mxfp4, name=name)

    def by_one(self, made: Quantised, operation: np.ufunc, name: str, weight: str) -> Quantised:
        """A weight whose scales are all multiplied or divided by one number."""
        held = self.part(name, weight, "F32")
        self.shaped(name, held, (), (1,))
        number = np.float32(held.floats().reshape(-1)[0])
        if not np.isfinite(number) or number <= 0:
            raise ConvertError(f"{self.label}: {name}: found {number}, wanted a positive number")
        return replace(made, scale=replace(made.scale, whole=(operation, number)))


def stored_rows(tensor: StoredTensor) -> Rows:
    """Reads codes that are stored as numbers."""
    flat = tensor.data.reshape(-1, tensor.shape[-1])
    return lambda start, stop: StoredTensor(tensor.dtype, flat[start:stop]).floats()


def unpacked(words: np.ndarray, bits: int, columns: int) -> np.ndarray:
    """The codes (rows, columns) of `bits` bits each that rows of 32-bit words hold, low bits first
    and without gaps.
    """
    words = np.ascontiguousarray(words).view(np.uint32)
    if bits == 8:
        return words.view(np.uint8)[:, :columns]
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        codes = words.view(np.uint8)[:, :, None] >> shifts & np.uint8((1 << bits) - 1)
        return codes.reshape(len(words), -1)[:, :columns]
    first = np.arange(columns) * bits
    wide = np.zeros((len(words), words.shape[1] + 1), np.uint64)
    wide[:, :-1] = words
    both = wide[:, first // 32] | wide[:, first // 32 + 1] << np.uint64(32)
    return (both >> (first % 32).astype(np.uint64)).astype(np.uint8) & np.uint8((1 << bits) - 1)


def packed_rows(words: np.ndarray, bits: int) -> Rows:
    """Reads rows of float32 (rows, blocks) from words (blocks, words) that hold those of a block
    side by side, as `unpacked` takes them.
    """

    def read(start: int, stop: int) -> np.ndarray:
        first = start // 32
        held = unpacked(words[:, first * bits : -(-stop * bits // 32)], bits, stop - 32 * first)
        return held[:, start - 32 * first :].T.astype(np.float32)

    return read


def in_range(label: str, name: str, order: np.ndarray, count: int) -> np.ndarray:
    """Numbers of groups, which must be there."""
    if len(order) and not 0 <= order.min() <= order.max() < count:
        raise ConvertError(
            f"{label}: {name}: groups {order.min()} to {order.max()}, wanted 0 to {count - 1}"
        )
    return order
