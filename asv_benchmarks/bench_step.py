"""What a step costs where nothing is computed, and what the small ops cost: barriers, empty ops,
norms, quantising.
"""

from __future__ import annotations

import time

import numpy as np

from oxillama._core import threads
from oxillama._core.matmul import act_bytes
from oxillama._core.tape import Batch, EmbeddingTable, PageMemory, Program

OPS = 400


class Barrier:
    """Nanoseconds of a barrier, and of an op of four empty chunks with its barrier."""

    params = [1, 2]
    param_names = ["threads"]
    unit = "ns"

    def track_barrier(self, workers: int) -> float:
        return 1e9 * min(threads.barrier_seconds(50_000, num_threads=workers) for _ in range(5))

    def track_empty_op(self, workers: int) -> float:
        return 1e9 * min(threads.op_seconds(50_000, 4, num_threads=workers) for _ in range(5))


class SmallOps:
    """Nanoseconds per op of a tape of equal small ops over one row, its barrier included."""

    params = [["norm", "quantise", "scale"], [576, 2048, 8192], [1, 2]]
    param_names = ["op", "width", "threads"]
    unit = "ns"

    def setup(self, op: str, width: int, workers: int) -> None:
        rows = np.random.default_rng(0).standard_normal((4, width)).astype(np.float32)
        table = EmbeddingTable(rows.reshape(-1).view(np.uint8), "F32", 4, width)
        params = {
            "norm": dict(
                x=0,
                add=1,
                kind="rms",
                weight=rows[0],
                bias=None,
                eps=1e-5,
                out=None,
                acts={"q8_32": 2},
            ),
            "quantise": dict(x=0, acts={"q8_32": 2}),
            "scale": dict(x=0, factor=1.0, out=0),
        }[op]
        ops = [("embed", dict(out=slot, table=table, scale=1.0)) for slot in (0, 1)] + [
            (op, params)
        ] * OPS
        self.step = Program(
            ops,
            [width, width, act_bytes("q8_32", width) // 4, width],
            kv_layers=[],
            vocab_size=4,
            hidden_size=width,
            num_threads=workers,
        )
        self.memory = PageMemory([])
        self.memory.ensure(1)
        self.batch = Batch([1], [0], [[0]], [0], [])

    def _seconds(self, last: int) -> float:
        best = float("inf")
        for _ in range(20):
            start = time.perf_counter()
            self.step.run_until(self.batch, self.memory, last)
            best = min(best, time.perf_counter() - start)
        return best

    def track_op(self, op: str, width: int, workers: int) -> float:
        return 1e9 * (self._seconds(len(self.step) - 1) - self._seconds(1)) / OPS

    def track_empty_step(self, op: str, width: int, workers: int) -> float:
        return 1e9 * self._seconds(0)
