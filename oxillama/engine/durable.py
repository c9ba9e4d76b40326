"""Writes a file whole or not at all: whatever fails or is killed, a reader finds the old bytes or the new ones.

    temporary file beside the target -> write -> fsync -> rename over the target -> fsync of the folder

Invariants (tests cite them by number):

1. Until the rename the target is untouched; from the rename on it holds all of the new bytes, which were on the disk before.
2. A failure that the process survives leaves no temporary file; one that it does not survive leaves one that nothing ever reads.
"""
from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence

_AT_ONCE = 256              # buffers of one system call; every system takes so many


def write_parts(path: str | os.PathLike, parts: Sequence[bytes | memoryview]) -> None:
    """Make the file at `path` hold the parts, one after the other, in one step; OSError where the system refuses, the old file as it was."""
    target = os.path.realpath(os.fspath(path))
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name[:100]}.{os.getpid()}-{secrets.token_hex(6)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        try:
            _write_all(fd, parts)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def _write_all(fd: int, parts: Sequence[bytes | memoryview]) -> None:
    """Every byte, however few the system takes at once."""
    waiting = [view for view in (memoryview(part).cast("B") for part in parts) if len(view)]
    waiting.reverse()
    while waiting:
        wrote = os.writev(fd, waiting[:-_AT_ONCE - 1:-1])
        while wrote:
            if wrote < len(waiting[-1]):
                waiting[-1] = waiting[-1][wrote:]
                break
            wrote -= len(waiting.pop())


def _sync_folder(folder: str) -> None:
    """Have the folder's own entries, and so the rename, on the disk."""
    fd = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
