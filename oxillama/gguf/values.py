"""How metadata values are stored in a file: the thirteen kinds, read with bounds checked first, and
written.

Reading has two steps. `skip_value` walks over a value and checks that it lies within the file,
without keeping anything; `read_value` makes the Python value. Scalars become int, float, bool and
str; numeric and boolean arrays become read-only numpy arrays of the stored type; arrays of strings
become a list of str; arrays of arrays a list of those.

A kind is named `uint32`, `string`, ... and an array's `array[uint32]`, `array[string]`,
`array[array]`.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxillama.errors import GgufError
from oxillama.gguf.layout import MAX_DEPTH
from oxillama.gguf.strings import decode_strings, string_starts, strings_end

STRING, ARRAY, BOOL = 8, 9, 7
_DTYPES = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_NAMES = (
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "float32",
    "bool",
    "string",
    "array",
    "uint64",
    "int64",
    "float64",
)
_IDS = {name: number for number, name in enumerate(_NAMES)}
_DTYPE = {number: np.dtype(text) for number, text in _DTYPES.items()}
_DTYPE_IDS = {dtype: number for number, dtype in _DTYPE.items()}
_CODES = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<B",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRUCT = {number: struct.Struct(code) for number, code in _CODES.items()}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(slots=True)
class Cursor:
    """A position in a file's bytes that only moves forward, and never past the end."""

    buffer: memoryview
    label: str  # of the file, for messages
    position: int = 0

    def need(self, count: int, what: str) -> int:
        """Move over `count` bytes and return the position before them; GgufError if fewer
        remain.
        """
        start = self.position
        remain = len(self.buffer) - start
        if count > remain:
            raise GgufError(
                f"{self.label}: {what} needs {count} bytes at byte {start}, {remain} remain: "
                "truncated"
            )
        self.position = start + count
        return start

    def u32(self, what: str) -> int:
        """The next four bytes as an unsigned integer."""
        return _U32.unpack_from(self.buffer, self.need(4, what))[0]

    def u64(self, what: str) -> int:
        """The next eight bytes as an unsigned integer."""
        return _U64.unpack_from(self.buffer, self.need(8, what))[0]

    def raw_string(self, what: str) -> bytes:
        """The bytes of the string here."""
        length = self.u64(f"length of {what}")
        start = self.need(length, what)
        return bytes(self.buffer[start : start + length])


def read_kind(cursor: Cursor, what: str) -> int:
    """The kind number here; raises GgufError for an unknown one."""
    kind = cursor.u32(f"kind of {what}")
    if kind >= len(_NAMES):
        raise GgufError(
            f"{cursor.label}: {what}: unknown kind {kind}, wanted 0 to {len(_NAMES) - 1}"
        )
    return kind


def kind_name(kind: int, item: int | None = None) -> str:
    """The name of a kind number; `item` is the kind of an array's items."""
    return _NAMES[kind] if item is None else f"array[{_NAMES[item]}]"


def _array_head(cursor: Cursor, what: str, depth: int) -> tuple[int, int]:
    """The item kind and count of the array here, the count proved to fit the bytes that remain."""
    if depth > MAX_DEPTH:
        raise GgufError(f"{cursor.label}: {what}: arrays nested deeper than {MAX_DEPTH}")
    item = read_kind(cursor, f"items of {what}")
    count = cursor.u64(f"count of {what}")
    least = 8 if item == STRING else 12 if item == ARRAY else _DTYPE[item].itemsize
    start = cursor.need(count * least, f"{what} ({count} items of {_NAMES[item]})")
    cursor.position = start
    return item, count


def _strings_within(cursor: Cursor, end: int, what: str) -> int:
    if end < 0:
        raise GgufError(
            f"{cursor.label}: {what}: a string runs past the end of the file: truncated"
        )
    return end


def skip_value(cursor: Cursor, kind: int, what: str, depth: int = 1) -> str:
    """Move over a value of `kind`, checking every bound, and give the name of its kind."""
    if kind == STRING:
        cursor.need(cursor.u64(f"length of {what}"), what)
    elif kind == ARRAY:
        item, count = _array_head(cursor, what, depth)
        if item == STRING:
            cursor.position = _strings_within(
                cursor, strings_end(cursor.buffer, cursor.position, count), what
            )
        elif item == ARRAY:
            for _ in range(count):
                skip_value(cursor, ARRAY, what, depth + 1)
        else:
            cursor.need(count * _DTYPE[item].itemsize, what)
        return kind_name(kind, item)
    else:
        cursor.need(_DTYPE[kind].itemsize, what)
    return kind_name(kind)


def read_value(cursor: Cursor, kind: int, what: str, depth: int = 1) -> Any:
    """The value of `kind` at this position; GgufError for bytes that are not UTF-8 or not a
    boolean.
    """
    if kind == STRING:
        raw = cursor.raw_string(what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise GgufError(
                f"{cursor.label}: {what}: not UTF-8 at byte {error.start} of {len(raw)}"
            ) from None
    if kind != ARRAY:
        value = _STRUCT[kind].unpack_from(cursor.buffer, cursor.need(_DTYPE[kind].itemsize, what))[
            0
        ]
        if kind == BOOL and value > 1:
            raise GgufError(f"{cursor.label}: {what}: boolean byte {value}, wanted 0 or 1")
        return bool(value) if kind == BOOL else value
    item, count = _array_head(cursor, what, depth)
    if item == STRING:
        return _read_strings(cursor, count, what)
    if item == ARRAY:
        return [read_value(cursor, ARRAY, what, depth + 1) for _ in range(count)]
    dtype = _DTYPE[item]
    start = cursor.need(count * dtype.itemsize, what)
    array = np.frombuffer(
        cursor.buffer, dtype=np.uint8 if item == BOOL else dtype, count=count, offset=start
    ).copy()
    if item == BOOL:
        if (array > 1).any():
            raise GgufError(f"{cursor.label}: {what}: boolean byte {array.max()}, wanted 0 or 1")
        array = array.view(dtype)
    array.flags.writeable = False
    return array


def raw_strings(cursor: Cursor, what: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """The array of strings here without decoding it: its bytes, and each text's place and length in
    them; None for any other array.
    """
    item, count = _array_head(cursor, what, 1)
    if item != STRING or not count:
        return None
    starts, end = string_starts(cursor.buffer, cursor.position, count)
    first = cursor.position
    _strings_within(cursor, end, what)
    ends = np.append(starts[1:], end)
    return (
        np.frombuffer(cursor.buffer, np.uint8, end - first, first),
        starts + (8 - first),
        ends - starts - 8,
    )


def _read_strings(cursor: Cursor, count: int, what: str) -> list[str]:
    starts, end = string_starts(cursor.buffer, cursor.position, count)
    cursor.position = _strings_within(cursor, end, what)
    try:
        return decode_strings(cursor.buffer, starts, end)
    except UnicodeDecodeError as error:
        near = error.object[error.start : error.start + 8]
        raise GgufError(
            f"{cursor.label}: {what}: a string of the array is not UTF-8, from {near!r} on"
        ) from None


# Writing


def encode_value(value: Any, kind: str | None, what: str) -> tuple[str, bytes]:
    """The kind's name and the stored bytes (kind numbers included) of `value`; raises GgufError
    where they do not fit.
    """
    kind = infer_kind(value, what) if kind is None else kind
    if kind.startswith("array["):
        return kind, _U32.pack(ARRAY) + _encode_array(value, kind, what)
    number = _IDS.get(kind)
    if number is None or number == ARRAY:
        raise GgufError(
            f"{what}: unknown kind {kind!r}, wanted one of {', '.join(_NAMES)} or array[...] of one"
        )
    return kind, _U32.pack(number) + (
        _encode_string(value, what) if number == STRING else _encode_scalar(value, number, what)
    )


def infer_kind(value: Any, what: str) -> str:
    """The kind of `value` if none is named: the narrowest common one that holds it, float32 for a
    float.
    """
    if isinstance(value, np.ndarray):
        return f"array[{_NAMES[_dtype_id(value.dtype, what)]}]"
    if isinstance(value, np.generic):
        return _NAMES[_dtype_id(value.dtype, what)]
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return _integer_kind(value, value, "uint32")
    if isinstance(value, float):
        return "float32"
    if isinstance(value, str):
        return "string"
    if isinstance(value, (list, tuple)):
        return _infer_items(value, what)
    raise GgufError(
        f"{what}: a {type(value).__name__} has no kind, wanted bool, int, float, str, a list of "
        "one or a numpy array"
    )


def _infer_items(items: Sequence[Any], what: str) -> str:
    if not items:
        raise GgufError(
            f"{what}: an empty list has no kind of its own; name one, as in array[int32]"
        )
    items = [item.item() if isinstance(item, np.generic) else item for item in items]
    if all(isinstance(item, bool) for item in items):
        return "array[bool]"
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        return f"array[{_integer_kind(min(items), max(items), 'int32')}]"
    if all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in items):
        return "array[float32]"
    if all(isinstance(item, str) for item in items):
        return "array[string]"
    if all(isinstance(item, (list, tuple, np.ndarray)) for item in items):
        return "array[array]"
    raise GgufError(f"{what}: items of several kinds, an array holds one")


def _integer_kind(low: int, high: int, first: str) -> str:
    for name in (first, "int32", "uint32", "int64", "uint64"):
        limits = np.iinfo(name)
        if limits.min <= low and high <= limits.max:
            return name
    return "int64"  # does not fit either: the encoder names the value


def _dtype_id(dtype: np.dtype, what: str) -> int:
    found = _DTYPE_IDS.get(dtype.newbyteorder("<"))
    if found is None:
        raise GgufError(
            f"{what}: numpy {dtype} has no kind, wanted an 8 to 64 bit integer, float32, float64 "
            "or bool"
        )
    return found


def _encode_scalar(value: Any, number: int, what: str) -> bytes:
    name = _NAMES[number]
    if isinstance(value, np.generic):
        value = value.item()
    wanted = bool if number == BOOL else (int, float) if name.startswith("float") else int
    if not isinstance(value, wanted) or (isinstance(value, bool) and number != BOOL):
        raise GgufError(f"{what}: {value!r} is not a {name}")
    try:
        return _STRUCT[number].pack(value)
    except (struct.error, OverflowError):
        raise GgufError(f"{what}: {value} does not fit {name}") from None


def _encode_string(value: Any, what: str) -> bytes:
    if not isinstance(value, str):
        raise GgufError(f"{what}: {value!r} is not a string")
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise GgufError(f"{what}: {value[:40]!r} cannot be written as UTF-8") from None
    return _U64.pack(len(data)) + data


def _encode_array(value: Any, kind: str, what: str, depth: int = 1) -> bytes:
    """The item kind, count and items of an array, without the leading kind number."""
    item = kind.removeprefix("array[").removesuffix("]")
    number = _IDS.get(item)
    if number is None or kind != f"array[{item}]":
        raise GgufError(
            f"{what}: unknown kind {kind!r}, wanted array[...] of one of {', '.join(_NAMES)}"
        )
    if depth > MAX_DEPTH:
        raise GgufError(f"{what}: arrays nested deeper than {MAX_DEPTH}")
    if not isinstance(value, (list, tuple, np.ndarray)) or (
        isinstance(value, np.ndarray) and value.ndim != 1
    ):
        raise GgufError(f"{what}: a {type(value).__name__} is not a one-dimensional array")
    head = _U32.pack(number) + _U64.pack(len(value))
    if (
        isinstance(value, np.ndarray)
        and number in _DTYPE
        and value.dtype.newbyteorder("<") == _DTYPE[number]
    ):
        return head + value.astype(_DTYPE[number]).tobytes()
    if number == STRING:
        return head + b"".join(_encode_string(entry, what) for entry in value)
    if number == ARRAY:
        inner = (
            infer_kind(entry, what)
            if len(entry) or isinstance(entry, np.ndarray)
            else "array[string]"
            for entry in value
        )
        return head + b"".join(
            _encode_array(entry, name, what, depth + 1) for entry, name in zip(value, inner)
        )
    return head + b"".join(_encode_scalar(entry, number, what) for entry in value)
