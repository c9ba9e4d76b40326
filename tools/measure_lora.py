#!/usr/bin/env python3
"""Measures what an adapter costs: one of random factors on every matrix of every layer.

    python tools/measure_lora.py MODEL.gguf --rank 16 --rounds 9

A round times a prompt and generation at one row three times in the same engine, in turns: with no
adapter loaded, with one loaded that the request does not use, and with one that it uses. What is
printed are medians of the rounds' own ratios to the first.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import oxillama
from oxillama.gguf import GgufReader, GgufWriter

CASES = ("none", "unused", "used")


def written(path: Path, model: Path, rank: int) -> int:
    """An adapter over every matrix of the layers; how many they are."""
    reader, rng = GgufReader(model), np.random.default_rng(3)
    names = [
        name
        for name, tensor in reader.tensors.items()
        if name.startswith("blk.") and len(tensor.shape) == 2
    ]
    with GgufWriter(path, str(reader.metadata["general.architecture"])) as file:
        file.add("general.type", "adapter")
        file.add("adapter.type", "lora")
        file.add("adapter.lora.alpha", float(rank))
        for name in names:
            rows, columns = reader.tensors[name].shape
            for part, size in (("a", (rank, columns)), ("b", (rows, rank))):
                values = 0.02 * rng.standard_normal(size)
                file.add_tensor(f"{name}.lora_{part}", values.astype(np.float32))
    return len(names)


def timed(engine: oxillama.InferenceEngine, prompt: list[int], lora: list[str], n: int) -> float:
    """Seconds of a request for `n` tokens."""
    began = time.perf_counter()
    engine.generate(prompt, max_tokens=n, temperature=0, ignore_eos=True, lora=lora)
    return time.perf_counter() - began


def main() -> None:
    """Write the adapter, run the rounds, print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        adapter = Path(folder) / "random.gguf"
        count = written(adapter, asked.model, asked.rank)
        engine = oxillama.load(
            asked.model, num_threads=asked.threads, prefix_cache=False, context_size=1024
        )
        long = [3 + i % 200 for i in range(asked.prompt)]
        found: dict[tuple[str, str], list[float]] = {}
        for at in range(asked.rounds + 1):  # the first is left out
            turn = at % 3
            for case in CASES[turn:] + CASES[:turn]:
                lora = ["random"] if case == "used" else []
                if case != "none":
                    engine.load_lora(adapter, name="random")
                prompt = timed(engine, long, lora, 1)
                start = timed(engine, long[:8], lora, 1)
                spent = timed(engine, long[:8], lora, 1 + asked.tokens) - start
                if case != "none":
                    engine.unload_lora("random")
                found.setdefault((case, "prompt"), []).append(prompt)
                found.setdefault((case, "generation"), []).append(spent / asked.tokens)
        engine.close()
    print(f"{asked.model.name}: rank {asked.rank} on {count} matrices, {asked.rounds} rounds")
    for what in ("generation", "prompt"):
        base = found["none", what][1:]
        print(f"{what}: none {statistics.median(base) * 1e3:.2f} ms", end="")
        for case in CASES[1:]:
            ratios = [a / b for a, b in zip(found[case, what][1:], base)]
            best = min(found[case, what][1:]) / min(base)
            print(f", {case} {statistics.median(ratios):.3f} (best runs {best:.3f})", end="")
        print()


if __name__ == "__main__":
    main()
