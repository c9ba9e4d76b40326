#!/usr/bin/env python3
"""Draws where a step's time goes: every class of op against the bandwidth and the peak that this
machine shows in the same minute.

    roofline.py MODEL.gguf [-t 2] [-o docs/roofline.svg] [--json NUMBERS.json]

Three steps are profiled op by op (Program.profile): one token at depth 0 and at depth 4096, and a
prompt of 512. For each class the weights or keys and values it must read and the products it must
do are counted from the tape. The first picture places the classes (of more than 1 % of a step)
under the roof min(bandwidth x intensity, peak); the second shows each step's time, and under it the
least time the roof allows. Bandwidth is that of plain reads by all threads; the peak is what the
product kernel reaches on weights that stay in the cache. Needs no plotting library.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import oxillama
from oxillama.model.lower import TapeOp

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "asv_benchmarks"))
from bench_matmul import product  # noqa: E402  (the benchmark folder is no package)
from machine import best, read_bandwidth  # noqa: E402

COLOURS = {
    "qkv": "#4269d0",
    "attention": "#efb118",
    "attn_output": "#6cc5b0",
    "gate and up": "#3ca951",
    "ffn_down": "#97bbf5",
    "logits": "#a463f2",
    "norm, rope, store, rest": "#9c6b4e",
}
MARKS = ("generation at 0", "generation at 4096", "prompt 512")


@dataclass(slots=True)
class Share:
    """What the ops of one class did in one step: measured seconds, bytes they had to read, products
    they had to do.
    """

    seconds: float = 0.0
    bytes: float = 0.0
    products: float = 0.0


def class_of(op: TapeOp) -> str:
    """The class of an op, by its name and the weights it reads."""
    if op.name == "attend":
        return "attention"
    names = " ".join(tensor.name for tensor in op.params.get("weights", ()))
    for word, kind in (
        ("attn_output", "attn_output"),
        ("attn_", "qkv"),
        ("ffn_gate", "gate and up"),
        ("ffn_up", "gate and up"),
        ("ffn_down", "ffn_down"),
    ):
        if word in names:
            return kind
    return "logits" if names else "norm, rope, store, rest"


def shares(
    engine: oxillama.InferenceEngine, depth: int, rows: int, repeat: int
) -> dict[str, Share]:
    """The classes of a step of `rows` tokens after `depth` others."""
    reader, vocab = engine._loaded.model.reader, engine.config.vocab_size
    found = {name: Share() for name in COLOURS}
    with engine.raw_loop() as loop:
        if depth:
            loop.prefill(0, [(7 * j + 11) % vocab for j in range(depth)])
        timed = loop.profile(0, [(13 * j + 5) % vocab for j in range(rows)], repeat=repeat)
    for op, microseconds in timed:
        share = found[class_of(op)]
        share.seconds += microseconds * 1e-6
        weights = op.params.get("weights", ())
        # only the last row's logits are asked for
        seen = 1 if op.params.get("out") == -1 else rows
        for tensor in weights:
            share.bytes += (
                reader.tensors[tensor.name].nbytes
                * tensor.shape[0]
                / reader.tensors[tensor.name].shape[0]
            )
            share.products += seen * tensor.shape[0] * tensor.shape[1]
        if op.name == "attend":
            p = op.params
            # pairs of a query and a key it may see
            keys = rows * depth + rows * (rows + 1) / 2
            share.bytes += 2 * (depth + rows) * p["kv_heads"] * (p["k_dim"] + p["v_dim"])
            share.products += keys * p["q_heads"] * (p["k_dim"] + p["v_dim"])
    return found


def roofs(threads: int, weight_format: str) -> tuple[float, float]:
    """Bytes and products a second: plain reads, and the product kernel on weights in the cache,
    each the best of many runs.
    """
    rows = 768
    call, matrix = product(weight_format, rows, 240, threads)
    return read_bandwidth(threads) * 1e9, rows * 240 * matrix.cols / best(call, 1.0)


# ---- drawing
# --------------------------------------------------------------------------------------------------


class Drawing:
    """SVG elements on a white page."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 '
            f'0 {width} {height}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif" '
            'font-size="12">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
        ]

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        anchor: str = "start",
        size: int = 12,
        colour: str = "#222",
    ) -> None:
        words = words.replace("&", "&amp;").replace("<", "&lt;")
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
            f'fill="{colour}">{words}</text>'
        )

    def line(
        self,
        points: Iterable[tuple[float, float]],
        colour: str = "#222",
        width: float = 1,
        dash: str = "",
    ) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" '
            f'stroke-dasharray="{dash}"/>'
        )

    def box(
        self, x: float, y: float, width: float, height: float, colour: str, opacity: float = 1.0
    ) -> None:
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" '
            f'fill="{colour}" fill-opacity="{opacity}" stroke="white" stroke-width="0.7"/>'
        )

    def mark(self, x: float, y: float, shape: int, colour: str) -> None:
        """A circle, a square or a triangle."""
        if shape == 0:
            self.parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}" stroke="#222"/>'
            )
        else:
            points = (
                ((-5, -5), (5, -5), (5, 5), (-5, 5)) if shape == 1 else ((0, -6), (6, 5), (-6, 5))
            )
            path = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in points)
            self.parts.append(f'<polygon points="{path}" fill="{colour}" stroke="#222"/>')

    def __str__(self) -> str:
        return "\n".join((*self.parts, "</svg>\n"))


def draw(steps: dict[str, dict[str, Share]], bandwidth: float, peak: float, title: str) -> str:
    """Both pictures side by side."""
    page = Drawing(1180, 520)
    page.text(24, 28, title, size=15)
    page.text(
        24,
        48,
        f"roof: {bandwidth / 1e9:.1f} GB/s of plain reads, {peak / 1e9:.0f} GMAC/s of the product "
        "kernel on weights in the cache",
        colour="#555",
    )
    _roofline(page, steps, bandwidth, peak)
    _bars(page, steps, bandwidth, peak)
    for i, (name, colour) in enumerate(COLOURS.items()):
        page.box(60 + 158 * i, 488, 12, 12, colour)
        page.text(77 + 158 * i, 499, name)
    return str(page)


def _roofline(
    page: Drawing, steps: dict[str, dict[str, Share]], bandwidth: float, peak: float
) -> None:
    left, right, top, bottom = 76, 520, 80, 430
    points = [
        (share.products / share.bytes, share.products / share.seconds, name, i)
        for i, step in enumerate(steps.values())
        for name, share in step.items()
        if share.products and share.seconds > 0.01 * sum(one.seconds for one in step.values())
    ]
    low, high = (
        math.floor(math.log10(min(x for x, *_ in points))),
        math.ceil(math.log10(max(x for x, *_ in points))),
    )
    floor, roof = (
        math.floor(math.log10(min(y for _, y, *_ in points))),
        math.ceil(math.log10(peak) * 10) / 10 + 0.1,
    )

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            left + (math.log10(x) - low) / (high - low) * (right - left),
            bottom - (math.log10(y) - floor) / (roof - floor) * (bottom - top),
        )

    for power in range(low, high + 1):
        x, _ = at(10**power, 10**floor)
        page.line([(x, top), (x, bottom)], "#ddd")
        page.text(x, bottom + 18, f"{10**power:g}", anchor="middle")
    for power in range(floor, math.floor(roof) + 1):
        _, y = at(1, 10**power)
        page.line([(left, y), (right, y)], "#ddd")
        page.text(left - 6, y + 4, f"{10 ** (power - 9):g}", anchor="end")
    page.line(
        [
            at(10**low, max(10**floor, bandwidth * 10**low)),
            at(peak / bandwidth, peak),
            at(10**high, peak),
        ],
        "#222",
        2,
    )
    for x, y, name, shape in points:
        page.mark(*at(x, y), shape, COLOURS[name])
    page.text((left + right) / 2, bottom + 36, "products per byte read", anchor="middle")
    page.text(left - 50, top - 10, "GMAC/s")
    for i, name in enumerate(steps):
        page.mark(right - 150, bottom - 54 + 18 * i, i, "#ccc")
        page.text(right - 138, bottom - 50 + 18 * i, name)


def _bars(page: Drawing, steps: dict[str, dict[str, Share]], bandwidth: float, peak: float) -> None:
    left, right, top = 590, 1100, 92
    for i, (title, step) in enumerate(steps.items()):
        y, total = top + 122 * i, sum(share.seconds for share in step.values())
        least = {
            name: max(share.bytes / bandwidth, share.products / peak)
            for name, share in step.items()
        }
        page.text(
            left,
            y - 6,
            f"{title}: {1e3 * total:.2f} ms, {100 * sum(least.values()) / total:.0f} % of the roof",
            size=13,
        )
        for row, (values, label, opacity) in enumerate(
            (
                ({name: share.seconds for name, share in step.items()}, "measured", 1.0),
                (least, "least", 0.55),
            )
        ):
            x = left
            for name, seconds in values.items():
                width = seconds / total * (right - left)
                page.box(x, y + 34 * row, width, 28, COLOURS[name], opacity)
                if width > 38:
                    page.text(
                        x + width / 2,
                        y + 34 * row + 18,
                        f"{100 * seconds / total:.0f} %",
                        anchor="middle",
                        colour="white" if row == 0 else "#222",
                    )
                x += width
            page.text(right + 8, y + 34 * row + 18, label)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("-t", "--threads", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/roofline.svg"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with oxillama.load(options.model, num_threads=options.threads or None, sidecar=False) as engine:
        threads, reader = engine.num_threads, engine._loaded.model.reader
        largest = max(
            reader.tensors.values(),
            key=lambda info: info.nbytes if info.name.startswith("blk.") else 0,
        )
        bandwidth, peak = roofs(threads, largest.type_name)
        steps = {
            MARKS[0]: shares(engine, 0, 1, 25),
            MARKS[1]: shares(engine, 4096, 1, 15),
            MARKS[2]: shares(engine, 0, 512, 3),
        }
        # other work comes and goes: the better of before and after
        again, peak_again = roofs(threads, largest.type_name)
    bandwidth, peak = max(bandwidth, again), max(peak, peak_again)
    info = oxillama.cpu_info()
    title = (
        f"{options.model.stem}, {threads} thread{'s' if threads > 1 else ''}, {info['isa']}, "
        f"{info['model']}"
    )
    options.output.write_text(draw(steps, bandwidth, peak, title), encoding="utf-8")
    if options.json:
        told = {
            name: {kind: asdict(share) for kind, share in step.items()}
            for name, step in steps.items()
        }
        options.json.write_text(
            json.dumps(
                {"title": title, "bytes_per_s": bandwidth, "products_per_s": peak, "steps": told},
                indent=1,
            )
        )


if __name__ == "__main__":
    main()
