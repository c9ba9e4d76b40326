#!/usr/bin/env python3
"""Measures oxillama beside peers in slices of a fraction of a second, with plain reads of memory
beside each.

    slices.py MODEL.gguf --peer "llama.cpp=PROGRAM" --peer "ik=PROGRAM" [-n 12 | -p 128] [-d 0]
        [-b 1] [--kv-type f16] [-t 2] [--rounds 40] [--json OUT.jsonl]

Memory of a shared machine changes its speed within seconds, so runs of many seconds, one engine
after the other (measure.py), meet different memory. Here all engines are loaded at once and take
turns: a round is one slice of each, in random order, between two readings of plain reads. A slice
generates `-n` tokens after `-d` (after one, if that is 0), for each of `-b` sequences side by side,
or computes a prompt of `-p` tokens. PROGRAM is `peer_depth.cpp`, built for the peer, which is run
with --slices.

The table has, for each engine, the median of its rates, the median over rounds of our rate divided
by its rate, and for generation the GB/s of weights that its rate means and the median over rounds
of their share of the plain reads beside them (a step of several sequences reads them once). Every
slice is appended to the file of JSON lines.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import oxillama

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "asv_benchmarks"))
from machine import read_bandwidth  # noqa: E402  (the benchmark folder is no package)

READ_SECONDS = 0.1  # of plain reads at a time
PAUSE = 0.05  # seconds before a slice: libgomp's threads of the engine before it spin for 20 ms
Slice = Callable[[], float]


def peer(command: str, options: argparse.Namespace) -> Slice:
    """Starts a peer; the function returned lets it compute one slice and gives its seconds."""
    process = subprocess.Popen(
        [
            *shlex.split(command),
            str(options.model),
            *("-p", str(options.p or 1), "-n", str(options.n), "-d", str(options.d)),
            *("-b", str(options.b), "--kv-type", options.kv_type or "f16"),
            *("-t", str(options.t), "--slices"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if process.stdout.readline() != "ready\n":
        raise SystemExit(f"{command}: did not start")

    def one() -> float:
        process.stdin.write("\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise SystemExit(f"{command}: ended with status {process.wait()} in a slice")
        return float(answer)

    return one


def own(loop: oxillama.engine.RawLoop, vocab: int, options: argparse.Namespace) -> Slice:
    """The same of our step loop."""
    filled = max(1, options.d)
    tokens = [(7 * j + 11) % vocab for j in range(max(options.p, filled + options.n))]
    unused = itertools.count(1)

    def one() -> float:
        whole = [loop.rewind(each, 0 if options.p else filled) for each in range(options.b)]
        prompt = 0 if all(whole) else next(unused)
        start = time.perf_counter()
        if options.p:
            loop.prefill(prompt, tokens[: options.p])
        else:
            for token in tokens[filled : filled + options.n]:
                loop.decode([token] * options.b)
        return time.perf_counter() - start

    for sequence in range(options.b):
        loop.prefill(sequence, tokens[:filled])
    return one


def measure(slices: dict[str, Slice], tokens: int, options: argparse.Namespace) -> list[dict]:
    """The rounds: tokens/s of each engine, and GB/s of plain reads before and after."""
    for one in slices.values():
        one()
    rounds = []
    before = read_bandwidth(options.t, READ_SECONDS)
    for _ in range(options.rounds):
        order = random.sample([*slices], len(slices))
        rates = {}
        for name in order:
            time.sleep(PAUSE)
            rates[name] = round(tokens / slices[name](), 2)
        after = round(read_bandwidth(options.t, READ_SECONDS), 2)
        rounds.append({"tps": rates, "reads": [before, after]})
        before = after
    return rounds


def table(name: str, rounds: list[dict], size: float) -> str:
    """A Markdown table; size: the bytes that a token of generation reads, 0 for prompts."""
    lines = [
        "| model | engine | tokens/s | ours to it | GB/s | of plain reads |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for who in sorted(rounds[0]["tps"], key="ours".__ne__):
        rate = statistics.median(each["tps"][who] for each in rounds)
        ratio = statistics.median(each["tps"]["ours"] / each["tps"][who] for each in rounds)
        share = statistics.median(
            each["tps"][who] * size / 1e9 / statistics.mean(each["reads"]) for each in rounds
        )
        reads = f"{rate * size / 1e9:.1f} | {100 * share:.0f} %" if size else " | "
        lines.append(f"| {name} | {who} | {rate:,.1f} | {ratio:.2f} | {reads} |")
    reads = sorted(statistics.mean(each["reads"]) for each in rounds)
    lines += ["", f"{len(rounds)} rounds, plain reads of {reads[0]:.0f} to {reads[-1]:.0f} GB/s"]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PROGRAM")
    parser.add_argument("-p", type=int, default=0, help="tokens of a prompt, in place of -n")
    parser.add_argument(
        "-n", type=int, default=12, help="tokens to generate (default: %(default)s)"
    )
    parser.add_argument("-d", type=int, default=0, help="tokens of context before those")
    parser.add_argument("-b", type=int, default=1, help="sequences that generate side by side")
    parser.add_argument(
        "--kv-type", choices=("f16", "q8_0"), help="(default: f16, where there are keys)"
    )
    parser.add_argument("-t", type=int, default=2, help="threads (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument(
        "--json", type=Path, help="the file that a line with every slice is appended to"
    )
    options = parser.parse_args()
    if options.p and (options.d or options.b > 1):
        parser.error("-p: found -d or -b with it, wanted a prompt of one sequence, from its start")
    slices = {
        name: peer(command, options)
        for name, _, command in (text.partition("=") for text in options.peer)
    }
    with (
        oxillama.load(options.model, n_threads=options.t, kv_type=options.kv_type) as engine,
        engine.raw_loop() as loop,
    ):
        slices["ours"] = own(loop, engine.config.vocab_size, options)
        rounds = measure(slices, options.p or options.n * options.b, options)
        size = 0 if options.p else engine.model_bytes / options.b
        print(table(options.model.stem, rounds, size))
    if options.json:
        kept = {name: getattr(options, name) for name in ("p", "n", "d", "b", "kv_type", "t")}
        line = {"model": options.model.stem, **kept, "rounds": rounds}
        with options.json.open("a") as file:
            print(json.dumps(line), file=file)


if __name__ == "__main__":
    main()
