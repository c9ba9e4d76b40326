"""Compares what asv measured of two commits in several turns: prints each benchmark's best of both,
and ends with 1 where the second commit is slower by a tenth or more.

    python tools/regressions.py FOLDER BASE HEAD

FOLDER holds a copy of asv's results for each turn. asv's own comparison takes any larger number
for worse; here units that end in "/s" are rates.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import defaultdict
from pathlib import Path

FACTOR = 1.1  # a tenth


def units(folder: Path) -> dict[str, str]:
    """The unit of each benchmark."""
    found = json.loads((folder / "benchmarks.json").read_text())
    return {name: each["unit"] for name, each in found.items() if isinstance(each, dict)}


def measured(folder: Path, commit: str) -> dict[tuple[str, ...], float]:
    """The numbers of a commit by benchmark and parameters; what failed or was skipped is left
    out.
    """
    values = {}
    for path in sorted(folder.glob("*/*.json")):
        held = json.loads(path.read_text())
        if path.name == "machine.json" or held["commit_hash"] != commit:
            continue
        for name, row in held["results"].items():
            columns = dict(zip(held["result_columns"], row))
            given = itertools.product(*columns["params"])
            for params, value in zip(given, columns["result"] or ()):
                if value is not None:
                    values[name, *params] = value
    return values


def compare(turns: list[Path], base: str, head: str) -> list[tuple[float, str, float, float]]:
    """(how many times as slow, what, best before, best after), the worst first.

    ValueError where no benchmark was measured of both commits.
    """
    unit = units(turns[-1])
    best: dict[str, dict[tuple[str, ...], float]] = {base: {}, head: {}}
    every: dict[str, dict[tuple[str, ...], list[float]]] = defaultdict(lambda: defaultdict(list))
    for folder in turns:
        for commit in (base, head):
            for key, value in measured(folder, commit).items():
                every[commit][key].append(value)
    for commit, found in every.items():
        for key, values in found.items():
            best[commit][key] = max(values) if unit[key[0]].endswith("/s") else min(values)
    rows = []
    for key in best[base].keys() & best[head].keys():
        before, after = best[base][key], best[head][key]
        ratio = before / after if unit[key[0]].endswith("/s") else after / before
        rows.append((ratio, f"{key[0]}({', '.join(key[1:])}) {unit[key[0]]}", before, after))
    if not rows:
        raise ValueError(f"{turns}: nothing was measured of both {base} and {head}")
    return sorted(rows, reverse=True)


def main(folder: str, base: str, head: str) -> int:
    """The exit status."""
    rows = compare(sorted(Path(folder).iterdir()), base, head)
    for ratio, what, before, after in rows:
        print(f"{ratio:6.2f}  {before:12.6g} {after:12.6g}  {what}")
    slower = sum(ratio >= FACTOR for ratio, *_ in rows)
    print(f"{len(rows)} compared, {slower} slower by a tenth or more")
    return int(slower > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
