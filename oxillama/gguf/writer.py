"""Writes GGUF files (version 3, little-endian): keys first, then tensors, streamed to disk and
renamed at the end.

Two ways can be mixed. In two phases, `declare` every tensor, then `write` each one's bytes, in any
order; nothing is kept in memory. In one phase, `add_tensor` with its data, which is referenced
until `finish`. In both cases the file gets its name only when it is complete (`durable`), and
nothing is left after a failure. Anything that the reader would refuse is refused here.
"""

import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.durable import Replacement, target_of, write_at
from oxillama.errors import GgufError
from oxillama.gguf.keys import checked_architecture
from oxillama.gguf.layout import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_DIMS,
    MAX_KEY_BYTES,
    MAX_KEYS,
    MAX_NAME_BYTES,
    MAX_TENSORS,
    TensorInfo,
    aligned,
    checked_alignment,
    checked_name,
)
from oxillama.gguf.source import shard_names
from oxillama.gguf.types import TensorType, type_by_dtype, type_by_name
from oxillama.gguf.values import encode_value

_VERSION = 3


class GgufWriter:
    """A GGUF file that is being written.

    `path` is its final path; a regular file there is replaced. `arch` is written as
    `general.architecture`, and `alignment` as `general.alignment` if it is not 32. `part`: it is
    one file of a set, according to its name and its keys `split.*`; no other file may have such a
    name. As a context manager it finishes on leaving, or removes what it wrote after an error.
    Every method raises GgufError for anything a reader would refuse. The constructor touches no
    file; it raises GgufError for a path where no file can be, and ModelError for an invalid
    architecture name.
    """

    __slots__ = (
        "_data",
        "_end",
        "_infos",
        "_keys",
        "_new",
        "_start",
        "_state",
        "_written",
        "alignment",
        "path",
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        arch: str,
        *,
        alignment: int = DEFAULT_ALIGNMENT,
        part: bool = False,
    ):
        self.path = checked_target(path, part=part)
        self.alignment = checked_alignment(alignment)
        self._keys: dict[str, bytes] = {}
        self._infos: dict[str, TensorInfo] = {}
        self._data: dict[str, np.ndarray] = {}
        self._written: set[str] = set()
        self._end = 0  # of the data declared so far
        self._start = 0  # of the data in the file, once the header is written
        # then "writing", once the header is on disk, then "finished" or "aborted"
        self._state = "adding"
        self._new: Replacement | None = None
        self.add("general.architecture", checked_architecture(arch))
        if alignment != DEFAULT_ALIGNMENT:
            self._keys["general.alignment"] = encode_value(
                alignment, "uint32", "general.alignment"
            )[1]

    def add(self, key: str, value: Any, kind: str | None = None) -> None:
        """Add a key. `kind` is a name as in `GgufReader.kv_types` (`uint32`, `array[string]`, ...);
        without it, a numpy value keeps its dtype, an int becomes uint32 or the narrowest of int32,
        int64, uint64 that holds it (int32 first in a list), a float float32.
        """
        self._must_be_adding()
        checked_name(key, "key", MAX_KEY_BYTES)
        if key in self._keys:
            raise GgufError(f"key {key} appears twice")
        if key == "general.alignment":
            raise GgufError("general.alignment: given to the writer itself, as alignment=")
        if len(self._keys) >= MAX_KEYS:
            raise GgufError(f"key {key}: {MAX_KEYS} keys already, no more fit")
        self._keys[key] = encode_value(value, kind, key)[1]

    def declare(self, name: str, type_name: str, shape: Sequence[int]) -> TensorInfo:
        """Announce tensor `name` of `shape` (rows outermost), whose bytes `write` will supply; the
        offset counts from the data's start.
        """
        self._must_be_adding()
        checked_name(name, "tensor", MAX_NAME_BYTES)
        if name in self._infos:
            raise GgufError(f"tensor {name} appears twice")
        if len(self._infos) >= MAX_TENSORS:
            raise GgufError(f"tensor {name}: {MAX_TENSORS} tensors already, no more fit")
        shape = tuple(int(size) for size in shape)
        if len(shape) > MAX_DIMS or not all(1 <= size < 1 << 63 for size in shape):
            raise GgufError(
                f"tensor {name}: shape {shape}, wanted at most {MAX_DIMS} sizes from 1 to 2^63 - 1"
            )
        try:
            kind = type_by_name(type_name)
            info = TensorInfo(name, shape, kind.id, kind.name, self._end, kind.nbytes(shape))
        except GgufError as error:
            raise GgufError(f"tensor {name}: {error}") from None
        self._end = aligned(info.offset + info.nbytes, self.alignment)
        if self._end >= 1 << 63:
            raise GgufError(f"tensor {name}: {info.nbytes} bytes, the file would pass 2^63")
        self._infos[name] = info
        return info

    def add_tensor(
        self,
        name: str,
        data: Any,
        *,
        type_name: str | None = None,
        shape: Sequence[int] | None = None,
    ) -> TensorInfo:
        """Add tensor `name` with its data, a numpy array or bytes, referenced until `finish`.

        Without `type_name` an array of floats or integers is stored unchanged. Stored blocks are
        given as uint8 or bytes with `type_name` and either `shape` or, for an array, rows of whole
        blocks.
        """
        array = _array(name, data)
        try:
            if type_name is None and not isinstance(data, np.ndarray):
                raise GgufError("bytes need a type_name")
            kind = type_by_name(type_name) if type_name is not None else type_by_dtype(array.dtype)
            if shape is None:
                shape = kind.shape_of_bytes(array.shape) if array.dtype == np.uint8 else array.shape
            nbytes = kind.nbytes(shape)
        except GgufError as error:
            raise GgufError(f"tensor {name}: {error}") from None
        # before it is declared: a refused tensor leaves no trace
        stored = _stored(name, array, kind, tuple(shape), nbytes)
        info = self.declare(name, kind.name, shape)
        self._data[name] = stored
        return info

    def write(self, name: str, data: Any) -> None:
        """Supply the bytes of a declared tensor, a numpy array or bytes. The first call writes the
        header; nothing can be added afterwards.
        """
        info = self._declared(name)
        stored = _stored(
            name, _array(name, data), type_by_name(info.type_name), info.shape, info.nbytes
        )
        try:
            self._begin()
            self._put(info, stored)
        except OSError as error:
            raise self._failed(error) from error
        self._written.add(name)

    def write_pieces(self, name: str, pieces: Iterable[Any]) -> None:
        """`write` for a tensor that need not fit into memory: its bytes in order, cut anywhere."""
        info, at = self._declared(name), 0
        try:
            self._begin()
            for piece in pieces:
                stored = np.ascontiguousarray(_array(name, piece)).reshape(-1).view(np.uint8)
                if at + stored.nbytes <= info.nbytes:
                    self._put(info, stored, at)
                at += stored.nbytes
        except OSError as error:
            raise self._failed(error) from error
        if at != info.nbytes:
            raise GgufError(
                f"tensor {name}: data of {at} bytes, {info.type_name} of shape {info.shape} needs "
                f"{info.nbytes}"
            )
        self._written.add(name)

    def finish(self) -> Path:
        """Write the rest, rename the file and return its path; GgufError if a declared tensor has
        no data.
        """
        missing = [
            name for name in self._infos if name not in self._written and name not in self._data
        ]
        if missing:
            raise GgufError(
                f"tensor {missing[0]}: declared but never written ({len(missing)} of "
                f"{len(self._infos)})"
            )
        try:
            self._begin()
            for name in list(self._data):
                self._put(self._infos[name], self._data.pop(name))
            os.ftruncate(
                self._file.fd, self._start + self._end
            )  # the padding after the last tensor
            self._file.keep()
        except OSError as error:
            raise self._failed(error) from error
        self._state = "finished"
        return self.path

    def abort(self) -> None:
        """Remove what was written; the path keeps its old content. Does nothing to a finished
        file.
        """
        if self._state == "writing":
            self._file.drop()
        if self._state != "finished":
            self._state = "aborted"
        self._data.clear()

    def __enter__(self) -> "GgufWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None and self._state in ("adding", "writing"):
                self.finish()
        finally:
            self.abort()

    def _declared(self, name: str) -> TensorInfo:
        """The tensor of that name, whose data is missing."""
        info = self._infos.get(name)
        if info is None:
            raise GgufError(f"tensor {name!r} was not declared")
        if name in self._written or name in self._data:
            raise GgufError(f"tensor {name}: its data was given already")
        return info

    def _must_be_adding(self) -> None:
        if self._state != "adding":
            what = {"writing": "the header is written already"}.get(
                self._state, f"the writer is {self._state}"
            )
            raise GgufError(f"{self.path}: {what}, nothing can be added")

    @property
    def _file(self) -> Replacement:
        """The temporary file, between the header and the end."""
        if self._new is None:
            raise GgufError(f"{self.path}: nothing is written yet")
        return self._new

    def _begin(self) -> None:
        """Write the header to a new temporary file, unless that was done."""
        if self._state == "writing":
            return
        if self._state != "adding":
            raise GgufError(f"{self.path}: the writer is {self._state}")
        parts = [MAGIC, struct.pack("<IQQ", _VERSION, len(self._infos), len(self._keys))]
        for key, encoded in self._keys.items():
            parts += (_string(key), encoded)
        for info in self._infos.values():
            dims = info.shape[::-1]
            parts += (
                _string(info.name),
                struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, info.type_id, info.offset),
            )
        header = b"".join(parts)
        self._new = Replacement(self.path)
        self._state = "writing"
        write_at(self._file.fd, 0, [header])
        self._start = aligned(len(header), self.alignment)

    def _put(self, info: TensorInfo, stored: np.ndarray, at: int = 0) -> None:
        """Write a tensor's bytes from byte `at` on."""
        # what is skipped reads as zeros
        write_at(self._file.fd, self._start + info.offset + at, [stored.data])

    def _failed(self, error: OSError) -> GgufError:
        self.abort()
        return unwritable(self.path, error)


def checked_target(path: str | os.PathLike[str], *, part: bool = False) -> Path:
    """The path as one where a file can be written; GgufError where not."""
    path = Path(path)
    try:
        target_of(path)
    except OSError as error:
        raise unwritable(path, error) from error
    names = shard_names(path.name) or ()
    if len(names) > 1 and not part:
        raise GgufError(
            f"{path}: the name of one file of {len(names)}, wanted that of a whole one: it could "
            "not be opened"
        )
    return path


def unwritable(path: str | os.PathLike[str], error: OSError) -> GgufError:
    """What is said of a path where the system refuses a file."""
    return GgufError(f"{path}: cannot be written: {error.strerror or error}")


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _array(name: str, data: Any) -> np.ndarray:
    """`data` as an array, bytes as uint8; nothing is copied."""
    if isinstance(data, np.ndarray):
        return data
    try:
        return np.frombuffer(data, np.uint8)
    except (TypeError, ValueError, BufferError):
        raise GgufError(
            f"tensor {name}: a {type(data).__name__}, wanted a numpy array or a contiguous "
            "bytes-like object"
        ) from None


def _stored(
    name: str, array: np.ndarray, kind: TensorType, shape: tuple[int, ...], nbytes: int
) -> np.ndarray:
    """The bytes to store for `array`, uint8 of one axis; raises GgufError unless they are exactly
    those of `kind` and `shape`.
    """
    if array.dtype != np.uint8:
        if kind.dtype is None or array.dtype.newbyteorder("<") != kind.dtype:
            raise GgufError(
                f"tensor {name}: numpy {array.dtype}, {kind.name} is stored from "
                f"{kind.dtype or 'its blocks as uint8'}"
            )
        if array.ndim != 1 and array.shape != shape:
            raise GgufError(f"tensor {name}: data of shape {array.shape}, declared {shape}")
        array = array.astype(kind.dtype, copy=False)
    if array.nbytes != nbytes:
        raise GgufError(
            f"tensor {name}: data of {array.nbytes} bytes, {kind.name} of shape {shape} needs "
            f"{nbytes}"
        )
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
