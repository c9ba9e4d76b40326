#!/usr/bin/env python3
"""Measures oxillama beside a peer on the same files in one interleaved run, and writes the table of medians.

    measure.py --peer "PYTHON BENCH.py" MODEL.gguf [MODEL.gguf ...] [-p 512] [-n 64] [-t 2] [-d 0] [-b 1] [--rounds 5] [--json OUT.json]

    measure.py --served --peer "PYTHON BENCH.py" MODEL.gguf -b 16 -d 128 -n 128 -p 128

The peer's command is called with the options of `oxillama bench` (-p -n -t -d -b -r --json) and must print one JSON object with `pp_tps`,
`tg_tps`, `load_s` and `peak_rss_mb`. Each round runs ours, then the peer, then starts over; a cell is the median of its rounds.

With --served ours is `serve_bench.py`: requests through the engine, prompts included. The peer has no such mode: what it would serve is its
prompts one after another and then its batched generation, b * n / (b * d / pp_tps + b * n / tg_tps), with its pp_tps at -p tokens.
"""
from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

COLUMNS = (("pp_tps", "prompt tokens/s"), ("tg_tps", "generation tokens/s"), ("load_s", "load s"), ("peak_rss_mb", "peak RSS MB"))
SERVED = ("served_tps", "generated tokens/s, prompts included")


def run(command: list[str], model: Path, options: argparse.Namespace) -> dict:
    """One run of one engine: its JSON object."""
    full = [*command, str(model), "-p", str(options.p), "-n", str(options.n), "-t", str(options.t), "-d", str(options.d), "-b", str(options.b),
            "-r", str(options.runs), "--json"]
    done = subprocess.run(full, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{shlex.join(full)}\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    if options.served and "served_tps" not in found:
        depth = max(options.d, 1)
        found["served_tps"] = options.n / (depth / found["pp_tps"] + options.n / found["tg_tps"])
    return found


def medians(rounds: list[dict], columns: tuple) -> dict:
    """The median of each column over the rounds."""
    return {key: statistics.median(one[key] for one in rounds) for key, _ in columns}


def table(rows: list[dict], columns: tuple) -> str:
    """A Markdown table: ours / the peer's (ratio) per column."""
    head = "| model | " + " | ".join(f"{title}: ours / peer (ratio)" for _, title in columns) + " |"
    lines = [head, "| --- " * (len(columns) + 1) + "|"]
    for row in rows:
        cells = [f"{row['ours'][key]:,.{2 if key == 'load_s' else 0}f} / {row['peer'][key]:,.{2 if key == 'load_s' else 0}f} "
                 f"({row['ours'][key] / row['peer'][key]:.2f})" for key, _ in columns]
        lines.append(f"| {row['model']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--peer", required=True, help="the peer's benchmark command")
    parser.add_argument("--ours", help="our benchmark command (default: oxillama bench, with --served serve_bench.py)")
    parser.add_argument("--served", action="store_true", help="requests through the engine instead of the bare loop")
    for name, default in (("p", 512), ("n", 64), ("t", 2), ("d", 0), ("b", 1)):
        parser.add_argument(f"-{name}", type=int, default=default)
    parser.add_argument("--runs", type=int, default=1, help="runs inside one process after its warm-up")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    ours = [sys.executable, "-W", "ignore", *([str(Path(__file__).with_name("serve_bench.py"))] if options.served else ["-m", "oxillama.cli", "bench"])]
    commands = (("ours", shlex.split(options.ours) if options.ours else ours), ("peer", shlex.split(options.peer)))
    columns = (*COLUMNS, SERVED) if options.served else COLUMNS
    rows = []
    for model in options.models:
        found: dict[str, list[dict]] = {"ours": [], "peer": []}
        for _ in range(options.rounds):
            for who, command in commands:
                found[who].append(run(command, model, options))
        rows.append({"model": model.stem, "options": {key: getattr(options, key) for key in "pntdb"}, "rounds": found,
                     **{who: medians(runs, columns) for who, runs in found.items()}})
        print(table(rows[-1:], columns).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows, columns))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
