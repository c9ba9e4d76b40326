"""The folder of sidecars: which one a setting means, what lies in it, and who makes room for whom."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oxillama._core.panels import PackedMatrix
from oxillama.errors import ConfigError
from oxillama.gguf import GgufReader
from oxillama.weights.panel_file import (
    PIECE,
    Key,
    Wanted,
    key_of,
    log,
    names_of,
    open_sidecar,
    path_of,
    remove_abandoned,
)

# of weights that "auto" makes one for: smaller ones are packed in a tenth of a second
LEAST_BYTES = 256 << 20
# of all sidecars of a folder; OXILLAMA_SIDECAR_LIMIT names another number
LIMIT_BYTES = 32 << 30


@dataclass(frozen=True, slots=True)
class Entry:
    """A sidecar in a folder: `used` is when it was last opened or written, in seconds since 1970;
    names: of the model's files.
    """

    path: Path
    nbytes: int
    used: float
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the sidecar of one model is, or would be; `choosy`: only where it would be as fast as
    memory.
    """

    path: Path
    key: dict
    names: tuple[str, ...]
    choosy: bool

    def open(
        self, wanted: Mapping[Key, Wanted], *, num_threads: int = 0
    ) -> dict[Key, PackedMatrix] | None:
        """The weights of the sidecar, mapped; None where there is none that holds."""
        return open_sidecar(self.path, self.key, wanted, num_threads=num_threads)

    def refusal(self, nbytes: int) -> str | None:
        """Why no sidecar of so many bytes can be written here, None where it can; sidecars used
        long ago are removed for it.
        """
        folder = self.path.parent
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if self.choosy and not large_pages(folder):
            return "this system has large pages for memory but not for files of this folder, and weights in small pages are read more slowly"
        # last: others are removed for what is written, never for what is refused
        if not _make_room(folder, nbytes):
            return f"{nbytes} bytes have no room: the limit is {limit_bytes()} bytes, {shutil.disk_usage(folder).free} bytes of the disk are free"
        return None


def sidecar_folder(setting: str | os.PathLike | bool) -> Path | None:
    """The folder that a setting means: False none, "auto" the cache folder, any other text or path
    itself.

    The environment variable OXILLAMA_SIDECAR wins over the setting: "0" turns sidecars off, "auto"
    or a folder says where they are.
    """
    setting = os.environ.get("OXILLAMA_SIDECAR") or setting
    if setting is False or setting == "0":
        return None
    if setting is True or not isinstance(setting, (str, os.PathLike)):
        raise ConfigError(f"sidecar: found {setting!r}, wanted 'auto', a folder or False")
    return cache_folder() if setting == "auto" else Path(setting)


def cache_folder() -> Path | None:
    """What "auto" means; None for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oxillama"
    except RuntimeError:
        return None


def sidecar_place(
    reader: GgufReader, setting: str | os.PathLike | bool, nbytes: int
) -> Place | None:
    """The place of a model's sidecar; None where it shall have none: by its setting, its size, or
    because it came from memory.
    """
    folder = sidecar_folder(setting)
    automatic = (os.environ.get("OXILLAMA_SIDECAR") or setting) == "auto"
    if folder is None or automatic and nbytes < LEAST_BYTES:
        return None
    limit_bytes()  # what is no number is said now, not by a thread
    key = key_of(reader)
    return (
        None
        if key is None
        else Place(path_of(folder, key), key, tuple(path.name for path in reader.paths), automatic)
    )


def large_pages(folder: Path) -> bool:
    """Whether files of a folder come into memory in pages as large as those that memory itself has."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled") as file:
            if "[never]" in file.read():
                return True
    except OSError:  # another system, or none of it
        return True
    with tempfile.TemporaryFile(dir=folder) as file:
        for i in range(2):
            os.pwrite(file.fileno(), bytes(PIECE), i * PIECE)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            mapped.madvise(mmap.MADV_HUGEPAGE)
            seen = np.frombuffer(mapped, np.uint8)
            start, _ = f"{seen.__array_interface__['data'][0]:x}", seen[::4096].sum()
            del seen
            return _large_bytes(start) > 0


def _large_bytes(start: str) -> int:
    """Bytes in large pages of the mapped file that begins at a hexadecimal address."""
    with open("/proc/self/smaps") as file:
        mine = False
        for line in file:
            name, *words = line.split()
            if "-" in name and not name.endswith(":"):
                mine = name.lstrip("0").startswith(f"{start}-")
            elif mine and name in ("FilePmdMapped:", "ShmemPmdMapped:") and words[0] != "0":
                return 1024 * int(words[0])
    return 0


def limit_bytes() -> int:
    """Most bytes that the sidecars of a folder may take together; ConfigError where
    OXILLAMA_SIDECAR_LIMIT is no number.
    """
    text = os.environ.get("OXILLAMA_SIDECAR_LIMIT", str(LIMIT_BYTES))
    if not text.isdecimal():
        raise ConfigError(f"OXILLAMA_SIDECAR_LIMIT: found {text!r}, wanted a number of bytes")
    return int(text)


def entries(folder: Path) -> list[Entry]:
    """The sidecars of a folder, those used longest ago first; none where there is no such folder."""
    found = []
    with suppress(FileNotFoundError), os.scandir(folder) as inside:
        for entry in inside:
            with suppress(FileNotFoundError):  # another process has removed it since
                if entry.name.endswith(".panels") and entry.is_file(follow_symlinks=False):
                    found.append(
                        Entry(
                            Path(entry.path),
                            entry.stat().st_size,
                            entry.stat().st_mtime,
                            names_of(entry.path),
                        )
                    )
    return sorted(found, key=lambda one: (one.used, one.path))


def clear(folder: Path) -> list[Entry]:
    """Remove every sidecar of a folder, and what was left half written; returns those that were
    removed. A process that has one keeps it.
    """
    found = entries(folder)
    for one in found:
        one.path.unlink(missing_ok=True)
    _sweep(folder)
    return found


def _sweep(folder: Path) -> None:
    """Remove what processes that were killed have left."""
    for path in folder.glob("*.panels.tmp"):
        remove_abandoned(path)


def _make_room(folder: Path, size: int) -> bool:
    """Evict sidecars, those used longest ago first, until another fits the limit; False where it
    cannot, or the disk would get full.
    """
    limit, held = limit_bytes(), entries(folder)
    _sweep(folder)
    disk = shutil.disk_usage(folder)
    if size > limit or size > disk.free // 4 or disk.free - size < disk.total // 20:
        return False
    total = sum(one.nbytes for one in held)
    for one in held:
        if total + size <= limit:
            break
        one.path.unlink(missing_ok=True)
        log.info(
            "sidecar %s is removed: it was used longest ago, and another needs its room", one.path
        )
        total -= one.nbytes
    return True
