"""Models of real shapes with random weights, made once and kept: speed depends on shapes and
formats, not on values.

`OXILLAMA_BENCH_SHAPES` names the shapes that are measured: `tiny` unless set, `135m,1b,4b` for the
real ones. Files lie in the folder `OXILLAMA_BENCH_MODELS` (unless set, one of the system's
temporary folder) as SHAPE-RECIPE.gguf, and what lies there is used.

`python asv_benchmarks/models.py 1b Q4_K_M` makes one and prints its path.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import oxillama
from oxillama.gguf import GgufWriter
from oxillama.quant import RECIPES, format_named, quantize
from oxillama.quant.recipes import Place, choose, is_kept, layer_of

FORMATS = ["Q4_0", "Q4_K_M", "Q6_K", "Q8_0", "IQ4_XS"]
_REPEATED = 64  # rows that are drawn; a matrix is those over and over


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes that make a model's speed."""

    arch: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    rope_base: float


SHAPES = {
    "tiny": Shape(
        arch="llama",
        hidden=256,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=64,
        ffn=512,
        vocab=512,
        context=20_000,
        rope_base=1e4,
    ),
    "135m": Shape(
        arch="llama",
        hidden=576,
        layers=30,
        heads=9,
        kv_heads=3,
        head_dim=64,
        ffn=1536,
        vocab=49_152,
        context=20_000,
        rope_base=1e5,
    ),
    "1b": Shape(
        arch="llama",
        hidden=2048,
        layers=16,
        heads=32,
        kv_heads=8,
        head_dim=64,
        ffn=8192,
        vocab=128_256,
        context=131_072,
        rope_base=5e5,
    ),
    "4b": Shape(
        arch="qwen3",
        hidden=2560,
        layers=36,
        heads=32,
        kv_heads=8,
        head_dim=128,
        ffn=9728,
        vocab=151_936,
        context=40_960,
        rope_base=1e6,
    ),
}


def tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model, rows outermost; the embedding is the output matrix too."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    block = {
        "attn_norm": (shape.hidden,),
        "attn_q": (q, shape.hidden),
        "attn_k": (kv, shape.hidden),
        "attn_v": (kv, shape.hidden),
        "attn_output": (shape.hidden, q),
        "ffn_norm": (shape.hidden,),
        "ffn_gate": (shape.ffn, shape.hidden),
        "ffn_up": (shape.ffn, shape.hidden),
        "ffn_down": (shape.hidden, shape.ffn),
    }
    if shape.arch == "qwen3":
        block |= {"attn_q_norm": (shape.head_dim,), "attn_k_norm": (shape.head_dim,)}
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (shape.vocab, shape.hidden)}
    for layer in range(shape.layers):
        found |= {f"blk.{layer}.{name}.weight": size for name, size in block.items()}
    return found | {"output_norm.weight": (shape.hidden,)}


def keys(shape: Shape, recipe: str) -> dict[str, tuple]:
    """The keys of a model, each a value and its kind; its vocabulary is bytes and unused tokens."""
    size = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.ffn,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "rope.dimension_count": shape.head_dim,
        "vocab_size": shape.vocab,
    }
    special, unused = ["<unk>", "<s>", "</s>"], shape.vocab - 259
    return {
        "general.name": ("random weights", "string"),
        "general.file_type": (RECIPES[recipe].file_type, "uint32"),
        **{f"{shape.arch}.{name}": (value, "uint32") for name, value in size.items()},
        f"{shape.arch}.rope.freq_base": (shape.rope_base, "float32"),
        f"{shape.arch}.attention.layer_norm_rms_epsilon": (1e-5, "float32"),
        "tokenizer.ggml.model": ("llama", "string"),
        "tokenizer.ggml.pre": ("default", "string"),
        "tokenizer.ggml.tokens": (
            [
                *special,
                *(f"<0x{b:02X}>" for b in range(256)),
                *(f"<unused{i}>" for i in range(unused)),
            ],
            "array[string]",
        ),
        "tokenizer.ggml.scores": ([0.0] * shape.vocab, "array[float32]"),
        "tokenizer.ggml.token_type": ([2, 3, 3] + [6] * 256 + [5] * unused, "array[int32]"),
        "tokenizer.ggml.bos_token_id": (1, "uint32"),
        "tokenizer.ggml.eos_token_id": (2, "uint32"),
    }


def write(path: Path, shape: Shape, recipe: str) -> Path:
    """Write a model as the recipe's file would be: the same format for each tensor as `oxillama
    quantize` chooses.
    """
    rng, sizes = np.random.default_rng(7), tensors(shape)
    with GgufWriter(path, shape.arch) as writer:
        for key, (value, kind) in keys(shape, recipe).items():
            writer.add(key, value, kind)
        formats = {}
        for name, size in sizes.items():
            layer = layer_of(name) or 0
            place = Place(
                layer=layer,
                layers=shape.layers,
                before=layer,
                grouping=shape.heads // shape.kv_heads,
                experts=0,
                has_imatrix=False,
                tied=True,
                large=False,
            )
            formats[name] = (
                "F32" if is_kept(name, size) else choose(name, size[-1], RECIPES[recipe], place)
            )
            writer.declare(name, formats[name], size)
        for name, size in sizes.items():
            if len(size) == 1:
                writer.write(name, (1 + 0.02 * rng.standard_normal(size)).astype(np.float32))
                continue
            some = quantize(
                0.02 * rng.standard_normal((_REPEATED, size[-1])).astype(np.float32), formats[name]
            )
            rows = some.view(np.uint8).reshape(
                _REPEATED, format_named(formats[name]).row_bytes(size[-1])
            )
            writer.write(name, np.tile(rows, (-(-size[0] // _REPEATED), 1))[: size[0]].reshape(-1))
    return path


def wanted() -> list[str]:
    """The shapes to measure; ValueError for a name that is none."""
    names = os.environ.get("OXILLAMA_BENCH_SHAPES", "tiny").split(",")
    unknown = [name for name in names if name not in SHAPES]
    if unknown:
        raise ValueError(
            f"OXILLAMA_BENCH_SHAPES: found {unknown[0]!r}, wanted some of {', '.join(SHAPES)}"
        )
    return names


def model(name: str, recipe: str) -> Path:
    """The file of a shape in a recipe, made unless it stands."""
    folder = Path(
        os.environ.get("OXILLAMA_BENCH_MODELS")
        or Path(tempfile.gettempdir()) / "oxillama-bench-models"
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{recipe}.gguf"
    return path if path.exists() else write(path, SHAPES[name], recipe)


def opened(name: str, recipe: str, threads: int, **config) -> oxillama.InferenceEngine:
    """An engine over a model, its weights packed into memory; the caller closes it."""
    return oxillama.load(
        model(name, recipe), num_threads=threads, prefix_cache=False, sidecar=False, **config
    )


if __name__ == "__main__":
    print(model(sys.argv[1], sys.argv[2]))
