#!/usr/bin/env python3
"""Measures how fast texts become embeddings, beside peers: texts in, normalised vectors out.

    measure_embeddings.py MODEL.gguf TEXTS.txt [-t 2] [--rounds 9] [--json OUT.jsonl]
        --peer "llama.cpp=embed MODEL.gguf TEXTS.txt -t 2 -u 512"
        --peer "torch=python tools/peer_embeddings.py torch FOLDER TEXTS.txt -t 2"

TEXTS.txt has a text a line. All engines are loaded at once and take turns in random order; a slice
embeds all texts in one call. A peer is a command that prints "ready", and then for each line of its
input the seconds of a slice and its seconds of processor time: `peer_embeddings.cpp`, built for
llama.cpp, and `peer_embeddings.py` for transformers and ONNX Runtime. The table has the medians of
texts and tokens a second, and of our rate over each peer's in the same round; `--cpu` counts
processor time, which other programs disturb less, and means most with one thread.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import oxillama

Slice = Callable[[], tuple[float, float]]  # seconds, seconds of processor time


def peer(command: str) -> Slice:
    """Starts a peer; the function returned lets it embed the texts once."""
    process = subprocess.Popen(
        shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    if process.stdout.readline() != "ready\n":
        raise SystemExit(f"{command}: did not start")

    def one() -> tuple[float, float]:
        process.stdin.write("\n")
        process.stdin.flush()
        wall, cpu = process.stdout.readline().split()
        return float(wall), float(cpu)

    return one


def own(engine: oxillama.InferenceEngine, texts: list[str]) -> Slice:
    def one() -> tuple[float, float]:
        start, used = time.perf_counter(), time.process_time()
        engine.embed_batch(texts)
        return time.perf_counter() - start, time.process_time() - used

    return one


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("-t", type=int, default=2, help="our threads (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cpu", action="store_true", help="count processor time")
    parser.add_argument("--json", type=Path, help="a line with every slice is appended to it")
    options = parser.parse_args()
    texts = options.texts.read_text().splitlines()
    slices = {}
    for name, _, command in (text.partition("=") for text in options.peer):
        slices[name] = peer(command)
    with oxillama.load(options.model, n_threads=options.t) as engine:
        tokens = sum(len(engine.tokenize(text)) for text in texts)
        slices["ours"] = own(engine, texts)
        for one in slices.values():
            one()
        rounds = []
        for _ in range(options.rounds):
            order = random.sample([*slices], len(slices))
            rounds.append({name: [round(each, 6) for each in slices[name]()] for name in order})
    print("| engine | texts/s | tokens/s | ours to it |\n| --- | --- | --- | --- |")
    clock = int(options.cpu)
    for name in sorted(slices, key="ours".__ne__):
        seconds = statistics.median(each[name][clock] for each in rounds)
        ratio = statistics.median(each[name][clock] / each["ours"][clock] for each in rounds)
        print(f"| {name} | {len(texts) / seconds:,.1f} | {tokens / seconds:,.0f} | {ratio:.2f} |")
    if options.json:
        line = {"model": options.model.stem, "texts": len(texts), "tokens": tokens}
        with options.json.open("a") as file:
            print(json.dumps({**line, "threads": options.t, "rounds": rounds}), file=file)


if __name__ == "__main__":
    main()
