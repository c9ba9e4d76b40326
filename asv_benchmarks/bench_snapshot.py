"""What it costs to save a session and to go on from it: bytes per second of its pages, and how many
bytes more than its pages it takes.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

import oxillama
from oxillama.errors import SnapshotIncompatible
from oxillama.gguf import ModelFingerprint
from oxillama.snapshot.container import Envelope, Kind, write_sealed

_KIND = Kind(b"OXIBENCH", 1, SnapshotIncompatible)


def filled(engine, tokens: int):
    """A session of so many tokens, its pages full of numbers that no evaluation was spent on."""
    core, session = engine._loaded.core, engine.session()
    core.allocator.make_writable(session.kv, tokens)
    page = np.random.default_rng(7).standard_normal(core.memory.page_bytes // 2).astype(np.float16)
    for index, each in enumerate(session.kv.pages):
        core.memory.load(each, np.roll(page, index).view(np.uint8))
    session.kv.commit(tokens)
    session.tokens, session.pending = [1] * tokens, np.zeros(core.program.vocab_size, np.float32)
    return session


class Session:
    """A session of the embedded model: GB/s to and from a file that is in the page cache, and its
    size beside its pages.
    """

    params = [64, 1_000]
    param_names = ["tokens"]

    def setup(self, tokens: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.engine = oxillama.load(prefix_cache=False)
        self.session = filled(self.engine, tokens)
        self.file = self.folder / "saved"
        self.session.snapshot_to_file(self.file)

    def teardown(self, tokens: int) -> None:
        self.engine.close()
        shutil.rmtree(self.folder)

    def time_save(self, tokens: int) -> None:
        self.session.snapshot_to_file(self.file)

    def time_restore(self, tokens: int) -> None:
        self.engine.restore_from_file(self.file).close()

    def track_size_beside_pages(self, tokens: int) -> float:
        return self.file.stat().st_size / (
            len(self.session.kv.pages) * self.engine._loaded.core.memory.page_bytes
        )


class Container:
    """GB/s of the envelope itself over one large section, written with its syncs, and read with its
    hash.
    """

    params = [64]
    param_names = ["MiB"]
    unit = "GB/s"

    def setup(self, size: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.data = np.random.default_rng(7).integers(0, 256, size << 20, dtype=np.uint8)
        write_sealed(self.folder / "saved", _KIND, {"pages": self.data})

    def teardown(self, size: int) -> None:
        shutil.rmtree(self.folder)

    def track_write(self, size: int) -> float:
        return self._best(lambda: write_sealed(self.folder / "saved", _KIND, {"pages": self.data}))

    def track_read(self, size: int) -> float:
        def read() -> None:
            with Envelope.open(_KIND, self.folder / "saved") as saved:
                saved.read("pages", exactly=len(self.data))

        return self._best(read)

    def _best(self, work) -> float:
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            work()
            best = min(best, time.perf_counter() - start)
        return len(self.data) / best / 1e9


class Fingerprint:
    """Seconds to say which model a file is: the same for any size of file beyond two probes."""

    def setup(self) -> None:
        self.data = bytes(oxillama.embedded_path().read_bytes())

    def time_compute(self) -> None:
        ModelFingerprint.compute(self.data)
