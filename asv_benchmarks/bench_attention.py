"""Attention alone: bytes of keys and values per second while generating deep, arithmetic per second
over a prompt, and rows per second that see keys which an indexer chose.
"""

from __future__ import annotations

import time

import numpy as np

from oxillama._core.pool import KV_TYPES, LATENT, ROWS
from oxillama._core.tape import Batch, EmbeddingTable, PageMemory, Program

SHAPES = {
    "1B (32 heads, 8 kv, 64)": (32, 8, 64),
    "4B (32 heads, 8 kv, 128)": (32, 8, 128),
    "135M (9 heads, 3 kv, 64)": (9, 3, 64),
}
VOCAB, LAYERS = 64, 8


def drawn(width: int, seed: int = 0) -> EmbeddingTable:
    """Random rows of floats, one for each token."""
    rows = np.random.default_rng(seed).standard_normal((VOCAB, width)).astype(np.float32)
    return EmbeddingTable(rows.reshape(-1).view(np.uint8), "F32", VOCAB, width)


def only_attention(shape: str, num_threads: int) -> Program:
    """A program of LAYERS times rope_store and attend."""
    heads, kv, dim = SHAPES[shape]
    width = (heads + 2 * kv) * dim
    sizes = dict(q_heads=heads, kv_heads=kv, k_dim=dim, v_dim=dim)
    ops = [("embed", dict(out=0, table=drawn(width), scale=0.3))]
    for layer in range(LAYERS):
        ops.append(("rope_store", dict(x=0, layer=layer, **sizes)))
        ops.append(("attend", dict(x=0, out=1, layer=layer, **sizes)))
    return Program(
        ops,
        [width, heads * dim],
        kv_layers=[(kv, dim, dim)] * LAYERS,
        vocab_size=VOCAB,
        hidden_size=width,
        num_threads=num_threads,
    )


def rows(first: int, count: int, table: np.ndarray) -> Batch:
    return Batch(
        np.arange(count) % VOCAB,
        np.arange(first, first + count),
        [table],
        np.zeros(count, np.int32),
        [],
    )


def stored(step: Program, pages: int, kv_type: str) -> PageMemory:
    """Pages full of keys and values as the program stores them: sixteen tokens of its own, copied
    everywhere.
    """
    memory = PageMemory(step.kv_layers, kv_type)
    memory.ensure(pages)
    step.run_until(rows(0, 16, np.zeros(1, np.int32)), memory, len(step) - 1)
    data = np.frombuffer(memory.export(0), np.uint8)
    for page in range(1, pages):
        memory.load(page, data)
    return memory


def seconds(step: Program, batch: Batch, memory: PageMemory, repeat: int) -> float:
    """The median step."""
    spent = []
    for _ in range(repeat):
        start = time.perf_counter()
        step.run_until(batch, memory, len(step) - 1)
        spent.append(time.perf_counter() - start)
    return float(np.median(spent))


class Depth:
    """GB/s of keys and values read by one step of one token at a depth, all layers."""

    params = [list(SHAPES), [4096, 16384], [1, 2], list(KV_TYPES)]
    param_names = ["shape", "depth", "threads", "kv_type"]
    unit = "GB/s"
    timeout = 300

    def setup(self, shape: str, depth: int, threads: int, kv_type: str) -> None:
        self.step = only_attention(shape, threads)
        pages = depth // 16 + 1
        self.memory = stored(self.step, pages, kv_type)
        self.batch = rows(depth, 1, np.arange(pages, dtype=np.int32))

    def track_read(self, shape: str, depth: int, threads: int, kv_type: str) -> float:
        return (
            depth
            / 16
            * self.memory.page_bytes
            / seconds(self.step, self.batch, self.memory, 9)
            / 1e9
        )


class Together:
    """GB/s of keys and values read by one step of 16 sequences, each at a depth with pages of its
    own.
    """

    params = [list(SHAPES), [512, 4096], [1, 2]]
    param_names = ["shape", "depth", "threads"]
    unit = "GB/s"
    timeout = 300

    def setup(self, shape: str, depth: int, threads: int) -> None:
        self.step = only_attention(shape, threads)
        pages = depth // 16 + 1
        self.memory = stored(self.step, 16 * pages, "f16")
        tables = list(np.arange(16 * pages, dtype=np.int32).reshape(16, pages))
        self.batch = Batch(np.arange(16), np.full(16, depth), tables, np.arange(16), [])

    def track_read(self, shape: str, depth: int, threads: int) -> float:
        return depth * self.memory.page_bytes / seconds(self.step, self.batch, self.memory, 9) / 1e9


class Prompt:
    """GFLOP/s of the last 512 rows of a prompt (scores and values), all layers."""

    params = [list(SHAPES), [512, 2048], [1, 2], list(KV_TYPES)]
    param_names = ["shape", "length", "threads", "kv_type"]
    unit = "GFLOP/s"
    timeout = 300

    def setup(self, shape: str, length: int, threads: int, kv_type: str) -> None:
        self.step = only_attention(shape, threads)
        self.memory = PageMemory(self.step.kv_layers, kv_type)
        self.memory.ensure(length // 16)
        table = np.arange(length // 16, dtype=np.int32)
        for first in range(0, length, 512):
            self.batch = rows(first, 512, table)
            self.step.run_until(self.batch, self.memory, len(self.step) - 1)

    def track_arithmetic(self, shape: str, length: int, threads: int, kv_type: str) -> float:
        heads, _, dim = SHAPES[shape]
        seen = 512 * (length - 512) + 512 * 513 // 2
        return (
            seen * heads * dim * 4 * LAYERS / seconds(self.step, self.batch, self.memory, 3) / 1e9
        )


class Chosen:
    """Rows per second through the choice of 2048 keys by 32 heads of 128 floats, and the attention
    of 64 heads to these keys, latents of 576 floats (the sizes of GLM 5): one row, or 64 of a
    prompt, at a depth, all layers.
    """

    params = [[1, 64], [4096, 16384], [1, 2], ["f16", "q8_0"]]
    param_names = ["rows", "depth", "threads", "kv_type"]
    unit = "rows/s"
    timeout = 300
    layers = 2

    def setup(self, count: int, depth: int, threads: int, kv_type: str) -> None:
        heads, key, value, most = 64, 576, 512, 2048
        sizes = dict(q_heads=heads, kv_heads=1, k_dim=key, v_dim=value)
        ops: list[tuple[str, dict]] = [
            ("embed", dict(out=out, table=drawn(width, out)))
            for out, width in enumerate(((heads + 1) * key, 32 * 128, 32, 128))
        ]
        for layer in range(0, 2 * self.layers, 2):
            chosen = dict(layer=layer, ratio=1, most=most)
            ops.append(("keep_rows", dict(x=3, layer=layer)))
            ops.append(("choose_blocks", dict(x=1, shares=2, out=4, **chosen)))
            ops.append(("rope_store", dict(x=0, layer=layer + 1, q_scale=0.01, **sizes)))
            more = dict(chosen=4, ratio=1, strict=True)
            ops.append(("attend", dict(x=0, out=5, layer=layer + 1, **sizes, **more)))
        self.step = Program(
            ops,
            [(heads + 1) * key, 32 * 128, 32, 128, most, heads * value],
            kv_layers=[(ROWS, 128, 128), (LATENT, key, value)] * self.layers,
            vocab_size=VOCAB,
            hidden_size=1,
            num_threads=threads,
        )
        pages = (depth + count) // 16 + 1
        self.memory = stored(self.step, pages, kv_type)
        self.batch = rows(depth, count, np.arange(pages, dtype=np.int32))

    def track_rows(self, count: int, depth: int, threads: int, kv_type: str) -> float:
        return count / seconds(self.step, self.batch, self.memory, 3)
