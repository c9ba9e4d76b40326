"""Reads GGUF files (versions 2 and 3, little-endian, one file or a set of shards) without copying a
tensor.

`GgufReader` opens a file. Every count, length, offset and type is checked against the bytes that
remain before anything is made of it, so a hostile file costs no more than its own size.
`read_shard` parses one file, `_merged` joins a set.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from oxillama._core.filemap import FileMap
from oxillama.errors import GgufError, not_pickled
from oxillama.gguf.layout import (
    DEFAULT_ALIGNMENT,
    HEADER_BYTES,
    MAGIC,
    MAX_DIMS,
    MAX_KEY_BYTES,
    MAX_KEYS,
    MAX_NAME_BYTES,
    MAX_TENSORS,
    MIN_INFO_BYTES,
    MIN_KEY_BYTES,
    VERSIONS,
    TensorInfo,
    aligned,
    checked_alignment,
    checked_name,
)
from oxillama.gguf.source import Shard, open_source, shard_names
from oxillama.gguf.types import type_by_id
from oxillama.gguf.values import ARRAY, Cursor, raw_strings, read_kind, read_value, skip_value

# bytes of a gap between tensors that are looked at
_LOOKED_AT = 64 << 10

# how files begin that are saved or named as models by mistake, in lower case
_KINDS = {
    b"version https://git-lfs": "a Git LFS pointer (git lfs pull fetches the file)",
    b"<!doctype html": "a web page",
    b"<html": "a web page",
    b"<?xml": "an XML answer of a server",
    b"{": "JSON",
    b"pk\x03\x04": "a zip archive",
    b"\x1f\x8b": "compressed by gzip",
    **dict.fromkeys((b"lmgg", b"fmgg", b"tjgg"), "a model of llama.cpp from before GGUF"),
}


@dataclass(frozen=True, slots=True)
class _Span:
    """The position of a value: decoded when it is read, compared as bytes between shards."""

    shard: Shard
    kind: int
    start: int
    end: int

    def decode(self, key: str) -> Any:
        """Its value; only of an array, which may be read at any time, the file is checked."""
        if self.kind != ARRAY:
            return self._value(key)
        try:
            return self._value(key)
        finally:
            self.shard.check()

    def _value(self, key: str) -> Any:
        return read_value(Cursor(self.shard.buffer, self.shard.place, self.start), self.kind, key)

    def raw(self) -> memoryview:
        return self.shard.buffer[self.start : self.end]


class Metadata(Mapping[str, Any]):
    """The key-value part of a file as a read-only mapping. An array is decoded when it is first
    read, and cached.
    """

    __slots__ = ("_spans", "_values")

    def __init__(self, spans: Mapping[str, _Span], values: Mapping[str, Any]):
        self._spans = dict(spans)
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            self._values[key] = self._spans[key].decode(key)
        return self._values[key]

    def strings(self, key: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """An array of strings as stored in the file: its bytes (uint8), and the position and length
        (int64) of each text in them.

        None if the key is missing or not an array of at least one string.
        """
        span = self._spans.get(key)
        return (
            None
            if span is None or span.kind != ARRAY
            else raw_strings(Cursor(span.shard.buffer, span.shard.place, span.start), key)
        )

    def joined(self, other: "Metadata", keys: Iterable[str]) -> "Metadata":
        """These keys, with the values of others for some of them."""
        spans = {key: other._spans[key] for key in keys if key in other._spans}
        values = {key: other._values[key] for key in keys if key in other._values}
        kept = {key: value for key, value in self._values.items() if key not in spans}
        return Metadata(self._spans | spans, kept | values)

    def __contains__(self, key: object) -> bool:
        return key in self._spans

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __repr__(self) -> str:
        return f"<Metadata of {len(self)} keys>"


@dataclass(frozen=True, slots=True)
class _Parsed:
    """The content of one file's header."""

    version: int
    alignment: int
    spans: dict[str, _Span]
    values: dict[str, Any]  # of the keys that are no arrays
    kinds: dict[str, str]
    tensors: dict[str, TensorInfo]


def _kind(head: bytes) -> str | None:
    """What a file is that is often found in a model's place, by its first bytes; None if it is
    unknown.
    """
    if head[8:9] == b"{" and head[7:8] == b"\0":  # the length of a header in JSON, and the header
        return "safetensors: their folder is loaded as a whole"
    text = head.lstrip().lower()
    return next((kind for start, kind in _KINDS.items() if text.startswith(start)), None)


def read_shard(shard: Shard) -> _Parsed:
    """Parse the header of one file and check that every tensor is inside it; raises GgufError."""
    cursor = Cursor(shard.buffer, shard.place)
    magic = bytes(shard.buffer[:4])
    if magic != MAGIC[: len(magic)] or not magic:
        kind = _kind(bytes(shard.buffer[:64]))
        raise GgufError(
            f"{shard.place}: starts with {magic!r}, wanted {MAGIC!r}: not a GGUF file"
            + (f" but {kind}" if kind else "")
        )
    if len(shard.buffer) < HEADER_BYTES:
        raise GgufError(
            f"{shard.place}: {len(shard.buffer)} bytes, the header alone needs {HEADER_BYTES}: "
            "truncated"
        )
    cursor.position = 4
    version = cursor.u32("version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        why = ": a big-endian file, only little-endian ones are read" if swapped in VERSIONS else ""
        raise GgufError(
            f"{shard.place}: version {version}, wanted {' or '.join(map(str, VERSIONS))}{why}"
        )
    tensor_count, key_count = cursor.u64("tensor count"), cursor.u64("key count")
    remain = len(shard.buffer) - HEADER_BYTES
    for what, count, limit, least in (
        ("keys", key_count, MAX_KEYS, MIN_KEY_BYTES),
        ("tensors", tensor_count, MAX_TENSORS, MIN_INFO_BYTES),
    ):
        if count > min(limit, remain // least):
            raise GgufError(
                f"{shard.place}: header counts {count} {what}, at most "
                f"{min(limit, remain // least)} fit"
            )
    spans, values, kinds = _read_keys(cursor, shard, key_count)
    # an array is not among the values: its kind stands in for it and is refused as no integer
    found = values.get("general.alignment", kinds.get("general.alignment", DEFAULT_ALIGNMENT))
    alignment = checked_alignment(found, f"{shard.place}: general.alignment")
    return _Parsed(
        version, alignment, spans, values, kinds, _read_infos(cursor, tensor_count, alignment)
    )


def _read_keys(
    cursor: Cursor, shard: Shard, count: int
) -> tuple[dict[str, _Span], dict[str, Any], dict[str, str]]:
    spans: dict[str, _Span] = {}
    values: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    for index in range(count):
        what = f"key {index} of {count}"
        key = _read_name(cursor, what, MAX_KEY_BYTES)
        if key in spans:
            raise GgufError(f"{cursor.label}: key {key} appears twice")
        kind = read_kind(cursor, key)
        start = cursor.position
        kinds[key] = skip_value(cursor, kind, key)
        spans[key] = _Span(shard, kind, start, cursor.position)
        if kind != ARRAY:
            values[key] = spans[key].decode(key)
    return spans, values, kinds


def _read_name(cursor: Cursor, what: str, most: int) -> str:
    """The name of a key or tensor, of at most `most` bytes."""
    length = cursor.u64(f"length of the name of {what}")
    if length > most:
        raise GgufError(f"{cursor.label}: {what}: name of {length} bytes, wanted 1 to {most}")
    start = cursor.need(length, what)
    return checked_name(
        bytes(cursor.buffer[start : start + length]), f"{cursor.label}: {what}", most
    )


def _read_infos(cursor: Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    relative = {}
    for index in range(count):
        info = _read_info(cursor, f"tensor {index} of {count}")
        if info.name in relative:
            raise GgufError(f"{cursor.label}: tensor {info.name} appears twice")
        if info.offset % alignment:
            raise GgufError(
                f"{cursor.label}: tensor {info.name}: offset {info.offset}, wanted a multiple of "
                f"{alignment}"
            )
        relative[info.name] = info
    start = aligned(cursor.position, alignment)
    size = max(0, len(cursor.buffer) - start)
    free, before = 0, ""
    for info in sorted(relative.values(), key=lambda one: one.offset):
        if info.offset + info.nbytes > size:
            raise GgufError(
                f"{cursor.label}: tensor {info.name}: bytes {info.offset} to "
                f"{info.offset + info.nbytes} of the data, the file holds {size}: truncated"
            )
        if info.offset < free:
            raise GgufError(
                f"{cursor.label}: tensor {info.name}: offset {info.offset} overlaps {before}, "
                f"which ends at {free}"
            )
        _check_gap(
            cursor, relative.get(before), start + aligned(free, alignment), start + info.offset
        )
        free, before = info.offset + info.nbytes, info.name
    if relative:
        _check_gap(cursor, relative[before], start + aligned(free, alignment), len(cursor.buffer))
    return {name: replace(info, offset=start + info.offset) for name, info in relative.items()}


def _check_gap(cursor: Cursor, before: TensorInfo | None, start: int, end: int) -> None:
    """Raise GgufError if bytes between two tensors, or after the last, are not zero: the tensor
    before them has another type or shape than the header says.
    """
    if start < end and any(cursor.buffer[start : min(end, start + _LOOKED_AT)]):
        what = (
            "before the first tensor"
            if before is None
            else f"after tensor {before.name}, which takes {before.nbytes} as {before.type_name} "
            f"{before.shape}"
        )
        raise GgufError(f"{cursor.label}: {end - start} bytes of no tensor {what}, wanted zeros")


def _read_info(cursor: Cursor, what: str) -> TensorInfo:
    """The tensor info at this position; its offset is still counted from the start of the data."""
    name = _read_name(cursor, what, MAX_NAME_BYTES)
    dims = cursor.u32(f"dims of tensor {name}")
    if dims > MAX_DIMS:
        raise GgufError(f"{cursor.label}: tensor {name}: {dims} dims, wanted 0 to {MAX_DIMS}")
    shape = tuple(cursor.u64(f"shape of tensor {name}") for _ in range(dims))[::-1]
    if not all(1 <= size < 1 << 63 for size in shape):
        raise GgufError(
            f"{cursor.label}: tensor {name}: shape {shape}, wanted sizes from 1 to 2^63 - 1"
        )
    number = cursor.u32(f"type of tensor {name}")
    try:
        kind = type_by_id(number)
        nbytes = kind.nbytes(shape)
    except GgufError as error:
        raise GgufError(f"{cursor.label}: tensor {name}: {error}") from None
    return TensorInfo(
        name, shape, kind.id, kind.name, cursor.u64(f"offset of tensor {name}"), nbytes
    )


def _merged(
    shards: tuple[Shard, ...],
) -> tuple[list[_Parsed], Metadata, dict[str, str], dict[str, TensorInfo]]:
    """Parse every shard and check that together they are one complete set."""
    parsed = []
    spans: dict[str, _Span] = {}
    values: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    tensors: dict[str, TensorInfo] = {}
    for index, shard in enumerate(shards):
        one = read_shard(shard)
        _check_split(one, shard, index, len(shards))
        for key, span in one.spans.items():
            if key not in spans:
                spans[key], kinds[key] = span, one.kinds[key]
                values |= {key: one.values[key]} if key in one.values else {}
            elif key not in ("split.no", "general.alignment") and (span.kind, span.raw()) != (
                spans[key].kind,
                spans[key].raw(),
            ):
                raise GgufError(
                    f"{shard.place}: key {key} differs from its value in {shards[0].label}"
                )
        for name, info in one.tensors.items():
            if name in tensors:
                raise GgufError(
                    f"{shard.place}: tensor {name} is in {shards[tensors[name].shard].label} too"
                )
            tensors[name] = replace(info, shard=index) if index else info
        if len(tensors) > MAX_TENSORS:
            raise GgufError(
                f"{shard.place}: {len(tensors)} tensors in the set, wanted at most {MAX_TENSORS}"
            )
        parsed.append(one)
    total = values.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise GgufError(
            f"{shards[0].place}: split.tensors.count is {total}, the {len(shards)} files hold "
            f"{len(tensors)}"
        )
    return parsed, Metadata(spans, values), kinds, tensors


def _check_split(one: _Parsed, shard: Shard, index: int, count: int) -> None:
    """Raise GgufError unless this file is number `index` of a set of `count` (a single file may
    lack these keys).
    """
    found = {key: one.values.get(key) for key in ("split.no", "split.count")}
    named = shard.path is not None and shard_names(shard.path.name) is not None
    if count == 1 and not named and found["split.count"] in (None, 0, 1):
        return
    if count == 1 and found["split.count"] is None and found["split.no"] is None:
        return
    for key, wanted in (("split.count", count), ("split.no", index)):
        if type(found[key]) is not int or found[key] != wanted:
            hint = (
                ""
                if named or count > 1
                else "; a set is opened by a name like NAME-00001-of-00003.gguf"
            )
            raise GgufError(f"{shard.place}: {key} is {found[key]!r}, wanted {wanted}{hint}")


class GgufReader:
    """An open GGUF file: its metadata, the positions of its tensors, and their bytes without a
    copy.

    `source` is a path, a hub name, a bytes-like object or a sequence of shards (see
    `oxillama.gguf.source`). GgufError for anything missing, malformed, truncated or hostile.
    Returned arrays stay valid after `close`: the mapping lives as long as the last of them.

    Attributes: `metadata` (mapping of key to value; see `oxillama.gguf.values` for the types),
    `kv_types` (key to the name of its type), `tensors` (name to TensorInfo, in the file's order),
    `version`, `alignment` (of the first shard), `size` (bytes of all shards), `path` (of the first
    shard, None for bytes), `paths`.
    """

    __slots__ = (
        "_shards",
        "alignment",
        "kv_types",
        "metadata",
        "path",
        "paths",
        "size",
        "tensors",
        "version",
    )

    __reduce__ = not_pickled(
        "reader: maps a file into this process",
        "open the file in each process",
    )

    def __init__(self, source: Any):
        shards = open_source(source)
        parsed, self.metadata, self.kv_types, self.tensors = _merged(shards)
        self.version: int = parsed[0].version
        self.alignment: int = parsed[0].alignment
        self.size: int = sum(len(shard.buffer) for shard in shards)
        self.paths: tuple[Path, ...] = tuple(
            shard.path for shard in shards if shard.path is not None
        )
        self.path: Path | None = shards[0].path
        self._shards: tuple[Shard, ...] | None = shards

    @classmethod
    def from_bytes(cls, buffer: Any) -> "GgufReader":
        """Read a file in memory, any contiguous bytes-like object, without copying it."""
        if isinstance(buffer, (str, os.PathLike, list, tuple)):
            raise GgufError(f"from_bytes: a {type(buffer).__name__}, wanted a bytes-like object")
        return cls(buffer)

    def joined(
        self, other: "GgufReader", tensors: Mapping[str, str], keys: Iterable[str] = ()
    ) -> "GgufReader":
        """This file with tensors of another one, by their names here, and its values of some keys.
        Both files stay open as long as the result is used.
        """
        made = object.__new__(GgufReader)
        for name in GgufReader.__slots__:
            setattr(made, name, getattr(self, name))
        count = len(self.shards)
        made._shards = (*self.shards, *other.shards)
        made.tensors = dict(self.tensors)
        for name, theirs in tensors.items():
            info = other.tensors[theirs]
            made.tensors[name] = replace(info, name=name, shard=count + info.shard)
        made.metadata, made.kv_types = (
            self.metadata.joined(other.metadata, keys),
            dict(self.kv_types),
        )
        made.kv_types.update((key, other.kv_types[key]) for key in keys)
        return made

    def data(self, name: str) -> np.ndarray:
        """The stored bytes of tensor `name`: a read-only uint8 array over the file itself, `nbytes`
        long.
        """
        info = self.tensors.get(name)
        if info is None:
            raise GgufError(f"tensor {name!r} is not in {self._label()}")
        if self._shards is None:
            raise GgufError(f"tensor {name}: {self._label()} is closed")
        return np.frombuffer(self._shards[info.shard].buffer, np.uint8, info.nbytes, info.offset)

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The open files: their bytes, names and paths."""
        if self._shards is None:
            raise GgufError(f"{self._label()}: is closed")
        return self._shards

    def release(self, name: str) -> None:
        """Tell the system that the pages of tensor `name`, in units of 2 MB, need not stay in
        memory. They are read again when needed.
        """
        info, page = self.tensors[name], 2 << 20
        mapping = self.shards[info.shard].map
        if mapping is not None:
            start = info.offset // page * page
            end = -(-(info.offset + info.nbytes) // page) * page
            mapping.release(start, min(len(mapping), end) - start)

    def is_mapped(self, name: str) -> bool:
        """Whether tensor `name` is in a mapped file, whose pages can be released and are read again
        when needed.
        """
        # mapped here: another's mapping may be private, with bytes no file has
        return self.shards[self.tensors[name].shard].map is not None

    @property
    def maps(self) -> tuple[FileMap, ...]:
        """The mappings of its files."""
        return tuple(shard.map for shard in self.shards if shard.map is not None)

    def check(self) -> None:
        """Raise GgufError if a file was changed after it was opened: what was read of it may be
        wrong.
        """
        for shard in self.shards:
            shard.check()

    def close(self) -> None:
        """Close the files. Metadata and tensor positions stay readable, and so do arrays already
        returned.
        """
        self._shards = None

    def __enter__(self) -> "GgufReader":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        try:
            if self._shards is not None and (kind is None or issubclass(kind, Exception)):
                self.check()  # whatever was made of a changed file, or raised for its bytes
        finally:
            self.close()

    def __repr__(self) -> str:
        return (
            f"<GgufReader {self._label()}: version {self.version}, {len(self.metadata)} keys, "
            f"{len(self.tensors)} tensors>"
        )

    def _label(self) -> str:
        return "bytes" if self.path is None else self.path.name
