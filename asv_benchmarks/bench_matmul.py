"""The matrix product alone: GB/s of packed weights for a few rows, GMAC/s for many, beside the read
bandwidth of the same minute.

`python asv_benchmarks/bench_matmul.py [FORMAT,FORMAT...] [THREADS,THREADS...]` prints one table
without asv, the best of many short runs.
"""

from __future__ import annotations

import sys

import numpy as np
from machine import best, read_bandwidth

from oxillama._core.codecs import quantise_rows as quantise_weights
from oxillama._core.kernels import lanes_available, packable_formats
from oxillama._core.matmul import matmul_acts, quantise_rows
from oxillama._core.panels import PackedMatrix

SHAPES = {name: (block, size) for name, block, size, _ in packable_formats()}
COMMON = ["F16", "Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]
STREAM = 96 << 20  # bytes of weights that no cache keeps
COLS = 2048


def weights(name: str, rows: int, cols: int) -> PackedMatrix:
    """Quantised normal numbers, the same 64 rows over and over."""
    block, size = SHAPES[name]
    some = np.random.default_rng(0).standard_normal((64, cols)).astype(np.float32)
    raw = np.empty((64, cols // block * size), np.uint8)
    quantise_weights(some, name, None, raw)
    return PackedMatrix(np.tile(raw, (-(-rows // 64), 1))[:rows].reshape(-1), name, rows, cols)


def product(name: str, rows: int, m: int, threads: int, isa: str | None = None):
    """A call that multiplies m rows by a fresh matrix, and that matrix."""
    w = weights(name, rows, COLS)
    acts = quantise_rows(
        np.random.default_rng(1).standard_normal((m, COLS)).astype(np.float32), w.act
    )
    out = np.empty((m, rows), np.float32)
    return (lambda: matmul_acts([w], acts, num_threads=threads, isa=isa, out=out)), w


class Stream:
    """Few rows: GB/s of weights that come from memory."""

    params = [COMMON, [1, 4], [1, 2]]
    param_names = ["format", "rows of x", "threads"]
    unit = "GB/s"

    def setup(self, name: str, m: int, threads: int) -> None:
        block, size = SHAPES[name]
        self.call, self.w = product(name, STREAM * block // size // COLS, m, threads)

    def track_read(self, name: str, m: int, threads: int) -> float:
        return self.w.nbytes / best(self.call) / 1e9


class Prompt:
    """Many rows: GMAC/s over 2048 x 2048 weights."""

    params = [COMMON, [8, 16, 512], [1, 2]]
    param_names = ["format", "rows of x", "threads"]
    unit = "GMAC/s"

    def setup(self, name: str, m: int, threads: int) -> None:
        self.call, self.w = product(name, 2064, m, threads)
        self.work = m * self.w.rows * COLS

    def track_products(self, name: str, m: int, threads: int) -> float:
        return self.work / best(self.call) / 1e9


class InstructionSets:
    """GMAC/s of every table of kernels this machine runs, one thread, 64 rows."""

    params = [
        ["Q4_0", "Q8_0", "Q4_K", "Q6_K"],
        [isa for isa in lanes_available() if isa != "scalar"],
    ]
    param_names = ["format", "lanes"]
    unit = "GMAC/s"

    def setup(self, name: str, isa: str) -> None:
        self.call, self.w = product(name, 528, 64, 1, isa)

    def track_products(self, name: str, isa: str) -> float:
        return 64 * self.w.rows * COLS / best(self.call) / 1e9


class Packing:
    """GB/s of file bytes turned into panels by all cores."""

    params = [COMMON]
    param_names = ["format"]
    unit = "GB/s"

    def setup(self, name: str) -> None:
        block, size = SHAPES[name]
        rows = (32 << 20) * block // size // COLS
        self.raw, self.rows = np.zeros(rows * COLS // block * size, np.uint8), rows

    def track_packing(self, name: str) -> float:
        return (
            self.raw.nbytes / best(lambda: PackedMatrix(self.raw, name, self.rows, COLS), 1.0) / 1e9
        )


def table(names: list[str], counts: list[int]) -> None:
    """Prints one line a format."""
    print("read GB/s " + "  ".join(f"{t} threads {read_bandwidth(t):.1f}" for t in counts))
    for name in names:
        cells = []
        for threads in counts:
            for m in (1, 4):
                block, size = SHAPES[name]
                call, w = product(name, STREAM * block // size // COLS, m, threads)
                cells.append(f"m={m} {w.nbytes / best(call) / 1e9:5.1f} GB/s")
            for m in (8, 16, 512):
                call, w = product(name, 2064, m, threads)
                cells.append(f"m={m} {m * w.rows * COLS / best(call) / 1e9:4.0f} GMAC/s")
        print(f"{name:8}" + "  ".join(cells), flush=True)


if __name__ == "__main__":
    table(
        sys.argv[1].split(",") if len(sys.argv) > 1 else COMMON,
        [int(t) for t in (sys.argv[2] if len(sys.argv) > 2 else "1,2").split(",")],
    )
