"""Packed weights in a file, mapped read-only and shared by processes, so that a model that was
loaded once need not be packed again.

    "OXPANEL3" | u64 length of the JSON | BLAKE3 of the JSON | JSON: key, names, size, sections,
    probe, whole | zeros up to 2 MB | sections, each at 4096 n

key: the identity of the model's files (`identity`). sections: name, first row, rows, form
of the panels, columns, offset, size, BLAKE3 of each matrix. whole: BLAKE3 of every byte of each
file of the model.

When it is opened, the header's hash, the file's length, the identity, the place and shape of every
section and sixteen pages are checked, at a cost that does not grow with the model. `verifier`
compares every section and the model's files with their hashes in the background. What is not as it
should be is logged and ignored, and the file is written again: loading never fails because of one.

Sections begin at 2 MB and are written 2 MB at a time, because a system that keeps files in large
pages makes a page of what is written together, and a token reads all of them.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from blake3 import blake3

from oxillama._core.filemap import FileMap
from oxillama._core.panels import PackedMatrix, fault_in
from oxillama._core.pool import available_bytes
from oxillama._core.threads import default_threads
from oxillama.durable import open_without_waiting, sync, write_at
from oxillama.errors import QuantError
from oxillama.gguf.source import Shard
from oxillama.weights.identity import Identity, unchanged

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed
    fcntl = None  # type: ignore[assignment]

MAGIC = b"OXPANEL3"
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
class PanelSpec:
    """One weight that a model needs in panels."""

    format: str
    rows: int
    columns: int


class WriteAborted(Exception):
    """Raised by a `pause` to end the writing of a file, of which nothing stays."""


@dataclass(frozen=True, slots=True)
class Section:
    """The panels of one matrix: where they lie in the file, and their BLAKE3 in hexadecimal."""

    name: str
    offset: int
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class MappedPanels:
    """Packed weights mapped from a file. whole: BLAKE3 of each file of the model they were made
    from.
    """

    path: Path
    file: tuple[int, int]  # device and inode
    map: FileMap
    view: memoryview
    matrices: Mapping[Key, PackedMatrix]
    sections: tuple[Section, ...]
    whole: tuple[str, ...]

    def remove(self) -> None:
        """Remove the file, unless another one has replaced it."""
        with suppress(OSError):
            status = os.stat(self.path)
            if (status.st_dev, status.st_ino) == self.file:
                os.unlink(self.path)


def path_of(folder: Path, key: Identity) -> Path:
    """The file for the packed weights of a model. It depends on the path of the model's files, so
    that the weights of a changed file replace the old ones.
    """
    place = [key["layout"], key["byteorder"], [one[:2] for one in key["files"]]]
    return folder / f"{blake3(json.dumps(place).encode()).hexdigest()[:32]}.panels"


# ---- reading
# --------------------------------------------------------------------------------------------------


def open_panels(
    path: Path, key: Identity, wanted: Mapping[Key, PanelSpec], *, num_threads: int = 0
) -> MappedPanels | None:
    """The weights of a file, mapped; None if there is none or it is invalid, which is logged."""
    try:
        header, mapping, file = _mapped(path)
        view = memoryview(mapping)
        if header["key"] != key:
            raise ValueError("it was made from other files")
        matrices = _matrices(view, header["sections"], wanted)
        sections = tuple(Section(one[0], *one[5:]) for one in header["sections"])
        whole = tuple(map(str, header["whole"]))
        if len(whole) != len(key["files"]):
            raise ValueError(f"{len(whole)} hashes of {len(key['files'])} files")
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
        # not the error itself: who keeps the record would keep the map, and the file as it is
        log.warning("sidecar %s is left out and will be written again: %s", path, str(error))
        return None
    return MappedPanels(path, file, mapping, view, matrices, sections, whole)


def verify(path: str | os.PathLike[str]) -> bool:
    """Whether every byte of a sidecar is what was written; reads all of it."""
    try:
        header, mapping, _ = _mapped(path)
        view, threads = memoryview(mapping), default_threads()
        return all(
            blake3(view[offset : offset + size], max_threads=threads).hexdigest() == digest
            for *_, offset, size, digest in header["sections"]
        )
    except _DAMAGED:
        return False


def names_of(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The names that the model's files had when the sidecar was written; empty if its header is
    damaged.
    """
    try:
        with _opened(path) as file:
            return tuple(map(str, _header(file)["names"]))
    except _DAMAGED:
        return ()


def _mapped(path: str | os.PathLike[str]) -> tuple[dict, FileMap, tuple[int, int]]:
    """The header and the bytes of a file with the right length, with its device and inode."""
    with _opened(path) as file:
        header, status = _header(file), os.fstat(file.fileno())
        # its time says when it was used last
        mapped = FileMap(file.fileno(), f"sidecar {path}", dated=False)
    # before anything is looked at: what comes from the disk in small pages stays so
    mapped.ask_large_pages()
    if len(mapped) != header["size"]:
        raise ValueError(f"{len(mapped)} bytes, its header says {header['size']}")
    return header, mapped, (status.st_dev, status.st_ino)


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
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
    view: memoryview, sections: Sequence[Sequence], wanted: Mapping[Key, PanelSpec]
) -> dict[Key, PackedMatrix]:
    found = {}
    for name, start, rows, form, columns, offset, size, _ in sections:
        want = wanted.get((name, start, rows))
        if want is None:
            continue
        if offset % _PAGE or offset < 0 or size < 0 or offset + size > len(view):
            raise ValueError(f"{name}: {size} bytes at {offset} of {len(view)}")
        made = PackedMatrix.over(view[offset : offset + size], form, rows, columns)
        if want != PanelSpec(made.format, rows, columns):
            raise ValueError(
                f"{name}: {form} ({rows}, {columns}), wanted {want.format} ({want.rows}, "
                f"{want.columns})"
            )
        found[name, start, rows] = made
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
# --------------------------------------------------------------------------------------------------


def write_panels(
    path: Path,
    key: Identity,
    matrices: Mapping[Key, PackedMatrix],
    *,
    shards: Sequence[Shard] = (),
    pause: Callable[[int, int], None] = lambda done, size: None,
) -> bool:
    """Write a file completely or not at all; False if another process is writing it or has written
    it meanwhile.

    shards: the model's files, which are hashed. `pause(done, size)` is called before each 2 MB that
    is written or hashed; it may wait, or raise WriteAborted, as this function does if the files
    were changed. OSError if the disk refuses.
    """
    names = [str(shard.label) for shard in shards]
    header, places = _laid_out(key, names, matrices)
    temporary = path.with_name(path.name + ".tmp")
    file = _claimed(temporary)
    if file is None:
        return False
    with file:
        try:
            if _holds(path, header):
                _remove(temporary, file)
                return False
            total = header["size"] + sum(len(shard.buffer) for shard in shards)
            _write_sections(file.fileno(), header, places, matrices, pause, total)
            _hash_files(header, shards, pause, total)
            if not unchanged(shards):
                raise WriteAborted("the model's file was changed since it was loaded")
            mapped = memoryview(FileMap(file.fileno(), str(temporary), dated=False))
            header["probe"] = _probe(mapped, header["sections"])
            mapped.release()
            del mapped  # Windows renames no file that is mapped or open
            text = json.dumps(header).encode()
            head = MAGIC + len(text).to_bytes(8, "little") + blake3(text).digest() + text
            write_at(file.fileno(), 0, [head])
            sync(file.fileno())
            if fcntl is None:
                file.close()
                gc.collect()  # maps of the old file that nobody uses any more
            os.replace(temporary, path)
        except BaseException:
            _remove(temporary, file)
            raise
    return True


def _remove(temporary: Path, file: BinaryIO) -> None:
    """Remove the file that is being written."""
    if fcntl is None:
        file.close()
    temporary.unlink(missing_ok=True)


def _laid_out(
    key: dict, names: list[str], matrices: Mapping[Key, PackedMatrix]
) -> tuple[dict, list[int]]:
    """The header without hashes, and where each section begins."""
    sections: list[list[Any]] = []
    position = 0
    for (name, start, rows), matrix in matrices.items():
        sections.append(
            [name, start, rows, matrix.form, matrix.cols, position, matrix.nbytes, "0" * 64]
        )
        position += -(-matrix.nbytes // _PAGE) * _PAGE
    header = {
        "key": key,
        "names": names,
        "size": position,
        "sections": sections,
        "probe": "0" * 64,
        "whole": ["0" * 64 for _ in names],
    }
    # no need of large pages where there is not even one
    step = PIECE if position >= PIECE else _PAGE
    # numbers grow by the header's length
    first = -(-(_HEAD + len(json.dumps(header)) + 32 * (len(sections) + 1)) // step) * step
    for section in sections:
        section[5] += first
    header["size"] = position + first
    return header, [section[5] for section in sections]


def _holds(path: Path, wanted: dict) -> bool:
    """Whether a sidecar with this header exists already, as far as `open_panels` checks."""
    try:
        header, mapping, _ = _mapped(path)
        return (
            header["key"] == wanted["key"]
            and header["size"] == wanted["size"]
            and [section[:7] for section in header["sections"]]
            == [section[:7] for section in wanted["sections"]]
            and header["probe"] == _probe(memoryview(mapping), wanted["sections"])
        )
    except _DAMAGED:
        return False


def _claimed(temporary: Path) -> BinaryIO | None:
    """The file to write into, locked and empty; None if another process has it."""
    os.makedirs(temporary.parent, mode=0o700, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    if fcntl is None:
        with suppress(OSError):  # it is open elsewhere, or there is none
            os.unlink(temporary)
        try:
            return os.fdopen(os.open(temporary, flags | os.O_EXCL, 0o600), "rb+", buffering=0)
        except FileExistsError:
            return None
    file = os.fdopen(os.open(temporary, flags, 0o600), "rb+", buffering=0)
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
    """Remove a temporary file if it is not being written: under the writer's own lock, so that none
    can begin meanwhile.
    """
    with suppress(OSError):
        if fcntl is None:
            temporary.unlink()
            return
        with open(temporary, "rb", opener=open_without_waiting) as file:
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
    total: int,
) -> None:
    synced = 0
    digests = [blake3() for _ in places]
    os.ftruncate(descriptor, header["size"])
    for offset, views, hashed in _pieces(places, matrices):
        pause(offset, total)
        for index, view in hashed:
            digests[index].update(view)
        write_at(descriptor, offset, views)
        if offset - synced >= _SYNC:
            _sync(descriptor)
            synced = offset
    for section, digest in zip(header["sections"], digests):
        section[7] = digest.hexdigest()


def _hash_files(
    header: dict, shards: Sequence[Shard], pause: Callable[[int, int], None], total: int
) -> None:
    done = header["size"]
    for number, shard in enumerate(shards):
        hasher = blake3()
        for at in range(0, len(shard.buffer), PIECE):
            pause(done + at, total)
            hasher.update(shard.buffer[at : at + PIECE])
            let_go(shard, at)
        done += len(shard.buffer)
        header["whole"][number] = hasher.hexdigest()


def let_go(shard: Shard, at: int) -> None:
    """Release a piece of a mapped file that was read once; it is read again if needed."""
    if shard.map is not None:
        shard.map.release(at, min(PIECE, len(shard.map) - at))


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
