#!/usr/bin/env python3
"""Requantises a model with each recipe and prints what that costs: bits, round-trip error,
perplexity, divergence (a Markdown table).

    quality_table.py [MODEL.gguf] [--text FILE] [--recipes Q2_K,Q4_0,...] [--windows 8]
        [--context 256]

Without a model the embedded one is taken; without a text, one that its own first words begin (drawn
at temperature 1 with fixed seeds), so that the text is such as the model was trained for. The base
of the divergence is the model as it is in its file.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import oxillama
from oxillama import quant
from oxillama.gguf import GgufReader

RECIPES = "Q2_K,Q3_K_M,IQ4_XS,Q4_0,Q4_K_M,Q5_K_M,Q6_K,Q8_0"


def own_text(engine: oxillama.InferenceEngine, tokens: int) -> list[int]:
    """Token ids of stories that the model tells itself."""
    ids: list[int] = []
    for seed in range(1000):
        prompt = engine.tokenize("Once upon a time")
        done = engine.generate(
            prompt,
            max_tokens=300,
            sampler=oxillama.SamplerConfig(
                temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed
            ),
        )
        ids += prompt + list(done.tokens)
        if len(ids) >= tokens:
            return ids[:tokens]
    raise SystemExit(f"the model's own texts hold {len(ids)} tokens, wanted {tokens}")


def round_trip(a: Path, b: Path) -> float:
    """Root mean square error over the root mean square, of all matrices that changed."""
    error = size = 0.0
    with GgufReader(a) as before, GgufReader(b) as after:
        for name, info in before.tensors.items():
            if len(info.shape) < 2:
                continue
            columns = info.shape[-1]
            x, y = (
                quant.dequantize(
                    r.data(name).reshape(
                        -1, quant.format_named(r.tensors[name].type_name).row_bytes(columns)
                    ),
                    r.tensors[name].type_name,
                ).astype(np.float64)
                for r in (before, after)
            )
            error, size = error + ((x - y) ** 2).sum(), size + (x**2).sum()
    return float(np.sqrt(error / size))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, default=oxillama.embedded_path())
    parser.add_argument("--text", type=Path)
    parser.add_argument("--recipes", default=RECIPES)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--context", type=int, default=256)
    options = parser.parse_args()
    print(
        "| recipe | bits per weight | round-trip error | perplexity | KL mean | KL median | KL 99 "
        "% | same likeliest token |"
    )
    print("| --- " * 8 + "|")
    with tempfile.TemporaryDirectory() as folder:
        base, asked = (
            Path(folder) / "base.logits",
            dict(context=options.context, limit=options.windows),
        )
        with oxillama.load(options.model, context_size=4096 if options.text else None) as engine:
            text = (
                options.text.read_text()
                if options.text
                else own_text(engine, options.windows * options.context)
            )
            found = oxillama.perplexity(engine, text, save_logits=base, **asked)
        print(f"| as it is | | | {found.value:.4f} +- {found.error:.4f} | | | | |", flush=True)
        for recipe in options.recipes.split(","):
            path = Path(folder) / "model.gguf"
            made = quant.quantize_file(options.model, path, recipe)
            with oxillama.load(path) as engine:
                found = oxillama.perplexity(engine, text, kl_base=base, **asked)
            d = found.divergence
            print(
                f"| {recipe} | {made.bits:.2f} | {100 * round_trip(options.model, path):.2f} % | "
                f"{found.value:.4f} +- {found.error:.4f} | {d.mean:.5f} | {d.median:.5f} | "
                f"{d.p99:.4f} | {100 * d.same_top:.1f} % |",
                flush=True,
            )


if __name__ == "__main__":
    main()
