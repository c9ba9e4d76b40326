#!/usr/bin/env python3
"""Measures oxillama beside peers on the same files in one interleaved run, and writes tables of medians and ratios.

    measure.py MODEL.gguf ... --peer "llama.cpp=PYTHON BENCH.py" --llama-bench "ik=BIN/llama-bench" [--work "p512 n64"] [--minutes 25]
    measure.py MODEL.gguf ... --cells bar --llama-bench "ik=BIN/llama-bench" --json OUT.json --table OUT.md
    measure.py MODEL.gguf --served --peer "llama.cpp=PYTHON BENCH.py" --work "p128 n128 d128 b16"

A piece of work is prompt tokens p, generated tokens n at depth d of b sequences together on t threads: "p512 n64", "n32 d4096", "t1 p512 n64".
`--cells bar` names pieces of work for models by their file names, the most important first (CELLS below).

A `--peer` is called with the options of `oxillama bench` (-p -n -t -d -b -r --json) and prints one JSON object. A `--llama-bench` program is run
with every set of `--flags`; the first round finds the best set for each number, later rounds run only those. One round is one turn of every
engine over all work; rounds go on until `--rounds` are done or `--minutes` are over, and a cell is the median of its rounds.

With --served ours is `serve_bench.py`: requests through the engine, prompts included. A peer has no such mode: what it would serve is its
prompts one after another and then its batched generation, b * n / (b * d / pp_tps + b * n / tg_tps), with its pp_tps at -p tokens.
"""
from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

COLUMNS = {"pp_tps": "prompt tokens/s", "tg_tps": "generation tokens/s", "load_s": "load s", "peak_rss_mb": "peak RSS MB",
           "served_tps": "generated tokens/s, prompts included"}
LESS_IS_BETTER = ("load_s", "peak_rss_mb")
CELLS = {"bar": (("1b-*", "p512 n64"), ("135m-*", "p512 n64"), ("1b-Q4_0", "n32 d4096"), ("1b-Q4_K_M", "n32 d4096"), ("1b-Q4_K_M", "n32 d64 b16"),
                 ("4b-*", "p512 n32"), ("1b-Q8_0", "n32 d4096"), ("1b-Q4_K_M", "n32 d64 b8"), ("1b-*", "t1 p512 n64"),
                 ("1b-Q4_0", "p2048"), ("1b-Q4_K_M", "p2048"), ("1b-Q8_0", "p2048"), ("1b-Q4_0", "n16 d16384")),
         "short": (("1b-Q4_0", "p512 n64"), ("1b-Q4_K_M", "p512 n64"), ("135m-Q4_0", "p512 n64"), ("1b-Q4_0", "n32 d4096"))}


@dataclass(frozen=True, slots=True)
class Work:
    """What one run does; p or n of 0 is left out."""

    p: int = 0
    n: int = 0
    d: int = 0
    b: int = 1
    t: int = 2

    @classmethod
    def of(cls, text: str) -> Work:
        """From a text like "p512 n64 d4096"."""
        found = dict(re.findall(r"\b([pndbt])(\d+)\b", text))
        if not found or re.sub(r"\b[pndbt]\d+\b", "", text).strip() or not (found.keys() & {"p", "n"}):
            raise SystemExit(f"work: found {text!r}, wanted letters p n d b t with numbers, as in 'p512 n64'")
        return cls(**{key: int(value) for key, value in found.items()})

    def __str__(self) -> str:
        words = [f"prompt {self.p}"] if self.p else []
        words += [f"generation {self.n}" + (f" at {self.d}" if self.d else "") + (f" x {self.b}" if self.b > 1 else "")] if self.n else []
        return ", ".join(words) + f", {self.t} thread{'s' if self.t > 1 else ''}"


def call(command: list[str]) -> tuple[str, float]:
    """A program's standard output, and the most memory it held in MB."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    errors: list[str] = []
    drain = threading.Thread(target=lambda: errors.append(process.stderr.read()))
    drain.start()
    out = process.stdout.read()
    drain.join()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{shlex.join(command)}: exit code {process.returncode}\n{errors[0][-1000:]}")
    return out, usage.ru_maxrss / 1024


@dataclass(slots=True)
class Harness:
    """An engine behind the options of `oxillama bench`."""

    name: str
    command: list[str]
    runs: int
    served: bool = False

    def measure(self, model: Path, work: Work) -> dict[str, float]:
        """One run: the columns it has numbers for."""
        full = [*self.command, str(model), "-p", str(max(work.p, 1)), "-n", str(max(work.n, 1)), "-t", str(work.t), "-d", str(work.d),
                "-b", str(work.b), "-r", str(self.runs), "--json"]
        found = json.loads(call(full)[0].strip().splitlines()[-1])
        if self.served and "served_tps" not in found:
            found["served_tps"] = work.n / (max(work.d, 1) / found["pp_tps"] + work.n / found["tg_tps"])
        absent = {key for key, asked in (("pp_tps", work.p), ("tg_tps", work.n)) if not asked}
        return {key: found[key] for key in COLUMNS if key in found and key not in absent}


@dataclass(slots=True)
class LlamaBench:
    """A llama-bench program with several sets of flags, the best of which counts for each number."""

    name: str
    program: str
    flags: list[str]
    runs: int
    best: dict[tuple, str] = field(default_factory=dict)        # (model, work, column) -> flags

    def measure(self, model: Path, work: Work) -> dict[str, float]:
        """One run of each set of flags that may still be the best; nothing where the program has no such mode (several sequences)."""
        if work.b > 1:
            return {}
        found: dict[str, float] = {}
        for flags in self.flags:
            columns = [key for key, asked in (("pp_tps", work.p), ("tg_tps", work.n))
                       if asked and self.best.get((model, work, key), flags) == flags]
            numbers = self._run(model, work, flags, columns) if columns else {}
            for key, value in numbers.items():
                if value > found.get(key, 0.0):
                    found[key] = value
        return found

    def settle(self, model: Path, work: Work, seen: dict[str, dict[str, float]]) -> None:
        """Keep the best flags of the first round: `seen` is flags -> columns."""
        for key in ("pp_tps", "tg_tps"):
            rates = {flags: columns[key] for flags, columns in seen.items() if key in columns}
            if rates:
                self.best[model, work, key] = max(rates, key=rates.__getitem__)

    def first(self, model: Path, work: Work) -> dict[str, float]:
        """The first round: every set of flags."""
        if work.b > 1:
            return {}
        wanted = [key for key, asked in (("pp_tps", work.p), ("tg_tps", work.n)) if asked]
        seen = {flags: self._run(model, work, flags, wanted) for flags in self.flags}
        self.settle(model, work, seen)
        return {key: seen[self.best[model, work, key]][key] for key in wanted}

    def _run(self, model: Path, work: Work, flags: str, columns: list[str]) -> dict[str, float]:
        prompt, generate = work.p if "pp_tps" in columns else 0, work.n if "tg_tps" in columns else 0
        tests = ["-p", str(prompt)] + (["-n", "0", "-gp", f"{work.d},{generate}"] if work.d and generate else ["-n", str(generate)])
        out, _ = call([self.program, "-m", str(model), *tests, "-t", str(work.t), "-r", str(self.runs), "-o", "json", *shlex.split(flags)])
        found = {}
        for row in json.loads(out[out.index("["):]):
            found["tg_tps" if row["n_gen"] else "pp_tps"] = float(row["avg_ts"])
        return {key: found[key] for key in columns}


@dataclass(slots=True)
class Cell:
    """One model under one piece of work, and what each engine did in each round."""

    model: Path
    work: Work
    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def medians(self, who: str) -> dict[str, float]:
        """The median of each column an engine has."""
        rounds = self.rounds.get(who, [])
        return {key: statistics.median(one[key] for one in rounds if key in one) for key in COLUMNS if any(key in one for one in rounds)}


def cells_of(options: argparse.Namespace) -> list[Cell]:
    """The cells asked for, most important first."""
    if options.cells:
        return [Cell(model, Work.of(text)) for pattern, text in CELLS[options.cells] for model in options.models
                if fnmatch.fnmatch(model.stem, pattern)]
    return [Cell(model, Work.of(text)) for text in options.work or ["p512 n64"] for model in options.models]


def table(cells: list[Cell], names: list[str]) -> str:
    """A Markdown table: a line per cell and column; the ratio is ours to the best of the others (theirs to ours where less is better)."""
    lines = [f"| model | work | | {' | '.join(names)} | ratio | rounds |", "| --- " * (len(names) + 5) + "|"]
    for cell in cells:
        found = {who: cell.medians(who) for who in names}
        for key, title in COLUMNS.items():
            if key not in found[names[0]]:
                continue
            digits = 2 if key == "load_s" else 1 if found[names[0]][key] < 100 else 0
            others = [found[who][key] for who in names[1:] if key in found[who]]
            ratio = found[names[0]][key] / (min if key in LESS_IS_BETTER else max)(others) if others else None
            shown = [f"{found[who][key]:,.{digits}f}" if key in found[who] else "" for who in names]
            lines.append(f"| {cell.model.stem} | {cell.work} | {title} | {' | '.join(shown)} | {'' if ratio is None else f'{ratio:.2f}'} "
                         f"| {len(cell.rounds[names[0]])} |")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND", help="a peer behind the options of `oxillama bench`")
    parser.add_argument("--llama-bench", action="append", default=[], metavar="NAME=PROGRAM", help="a peer's llama-bench program")
    parser.add_argument("--flags", action="append", default=[], help="a set of flags for llama-bench (default: '-fa 1 -rtr 0' and '-fa 1 -rtr 1')")
    parser.add_argument("--ours", help="our benchmark command (default: oxillama bench, with --served serve_bench.py)")
    parser.add_argument("--served", action="store_true", help="requests through the engine instead of the bare loop")
    parser.add_argument("--work", action="append", default=[], help="a piece of work for every model (default: 'p512 n64')")
    parser.add_argument("--cells", choices=CELLS, help="a named list of work instead")
    parser.add_argument("--runs", type=int, default=1, help="runs inside one process after its warm-up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=1e9, help="start no further cell after so many minutes")
    parser.add_argument("--json", type=Path, help="every number of every round, rewritten as they come")
    parser.add_argument("--table", type=Path, help="the Markdown table, rewritten as numbers come")
    return parser.parse_args()


def engines_of(options: argparse.Namespace) -> list[Harness | LlamaBench]:
    """Ours, then the peers in the order given."""
    own = [sys.executable, "-W", "ignore", *([str(Path(__file__).with_name("serve_bench.py"))] if options.served else ["-m", "oxillama.cli", "bench"])]
    engines: list[Harness | LlamaBench] = [Harness("ours", shlex.split(options.ours) if options.ours else own, options.runs, options.served)]
    for text in options.peer:
        name, _, command = text.partition("=") if re.match(r"[\w.-]+=", text) else ("peer", "", text)
        engines.append(Harness(name, shlex.split(command), options.runs, options.served))
    for text in options.llama_bench:
        name, _, program = text.rpartition("=")
        engines.append(LlamaBench(name or "llama-bench", program, options.flags or ["-fa 1 -rtr 0", "-fa 1 -rtr 1"], options.runs))
    return engines


def main() -> None:
    options = arguments()
    cells, engines = cells_of(options), engines_of(options)
    names, start = [engine.name for engine in engines], time.monotonic()
    for turn in range(options.rounds):
        for cell in cells:
            if time.monotonic() - start > 60 * options.minutes:
                break
            for engine in engines:
                try:
                    measure = engine.first if turn == 0 and isinstance(engine, LlamaBench) else engine.measure
                    cell.rounds.setdefault(engine.name, []).append(measure(cell.model, cell.work))
                except (RuntimeError, KeyError, ValueError) as error:       # one engine's failure is no reason to lose the others' numbers
                    print(f"{engine.name}: {cell.model.stem}: {cell.work}: {error}", file=sys.stderr, flush=True)
                    cell.rounds.setdefault(engine.name, []).append({})
            report(cells, names, options)
            print(table([cell], names).splitlines()[2:], f"{time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    print(table([cell for cell in cells if cell.rounds], names))


def report(cells: list[Cell], names: list[str], options: argparse.Namespace) -> None:
    """Write what is known so far."""
    seen = [cell for cell in cells if cell.rounds]
    if options.table:
        options.table.write_text(table(seen, names) + "\n")
    if options.json:
        options.json.write_text(json.dumps([{"model": cell.model.stem, "work": str(cell.work), "rounds": cell.rounds,
                                             "medians": {who: cell.medians(who) for who in names}} for cell in seen], indent=1))


if __name__ == "__main__":
    main()
