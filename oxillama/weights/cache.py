"""The cache of packed weights: the folder of a setting, its files, which of them are removed for
new ones, and the file of one model.

Users know its files as sidecars. Nothing is read or written unless a setting asks for it
(`sidecar=` of a config, OXILLAMA_SIDECAR, the command line).
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oxillama._core.threads import system_text
from oxillama.durable import write_parts
from oxillama.errors import ConfigError
from oxillama.folders import user_folder
from oxillama.gguf import GgufReader
from oxillama.gguf.source import Shard
from oxillama.weights.identity import Identity, identity_of
from oxillama.weights.panel_file import (
    PIECE,
    Key,
    MappedPanels,
    PanelSpec,
    log,
    names_of,
    open_panels,
    path_of,
    remove_abandoned,
)

# of weights that "auto" keeps: smaller ones are packed in a tenth of a second
LEAST_BYTES = 256 << 20
# of all files of a folder; OXILLAMA_SIDECAR_LIMIT names another number
LIMIT_BYTES = 32 << 30
# after a failure to write a model's file, before it is tried again
RETRY_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A file of packed weights in a cache folder. used: when it was last opened or written, in
    seconds since 1970; names: of the model's files.
    """

    path: Path
    nbytes: int
    used: float
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CacheSlot:
    """The file for the packed weights of one model, whether or not it exists. automatic: the folder
    was not named by the user, so it is written only if it would be as fast as memory.
    """

    path: Path
    key: Identity
    shards: tuple[Shard, ...]
    automatic: bool

    @property
    def cache(self) -> PackedWeightCache:
        """The cache that this is a place of."""
        return PackedWeightCache(self.path.parent)

    def open(self, wanted: Mapping[Key, PanelSpec], *, num_threads: int = 0) -> MappedPanels | None:
        """The packed weights, mapped; None if there is no valid file."""
        return open_panels(self.path, self.key, wanted, num_threads=num_threads)

    def check_folder(self) -> None:
        """ConfigError for a folder that the user named and that cannot be written."""
        wrong = None if self.automatic else self.cache.unwritable()
        if wrong is not None:
            raise ConfigError(
                f"sidecar: found {self.path.parent}: {wrong}, wanted a folder that can be written, "
                "or one with this model's sidecar"
            )

    def foreseen(self, nbytes: int) -> str | None:
        """The reason, as far as it is known without writing, why that many bytes cannot be written
        here.
        """
        return self.cache.unwritable() or self.failure() or self.cache.too_large(nbytes)

    def refusal(self, nbytes: int, *, closing: bool = False) -> str | None:
        """The reason why that many bytes cannot be written here, None if they can; files used
        longest ago are removed to make space. closing: whether the model is being closed.
        """
        folder = self.path.parent
        failed = self.cache.unwritable() or self.failure(closing=closing)
        if failed is not None:
            return failed
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if self.automatic and not large_pages(folder):
            return (
                "this system has large pages for memory but not for files of this folder, and "
                "weights in small pages are read more slowly"
            )
        # last: others are removed for what is written, never for what is refused
        return self.cache.make_room(nbytes)

    # ---- a failure to write, remembered so that not every run spends its last seconds on another

    @property
    def _note(self) -> Path:
        return self.path.with_name(f"{self.path.name}.failed")

    def failure(self, *, closing: bool = False) -> str | None:
        """The reason of a recent failure to write, None without one. That a model was closed too
        early counts only where it is being closed again.
        """
        try:
            note = json.loads(self._note.read_bytes()[: 1 << 16])
            age, late = time.time() - note["at"], note.get("late", False)
            if note["key"] != self.key or not 0 <= age < RETRY_SECONDS or late and not closing:
                return None
            failed = "a close left too little time for writing" if late else "writing failed"
            return (
                f"{failed} {age / 3600:.1f} hours ago ({note['reason']}); `oxillama sidecar write` "
                "tries again"
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def note_failure(self, reason: str, *, late: bool = False) -> None:
        """Record that writing failed. late: only because the model was closed too early."""
        note = {"key": self.key, "reason": reason, "late": late, "at": time.time()}
        with suppress(OSError):
            write_parts(self._note, [json.dumps(note).encode()])

    def forget_failure(self) -> None:
        """Let the next load try again."""
        with suppress(OSError):
            self._note.unlink(missing_ok=True)


class PackedWeightCache:
    """The files of packed weights in a folder."""

    __slots__ = ("folder",)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def slot(self, reader: GgufReader, *, automatic: bool = False) -> CacheSlot | None:
        """The file of a model; None if it was loaded from memory."""
        key = identity_of(reader.shards)
        if key is None:
            return None
        return CacheSlot(path_of(self.folder, key), key, reader.shards, automatic)

    def entries(self) -> list[CacheEntry]:
        """The files, those used longest ago first; empty if there is no such folder."""
        found = []
        with suppress(FileNotFoundError), os.scandir(self.folder) as inside:
            for entry in inside:
                with suppress(FileNotFoundError):  # another process has removed it since
                    if entry.name.endswith(".panels") and entry.is_file(follow_symlinks=False):
                        found.append(
                            CacheEntry(
                                Path(entry.path),
                                entry.stat().st_size,
                                entry.stat().st_mtime,
                                names_of(entry.path),
                            )
                        )
        return sorted(found, key=lambda one: (one.used, one.path))

    def clear(self) -> list[CacheEntry]:
        """Remove every file and incomplete ones; returns those removed. A process that has one
        mapped keeps it.
        """
        found = self.entries()
        for one in found:
            one.path.unlink(missing_ok=True)
        for note in self.folder.glob("*.panels.failed"):
            note.unlink(missing_ok=True)
        self._sweep()
        return found

    @property
    def _there(self) -> Path:
        """The folder, or what of its path is there."""
        there = self.folder
        while not os.path.exists(there) and there != there.parent:
            there = there.parent
        return there

    def unwritable(self) -> str | None:
        """The reason why nothing can be written into the folder, or why it cannot be made; None if
        neither is known.
        """
        there = self._there
        if not os.path.isdir(there):
            return f"{there} is not a directory"
        return None if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written"

    def too_large(self, size: int) -> str | None:
        """The reason why a file of `size` bytes is not for this folder: the limit, or a disk that
        it would fill; None if it is.
        """
        there = self._there
        disk = shutil.disk_usage(there)
        if size <= min(limit_bytes(), disk.free // 4, disk.free - disk.total // 20):
            return None
        return (
            f"{size} bytes do not fit: the limit is {limit_bytes()} bytes, {disk.free} bytes of "
            "the disk are free"
        )

    def make_room(self, size: int) -> str | None:
        """Remove files, those used longest ago first, until another of `size` bytes fits the limit;
        the reason why it cannot, None if it can.
        """
        limit, held = limit_bytes(), self.entries()
        self._sweep()
        wrong = self.too_large(size)
        if wrong is not None:
            return wrong
        total = sum(one.nbytes for one in held)
        for one in held:
            if total + size <= limit:
                break
            one.path.unlink(missing_ok=True)
            log.info(
                "sidecar %s is removed: it was used longest ago, and another needs its room",
                one.path,
            )
            total -= one.nbytes
        return None

    def _sweep(self) -> None:
        """Remove the temporary files of killed processes."""
        for path in self.folder.glob("*.panels.tmp"):
            remove_abandoned(path)


def sidecar_folder(setting: str | os.PathLike[str] | bool) -> Path | None:
    """The folder of a setting: False none, "auto" the cache folder, any other text or path itself.

    The environment variable OXILLAMA_SIDECAR overrides the setting: "0" turns sidecars off, "auto"
    or a folder says where they are.
    """
    setting = os.environ.get("OXILLAMA_SIDECAR") or setting
    if setting is False or setting == "0":
        return None
    if setting is True or not isinstance(setting, (str, os.PathLike)):
        raise ConfigError(f"sidecar: found {setting!r}, wanted 'auto', a folder or False")
    return cache_folder() if setting == "auto" else Path(setting)


def cache_folder() -> Path | None:
    """The folder of "auto"; None for a user without a home folder."""
    try:
        return user_folder("cache")
    except RuntimeError:
        return None


def slot_of(
    reader: GgufReader, setting: str | os.PathLike[str] | bool, nbytes: int
) -> CacheSlot | None:
    """The file for a model's packed weights; None if its setting or size excludes one, or if it was
    loaded from memory.
    """
    folder = sidecar_folder(setting)
    automatic = (os.environ.get("OXILLAMA_SIDECAR") or setting) == "auto"
    if folder is None or automatic and nbytes < LEAST_BYTES:
        return None
    limit_bytes()  # what is no number is said now, not by a thread
    return PackedWeightCache(folder).slot(reader, automatic=automatic)


def large_pages(folder: Path) -> bool:
    """Whether files in a folder are mapped in pages as large as those of anonymous memory."""
    try:
        if "[never]" in system_text(Path("/sys/kernel/mm/transparent_hugepage/enabled")):
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
    mine = False
    for line in system_text(Path("/proc/self/smaps")).split("\n"):
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            mine = name.lstrip("0").startswith(f"{start}-")
        elif mine and name in ("FilePmdMapped:", "ShmemPmdMapped:") and rest.split()[0] != "0":
            return 1024 * int(rest.split()[0])
    return 0


def limit_bytes() -> int:
    """The largest total size of the files in a folder; ConfigError if OXILLAMA_SIDECAR_LIMIT is not
    a number.
    """
    text = os.environ.get("OXILLAMA_SIDECAR_LIMIT", str(LIMIT_BYTES))
    if not text.isdecimal():
        raise ConfigError(f"OXILLAMA_SIDECAR_LIMIT: found {text!r}, wanted a number of bytes")
    return int(text)
