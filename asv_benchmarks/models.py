"""Models of real shapes with random weights, made once and kept: speed depends on shapes and
formats, not on values.

`OXILLAMA_BENCH_SHAPES` names the shapes that are measured: `135m` unless set, `135m,1b,4b` for the
cells of the speed table, `tiny` to see that everything runs. Files lie in the folder
`OXILLAMA_BENCH_MODELS` (unless set, one of the system's temporary folder) as SHAPE-RECIPE.gguf, and
what lies there is used.

`python asv_benchmarks/models.py 1b Q4_K_M` makes one and prints its path.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import oxillama
from oxillama.gguf import GgufWriter
from oxillama.quant import RECIPES, dequantize, format_named, quantize
from oxillama.quant.contexts import tensor_contexts
from oxillama.quant.recipes import choose, is_kept

FORMATS = ["Q4_0", "Q4_K_M", "Q6_K", "Q8_0", "IQ4_XS"]
_REPEATED = 64  # rows that are drawn; a matrix is those over and over

Sizes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes that make a model's speed. keys: its hyper-parameters without the architecture's
    prefix; block: the tensors of a layer by their names within it, sizes rows outermost.
    """

    arch: str
    vocab: int
    keys: Mapping[str, int | float | str | list[int]]
    block: Callable[[int], Sizes]
    tied: bool = True  # the embedding is the output matrix too
    outside: Sizes = field(default_factory=lambda: {"output_norm": ()})  # (): as wide as the model

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return int(self.keys["block_count"])

    def tensors(self) -> Sizes:
        """Every tensor, by its whole name."""
        hidden = int(self.keys["embedding_length"])
        found = {"token_embd.weight": (self.vocab, hidden)}
        for layer in range(self.layers):
            found |= {
                _whole(f"blk.{layer}.{name}"): size for name, size in self.block(layer).items()
            }
        found |= {_whole(name): size or (hidden,) for name, size in self.outside.items()}
        return found if self.tied else found | {"output.weight": (self.vocab, hidden)}


def _whole(name: str) -> str:
    return name if name.endswith((".bias", "ssm_a", "ssm_d")) else f"{name}.weight"


def _attention(hidden: int, heads: int, kv_heads: int, dim: int) -> Sizes:
    return {
        "attn_norm": (hidden,),
        "attn_q": (heads * dim, hidden),
        "attn_k": (kv_heads * dim, hidden),
        "attn_v": (kv_heads * dim, hidden),
        "attn_output": (hidden, heads * dim),
    }


def _gated(hidden: int, width: int) -> Sizes:
    return {
        "ffn_norm": (hidden,),
        "ffn_gate": (width, hidden),
        "ffn_up": (width, hidden),
        "ffn_down": (hidden, width),
    }


def _experts(hidden: int, width: int, count: int) -> Sizes:
    return {
        "ffn_gate_inp": (count, hidden),
        "ffn_gate_exps": (count, width, hidden),
        "ffn_up_exps": (count, width, hidden),
        "ffn_down_exps": (count, hidden, width),
    }


def _attention_keys(
    hidden: int,
    layers: int,
    context: int,
    heads: int,
    kv_heads: int,
    dim: int,
    ffn: int,
    base: float,
) -> dict[str, int | float | str | list[int]]:
    return {
        "block_count": layers,
        "context_length": context,
        "embedding_length": hidden,
        "feed_forward_length": ffn,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": dim,
        "attention.value_length": dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": base,
    }


def _dense(
    arch: str,
    *,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    dim: int,
    ffn: int,
    vocab: int,
    context: int,
    base: float,
    head_norms: bool = False,
) -> Shape:
    """llama, and qwen3 with a norm of each head."""
    block = _attention(hidden, heads, kv_heads, dim) | _gated(hidden, ffn)
    if head_norms:
        block |= {"attn_q_norm": (dim,), "attn_k_norm": (dim,)}
    keys = _attention_keys(hidden, layers, context, heads, kv_heads, dim, ffn, base)
    return Shape(
        arch=arch, vocab=vocab, keys=keys | {"rope.dimension_count": dim}, block=lambda layer: block
    )


def _qwen3moe() -> Shape:
    """Qwen3 30B-A3B with 12 of its 48 layers."""
    block = _attention(2048, 32, 4, 128) | {"attn_q_norm": (128,), "attn_k_norm": (128,)}
    block |= {"ffn_norm": (2048,)} | _experts(2048, 768, 128)
    return Shape(
        arch="qwen3moe",
        vocab=151_936,
        keys=_attention_keys(2048, 12, 40_960, 32, 4, 128, 6144, 1e6)
        | {"expert_count": 128, "expert_used_count": 8, "expert_feed_forward_length": 768},
        block=lambda layer: block,
        tied=False,
    )


def _gpt_oss() -> Shape:
    """gpt-oss 20B with 8 of its 24 layers."""
    hidden, heads, kv_heads, dim, count = 2880, 64, 8, 64, 32
    block = _attention(hidden, heads, kv_heads, dim) | _experts(hidden, hidden, count)
    block |= {
        "post_attention_norm": (hidden,),
        "attn_sinks": (heads,),
        "attn_q.bias": (heads * dim,),
        "attn_k.bias": (kv_heads * dim,),
        "attn_v.bias": (kv_heads * dim,),
        "attn_output.bias": (hidden,),
        "ffn_gate_inp.bias": (count,),
        "ffn_gate_exps.bias": (count, hidden),
        "ffn_up_exps.bias": (count, hidden),
        "ffn_down_exps.bias": (count, hidden),
    }
    return Shape(
        arch="gpt-oss",
        vocab=201_088,
        keys=_attention_keys(hidden, 8, 131_072, heads, kv_heads, dim, hidden, 150_000.0)
        | {
            "expert_count": count,
            "expert_used_count": 4,
            "expert_feed_forward_length": hidden,
            "attention.sliding_window": 128,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 4096,
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
        },
        block=lambda layer: block,
        tied=False,
    )


def _deepseek2_lite() -> Shape:
    """DeepSeek-V2-Lite with 8 of its 27 layers. Others know the lite models by their number of
    layers, so that the rank of their queries, which have none, is written down.
    """
    hidden, heads, rank, rope, nope, value = 2048, 16, 512, 64, 128, 128
    attention = {
        "attn_norm": (hidden,),
        "attn_q": (heads * (nope + rope), hidden),
        "attn_kv_a_mqa": (rank + rope, hidden),
        "attn_kv_a_norm": (rank,),
        "attn_k_b": (heads, rank, nope),
        "attn_v_b": (heads, value, rank),
        "attn_output": (hidden, heads * value),
    }
    sparse = _experts(hidden, 1408, 64) | {
        "ffn_norm": (hidden,),
        "ffn_gate_shexp": (2816, hidden),
        "ffn_up_shexp": (2816, hidden),
        "ffn_down_shexp": (hidden, 2816),
    }
    dense = _gated(hidden, 10_944)
    return Shape(
        arch="deepseek2",
        vocab=102_400,
        keys=_attention_keys(hidden, 8, 163_840, heads, 1, rank + rope, 10_944, 1e4)
        | {
            "attention.value_length": rank,
            "attention.key_length_mla": nope + rope,
            "attention.value_length_mla": value,
            "attention.q_lora_rank": 0,
            "attention.kv_lora_rank": rank,
            "rope.dimension_count": rope,
            "vocab_size": 102_400,
            "leading_dense_block_count": 1,
            "expert_count": 64,
            "expert_used_count": 6,
            "expert_shared_count": 2,
            "expert_feed_forward_length": 1408,
            "expert_weights_scale": 1.0,
        },
        block=lambda layer: attention | (sparse if layer else dense),
        tied=False,
    )


def _mamba2() -> Shape:
    """Mamba-2 1.3B."""
    hidden, inner, state, heads, kernel = 2048, 4096, 128, 64, 4
    channels = inner + 2 * state
    block = {
        "attn_norm": (hidden,),
        "ssm_in": (inner + channels + heads, hidden),
        "ssm_conv1d": (channels, kernel),
        "ssm_conv1d.bias": (channels,),
        "ssm_dt.bias": (heads,),
        "ssm_a": (heads, 1),
        "ssm_d": (heads, 1),
        "ssm_norm": (1, inner),
        "ssm_out": (hidden, inner),
    }
    return Shape(
        arch="mamba2",
        vocab=50_288,
        keys={
            "block_count": 48,
            "context_length": 1_048_576,
            "embedding_length": hidden,
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "ssm.conv_kernel": kernel,
            "ssm.inner_size": inner,
            "ssm.state_size": state,
            "ssm.time_step_rank": heads,
            "ssm.group_count": 1,
        },
        block=lambda layer: block,
    )


def _lfm2() -> Shape:
    """LFM2 1.2B: six layers of attention, ten of convolution."""
    hidden, attending = 2048, (2, 5, 8, 10, 12, 14)
    attention = _attention(hidden, 32, 8, 64) | {"attn_q_norm": (64,), "attn_k_norm": (64,)}
    convolution = {
        "attn_norm": (hidden,),
        "shortconv.conv": (hidden, 3),
        "shortconv.in_proj": (3 * hidden, hidden),
        "shortconv.out_proj": (hidden, hidden),
    }
    keys = _attention_keys(hidden, 16, 128_000, 32, 8, 64, 8192, 1e6)
    del keys["attention.key_length"], keys["attention.value_length"]
    keys["attention.head_count_kv"] = [8 if layer in attending else 0 for layer in range(16)]
    return Shape(
        arch="lfm2",
        vocab=65_536,
        keys=keys | {"vocab_size": 65_536, "shortconv.l_cache": 3},
        block=lambda layer: (
            (attention if layer in attending else convolution) | _gated(hidden, 8192)
        ),
        outside={"token_embd_norm": ()},
    )


def _gemma2() -> Shape:
    """Gemma 2 2B."""
    block = _attention(2304, 8, 4, 256) | _gated(2304, 9216)
    block |= {"post_attention_norm": (2304,), "post_ffw_norm": (2304,)}
    keys = _attention_keys(2304, 26, 8192, 8, 4, 256, 9216, 1e4)
    del keys["rope.freq_base"]
    return Shape(
        arch="gemma2",
        vocab=256_000,
        keys=keys
        | {
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "attention.sliding_window": 4096,
        },
        block=lambda layer: block,
    )


SHAPES = {
    "tiny": _dense(
        "llama", hidden=256, layers=2, heads=4, kv_heads=2, dim=64, ffn=512,
        vocab=512, context=20_000, base=1e4,
    ),
    "135m": _dense(
        "llama", hidden=576, layers=30, heads=9, kv_heads=3, dim=64, ffn=1536,
        vocab=49_152, context=20_000, base=1e5,
    ),
    "1b": _dense(
        "llama", hidden=2048, layers=16, heads=32, kv_heads=8, dim=64, ffn=8192,
        vocab=128_256, context=131_072, base=5e5,
    ),
    "4b": _dense(
        "qwen3", hidden=2560, layers=36, heads=32, kv_heads=8, dim=128, ffn=9728,
        vocab=151_936, context=40_960, base=1e6, head_norms=True,
    ),
    "30b-a3b": _qwen3moe(),
    "gpt-oss": _gpt_oss(),
    "deepseek2-lite": _deepseek2_lite(),
    "mamba2": _mamba2(),
    "lfm2": _lfm2(),
    "gemma2": _gemma2(),
}  # fmt: skip


def metadata(shape: Shape, recipe: str) -> dict[str, tuple]:
    """The keys of a model, each a value and its kind; its vocabulary is bytes and numbers, so that
    what it draws has a text to send.
    """
    special, words = ["<unk>", "<s>", "</s>"], shape.vocab - 259
    kinds = {int: "uint32", float: "float32", str: "string", list: "array[int32]"}
    return {
        "general.name": ("random weights", "string"),
        "general.file_type": (RECIPES[recipe].file_type, "uint32"),
        **{f"{shape.arch}.{key}": (value, kinds[type(value)]) for key, value in shape.keys.items()},
        "tokenizer.ggml.model": ("llama", "string"),
        "tokenizer.ggml.pre": ("default", "string"),
        "tokenizer.ggml.tokens": (
            [
                *special,
                *(f"<0x{b:02X}>" for b in range(256)),
                *(f"\u2581{i}" for i in range(words)),
            ],
            "array[string]",
        ),
        "tokenizer.ggml.scores": ([0.0] * shape.vocab, "array[float32]"),
        "tokenizer.ggml.token_type": ([2, 3, 3] + [6] * 256 + [1] * words, "array[int32]"),
        "tokenizer.ggml.bos_token_id": (1, "uint32"),
        "tokenizer.ggml.eos_token_id": (2, "uint32"),
    }


def _planned(shape: Shape, recipe: str) -> dict[str, str]:
    """The format of every tensor, as `oxillama quantize` chooses it."""
    keys = {name: value for name, (value, _) in metadata(shape, recipe).items()}
    infos = {name: SimpleNamespace(name=name, shape=size) for name, size in shape.tensors().items()}
    file = SimpleNamespace(metadata={"general.architecture": shape.arch, **keys}, tensors=infos)
    return {
        info.name: "F32"
        if is_kept(info.name, info.shape)
        else choose(info.name, info.shape[-1], RECIPES[recipe], place)
        for info, place in tensor_contexts(file, has_imatrix=False)
    }


def write(path: Path, shape: Shape, recipe: str) -> Path:
    """Write a model as the recipe's file would be: the same format for each tensor as `oxillama
    quantize` chooses.
    """
    rng, sizes, formats = np.random.default_rng(7), shape.tensors(), _planned(shape, recipe)
    with GgufWriter(path, shape.arch) as writer:
        for key, (value, kind) in metadata(shape, recipe).items():
            writer.add(key, value, kind)
        for name, size in sizes.items():
            writer.declare(name, formats[name], size)
        for name, size in sizes.items():
            if formats[name] == "F32":
                values = 0.02 * rng.standard_normal(size)
                values = -1 - np.abs(values) if name.endswith("ssm_a") else values
                values = 1 + values if len(size) == 1 and name.endswith("norm.weight") else values
                writer.write(name, values.astype(np.float32))
                continue
            some = 0.02 * rng.standard_normal((_REPEATED, size[-1])).astype(np.float32)
            if formats[name] == "F16":  # nearly every model was published in bf16
                some = dequantize(quantize(some, "BF16"), "BF16")
            some = quantize(some, formats[name])
            rows = some.view(np.uint8).reshape(
                _REPEATED, format_named(formats[name]).row_bytes(size[-1])
            )
            count = int(np.prod(size[:-1]))
            writer.write(name, np.tile(rows, (-(-count // _REPEATED), 1))[:count].reshape(-1))
    return path


def wanted() -> list[str]:
    """The shapes to measure; ValueError for a name that is none."""
    names = os.environ.get("OXILLAMA_BENCH_SHAPES", "135m").split(",")
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
