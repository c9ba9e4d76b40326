#!/usr/bin/env python3
"""Draws the pictures of docs/performance.md from what was recorded in docs/figures.

    measure.py ... --json docs/figures/{speed,depth,sequences}.json     each engine's rates
    serve_bench.py ... -b N --json >> docs/figures/load.jsonl     a line for each number of requests
    figures.py                      writes docs/{speed,depth,sequences,latency}.svg

Nothing is measured here: the same records give the same pictures. docs/figures/about.json says what
stands under their titles: what they were taken with.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roofline import Drawing

DOCS = Path(__file__).resolve().parents[1] / "docs"
COLOUR = "#6cc5b0"
NUMBERS = {"pp_tps": "prompt", "tg_tps": "generation"}
WAITS = {"first_ms": ("first token", "#4269d0"), "gap_ms": ("between two tokens", "#efb118")}


@dataclass(frozen=True, slots=True)
class Column:
    """Bars under one heading, one for each row of the picture: how many times as fast as the better
    peer, and our tokens per second; None where nothing was measured.
    """

    name: str
    bars: list[tuple[float, float] | None]


def lead(cell: dict[str, Any], key: str) -> tuple[float, float] | None:
    """What a bar shows of one recorded cell; None without a rate of ours and a peer's."""
    rates = {who: found[key] for who, found in cell["medians"].items() if key in found}
    ours = rates.pop("ours", None)
    return (ours / max(rates.values()), ours) if ours and rates else None


def bars(title: str, about: str, rows: list[str], columns: list[Column]) -> str:
    """Columns of bars side by side; the dashed lines stand at the better peer."""
    row, width, names = 20, 190, 110
    page = Drawing(len(columns) * (width + 160) + names, 84 + row * len(rows))
    page.text(20, 26, title, size=15)
    page.text(20, 44, about, colour="#555", size=11)
    unit = width / max(bar[0] for column in columns for bar in column.bars if bar)
    for i, name in enumerate(rows):
        page.text(names - 8, 87 + row * i, name, anchor="end")
    for j, column in enumerate(columns):
        left = names + j * (width + 160)
        page.text(left, 66, column.name, size=13)
        for i, bar in enumerate(column.bars):
            if bar:
                share, rate = bar
                page.box(left, 74 + row * i, share * unit, row - 4, COLOUR)
                told = f"{share:.2f} times: {rate:,.4g} tokens/s"
                page.text(left + max(share, 1) * unit + 6, 87 + row * i, told, size=11)
        page.line([(left + unit, 70), (left + unit, 76 + row * len(rows))], "#222", 1, "4 3")
    return str(page)


def speed(cells: list[dict[str, Any]], about: str) -> str:
    """Prompts and generation of models."""
    columns = [Column(name, [lead(cell, key) for cell in cells]) for key, name in NUMBERS.items()]
    return bars(
        "oxillama beside the better peer", about, [cell["model"] for cell in cells], columns
    )


def depth(cells: list[dict[str, Any]], about: str) -> str:
    """Generation at depths, a column for each type of keys and values, and long prompts."""
    kinds = {
        "generation, keys and values in f16": (r"generation \d+ at (\d+), \d", "tg_tps"),
        "generation, in q8_0": (r"generation \d+ at (\d+), keys and values in q8_0", "tg_tps"),
        "a prompt of so many, f16": (r"prompt (\d+),", "pp_tps"),
    }
    found = {
        (name, int(at[1])): lead(cell, key)
        for cell in cells
        for name, (pattern, key) in kinds.items()
        if (at := re.match(pattern, cell["work"]))
    }
    depths = sorted({tokens for _, tokens in found})
    return bars(
        "deep contexts beside the better peer",
        about,
        [f"{tokens:,} tokens" for tokens in depths],
        [Column(name, [found.get((name, tokens)) for tokens in depths]) for name in kinds],
    )


def sequences(cells: list[dict[str, Any]], about: str) -> str:
    """Generation of several sequences together, a column for each model."""
    found = {
        (cell["model"], int(at[1])): lead(cell, "tg_tps")
        for cell in cells
        if (at := re.search(r" x (\d+),", cell["work"]))
    }
    counts = sorted({count for _, count in found})
    return bars(
        "many sequences beside the better peer",
        about,
        [f"{count} sequences" for count in counts],
        [
            Column(model, [found.get((model, count)) for count in counts])
            for model in dict.fromkeys(model for model, _ in found)
        ],
    )


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
        **{
            f"{draw.__name__}.svg": draw(
                json.loads((records / f"{draw.__name__}.json").read_text()), about[draw.__name__]
            )
            for draw in (speed, depth, sequences)
        },
        "latency.svg": latency([json.loads(line) for line in load], about["load"]),
    }


def main() -> None:
    for name, picture in pictures(DOCS / "figures").items():
        (DOCS / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
