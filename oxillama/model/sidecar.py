"""Sidecars: packed weights on disk, mapped read-only and shared, so that a model that was loaded once need not be packed again.

    "OXPANEL1" | u64 length of the JSON | BLAKE3 of the JSON | JSON: key, size, sections, probe | zeros up to 4096 | sections, each at 4096 n

A sidecar is found by its key: the panel layout of this build, the byte order, and for every file of the model its size, time of change and the
BLAKE3 of its ends. At its opening the header's hash, the file's length, the place and shape of every section and sixteen probes are checked, at
a cost that does not grow with the model (`verify` hashes all of it). Whatever does not hold is logged and ignored, and the sidecar is written
again: loading never fails because of one. Sidecars are written in the background under another name and renamed when whole.
"""
from __future__ import annotations

import atexit
import json
import logging
import mmap
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from oxillama._core.kernels import PANEL_LAYOUT
from oxillama._core.panels import PackedMatrix
from oxillama.errors import ConfigError, QuantError
from oxillama.gguf import GgufReader

MAGIC = b"OXPANEL1"
LEAST_BYTES = 256 << 20         # of weights that "auto" makes one for: smaller ones are packed in a tenth of a second
LIMIT_BYTES = 32 << 30          # of all sidecars of a folder; OXILLAMA_SIDECAR_LIMIT names another number
_HEAD, _PAGE, _SLICE = 48, 4096, 8 << 20
_MAX_JSON = 64 << 20
_PROBES = 16
_STALE_SECONDS = 86400
_log = logging.getLogger("oxillama.sidecar")

Key = tuple[str, int, int]      # a weight: tensor name, first row, rows


@dataclass(frozen=True, slots=True)
class Wanted:
    """One weight that a model needs in panels."""

    format: str
    rows: int
    columns: int


def sidecar_folder(setting: str | os.PathLike | bool) -> Path | None:
    """The folder that a setting means: False none, "auto" the cache folder, any other text or path itself.

    The environment variable OXILLAMA_SIDECAR wins over the setting: "0" turns sidecars off, "auto" or a folder says where they are.
    """
    setting = os.environ.get("OXILLAMA_SIDECAR") or setting
    if setting is False or setting == "0":
        return None
    if setting is True or not isinstance(setting, (str, os.PathLike)):
        raise ConfigError(f"sidecar: found {setting!r}, wanted 'auto', a folder or False")
    if setting == "auto":
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oxillama"
    return Path(setting)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the sidecar of one model is, or would be."""

    path: Path
    key: dict

    def open(self, wanted: Mapping[Key, Wanted]) -> dict[Key, PackedMatrix] | None:
        """The weights of the sidecar, mapped; None where there is none that holds."""
        return open_sidecar(self.path, self.key, wanted)

    def write(self, matrices: Mapping[Key, PackedMatrix]) -> Writer:
        """Begin to write it in the background."""
        writer = Writer(self.path, self.key, matrices)
        _running.add(writer)
        writer.start()
        return writer


def sidecar_place(reader: GgufReader, setting: str | os.PathLike | bool, nbytes: int) -> Place | None:
    """The place of a model's sidecar; None where it shall have none: by its setting, its size, or because it came from memory."""
    folder = sidecar_folder(setting)
    if folder is None or nbytes < LEAST_BYTES and "auto" in (setting, os.environ.get("OXILLAMA_SIDECAR")):
        return None
    key = key_of(reader)
    return None if key is None else Place(path_of(folder, key), key)


def limit_bytes() -> int:
    """Most bytes that the sidecars of a folder may take together; ConfigError where OXILLAMA_SIDECAR_LIMIT is no number."""
    text = os.environ.get("OXILLAMA_SIDECAR_LIMIT", str(LIMIT_BYTES))
    if not text.isdecimal():
        raise ConfigError(f"OXILLAMA_SIDECAR_LIMIT: found {text!r}, wanted a number of bytes")
    return int(text)


def key_of(reader: GgufReader) -> dict | None:
    """What a sidecar of these files must have been made from; None where they came from memory."""
    files = []
    for shard in reader.shards:
        if shard.path is None:
            return None
        try:
            stat = os.stat(shard.path)
        except OSError:
            return None
        ends = [blake3(shard.buffer[:1 << 16]).hexdigest(), blake3(shard.buffer[-(1 << 16):]).hexdigest()]
        files.append([stat.st_size, stat.st_mtime_ns, *ends])
    return {"layout": PANEL_LAYOUT, "byteorder": sys.byteorder, "files": files}


def path_of(folder: Path, key: dict) -> Path:
    """Where the sidecar of a key lies."""
    return folder / f"{blake3(json.dumps(key).encode()).hexdigest()[:32]}.panels"


def open_sidecar(path: Path, key: dict, wanted: Mapping[Key, Wanted]) -> dict[Key, PackedMatrix] | None:
    """The weights of a sidecar, mapped; None where there is none or it does not hold, which is logged."""
    try:
        with open(path, "rb") as file:
            header = _header(file)
            if header["key"] != key:
                raise ValueError("it was made from other files")
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            if len(view) != header["size"]:
                raise ValueError(f"{len(view)} bytes, its header says {header['size']}")
            found = _matrices(view, header["sections"], wanted)
            if _probe(view) != header["probe"]:
                raise ValueError("its bytes are not those that were written")
        os.utime(path)          # what was used last is evicted last
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, QuantError) as error:
        _log.warning("sidecar %s is left out and will be written again: %s", path, error)
        return None
    return found


def verify(path: str | os.PathLike) -> bool:
    """Whether every byte of a sidecar is what was written; reads all of it."""
    try:
        with open(path, "rb") as file:
            header = _header(file)
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            return len(view) == header["size"] and all(
                blake3(view[offset:offset + size], max_threads=blake3.AUTO).hexdigest() == digest
                for *_, offset, size, digest in header["sections"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _header(file) -> dict:
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


def _matrices(view: memoryview, sections: Sequence[Sequence], wanted: Mapping[Key, Wanted]) -> dict[Key, PackedMatrix]:
    found = {}
    for name, start, rows, format, columns, offset, size, _ in sections:
        want = wanted.get((name, start, rows))
        if want is None:
            continue
        if want != Wanted(format, rows, columns) or offset % _PAGE or offset < 0 or size < 0 or offset + size > len(view):
            raise ValueError(f"{name}: {format} ({rows}, {columns}), wanted {want.format} ({want.rows}, {want.columns})")
        found[name, start, rows] = PackedMatrix.over(view[offset:offset + size], format, rows, columns)
    if len(found) != len(wanted):
        raise ValueError(f"{len(found)} of {len(wanted)} weights")
    return found


def _probe(view: memoryview) -> str:
    """The hash of sixteen pages spread over the sections."""
    hasher = blake3()
    for i in range(_PROBES):
        at = len(view) * i // _PROBES // _PAGE * _PAGE
        hasher.update(view[at:at + _PAGE] if at else view[-_PAGE:])         # the first page is the header, which has a hash of its own
    return hasher.hexdigest()


# ---- writing -------------------------------------------------------------------------------------------------------------

_running: set[Writer] = set()


class Writer(threading.Thread):
    """Writes one sidecar in the background; an interpreter that ends waits for it."""

    def __init__(self, path: Path, key: dict, matrices: Mapping[Key, PackedMatrix]) -> None:
        super().__init__(name="oxillama-sidecar", daemon=True)
        self.path, self.key, self.matrices = path, key, dict(matrices)
        self.cancelled = threading.Event()

    def run(self) -> None:
        """Thread body: every failure is logged, none is raised."""
        try:
            write_sidecar(self.path, self.key, self.matrices, cancelled=self.cancelled)
        except (OSError, MemoryError) as error:
            _log.warning("sidecar %s is not written: %s", self.path, error)
        finally:
            self.matrices = {}
            _running.discard(self)


def _finish() -> None:
    """An interpreter that ends waits for its sidecars; Ctrl-C gives them up."""
    writers = list(_running)
    try:
        for writer in writers:
            writer.join()
    except KeyboardInterrupt:
        for writer in writers:
            writer.cancelled.set()
        for writer in writers:
            writer.join(5)


atexit.register(_finish)


def write_sidecar(path: Path, key: dict, matrices: Mapping[Key, PackedMatrix], *, cancelled: threading.Event | None = None) -> bool:
    """Write a sidecar whole or not at all; False where the disk has too little room, the limit is too small, or it was cancelled."""
    sections, position = [], 0
    for (name, start, rows), matrix in matrices.items():
        sections.append([name, start, rows, matrix.format, matrix.cols, position, matrix.nbytes, "0" * 64])
        position += -(-matrix.nbytes // _PAGE) * _PAGE
    header = {"key": key, "size": position, "sections": sections, "probe": "0" * 64}
    first = -(-(_HEAD + len(json.dumps(header)) + 32 * (len(sections) + 1)) // _PAGE) * _PAGE       # numbers grow by the header's length
    for section in sections:
        section[5] += first
    header["size"] = size = position + first
    os.makedirs(path.parent, mode=0o700, exist_ok=True)
    if not _make_room(path.parent, size):
        return False
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with open(temporary, "xb+", buffering=0) as file:
            for section, matrix in zip(sections, matrices.values()):
                digest = blake3()
                file.seek(section[5])
                view = memoryview(matrix)
                for at in range(0, len(view), _SLICE):
                    if cancelled is not None and cancelled.is_set():
                        return False
                    digest.update(view[at:at + _SLICE])
                    _write(file, view[at:at + _SLICE])
                section[7] = digest.hexdigest()
            file.truncate(size)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
                header["probe"] = _probe(view)
            text = json.dumps(header).encode()
            file.seek(0)
            _write(file, MAGIC + len(text).to_bytes(8, "little") + blake3(text).digest() + text)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _write(file, view) -> None:
    view = memoryview(view)
    while len(view):
        view = view[file.write(view):]


def _make_room(folder: Path, size: int) -> bool:
    """Evict sidecars, those used longest ago first, until another fits the limit; False where it cannot, or the disk would be nearly full."""
    limit = limit_bytes()
    entries = []
    for entry in os.scandir(folder):
        if entry.name.endswith(".tmp") and ".panels." in entry.name and time.time() - entry.stat().st_mtime > _STALE_SECONDS:
            Path(entry.path).unlink(missing_ok=True)        # of a process that was killed
        elif entry.name.endswith(".panels"):
            entries.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
    held = sum(entry[1] for entry in entries)
    for _, bytes_, name in sorted(entries):
        if size > limit or held + size <= limit:
            break
        Path(name).unlink(missing_ok=True)
        held -= bytes_
    disk = shutil.disk_usage(folder)
    return held + size <= limit and disk.free - size >= disk.total // 20
