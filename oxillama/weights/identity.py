"""Identifies the model file that packed weights were made from; compared before they are mapped
instead of packing.

The identity of a model covers, for every file: path, inode, size, modification time, inode change
time (which no program can set), and a hash of both ends and of 256 pieces of 4 KiB at equal
distances. It is read from the mapped file, so it belongs to the bytes that were packed. The hash of
the whole file is stored too (`panel_file`) and compared when the model is idle (`verifier`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from blake3 import blake3

from oxillama._core.kernels import PANEL_LAYOUT
from oxillama.gguf.source import Shard

SAMPLES, SAMPLE_BYTES, END_BYTES = 256, 4 << 10, 64 << 10

Identity = dict[str, Any]  # JSON values


def identity_of(shards: Sequence[Shard]) -> Identity | None:
    """The identity of a model's files; None if they came from memory."""
    files = []
    for shard in shards:
        if shard.path is None or shard.status is None:
            return None
        files.append([os.path.realpath(shard.path), *_marks(shard.status), _samples(shard.buffer)])
    return {"layout": PANEL_LAYOUT, "byteorder": sys.byteorder, "files": files}


def unchanged(shards: Sequence[Shard]) -> bool:
    """Whether the files are still those that were mapped, and unmodified."""
    try:
        return all(
            shard.path is not None
            and shard.status is not None
            and _marks(os.stat(shard.path)) == _marks(shard.status)
            for shard in shards
        )
    except OSError:
        return False


def _marks(status: os.stat_result) -> list[int]:
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _samples(buffer: memoryview) -> str:
    hasher, size = blake3(), len(buffer)
    hasher.update(buffer[:END_BYTES])
    for i in range(SAMPLES):
        at = max(0, size - SAMPLE_BYTES) * i // (SAMPLES - 1)
        hasher.update(buffer[at : at + SAMPLE_BYTES])
    hasher.update(buffer[-END_BYTES:])
    return hasher.hexdigest()
