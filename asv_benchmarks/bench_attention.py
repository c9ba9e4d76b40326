"""Attention alone: bytes of keys and values per second while generating deep, arithmetic per second over a prompt."""
from __future__ import annotations

import time

import numpy as np

from oxillama._core.tape import Batch, EmbeddingTable, PageMemory, Program

SHAPES = {"1B (32 heads, 8 kv, 64)": (32, 8, 64), "4B (32 heads, 8 kv, 128)": (32, 8, 128), "135M (9 heads, 3 kv, 64)": (9, 3, 64)}
VOCAB, LAYERS = 64, 8


def only_attention(shape: str, num_threads: int) -> tuple[Program, int]:
    """A program of LAYERS times rope_store and attend, and the bytes of keys and values a token takes."""
    heads, kv, dim = SHAPES[shape]
    width = (heads + 2 * kv) * dim
    rows = np.random.default_rng(0).standard_normal((VOCAB, width)).astype(np.float32)
    sizes = dict(q_heads=heads, kv_heads=kv, k_dim=dim, v_dim=dim)
    ops = [("embed", dict(out=0, table=EmbeddingTable(rows.reshape(-1).view(np.uint8), "F32", VOCAB, width), scale=0.3))]
    for layer in range(LAYERS):
        ops.append(("rope_store", dict(x=0, layer=layer, **sizes)))
        ops.append(("attend", dict(x=0, out=1, layer=layer, **sizes)))
    step = Program(ops, [width, heads * dim], kv_layers=[(kv, dim, dim)] * LAYERS, vocab_size=VOCAB, hidden_size=width, num_threads=num_threads)
    return step, 2 * 2 * kv * dim * LAYERS


def rows(first: int, count: int, table: np.ndarray) -> Batch:
    return Batch(np.arange(count) % VOCAB, np.arange(first, first + count), [table], np.zeros(count, np.int32), [])


class Depth:
    """GB/s of keys and values read by one step of one token at a depth, all layers."""

    params = [list(SHAPES), [4096, 16384], [1, 2]]
    param_names = ["shape", "depth", "threads"]
    unit = "GB/s"
    timeout = 300

    def setup(self, shape: str, depth: int, threads: int) -> None:
        self.step, self.token_bytes = only_attention(shape, threads)
        self.memory = PageMemory(self.step.kv_layers)
        pages = depth // 16 + 1
        self.memory.ensure(pages)
        some = np.random.default_rng(1).standard_normal(self.memory.page_bytes // 2).astype(np.float16).view(np.uint8)
        for page in range(pages):
            self.memory.load(page, some)
        self.batch = rows(depth, 1, np.arange(pages, dtype=np.int32))

    def track_read(self, shape: str, depth: int, threads: int) -> float:
        spent = []
        for _ in range(9):
            start = time.perf_counter()
            self.step.run_until(self.batch, self.memory, len(self.step) - 1)
            spent.append(time.perf_counter() - start)
        return depth * self.token_bytes / float(np.median(spent)) / 1e9


class Prompt:
    """GFLOP/s of the last 512 rows of a prompt (scores and values), all layers."""

    params = [list(SHAPES), [512, 2048], [1, 2]]
    param_names = ["shape", "length", "threads"]
    unit = "GFLOP/s"
    timeout = 300

    def setup(self, shape: str, length: int, threads: int) -> None:
        self.step, _ = only_attention(shape, threads)
        self.memory = PageMemory(self.step.kv_layers)
        self.memory.ensure(length // 16)
        table = np.arange(length // 16, dtype=np.int32)
        for first in range(0, length, 512):
            self.batch = rows(first, 512, table)
            self.step.run_until(self.batch, self.memory, len(self.step) - 1)

    def track_arithmetic(self, shape: str, length: int, threads: int) -> float:
        heads, _, dim = SHAPES[shape]
        spent = []
        for _ in range(3):
            start = time.perf_counter()
            self.step.run_until(self.batch, self.memory, len(self.step) - 1)
            spent.append(time.perf_counter() - start)
        seen = 512 * (length - 512) + 512 * 513 // 2
        return seen * heads * dim * 4 * LAYERS / float(np.median(spent)) / 1e9
