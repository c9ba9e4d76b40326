#!/usr/bin/env python3
"""Measures how long an image takes before its prompt can be evaluated, beside llama.cpp's mtmd.

    python tools/measure_images.py clip-l-336 qwen2-vl --mtmd BIN/llama-mtmd-cli --rounds 3

For each shape an encoder of random weights is made, once, and a language model of one layer beside
it, which takes the rows of its width. A round is one run of each engine, in a process of its own,
with weights in memory and one image encoded before. Ours is the whole of `Vision.pieces`: reading
pixels, resizing, patches, encoder and projector; theirs is what llama-mtmd-cli prints for encoding
alone. `--type` is the format of the encoder's matrices.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import oxillama
from oxillama.gguf import GgufReader, GgufWriter
from oxillama.quant import format_named, quantize

_REPEATED = 64  # rows that are drawn; a matrix is those over and over
_ENCODED = re.compile(r"batch encoding done in (\d+) ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """The sizes of an encoder; width: of the language model; size: (width, height) of the image."""

    kind: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    width: int
    image: int
    size: tuple[int, int]
    patch: int = 14
    keys: dict[str, object] = field(default_factory=dict)

    @property
    def group(self) -> int:
        """Patches of a feature."""
        return 4 if self.kind == "qwen2vl_merger" else 1


ENCODERS = {
    "clip-l-336": Encoder(
        kind="mlp",
        layers=23,
        hidden=1024,
        heads=16,
        ffn=4096,
        width=4096,
        image=336,
        size=(336, 336),
        keys={"vision.feature_layer": [23]},
    ),
    "qwen2-vl": Encoder(
        kind="qwen2vl_merger",
        layers=32,
        hidden=1280,
        heads=16,
        ffn=5120,
        width=1536,
        image=560,
        size=(392, 392),
    ),
}


def written_encoder(path: Path, e: Encoder, type_name: str) -> Path:
    """An mmproj file of random weights, matrices in the format `type_name`."""
    rng = np.random.default_rng(5)
    with GgufWriter(path, "clip") as file:

        def matrix(name: str, rows: int, columns: int) -> None:
            some = (rng.standard_normal((_REPEATED, columns)) / columns**0.5).astype(np.float32)
            held = quantize(some, type_name).view(np.uint8)
            held = held.reshape(_REPEATED, format_named(type_name).row_bytes(columns))
            file.declare(f"{name}.weight", type_name, (rows, columns))
            later.append((f"{name}.weight", held, rows))
            vector(f"{name}.bias", rows)

        def vector(name: str, size: int, mean: float = 0.0) -> None:
            values = (mean + 0.02 * rng.standard_normal(size)).astype(np.float32)
            file.add_tensor(name, values)

        def norm(name: str) -> None:
            vector(f"{name}.weight", e.hidden, 1.0)
            vector(f"{name}.bias", e.hidden)

        later: list[tuple[str, np.ndarray, int]] = []
        keys: dict[str, object] = {
            "projector_type": e.kind,
            "has_vision_encoder": True,
            "has_llava_projector": e.kind == "mlp",
            "use_gelu": False,
            "vision.image_size": e.image,
            "vision.patch_size": e.patch,
            "vision.embedding_length": e.hidden,
            "vision.feed_forward_length": e.ffn,
            "vision.projection_dim": e.width,
            "vision.block_count": e.layers,
            "vision.attention.head_count": e.heads,
            "vision.image_mean": [0.48, 0.46, 0.41],
            "vision.image_std": [0.27, 0.26, 0.28],
            **e.keys,
        }
        for key, value in keys.items():
            file.add(f"clip.{key}", value)
        file.add("clip.vision.attention.layer_norm_epsilon", 1e-5, "float32")
        kernels = (e.hidden, 3, e.patch, e.patch)
        for name in ("", ".1")[: 2 if e.group > 1 else 1]:
            values = rng.standard_normal(kernels).astype(np.float16) * np.float16(0.02)
            file.add_tensor(f"v.patch_embd.weight{name}", values)
        if e.kind == "mlp":
            rows = (e.image // e.patch) ** 2 + 1
            file.add_tensor("v.class_embd", rng.standard_normal(e.hidden).astype(np.float32))
            table = 0.02 * rng.standard_normal((rows, e.hidden))
            file.add_tensor("v.position_embd.weight", table.astype(np.float32))
            norm("v.pre_ln")
        else:
            norm("v.post_ln")
        for layer in range(e.layers):
            at = f"v.blk.{layer}."
            norm(at + "ln1")
            norm(at + "ln2")
            for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
                matrix(at + part, e.hidden, e.hidden)
            # of CLIP in the older way round, as its files have it
            names = ("ffn_down", "ffn_up") if e.kind == "mlp" else ("ffn_up", "ffn_down")
            matrix(at + names[0], e.ffn, e.hidden)
            matrix(at + names[1], e.hidden, e.ffn)
        first = e.width if e.kind == "mlp" else e.group * e.hidden
        matrix("mm.0", first, e.group * e.hidden)
        matrix("mm.2", e.width, first)
        for name, held, rows in later:
            file.write(name, np.tile(held, (-(-rows // len(held)), 1))[:rows].reshape(-1))
    return path


def written_text(path: Path, e: Encoder) -> Path:
    """A language model of one layer, as wide as the features, with the embedded model's words."""
    rng = np.random.default_rng(6)
    arch = "qwen2vl" if e.kind == "qwen2vl_merger" else "llama"
    source = GgufReader(Path(oxillama.__file__).parent / "embedded.gguf").metadata
    tokens, ffn, heads = len(source["tokenizer.ggml.tokens"]), 256, e.width // 128
    with GgufWriter(path, arch) as file:
        for key, value in {
            "vocab_size": tokens,
            "context_length": 8192,
            "embedding_length": e.width,
            "block_count": 1,
            "feed_forward_length": ffn,
            "attention.head_count": heads,
            "attention.head_count_kv": heads,
        }.items():
            file.add(f"{arch}.{key}", value)
        file.add(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5, "float32")
        if arch == "qwen2vl":
            file.add("qwen2vl.rope.dimension_sections", [16, 24, 24, 0])
        for key, value in source.items():
            if key.startswith("tokenizer."):
                file.add(key, value)
        sizes = {
            "token_embd": (tokens, e.width),
            "blk.0.attn_q": (e.width, e.width),
            "blk.0.attn_k": (e.width, e.width),
            "blk.0.attn_v": (e.width, e.width),
            "blk.0.attn_output": (e.width, e.width),
            "blk.0.ffn_gate": (ffn, e.width),
            "blk.0.ffn_up": (ffn, e.width),
            "blk.0.ffn_down": (e.width, ffn),
        }
        for name, size in sizes.items():
            values = rng.standard_normal(size, np.float32).astype(np.float16) * np.float16(0.02)
            file.add_tensor(f"{name}.weight", values)
        for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
            file.add_tensor(f"{name}.weight", np.ones(e.width, np.float32))
        if arch == "qwen2vl":
            for part in "qkv":
                file.add_tensor(f"blk.0.attn_{part}.bias", np.zeros(e.width, np.float32))
    return path


def child(mmproj: str, image: str, threads: int, times: int) -> list[float]:
    """Seconds of each of several images of one size, the first one left out."""
    from PIL import Image

    from oxillama.vision import Vision

    vision = Vision(mmproj, num_threads=threads)
    with Image.open(image) as held:
        array, spent = np.asarray(held.convert("RGB")).copy(), []
    for at in range(times + 1):
        array[0, 0] = at  # another image, whose features are not kept
        began = time.perf_counter()
        vision.pieces(array)
        spent.append(time.perf_counter() - began)
    return spent[1:]


def ours(mmproj: Path, image: Path, threads: int, times: int) -> list[float]:
    """Our seconds an image, in a process of its own."""
    text = (
        "import json, runpy, sys; m = runpy.run_path(sys.argv[1]); "
        "print(json.dumps(m['child'](**json.loads(sys.argv[2]))))"
    )
    options = {"mmproj": str(mmproj), "image": str(image), "threads": threads, "times": times}
    done = subprocess.run(
        [sys.executable, "-c", text, __file__, json.dumps(options)], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def theirs(program: str, model: Path, mmproj: Path, image: Path, threads: int) -> list[float]:
    """llama.cpp's seconds for encoding an image, after its warm-up."""
    done = subprocess.run(
        [program, "-m", str(model), "--mmproj", str(mmproj), "--image", str(image)]
        + ["-p", "x", "-n", "1", "-t", str(threads), "-c", "8192", "--chat-template", "vicuna"]
        + ["--temp", "0"],
        capture_output=True,
        text=True,
    )
    said = done.stdout + done.stderr
    found = [int(each) / 1e3 for each in _ENCODED.findall(said)]
    if done.returncode or not found:
        raise SystemExit(said[-3000:])
    return found


def main() -> None:
    """Make what is missing, run the rounds, print medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="+", choices=ENCODERS)
    parser.add_argument("--mtmd", help="llama-mtmd-cli")
    parser.add_argument("--type", default="F16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--times", type=int, default=2, help="images of a run of ours")
    folder = Path(tempfile.gettempdir()) / "oxillama-bench-models"
    parser.add_argument("--folder", type=Path, default=folder)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    from PIL import Image

    for name in asked.shapes:
        e, at = ENCODERS[name], asked.folder
        mmproj, model = at / f"mmproj-{name}-{asked.type}.gguf", at / f"text-{name}.gguf"
        if not mmproj.exists():
            written_encoder(mmproj, e, asked.type)
        if not model.exists():
            written_text(model, e)
        image = at / f"image-{e.size[0]}x{e.size[1]}.png"
        noise = np.random.default_rng(1).integers(0, 256, (*e.size[::-1], 3), np.uint8)
        Image.fromarray(noise).save(image)
        found: dict[str, list[float]] = {"ours": [], "llama.cpp": []}
        for _ in range(asked.rounds):
            found["ours"] += ours(mmproj, image, asked.threads, asked.times)
            if asked.mtmd:
                found["llama.cpp"] += theirs(asked.mtmd, model, mmproj, image, asked.threads)
            print(f"{name} {asked.type}", json.dumps(found), flush=True)
        medians = {who: statistics.median(times) for who, times in found.items() if times}
        line = ", ".join(f"{who} {seconds:.3f} s" for who, seconds in medians.items())
        if asked.mtmd:
            line += f", ratio {medians['llama.cpp'] / medians['ours']:.2f}"
        print(f"{name} {asked.type}: {line}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
    main()
