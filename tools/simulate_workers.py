#!/usr/bin/env python3
"""What a step would take on more cores than this machine has: its tape op by op, as timed on one
worker here, cut into the chunks that so many workers would share.

    simulate_workers.py MODEL.gguf [--workers 1 2 4 8 16] [--reads 60 240] [--json F]

For each op, time(n) = max(t1 * ceil(chunks / n) / chunks, bytes / reads(n)) + barrier(n), where

- t1 is the op's median on one worker (Program.profile) and chunks how many pieces the kernels cut
  it into: panels of 16 rows for products, splits and groups of heads for attention, rows or 4,096
  columns for the rest. All chunks of an op are taken as equally long.
- bytes are the weights or keys and values it reads from memory, and reads(n) is what n workers get:
  n times one worker's plain reads here, at most --reads GB/s (a desktop has about 60, a server
  with eight channels about 240). A cache that holds a model is not simulated.
- barrier(n) is measured here for 1 and 2 workers; each further worker adds what the second did.

The clock is the same however many cores are busy, and all cores are alike. Prediction and
measurement for the workers that this machine has are printed side by side.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import oxillama
from oxillama._core.threads import barrier_seconds
from oxillama.model.lower import Op

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "asv_benchmarks"))
from machine import read_bandwidth  # noqa: E402  (the benchmark folder is no package)

PANEL, COLUMNS, SPLIT, TILE = 16, 4096, 256, 16  # rows of a panel, columns, keys, rows of queries
HEADS, ROWS = 16, 16  # of a chunk of rope_store
STEPS = {"token at depth 0": (1, 0), "token at depth 4096": (1, 4096), "prompt of 512": (512, 0)}


@dataclass
class Timed:
    """One op of a step on one worker."""

    name: str
    seconds: float
    chunks: int
    bytes: float


def chunks_of(op: Op, rows: int, keys: int) -> int:
    """Pieces that workers can take, as the kernels cut them (`_core/*.pyx`)."""
    p = op.params
    if op.name in ("matmul", "experts"):
        panels = sum(math.ceil(tensor.shape[-2] / PANEL) for tensor in p["weights"])
        panels //= 2 if p.get("gate") else 1
        return panels if rows <= TILE else panels // 2 * math.ceil(rows / 264)
    if op.name == "attend":
        return p["kv_heads"] * (math.ceil(keys / SPLIT) if rows == 1 else math.ceil(rows / TILE))
    if op.name == "rope_store":
        return math.ceil(rows / ROWS) * math.ceil((p["q_heads"] + 2 * p["kv_heads"]) / HEADS)
    return rows


def timed(engine: oxillama.InferenceEngine, rows: int, depth: int) -> list[Timed]:
    """The ops of a step of `rows` tokens after `depth` others."""
    reader, vocab = engine._loaded.model.reader, engine.config.vocab_size
    with engine.raw_loop() as loop:
        if depth:
            loop.prefill(0, [(7 * j + 11) % vocab for j in range(depth)])
        ids = [(13 * j + 5) % vocab for j in range(rows)]
        found = loop.profile(0, ids, repeat=25 if rows == 1 else 3)
    ops = []
    for op, microseconds in found:
        p = op.params
        size = sum(
            reader.tensors[tensor.name].nbytes
            * tensor.shape[0]
            / reader.tensors[tensor.name].shape[0]
            for tensor in p.get("weights", ())
        )
        if op.name == "attend":
            size = 2 * (depth + rows) * p["kv_heads"] * (p["k_dim"] + p["v_dim"])
        # only the last row's logits are asked for
        asked = 1 if p.get("out") == -1 else rows
        chunks = max(1, chunks_of(op, asked, depth + rows))
        ops.append(Timed(op.name, microseconds * 1e-6, chunks, size))
    return ops


def simulate(
    ops: list[Timed], workers: int, reads: float, barrier: float
) -> tuple[float, dict[str, float]]:
    """Seconds of a step, and of those: beyond an even share of the work ("uneven", by op), above
    what the work needs because memory is slower ("memory"), at barriers ("barriers").
    """
    total, lost = 0.0, {"memory": 0.0, "barriers": len(ops) * barrier}
    for op in ops:
        shared = op.seconds * math.ceil(op.chunks / workers) / op.chunks
        even = op.seconds / workers
        read = op.bytes / reads
        total += max(shared, read) + barrier
        if read > shared:
            lost["memory"] += read - even
        else:
            lost[op.name] = lost.get(op.name, 0.0) + shared - even
    return total, lost


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--reads", type=float, nargs="+", default=[60.0, 240.0], metavar="GB/S")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    one, two = (min(barrier_seconds(50_000, num_threads=n) for _ in range(5)) for n in (1, 2))
    alone = max(read_bandwidth(1) for _ in range(3))
    print(
        f"One worker reads {alone:.1f} GB/s. A barrier takes {1e9 * one:.0f} ns with one worker, "
        f"{1e9 * two:.0f} with two.\n"
    )
    told = {"reads_one": alone, "barrier_one": one, "barrier_two": two, "steps": []}
    with oxillama.load(options.model, num_threads=1, sidecar=False) as engine:
        steps = {name: timed(engine, *step) for name, step in STEPS.items()}
    with oxillama.load(options.model, num_threads=2, sidecar=False) as engine:
        measured = {
            name: sum(op.seconds for op in timed(engine, *step)) for name, step in STEPS.items()
        }
    columns = " | ".join(f"{n} workers" if n > 1 else "1 worker" for n in options.workers)
    print(f"| step | memory, GB/s | {columns} | 2 measured | lost with {options.workers[-1]} |")
    print(f"| --- | --- | {' | '.join('---' for _ in options.workers)} | --- | --- |")
    for name, ops in steps.items():
        rows = STEPS[name][0]
        for most in options.reads:
            rates = []
            for workers in options.workers:
                barrier = one + (two - one) * (workers - 1)
                seconds, lost = simulate(ops, workers, 1e9 * min(most, workers * alone), barrier)
                rates.append(rows / seconds)
            shares = sorted(((v / seconds, k) for k, v in lost.items()), reverse=True)
            worst = ", ".join(f"{kind} {share:.0%}" for share, kind in shares[:3] if share > 0.005)
            cells = " | ".join(f"{rate:,.1f}" for rate in rates)
            print(f"| {name} | {most:g} | {cells} | {rows / measured[name]:,.1f} | {worst} |")
            told["steps"].append(
                {
                    "step": name,
                    "reads": most,
                    "tokens_per_s": dict(zip(options.workers, rates, strict=True)),
                    "measured_two": rows / measured[name],
                    "lost": {kind: share for share, kind in shares},
                }
            )
    if options.json:
        options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
