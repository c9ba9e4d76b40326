"""The container of everything that is saved: a few named sections in one file, each under its own
hash. Byte by byte in `docs/snapshot.md`.

    prologue  64 bytes    magic 8 | u32 format version | u32 sections | u64 header length
                          | u64 file length | BLAKE3 of the header 32
    table     72 each     name 16, zero padded | u32 encoding | u32 zero | u64 stored length
                          | u64 plain length | BLAKE3 of the stored bytes 32
    sections              their stored bytes in the order of the table, nothing between or after

Little-endian; the header's hash is over its bytes without that hash. `Kind` names a container
(magic, newest version, the error it raises); `seal` makes the parts of one, `Envelope` opens one.
To save another thing, make another `Kind` and call the same two:

    KIND = Kind(b"OXISPEC1", 1, SpecSnapshotIncompatible)
    data = b"".join(seal(KIND, {"facts": dump_facts({...}), "target": blob}))
    # or write_sealed(path, KIND, {...})
    with Envelope.open(KIND, data_or_path) as saved:
        saved.expect({"facts", "target"}, optional={"draft"})
        facts, blob = load_facts(KIND, saved.read("facts")), saved.read("target", at_most=1 << 30)

Invariants (tests cite them by number):

1. Equal sections make equal bytes.
2. Nothing is allocated for a length before it is known to lie within the file, and within the
   bound that the caller of `read` gives.
3. `read` returns bytes whose hash was right, in memory that nobody else writes: a file that changes
   meanwhile is refused.
4. Every byte of a file counts: whichever is changed, left out or added, opening or reading raises
   the kind's own error.
5. A newer format version is refused by its number, before anything else of it is trusted.
"""

from __future__ import annotations

import json
import os
import re
import stat
import struct
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from blake3 import blake3

from oxillama._core.filemap import read_at
from oxillama._core.threads import default_threads
from oxillama.durable import MOST_BYTES, Writer, open_without_waiting, replacing, write_at
from oxillama.errors import (
    ConfigError,
    ContextError,
    GrammarError,
    MissingExtra,
    OxillamaError,
    SamplingError,
    SnapshotNotFound,
    starting_thread,
)

PLAIN, ZSTD = 0, 1
MAX_SECTIONS = 64
_ENCODINGS = {PLAIN: "plain", ZSTD: "zstd"}
_PROLOGUE = struct.Struct("<8sIIQQ32s")
_ENTRY = struct.Struct("<16sIIQQ32s")
_NAME = re.compile(rb"[a-z][a-z0-9._-]{0,15}\Z")
_PIECE = 4 << 20  # bytes that are read, hashed and written at a time
# most threads that copy pieces: memory that is written for the first time keeps them waiting
_COPY_THREADS = 4
# bytes from which a hash is worth several threads, and how many it takes
_MANY, _THREADS = 1 << 20, 8

Buffer = bytes | bytearray | memoryview | np.ndarray


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of container: 8 bytes of magic, the newest format version, and the error for malformed
    ones.
    """

    magic: bytes
    version: int
    refuse: type[OxillamaError]


@runtime_checkable
class Pieces(Protocol):
    """A section that is produced piece by piece while it is written."""

    @property
    def nbytes(self) -> int: ...

    def pieces(self) -> Iterator[memoryview]: ...


@dataclass(frozen=True, slots=True)
class Section:
    """A line of the table: position and encoding of the stored bytes, and their hash."""

    name: str
    encoding: int
    offset: int
    stored: int
    plain: int
    digest: bytes

    @property
    def encoding_name(self) -> str:
        """ "plain" or "zstd"."""
        return _ENCODINGS[self.encoding]


# a section made of the hashes of those before it, by name
OfDigests = Callable[[Mapping[str, bytes]], Buffer]


def seal(
    kind: Kind, sections: Mapping[str, Buffer | Sequence[Buffer]], *, compress: Collection[str] = ()
) -> list[bytes | memoryview]:
    """The parts of a container, header first, to be joined; a section can be given in pieces.

    Sections named in `compress` are stored with zstd (the extra oxillama[zstd]; ConfigError without
    it).
    """
    lines: list[bytes] = []
    parts: list[bytes | memoryview] = []
    for name, content in sections.items():
        pieces, plain = _stored(content, name in compress)
        pieces = list(pieces)
        lines.append(_line(name, name in compress, sum(map(len, pieces)), plain, digest(pieces)))
        parts.extend(pieces)
    return [_header(kind, lines, sum(map(len, parts))), *parts]


def write_sealed(
    path: str | os.PathLike[str],
    kind: Kind,
    sections: Mapping[str, Buffer | Sequence[Buffer] | Pieces | OfDigests],
    *,
    compress: Collection[str] = (),
) -> None:
    """Write a container to a file in one step (see `durable`): the bytes of `seal`, hashed while
    they are written. A section that is a function is called with the hashes of the earlier ones.
    """
    start = _PROLOGUE.size + _ENTRY.size * len(sections)
    with replacing(path) as fd:
        lines: list[bytes] = []
        digests: dict[str, bytes] = {}
        with Writer(fd, start) as out:
            for name, content in sections.items():
                if callable(content):
                    content = content(digests)
                pieces, plain = _stored(content, name in compress)
                hasher, before = blake3(), out.offset
                for batch in _batches(pieces):
                    out.write(batch)
                    for piece in batch:
                        hasher.update(piece)
                digests[name] = hasher.digest()
                lines.append(
                    _line(name, name in compress, out.offset - before, plain, digests[name])
                )
        write_at(fd, 0, [_header(kind, lines, out.offset - start)])


def _batches(pieces: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """The pieces, some bytes at a time."""
    batch, size = [], 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece)
        if size >= _PIECE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _stored(content: Any, compressed: bool) -> tuple[Iterable[memoryview], int]:
    """(the bytes to store, in pieces; how many they are before compression)."""
    pieces: Iterable[memoryview]
    if isinstance(content, Pieces):
        pieces, plain = content.pieces(), content.nbytes
    else:
        given = content if isinstance(content, (list, tuple)) else [content]
        views = [_view(piece).cast("B") for piece in given if len(piece)]
        pieces, plain = views, sum(map(len, views))
    if compressed:
        pieces = [
            memoryview(
                _zstd()
                .ZstdCompressor(level=3, write_content_size=True)
                .compress(b"".join(map(bytes, pieces)))
            )
        ]
    return pieces, plain


def _line(name: str, compressed: bool, stored: int, plain: int, hashed: bytes) -> bytes:
    raw = name.encode("ascii", "replace")
    if not _NAME.match(raw):
        raise ConfigError(
            f"section {name!r}: wanted 1 to 16 of a-z, 0-9, '.', '_' and '-', a letter first"
        )
    return _ENTRY.pack(raw, ZSTD if compressed else PLAIN, 0, stored, plain, hashed)


def _header(kind: Kind, lines: Sequence[bytes], total: int) -> bytes:
    """Prologue and table, of sections that take `total` bytes."""
    if len(lines) > MAX_SECTIONS:
        raise ConfigError(f"envelope: found {len(lines)} sections, wanted at most {MAX_SECTIONS}")
    table = b"".join(lines)
    length = _PROLOGUE.size + len(table)
    start = _PROLOGUE.pack(kind.magic, kind.version, len(lines), length, length + total, bytes(32))[
        :-32
    ]
    return b"".join((start, blake3(start + table).digest(), table))


def digest(pieces: Sequence[Buffer]) -> bytes:
    """BLAKE3 of the pieces, one after the other."""
    many = sum(map(len, pieces)) >= _MANY
    # AUTO's threads would be lost in a forked child
    hasher = blake3(max_threads=min(_THREADS, default_threads()) if many else 1)
    for piece in pieces:
        hasher.update(_view(piece))
    return hasher.digest()


def _view(piece: Buffer) -> memoryview:
    return memoryview(cast("Any", piece))  # numpy says that it is a buffer from Python 3.12 on


class Envelope:
    """An opened container. Its header has been verified; a section is verified when it is read.
    Close it, or use it with `with`.
    """

    __slots__ = ("_data", "_fd", "kind", "length", "sections", "version")

    def __init__(self, kind: Kind, data: memoryview | None, fd: int, length: int) -> None:
        self.kind, self._data, self._fd, self.length = kind, data, fd, length
        try:
            self.version, self.sections = self._header()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, kind: Kind, source: Buffer | str | os.PathLike[str]) -> Envelope:
        """Open bytes, or the file at a path; the kind's error for anything but a complete container
        of this kind, SnapshotNotFound if there is no such file, OSError if it cannot be read.
        """
        if isinstance(source, (str, os.PathLike)):
            try:
                fd = open_without_waiting(os.fspath(source))
            except FileNotFoundError:
                path = os.fspath(source)
                raise SnapshotNotFound(
                    f"{path}: no such file, wanted a saved snapshot", path
                ) from None
            except ValueError:  # a zero byte, or a lone surrogate
                raise kind.refuse(
                    f"{os.fspath(source)!r:.80}: cannot be the name of a file"
                ) from None
            except IsADirectoryError:  # Windows opens no folder
                raise kind.refuse(f"{os.fspath(source)}: not a regular file") from None
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                os.close(fd)
                raise kind.refuse(f"{os.fspath(source)}: not a regular file")
            return cls(kind, None, fd, status.st_size)
        try:
            view = _view(source).cast("B")
        except TypeError:
            raise kind.refuse(
                f"snapshot: found {type(source).__name__}, wanted bytes or a path"
            ) from None
        view = view if view.readonly else memoryview(bytes(view))
        return cls(kind, view, -1, len(view))

    def expect(self, names: Collection[str], *, optional: Collection[str] = ()) -> None:
        """Refuse a container that lacks one of these sections or has others."""
        for name in names:
            if name not in self.sections:
                raise self.kind.refuse(
                    f"section {name}: is missing, found {', '.join(self.sections) or 'none'}"
                )
        for name in self.sections:
            if name not in names and name not in optional:
                raise self.kind.refuse(
                    f"section {name}: is unknown here, wanted {', '.join((*names, *optional))}"
                )

    def check(
        self, name: str, *, at_most: int | None = None, exactly: int | None = None
    ) -> Section:
        """The table line of a section, without reading the section; refused unless its plain length
        is `exactly` this, or `at_most` this.
        """
        section = self.sections.get(name)
        if section is None:
            raise self.kind.refuse(
                f"section {name}: is missing, found {', '.join(self.sections) or 'none'}"
            )
        if exactly is not None and section.plain != exactly:
            raise self.kind.refuse(f"section {name}: found {section.plain} bytes, wanted {exactly}")
        if at_most is not None and section.plain > at_most:
            raise self.kind.refuse(
                f"section {name}: found {section.plain} bytes, wanted at most {at_most}"
            )
        if section.encoding != PLAIN and exactly is None and at_most is None:
            raise self.kind.refuse(f"section {name}: is compressed, wanted it plain")
        return section

    def read(
        self, name: str, *, at_most: int | None = None, exactly: int | None = None
    ) -> memoryview:
        """The plain bytes of a section, verified; refused before they are read unless their length
        is `exactly` this, or `at_most` this.
        """
        section = self.check(name, at_most=at_most, exactly=exactly)
        if self._data is not None or section.stored < 2 * _PIECE:
            stored = self._take(section.offset, section.stored, f"section {name}")
            self._verify(section, digest([stored]))
        else:
            out = np.empty(section.stored, np.uint8)
            self._pass_pieces(
                section, lambda at, piece: np.copyto(out[at : at + len(piece)], piece)
            )
            stored = out.data
        return stored if section.encoding == PLAIN else self._inflated(section, stored)

    def read_pieces(
        self, name: str, into: Callable[[int, memoryview], object], *, exactly: int, unit: int = 1
    ) -> None:
        """Pass the plain bytes of a section to `into(offset, piece)` while they are read, then
        verify them; an error is raised after all were passed.

        Only for memory that nobody reads before this returns. Pieces begin at multiples of `unit`.
        `into` is called by several threads and must not keep a piece.
        """
        section = self.check(name, exactly=exactly)
        if section.encoding != PLAIN or section.stored < 2 * _PIECE:
            into(0, self.read(name, exactly=exactly))
        else:
            self._pass_pieces(section, into, unit)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Envelope:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _verify(self, section: Section, hashed: bytes) -> None:
        if hashed != section.digest:
            raise self.kind.refuse(
                f"section {section.name}: its BLAKE3 hash differs from that in the header"
            )

    def _take(
        self, offset: int, length: int, what: str, buffer: memoryview | None = None
    ) -> memoryview:
        """Bytes inside the file; if they come from a file, in memory of our own (in `buffer` if it
        is given).
        """
        if self._data is not None:
            return self._data[offset : offset + length]
        out = np.empty(length, np.uint8).data if buffer is None else buffer[:length]
        self._fill(out, offset, what)
        return out

    def _pass_pieces(
        self, section: Section, into: Callable[[int, memoryview], object], unit: int = 1
    ) -> None:
        """Pass the stored bytes to `into` in pieces, then verify them."""
        size, hasher, in_order, done = -(-_PIECE // unit) * unit, blake3(), threading.Lock(), 0

        def copy() -> None:
            nonlocal done
            buffer = np.empty(size, np.uint8).data if self._data is None else None
            while done < section.stored:
                # one reads and hashes while the others copy
                with in_order:
                    at = done
                    piece = self._take(
                        section.offset + at,
                        min(size, section.stored - at),
                        f"section {section.name}",
                        buffer,
                    )
                    hasher.update(piece)
                    done += len(piece)
                if len(piece):
                    into(at, piece)

        threads = min(_COPY_THREADS, default_threads())
        with ThreadPoolExecutor(threads) as pool:
            with starting_thread():
                copying = [pool.submit(copy) for _ in range(threads)]
            for each in copying:
                each.result()
        self._verify(section, hasher.digest())

    def _fill(self, out: memoryview, offset: int, what: str) -> None:
        """Bytes of the file from `offset` on."""
        at = 0
        while at < len(out):
            got = read_at(self._fd, out[at : at + MOST_BYTES], offset + at)
            if not got:
                raise self.kind.refuse(
                    f"{what}: the file ends at byte {offset + at}, wanted {offset + len(out)}"
                )
            at += got

    def _header(self) -> tuple[int, dict[str, Section]]:
        """(version, sections) of the verified prologue and table."""
        refuse, least = self.kind.refuse, _PROLOGUE.size
        head = bytes(self._take(0, min(self.length, least), "header"))
        if head[:8] != self.kind.magic[: len(head)] or not head:
            raise refuse(f"magic: found {head[:8]!r}, wanted {self.kind.magic!r}")
        if len(head) < least:
            raise refuse(f"header: found {len(head)} bytes, wanted at least {least}")
        _, version, count, header_length, length, wanted = _PROLOGUE.unpack(head)
        if not 1 <= version <= self.kind.version:
            raise refuse(
                f"format version: found {version}, this release reads 1 to {self.kind.version}"
            )
        if length != self.length:
            raise refuse(f"length: the header says {length} bytes, found {self.length}")
        if (
            count > MAX_SECTIONS
            or header_length != least + _ENTRY.size * count
            or header_length > length
        ):
            raise refuse(
                f"header: found {count} sections in {header_length} bytes of {length}, wanted at "
                f"most {MAX_SECTIONS} of {_ENTRY.size} each"
            )
        lines = bytes(self._take(least, header_length - least, "header"))
        if blake3(head[:-32] + lines).digest() != wanted:
            raise refuse("header: its BLAKE3 hash differs from the stored one")
        return version, self._table(lines, header_length)

    def _table(self, lines: bytes, offset: int) -> dict[str, Section]:
        refuse, sections = self.kind.refuse, {}
        for raw, encoding, zero, stored, plain, hashed in _ENTRY.iter_unpack(lines):
            name = raw.rstrip(b"\0")
            if (
                not _NAME.match(name)
                or zero
                or encoding not in _ENCODINGS
                or (encoding == PLAIN and stored != plain)
            ):
                raise refuse(
                    f"section {name!r}: found encoding {encoding}, {stored} stored and {plain} "
                    "plain bytes, wanted a known encoding of them"
                )
            text = name.decode("ascii")
            if text in sections:
                raise refuse(f"section {text}: found twice, wanted once")
            sections[text] = Section(text, encoding, offset, stored, plain, hashed)
            offset += stored
        if offset != self.length:
            raise refuse(f"sections: end at byte {offset}, the file at {self.length}")
        return sections

    def _inflated(self, section: Section, stored: memoryview) -> memoryview:
        """The plain bytes of a section under zstd; never more than its table line says."""
        refuse, zstd = self.kind.refuse, _zstd()
        out, at = np.empty(section.plain, np.uint8).data, 0
        try:
            frame = zstd.get_frame_parameters(stored)
            if (
                frame.content_size != section.plain
                or zstd.frame_header_size(stored) > section.stored
            ):
                raise refuse(
                    f"section {section.name}: a zstd frame of {frame.content_size} bytes, wanted "
                    f"{section.plain}"
                )
            reader = zstd.ZstdDecompressor(max_window_size=1 << 27).stream_reader(stored)
            while at < section.plain:
                got = reader.readinto(out[at:])
                if not got:
                    raise refuse(
                        f"section {section.name}: its zstd frame ends after {at} bytes, wanted "
                        f"{section.plain}"
                    )
                at += got
            if reader.read(1):
                raise refuse(
                    f"section {section.name}: its zstd frame continues after {section.plain} bytes"
                )
        except zstd.ZstdError as error:
            raise refuse(f"section {section.name}: zstd says {error}") from None
        return out


@contextmanager
def typed(kind: Kind, what: str) -> Iterator[None]:
    """A context manager that turns errors from malformed values into the kind's own error about
    `what`.
    """
    try:
        yield
    except kind.refuse:
        raise
    except (ConfigError, ContextError, GrammarError, SamplingError) as error:
        raise kind.refuse(f"{what}: {error}") from error
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        IndexError,
        RecursionError,
    ) as error:
        if isinstance(error, OxillamaError):
            raise
        raise kind.refuse(f"{what}: malformed ({type(error).__name__}: {error})") from error


def dump_facts(facts: Mapping[str, Any]) -> bytes:
    """JSON values in the one spelling that `load_facts` accepts: sorted keys, no spaces, ASCII."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode(
        "ascii"
    )


def load_facts(kind: Kind, data: Buffer) -> dict[str, Any]:
    """The values written by `dump_facts`; the kind's error for anything else."""
    try:
        facts = json.loads(bytes(data))
        if isinstance(facts, dict) and dump_facts(facts) == bytes(data):
            return facts
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise kind.refuse(f"facts: malformed ({error})") from None
    raise kind.refuse(
        "facts: found another spelling than that of this format, wanted one JSON object"
    )


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtra("zstd", error, "zstd") from None
    return zstandard
