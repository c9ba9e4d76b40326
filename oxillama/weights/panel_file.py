"""Sidecars: packed weights on disk, mapped read-only and shared, so that a model that was loaded
once need not be packed again.

    "OXPANEL2" | u64 length of the JSON | BLAKE3 of the JSON | JSON: key, names, size, sections,
    probe | zeros up to 2 MB | sections, each at 4096 n

A sidecar is found by its key: the panel layout of this build, the byte order, and for every file of
the model its size, time of change and the BLAKE3 of its ends. At its opening the header's hash, the
file's length, the place and shape of every section and sixteen probes are checked, at a cost that
does not grow with the model (`verify` hashes all of it). Whatever does not hold is logged and
ignored, and the sidecar is written again: loading never fails because of one.

Sections begin at 2 MB and are written 2 MB at a time, because a system that keeps files in large
pages makes a page of what is written together, and a token reads all of them. Where sidecars lie is
said in `sidecars`, when they are written in `keeper`.
"""

from __future__ import annotations

import fcntl
import json
import logging
import mmap
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from oxillama._core.kernels import PANEL_LAYOUT
from oxillama._core.panels import PackedMatrix, fault_in
from oxillama._core.pool import available_bytes
from oxillama.errors import QuantError
from oxillama.gguf import GgufReader
from oxillama.gguf.source import open_without_waiting

MAGIC = b"OXPANEL2"
PIECE = 2 << 20  # bytes written at a time: a large page
# bytes between two syncs, so that little is ever on its way to the disk
_SYNC = 16 * PIECE
_HEAD, _PAGE = 48, 4096
_MAX_JSON = 64 << 20
_PROBES = 16
# what may be raised by bytes that no writer has left so
_DAMAGED = (OSError, ValueError, KeyError, TypeError, RecursionError, QuantError)
_ZEROS = memoryview(bytes(_PAGE))
_sync = getattr(os, "fdatasync", os.fsync)
log = logging.getLogger("oxillama.sidecar")

Key = tuple[str, int, int]  # a weight: tensor name, first row, rows


@dataclass(frozen=True, slots=True)
class Wanted:
    """One weight that a model needs in panels."""

    format: str
    rows: int
    columns: int


class GivenUp(Exception):
    """Raised by a `pause` to end the writing of a sidecar, of which nothing stays."""


def key_of(reader: GgufReader) -> dict | None:
    """What a sidecar of these files must have been made from; None where they came from memory."""
    files = []
    for shard in reader.shards:
        if shard.path is None:
            return None
        try:
            found = os.stat(shard.path)
        except OSError:
            return None
        ends = [
            blake3(shard.buffer[: 1 << 16]).hexdigest(),
            blake3(shard.buffer[-(1 << 16) :]).hexdigest(),
        ]
        files.append([found.st_size, found.st_mtime_ns, *ends])
    return {"layout": PANEL_LAYOUT, "byteorder": sys.byteorder, "files": files}


def path_of(folder: Path, key: dict) -> Path:
    """Where the sidecar of a key lies."""
    return folder / f"{blake3(json.dumps(key).encode()).hexdigest()[:32]}.panels"


# ---- reading
# -------------------------------------------------------------------------------------------------------------


def open_sidecar(
    path: Path, key: dict, wanted: Mapping[Key, Wanted], *, num_threads: int = 0
) -> dict[Key, PackedMatrix] | None:
    """The weights of a sidecar, mapped and in memory; None where there is none or it does not hold,
    which is logged.
    """
    try:
        header, view = _mapped(path)
        if header["key"] != key:
            raise ValueError("it was made from other files")
        found = _matrices(view, header["sections"], wanted)
        free = available_bytes()
        if free is None or len(view) < free:  # else it would drive out what is in use
            fault_in(view, num_threads=num_threads)
        if _probe(view, header["sections"]) != header["probe"]:
            raise ValueError("its bytes are not those that were written")
        with suppress(OSError):  # a folder of others that may only be read
            os.utime(path)  # what was used last is evicted last
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        log.info("sidecar %s is left out: %s", path, error)
        return None
    except _DAMAGED as error:
        log.warning("sidecar %s is left out and will be written again: %s", path, error)
        return None
    return found


def verify(path: str | os.PathLike) -> bool:
    """Whether every byte of a sidecar is what was written; reads all of it."""
    try:
        header, view = _mapped(path)
        return all(
            blake3(view[offset : offset + size], max_threads=blake3.AUTO).hexdigest() == digest
            for *_, offset, size, digest in header["sections"]
        )
    except _DAMAGED:
        return False


def names_of(path: str | os.PathLike) -> tuple[str, ...]:
    """The names that the model's files had when the sidecar was written; none where its header is
    damaged.
    """
    try:
        with _opened(path) as file:
            return tuple(map(str, _header(file)["names"]))
    except _DAMAGED:
        return ()


def _mapped(path: str | os.PathLike) -> tuple[dict, memoryview]:
    """The header and the bytes of a sidecar whose length is what it says."""
    with _opened(path) as file:
        header = _header(file)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    # before anything is looked at: what comes from the disk in small pages stays so
    with suppress(AttributeError, OSError):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    if len(mapped) != header["size"]:
        raise ValueError(f"{len(mapped)} bytes, its header says {header['size']}")
    return header, memoryview(mapped)


@contextmanager
def _opened(path: str | os.PathLike) -> Iterator[BinaryIO]:
    with open(path, "rb", opener=open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no regular file")
        yield file


def _header(file: BinaryIO) -> dict:
    head = file.read(_HEAD)
    if len(head) < _HEAD or head[:8] != MAGIC:
        raise ValueError(f"starts with {head[:8]!r}, wanted {MAGIC!r}")
    length = int.from_bytes(head[8:16], "little")
    text = file.read(min(length, _MAX_JSON))
    if len(text) != length or blake3(text).digest() != head[16:]:
        raise ValueError("its header is damaged")
    header = json.loads(text)
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    return header


def _matrices(
    view: memoryview, sections: Sequence[Sequence], wanted: Mapping[Key, Wanted]
) -> dict[Key, PackedMatrix]:
    found = {}
    for name, start, rows, format, columns, offset, size, _ in sections:
        want = wanted.get((name, start, rows))
        if want is None:
            continue
        if (
            want != Wanted(format, rows, columns)
            or offset % _PAGE
            or offset < 0
            or size < 0
            or offset + size > len(view)
        ):
            raise ValueError(
                f"{name}: {format} ({rows}, {columns}), wanted {want.format} ({want.rows}, {want.columns})"
            )
        found[name, start, rows] = PackedMatrix.over(
            view[offset : offset + size], format, rows, columns
        )
    if len(found) != len(wanted):
        raise ValueError(f"{len(found)} of {len(wanted)} weights")
    return found


def _probe(view: memoryview, sections: Sequence[Sequence]) -> str:
    """The hash of sixteen pages spread over the file; the last for each that lies in the header,
    which is written after it and has its own.
    """
    hasher, first = blake3(), min((section[5] for section in sections), default=len(view))
    for i in range(_PROBES):
        at = len(view) * i // _PROBES // _PAGE * _PAGE
        hasher.update(view[at : at + _PAGE] if at >= first else view[-_PAGE:])
    return hasher.hexdigest()


# ---- writing
# -------------------------------------------------------------------------------------------------------------


def write_sidecar(
    path: Path,
    key: dict,
    matrices: Mapping[Key, PackedMatrix],
    *,
    names: Sequence[str] = (),
    pause: Callable[[int, int], None] | None = None,
) -> bool:
    """Write a sidecar whole or not at all; False where another process is writing it, or has
    written it meanwhile.

    `pause(written, size)` is called before each 2 MB and may wait, or raise GivenUp. OSError where
    the disk refuses.
    """
    header, places = _laid_out(key, list(names), matrices)
    temporary = path.with_name(path.name + ".tmp")
    file = _claimed(temporary)
    if file is None:
        return False
    with file:
        try:
            if _holds(path, header):
                temporary.unlink(missing_ok=True)
                return False
            _write_sections(
                file.fileno(), header, places, matrices, pause or (lambda written, size: None)
            )
            with (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
                memoryview(mapped) as view,
            ):
                header["probe"] = _probe(view, header["sections"])
            text = json.dumps(header).encode()
            _write(
                file.fileno(),
                [
                    memoryview(
                        MAGIC + len(text).to_bytes(8, "little") + blake3(text).digest() + text
                    )
                ],
                0,
            )
            os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return True


def _laid_out(
    key: dict, names: list[str], matrices: Mapping[Key, PackedMatrix]
) -> tuple[dict, list[int]]:
    """The header without hashes, and where each section begins."""
    sections, position = [], 0
    for (name, start, rows), matrix in matrices.items():
        sections.append(
            [name, start, rows, matrix.format, matrix.cols, position, matrix.nbytes, "0" * 64]
        )
        position += -(-matrix.nbytes // _PAGE) * _PAGE
    header = {"key": key, "names": names, "size": position, "sections": sections, "probe": "0" * 64}
    # no need of large pages where there is not even one
    step = PIECE if position >= PIECE else _PAGE
    # numbers grow by the header's length
    first = -(-(_HEAD + len(json.dumps(header)) + 32 * (len(sections) + 1)) // step) * step
    for section in sections:
        section[5] += first
    header["size"] = position + first
    return header, [section[5] for section in sections]


def _holds(path: Path, wanted: dict) -> bool:
    """Whether a sidecar of this header lies there already, as far as `open_sidecar` looks."""
    try:
        header, view = _mapped(path)
        return (
            header["key"] == wanted["key"]
            and header["size"] == wanted["size"]
            and [section[:7] for section in header["sections"]]
            == [section[:7] for section in wanted["sections"]]
            and header["probe"] == _probe(view, wanted["sections"])
        )
    except _DAMAGED:
        return False


def _claimed(temporary: Path):
    """The file to write into, locked and empty; None where another process has it."""
    os.makedirs(temporary.parent, mode=0o700, exist_ok=True)
    file = os.fdopen(
        os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "rb+", buffering=0
    )
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(temporary).st_ino == os.fstat(file.fileno()).st_ino:
            file.truncate(0)  # what a process that was killed had left
            return file
    except (BlockingIOError, FileNotFoundError):  # another holds it; or has just renamed it
        pass
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def remove_abandoned(temporary: Path) -> None:
    """Remove a sidecar's temporary file if nobody is writing it: under the writer's own lock, so
    that none can begin meanwhile.
    """
    with suppress(OSError), open(temporary, "rb", opener=open_without_waiting) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # else its writer has just renamed it
        if os.stat(temporary).st_ino == os.fstat(file.fileno()).st_ino:
            temporary.unlink()


def _write_sections(
    descriptor: int,
    header: dict,
    places: Sequence[int],
    matrices: Mapping[Key, PackedMatrix],
    pause: Callable[[int, int], None],
) -> None:
    size, synced = header["size"], 0
    digests = [blake3() for _ in places]
    os.ftruncate(descriptor, size)
    for offset, views, hashed in _pieces(places, matrices):
        pause(offset, size)
        for index, view in hashed:
            digests[index].update(view)
        _write(descriptor, views, offset)
        if offset - synced >= _SYNC:
            _sync(descriptor)
            synced = offset
    for section, digest in zip(header["sections"], digests):
        section[7] = digest.hexdigest()


def _pieces(
    places: Sequence[int], matrices: Mapping[Key, PackedMatrix]
) -> Iterator[tuple[int, list[memoryview], list[tuple[int, memoryview]]]]:
    """What is written at once: its offset, its views of matrices and of zeros between them, and the
    views with their matrix's number.
    """
    position = start = places[0] if places else 0
    views: list[memoryview] = []
    hashed: list[tuple[int, memoryview]] = []
    for index, (place, matrix) in enumerate(zip(places, matrices.values())):
        data, at = memoryview(matrix), 0
        # less than a page, up to its end: never the end of a piece alone
        if place > position:
            views.append(_ZEROS[: place - position])
            position = place
        while at < len(data):
            if position % PIECE == 0 and views:
                yield start, views, hashed
                start, views, hashed = position, [], []
            part = data[at : at + PIECE - position % PIECE]
            views.append(part)
            hashed.append((index, part))
            at, position = at + len(part), position + len(part)
    if views:
        yield start, views, hashed


def _write(descriptor: int, views: list[memoryview], offset: int) -> None:
    while views:
        written = os.pwritev(descriptor, views[:1000], offset)
        offset += written
        while views and written >= len(views[0]):
            written -= len(views[0])
            views = views[1:]
        if written:
            views = [views[0][written:], *views[1:]]
