#!/usr/bin/env python3
"""Measures oxillama beside peers on the same files in one interleaved run, and writes tables of
medians and ratios.

    measure.py MODEL.gguf ... --peer "llama.cpp=PYTHON BENCH.py"
        --llama-bench "ik=BIN/llama-bench" [--work "p512 n64"] [--minutes 25]
    measure.py MODEL.gguf ... --cells bar --llama-bench "ik=BIN/llama-bench"
        --batched-bench "ik=BIN/llama-batched-bench" --json OUT.json
    measure.py MODEL.gguf --served --peer "llama.cpp=PYTHON BENCH.py"
        --batched-bench "ik=BIN/llama-batched-bench" --work "p128 n128 d128 b16"
    measure.py MODEL.gguf --load
        --peer "llama.cpp=PYTHON tools/first_token.py --engine llama.cpp"

A piece of work is prompt tokens p, generated tokens n at depth d of b sequences together on t
threads: "p512 n64", "n32 d4096", "t1 p512 n64"; with "q8_0" or "q4_0", keys and values are kept in
that. `--cells bar` names pieces of work for models by their file names, the most important first
(CELLS below).

A `--peer` is called with the options of `oxillama bench` (-p -n -t -d -b -r --kv-type --json) and
prints one JSON object; `peer_depth.cpp` beside this file makes one of llama.cpp and of ik_llama.cpp
that reaches great depths quickly. A `--llama-bench` program is run with every set of `--flags`: of
those given as "NAME=FLAGS" for its name, or of those for all. The default is for ik_llama.cpp;
llama.cpp wants "NAME=-fa 1", because it has no `-rtr`. The first round finds the best set for each
number, later rounds run only those. `--batched-bench` is the program for several sequences of a
peer of the same name. One round is one turn of every engine over all work; rounds go on until
`--rounds` are done or `--minutes` are over, and a cell is the median of its rounds.

Plain reads of memory by as many threads are measured before every run and after the last of a
round, because a shared machine has better and worse minutes. With `--least-reads GB/S` a round
waits up to `--patience` seconds for such a minute, and the table has a line for the rounds that had
it throughout, for those that never had it, and for those in which it changed. "of reads" is our
generation's rate of the model's bytes over those reads.

With --served ours is `serve_bench.py`: requests through the engine, prompts included. llama.cpp has
no such mode: what it would serve is its prompts one after another and then its batched generation,
b * n / (b * d / pp_tps + b * n / tg_tps), with its pp_tps at -p tokens; llama-batched-bench does
prompts and generation by itself. With --load ours and the peers are `first_token.py`, and work is
"warm" or "cold".

`--isa avx2` forces our instruction set (peers need builds of their own). `--sidecar FOLDER` maps
our weights from there, where they would be packed into memory otherwise. `--neighbour` keeps one
core busy with another process during each run.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from engines import COLUMNS, LESS_IS_BETTER, Harness, LlamaBench, Work

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "asv_benchmarks"))
from machine import read_bandwidth  # noqa: E402  (the benchmark folder is no package)

CELLS = {
    "bar": (
        ("1b-*", "p512 n64"),
        ("135m-*", "p512 n64"),
        ("1b-Q4_0", "n32 d4096"),
        ("1b-Q4_K_M", "n32 d4096"),
        ("1b-Q4_K_M", "n32 d64 b16"),
        ("4b-*", "p512 n32"),
        ("1b-Q8_0", "n32 d4096"),
        ("1b-Q4_K_M", "n32 d64 b8"),
        ("1b-*", "t1 p512 n64"),
        ("1b-Q4_0", "p2048"),
        ("1b-Q4_K_M", "p2048"),
        ("1b-Q8_0", "p2048"),
        ("1b-Q4_K_M", "n16 d16384"),
    ),
    "short": (
        ("1b-Q4_0", "p512 n64"),
        ("1b-Q4_K_M", "p512 n64"),
        ("135m-Q4_0", "p512 n64"),
        ("1b-Q4_0", "n32 d4096"),
    ),
}
IK_FLAGS = ("-fa 1 -rtr 0", "-fa 1 -rtr 1")  # what llama-bench is told unless --flags says more
CORES = (
    sorted(os.sched_getaffinity(0))
    if hasattr(os, "sched_getaffinity")
    else list(range(os.cpu_count() or 1))
)


@dataclass(slots=True)
class Cell:
    """One model under one piece of work: what each engine did in each round, and the GB/s of plain
    reads around its runs.
    """

    model: Path
    work: Work
    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    reads: list[list[float]] = field(default_factory=list)

    def moods(self, least: float) -> dict[str, list[int]]:
        """The rounds by what plain reads gave in them, in the table's words."""
        found: dict[str, list[int]] = {}
        for number, reads in enumerate(self.reads):
            good = sum(each >= least for each in reads)
            mood = (
                ""
                if not least
                else f">= {least:g}"
                if good == len(reads)
                else f"{least:g} passed"
                if good
                else f"< {least:g}"
            )
            found.setdefault(mood, []).append(number)
        return found

    def medians(self, who: str, numbers: list[int] | None = None) -> dict[str, float]:
        """The median of each column an engine has, over some rounds or all."""
        rounds = [
            each
            for number, each in enumerate(self.rounds.get(who, []))
            if numbers is None or number in numbers
        ]
        return {
            key: statistics.median(one[key] for one in rounds if key in one)
            for key in COLUMNS
            if any(key in one for one in rounds)
        }

    def share_of_reads(self, who: str, numbers: list[int]) -> float | None:
        """The median share of plain reads that one sequence's generation makes of the model's
        bytes; None where that is not what ran.
        """
        rounds = [
            (self.rounds[who][number], statistics.median(self.reads[number])) for number in numbers
        ]
        rates = [
            one["tg_tps"] * one["model_bytes"] / reads / 1e9
            for one, reads in rounds
            if "tg_tps" in one and "model_bytes" in one
        ]
        return statistics.median(rates) if rates and self.work.b == 1 and not self.work.d else None


def cells_of(options: argparse.Namespace) -> list[Cell]:
    """The cells asked for, most important first."""
    if options.cells:
        return [
            Cell(model, Work.of(text))
            for pattern, text in CELLS[options.cells]
            for model in options.models
            if fnmatch.fnmatch(model.stem, pattern)
        ]
    works = options.work or (["warm", "cold"] if options.load else ["p512 n64"])
    return [Cell(model, Work.of(text)) for text in works for model in options.models]


def table(cells: list[Cell], names: list[str], least: float = 0.0) -> str:
    """A Markdown table: a line per cell, mood and column; the ratio is ours to the best of the
    others (theirs to ours where less is better).
    """
    lines = [
        f"| model | work | | {' | '.join(names)} | ratio | rounds | reads GB/s | of reads |",
        "| --- " * (len(names) + 7) + "|",
    ]
    for cell in cells:
        for mood, numbers in cell.moods(least).items():
            lines += _lines(cell, names, numbers, mood)
    return "\n".join(lines)


def _lines(cell: Cell, names: list[str], numbers: list[int], mood: str) -> Iterator[str]:
    found = {who: cell.medians(who, numbers) for who in names}
    reads = [each for number in numbers for each in cell.reads[number]]
    weather = f"{min(reads):.0f} to {max(reads):.0f}" + (f" ({mood})" if mood else "")
    for key, title in COLUMNS.items():
        if key not in found[names[0]]:
            continue
        digits = 2 if key in ("load_s", "first_s") else 1 if found[names[0]][key] < 100 else 0
        others = [found[who][key] for who in names[1:] if key in found[who]]
        ratio = (
            f"{found[names[0]][key] / (min if key in LESS_IS_BETTER else max)(others):.2f}"
            if others
            else ""
        )
        shown = [f"{found[who][key]:,.{digits}f}" if key in found[who] else "" for who in names]
        share = cell.share_of_reads(names[0], numbers) if key == "tg_tps" else None
        yield (
            f"| {cell.model.stem} | {cell.work} | {title} | {' | '.join(shown)} | {ratio} | "
            f"{len(numbers)} | {weather} | {'' if share is None else f'{100 * share:.0f} %'} |"
        )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="a peer behind the options of `oxillama bench`",
    )
    parser.add_argument(
        "--llama-bench",
        action="append",
        default=[],
        metavar="NAME=PROGRAM",
        help="a peer's llama-bench program",
    )
    parser.add_argument(
        "--batched-bench",
        action="append",
        default=[],
        metavar="NAME=PROGRAM",
        help="a peer's llama-batched-bench program",
    )
    parser.add_argument(
        "--flags",
        action="append",
        default=[],
        metavar="[NAME=]FLAGS",
        help=(
            "a set of flags for llama-bench, or for the one of that name "
            f"(default: {' and '.join(map(repr, IK_FLAGS))})"
        ),
    )
    parser.add_argument(
        "--ours",
        help=(
            "our benchmark command (default: oxillama bench, with --served serve_bench.py, with "
            "--load first_token.py)"
        ),
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--served", action="store_true", help="requests through the engine instead of the bare loop"
    )
    mode.add_argument(
        "--load", action="store_true", help="loads to the first token (default work: warm and cold)"
    )
    parser.add_argument(
        "--work",
        action="append",
        default=[],
        help="a piece of work for every model (default: 'p512 n64')",
    )
    parser.add_argument("--cells", choices=CELLS, help="a named list of work instead")
    parser.add_argument("--isa", help="the instruction set forced on ours")
    parser.add_argument(
        "--sidecar",
        default="0",
        metavar="FOLDER",
        help="where ours keeps packed weights (default: nowhere)",
    )
    parser.add_argument(
        "--neighbour", action="store_true", help="another process keeps one core busy"
    )
    parser.add_argument(
        "--least-reads",
        type=float,
        default=0.0,
        metavar="GB/S",
        help="wait for plain reads of this rate before a round, tell rounds apart by it",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=20.0,
        metavar="S",
        help="seconds a round waits for them at most (default: %(default)g)",
    )
    parser.add_argument(
        "--runs", type=int, default=1, help="runs inside one process after its warm-up"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="start no further cell after so many minutes"
    )
    parser.add_argument(
        "--json", type=Path, help="every number of every round, rewritten as they come"
    )
    parser.add_argument("--table", type=Path, help="the Markdown table, rewritten as numbers come")
    options = parser.parse_args()
    if (
        any(bool(Work.of(text).load) != options.load for text in options.work)
        or options.load
        and options.cells
    ):
        parser.error("--load: goes with work 'warm' and 'cold', and only with that")
    return options


def flags_of(name: str, texts: list[str]) -> list[str]:
    """The sets of flags of a program: those given for its name, else those for all, else those of
    ik_llama.cpp.
    """
    named = [re.match(r"(?:([\w.][\w.-]*)=)?(.*)", text).groups() for text in texts]
    own = [flags for who, flags in named if who == name]
    return own or [flags for who, flags in named if who is None] or list(IK_FLAGS)


def engines_of(options: argparse.Namespace) -> list[Harness | LlamaBench]:
    """Ours, then the peers in the order given."""
    script = "serve_bench.py" if options.served else "first_token.py" if options.load else None
    own = [
        sys.executable,
        "-W",
        "ignore",
        *([str(Path(__file__).with_name(script))] if script else ["-m", "oxillama", "bench"]),
    ]
    own = (
        shlex.split(options.ours)
        if options.ours
        else [*own, "--sidecar", options.sidecar]
        if options.load and options.sidecar != "0"
        else own
    )
    engines: list[Harness | LlamaBench] = [
        Harness(
            "ours",
            own,
            options.runs,
            options.served,
            options.isa,
            {"OXILLAMA_SIDECAR": options.sidecar},
        )
    ]
    for text in options.peer:
        name, _, command = (
            text.partition("=") if re.match(r"[\w.-]+=", text) else ("peer", "", text)
        )
        engines.append(Harness(name, shlex.split(command), options.runs, options.served))
    tools: dict[str, LlamaBench] = {}
    for kind, texts in (("bench", options.llama_bench), ("batched", options.batched_bench)):
        for text in texts:
            name, _, program = text.rpartition("=")
            name = name or "llama-bench"
            tool = tools.setdefault(
                name,
                LlamaBench(
                    name, options.runs, flags_of(name, options.flags), served=options.served
                ),
            )
            setattr(tool, kind, program)
    return [*engines, *tools.values()]


@contextlib.contextmanager
def neighbour(wanted: bool) -> Iterator[None]:
    """Another process that keeps the last core busy, for as long as this one lives."""
    if not wanted:
        yield
        return
    loop = (
        f"import os\nos.sched_setaffinity(0, [{CORES[-1]}])\nwhile os.getppid() == {os.getpid()}:\n"
        " for _ in range(10 ** 6): pass"
    )
    busy = subprocess.Popen([sys.executable, "-c", loop])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def reads_before(options: argparse.Namespace, threads: int) -> float:
    """GB/s of plain reads by so many threads now; waits for the least asked for as long as patience
    allows.
    """
    end = time.monotonic() + (options.patience if options.least_reads else 0)
    while (found := read_bandwidth(threads)) < options.least_reads and time.monotonic() < end:
        time.sleep(1)
    return found


def one_round(cell: Cell, engines: list[Harness | LlamaBench], options: argparse.Namespace) -> None:
    """A turn of every engine."""
    reads = [reads_before(options, cell.work.t)]
    for engine in engines:
        found: dict[str, float] = {}
        try:
            with neighbour(options.neighbour):
                found = engine.measure(cell.model, cell.work)
        # one engine's failure is no reason to lose the others' numbers
        except (RuntimeError, KeyError, ValueError) as error:
            print(
                f"{engine.name}: {cell.model.stem}: {cell.work}: {error}",
                file=sys.stderr,
                flush=True,
            )
        cell.rounds.setdefault(engine.name, []).append(found)
        reads.append(read_bandwidth(cell.work.t))
    cell.reads.append(reads)


def main() -> None:
    options = arguments()
    cells, engines = cells_of(options), engines_of(options)
    names, start = [engine.name for engine in engines], time.monotonic()
    for _ in range(options.rounds):
        for cell in cells:
            if time.monotonic() - start > 60 * options.minutes:
                break
            one_round(cell, engines, options)
            report(cells, names, options)
            print(
                table([cell], names, options.least_reads).splitlines()[2:],
                f"{time.monotonic() - start:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    print(table([cell for cell in cells if cell.rounds], names, options.least_reads))


def report(cells: list[Cell], names: list[str], options: argparse.Namespace) -> None:
    """Write what is known so far."""
    seen = [cell for cell in cells if cell.rounds]
    if options.table:
        options.table.write_text(table(seen, names, options.least_reads) + "\n")
    if options.json:
        options.json.write_text(
            json.dumps(
                [
                    {
                        "model": cell.model.stem,
                        "work": str(cell.work),
                        "rounds": cell.rounds,
                        "reads": cell.reads,
                        "medians": {who: cell.medians(who) for who in names},
                    }
                    for cell in seen
                ],
                indent=1,
            )
        )


if __name__ == "__main__":
    main()
