#!/usr/bin/env python3
"""Draws the pictures of docs/performance.md from what was recorded in docs/figures.

    measure.py ... --json docs/figures/speed.json      each engine's rates, beside each other
    serve_bench.py ... -b N --json >> docs/figures/load.jsonl     a line for each number of requests
    figures.py                                         writes docs/{speed,latency}.svg

Nothing is measured here: the same records give the same pictures. docs/figures/about.json says what
stands under their titles: what they were taken with.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from roofline import Drawing

DOCS = Path(__file__).resolve().parents[1] / "docs"
COLOUR = "#6cc5b0"
NUMBERS = {"pp_tps": "prompt", "tg_tps": "generation"}
WAITS = {"first_ms": ("first token", "#4269d0"), "gap_ms": ("between two tokens", "#efb118")}


def speed(cells: list[dict[str, Any]], about: str) -> str:
    """How many times as fast as the better peer, a bar for each rate of each model, with our tokens
    per second beside it.
    """
    row, width, names = 20, 190, 110
    page = Drawing(2 * (width + 160) + names, 84 + row * len(cells))
    page.text(20, 26, "oxillama beside the better peer", size=15)
    page.text(20, 44, about, colour="#555", size=11)
    shares = {
        key: [
            rates["ours"][key] / max(rates[who][key] for who in rates if who != "ours")
            for rates in (cell["medians"] for cell in cells)
        ]
        for key in NUMBERS
    }
    unit = width / max(map(max, shares.values()))
    for j, (key, name) in enumerate(NUMBERS.items()):
        left = names + j * (width + 160)
        page.text(left, 66, name, size=13)
        for i, (cell, share) in enumerate(zip(cells, shares[key])):
            y = 74 + row * i
            page.box(left, y, share * unit, row - 4, COLOUR)
            told = f"{share:.2f} times: {cell['medians']['ours'][key]:,.4g} tokens/s"
            page.text(left + max(share, 1) * unit + 6, y + 13, told, size=11)
            if j == 0:
                page.text(names - 8, y + 13, cell["model"], anchor="end")
        page.line([(left + unit, 70), (left + unit, 76 + row * len(cells))], "#222", 1, "4 3")
    return str(page)


def latency(lines: list[dict[str, Any]], about: str) -> str:
    """Milliseconds over the number of requests at once, both axes logarithmic: lines at p50, dashed
    ones at p99.
    """
    left, right, top, bottom = 70, 560, 66, 330
    page = Drawing(800, 380)
    page.text(20, 26, "waiting, when so many requests come at once", size=15)
    page.text(20, 44, about, colour="#555", size=11)
    values = [wait for line in lines for key in WAITS for wait in line[key].values()]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    most = math.log2(max(line["batch"] for line in lines))

    def at(batch: int, wait: float) -> tuple[float, float]:
        return (
            left + math.log2(batch) / most * (right - left),
            bottom - (math.log10(wait) - low) / (high - low) * (bottom - top),
        )

    for power in range(low, high + 1):
        _, y = at(1, 10.0**power)
        page.line([(left, y), (right, y)], "#ddd")
        page.text(left - 6, y + 4, f"{10.0**power:,g} ms", anchor="end")
    for line in lines:
        x, _ = at(line["batch"], 10.0**low)
        page.line([(x, top), (x, bottom)], "#eee")
        page.text(x, bottom + 18, str(line["batch"]), anchor="middle")
    page.text((left + right) / 2, bottom + 36, "requests", anchor="middle")
    for i, (key, (name, colour)) in enumerate(WAITS.items()):
        for j, (share, dash) in enumerate((("p50", ""), ("p99", "5 4"))):
            points = [at(line["batch"], line[key][share]) for line in lines]
            page.line(points, colour, 2, dash)
            y = top + 14 + 20 * (2 * i + j)
            page.line([(right + 20, y - 4), (right + 52, y - 4)], colour, 2, dash)
            page.text(right + 58, y, f"{name}, {share}")
            if not dash:
                for x, y in points:
                    page.mark(x, y, 0, colour)
    return str(page)


def pictures(records: Path) -> dict[str, str]:
    """Every picture by its file name."""
    about = json.loads((records / "about.json").read_text())
    load = (records / "load.jsonl").read_text().splitlines()
    return {
        "speed.svg": speed(json.loads((records / "speed.json").read_text()), about["speed"]),
        "latency.svg": latency([json.loads(line) for line in load], about["load"]),
    }


def main() -> None:
    for name, picture in pictures(DOCS / "figures").items():
        (DOCS / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
