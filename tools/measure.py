#!/usr/bin/env python3
"""Measures oxillama beside a peer on the same files in one interleaved run, and writes the table of medians.

    measure.py --peer "PYTHON BENCH.py" MODEL.gguf [MODEL.gguf ...] [-p 512] [-n 64] [-t 2] [-d 0] [-b 1] [--rounds 5] [--json OUT.json]

The peer's command is called with the options of `oxillama bench` (-p -n -t -d -b -r --json) and must print one JSON object with `pp_tps`,
`tg_tps`, `load_s` and `peak_rss_mb`. Each round runs ours, then the peer, then starts over; a cell is the median of its rounds.
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


def run(command: list[str], model: Path, options: argparse.Namespace) -> dict:
    """One run of one engine: its JSON object."""
    full = [*command, str(model), "-p", str(options.p), "-n", str(options.n), "-t", str(options.t), "-d", str(options.d), "-b", str(options.b),
            "-r", str(options.runs), "--json"]
    done = subprocess.run(full, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{shlex.join(full)}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def medians(rounds: list[dict]) -> dict:
    """The median of each column over the rounds."""
    return {key: statistics.median(one[key] for one in rounds) for key, _ in COLUMNS}


def table(rows: list[dict]) -> str:
    """A Markdown table: ours / the peer's (ratio) per column."""
    head = "| model | " + " | ".join(f"{title}: ours / peer (ratio)" for _, title in COLUMNS) + " |"
    lines = [head, "| --- " * (len(COLUMNS) + 1) + "|"]
    for row in rows:
        cells = [f"{row['ours'][key]:,.{2 if key == 'load_s' else 0}f} / {row['peer'][key]:,.{2 if key == 'load_s' else 0}f} "
                 f"({row['ours'][key] / row['peer'][key]:.2f})" for key, _ in COLUMNS]
        lines.append(f"| {row['model']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--peer", required=True, help="the peer's benchmark command")
    parser.add_argument("--ours", default=f"{sys.executable} -W ignore -m oxillama.cli bench")
    for name, default in (("p", 512), ("n", 64), ("t", 2), ("d", 0), ("b", 1)):
        parser.add_argument(f"-{name}", type=int, default=default)
    parser.add_argument("--runs", type=int, default=1, help="runs inside one process after its warm-up")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for model in options.models:
        found: dict[str, list[dict]] = {"ours": [], "peer": []}
        for _ in range(options.rounds):
            for who, command in (("ours", options.ours), ("peer", options.peer)):
                found[who].append(run(shlex.split(command), model, options))
        rows.append({"model": model.stem, "options": {key: getattr(options, key) for key in "pntdb"}, "rounds": found,
                     **{who: medians(runs) for who, runs in found.items()}})
        print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
