"""Tiny mmproj files of random weights of the families that have a writer of their own each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.gguf import GgufWriter

HIDDEN, HEADS, LAYERS, PATCH, FFN = 32, 4, 3, 14, 64
WRITERS: dict[str, Callable[..., None]] = {}


class Weights:
    """Random tensors by name, of one generator; scale: the deviation of their numbers."""

    def __init__(self, seed: int) -> None:
        self.rng, self.scale = np.random.default_rng(seed), 0.2
        self.tensors: dict[str, np.ndarray] = {}

    def put(self, name: str, *shape: int, scale: float = 0.0) -> None:
        """A tensor of normal numbers."""
        self.tensors[name] = self.rng.normal(0, scale or self.scale, shape).astype(np.float32)

    def norm(self, name: str, size: int = HIDDEN, *, bias: bool = True) -> None:
        """A weight about 1, and a bias."""
        self.tensors[name + ".weight"] = self.rng.normal(1, 0.1, size).astype(np.float32)
        if bias:
            self.put(name + ".bias", size)

    def linear(self, name: str, rows: int, columns: int, *, bias: bool = True) -> None:
        """A matrix, and a bias."""
        self.put(name + ".weight", rows, columns)
        if bias:
            self.put(name + ".bias", rows)

    def layer(
        self, at: str, *, size: int = HIDDEN, swapped: bool = False, fused: bool = False
    ) -> None:
        """A transformer's layer with layer norms and biases. swapped: up and down have each other's
        names. fused: queries, keys and values have one matrix.
        """
        self.norm(at + "ln1", size)
        self.norm(at + "ln2", size)
        if fused:
            self.linear(at + "attn_qkv", 3 * size, size)
        for part in ("out",) if fused else ("q", "k", "v", "out"):
            self.linear(f"{at}attn_{part}", size, size)
        up, down = ("ffn_down", "ffn_up") if swapped else ("ffn_up", "ffn_down")
        self.linear(at + up, FFN, size)
        self.linear(at + down, size, FFN)


def writer(*kinds: str) -> Callable:
    """Register the decorated function as what makes the tensors and keys of these kinds."""

    def register(make: Callable[..., None]) -> Callable[..., None]:
        WRITERS.update(dict.fromkeys(kinds, make))
        return make

    return register


def write_more(path: Path, kind: str, *, seed: int = 0, **more: Any) -> Path:
    """An encoder of random weights; more: what the kind's writer takes."""
    weights = Weights(seed)
    keys: dict[str, Any] = {
        "projector_type": kind,
        "has_vision_encoder": True,
        "vision.image_size": 56,
        "vision.patch_size": PATCH,
        "vision.embedding_length": HIDDEN,
        "vision.feed_forward_length": FFN,
        "vision.block_count": LAYERS,
        "vision.attention.head_count": HEADS,
        "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.image_mean": [0.5, 0.5, 0.5],
        "vision.image_std": [0.5, 0.25, 0.5],
    }
    WRITERS[kind](weights, keys, **more)
    with GgufWriter(path, "clip") as file:
        for key, value in keys.items():
            file.add(f"clip.{key}", value)
        for name, values in weights.tensors.items():
            file.add_tensor(name, values)
    return path


@writer("resampler")
def _resampler(w: Weights, keys: dict[str, Any], *, width: int = 256, version: int = 3) -> None:
    """Positions are a grid of 8 x 8: torch's nearest places of it are exact."""
    keys |= {
        "has_text_encoder": False,
        "has_minicpmv_projector": True,
        "minicpmv_version": version,
        "minicpmv_query_num": 8,
        "vision.projection_dim": 0,
        "use_gelu": True,
    }
    w.put("v.patch_embd.weight", HIDDEN, 3, PATCH, PATCH, scale=0.05)
    w.put("v.patch_embd.bias", HIDDEN)
    w.put("v.position_embd.weight", 64, HIDDEN)
    for layer in range(LAYERS):
        w.layer(f"v.blk.{layer}.", swapped=True)
    w.norm("v.post_ln")
    w.put("resampler.query", 8, width)
    w.put("resampler.proj.weight", width, width)
    w.put("resampler.kv.weight", width, HIDDEN)
    for part in ("q", "k", "v", "out"):
        w.linear(f"resampler.attn.{part}", width, width)
    for part in ("q", "kv", "post"):
        w.norm(f"resampler.ln_{part}", width)
    w.tensors["resampler.pos_embed_k"] = np.zeros((4900, width), np.float32)


@writer("minicpmv4_6")
def _minicpmv46(w: Weights, keys: dict[str, Any], *, width: int = 48, scale: int = 4) -> None:
    keys |= {
        "vision.projection_dim": width,
        "vision.projector.scale_factor": scale,
        "vision.wa_layer_indexes": [1],
        "use_gelu": True,
    }
    w.put("v.patch_embd.weight", HIDDEN, 3, PATCH, PATCH, scale=0.05)
    w.put("v.patch_embd.bias", HIDDEN)
    w.put("v.position_embd.weight", 64, HIDDEN)
    for layer in range(LAYERS):
        w.layer(f"v.blk.{layer}.")
    w.norm("v.post_ln")
    if scale == 4:
        w.norm("v.vit_merger.ln1")
        for part in ("q", "k", "v", "out"):
            w.linear(f"v.vit_merger.attn_{part}", HIDDEN, HIDDEN)
        w.norm("v.vit_merger.ds_ln", 4 * HIDDEN)
        w.linear("v.vit_merger.ds_ffn_up", 4 * FFN, 4 * HIDDEN)
        w.linear("v.vit_merger.ds_ffn_down", HIDDEN, 4 * FFN)
    w.norm("mm.input_norm", 4 * HIDDEN)
    w.linear("mm.up", 4 * HIDDEN, 4 * HIDDEN)
    w.linear("mm.down", width, 4 * HIDDEN)


@writer("kimivl", "kimik25")
def _kimi(w: Weights, keys: dict[str, Any], *, width: int = 48) -> None:
    newer = keys["projector_type"] == "kimik25"
    keys |= {
        "vision.projection_dim": width,
        "vision.projector.scale_factor": 2,
        "vision.image_size": 112,
        "vision.attention.layer_norm_epsilon": 1e-5,
        "use_gelu": True,
    }
    w.put("v.patch_embd.weight", HIDDEN, 3, PATCH, PATCH, scale=0.05)
    w.put("v.patch_embd.bias", HIDDEN)
    if newer:
        keys |= {"vision.image_min_pixels": 8 * 196, "vision.image_max_pixels": 60 * 196}
        w.put("v.position_embd.weight", 8, 8, HIDDEN)
    else:
        w.put("v.position_embd.weight", 64, HIDDEN)
    for layer in range(LAYERS):
        w.layer(f"v.blk.{layer}.", fused=newer)
    w.norm("v.post_ln")
    w.norm("mm.input_norm")
    w.linear("mm.1", 4 * HIDDEN, 4 * HIDDEN)
    w.linear("mm.2", width, 4 * HIDDEN)


@writer("gemma4uv")
def _gemma4_unified(w: Weights, keys: dict[str, Any], *, width: int = 48) -> None:
    """Beside an encoder of sound, as every such file is."""
    del keys["projector_type"]
    keys |= {
        "vision.projector_type": "gemma4uv",
        "audio.projector_type": "gemma4ua",
        "has_audio_encoder": True,
        "vision.image_size": 224,
        "vision.patch_size": 4,
        "vision.feed_forward_length": 0,
        "vision.block_count": 0,
        "vision.attention.head_count": 0,
        "vision.projection_dim": width,
        "audio.projection_dim": width,
        "audio.embedding_length": 16,
        "audio.feed_forward_length": 0,
        "audio.block_count": 0,
        "audio.attention.head_count": 0,
        "audio.num_mel_bins": 128,
        "audio.attention.layer_norm_epsilon": 1e-6,
    }
    w.norm("v.patch_norm.1", 432)
    w.linear("v.patch_embd", HIDDEN, 432)
    w.norm("v.patch_norm.2")
    w.put("v.position_embd.weight", 2, 300, HIDDEN)
    w.norm("v.patch_norm.3")
    w.linear("mm.input_projection", width, HIDDEN, bias=False)
    w.linear("mm.a.input_projection", width, 16, bias=False)


@writer("gemma3nv")
def _gemma3n(w: Weights, keys: dict[str, Any], *, width: int = 48, size: int = 512) -> None:
    """A few blocks of each kind, of `size` x `size` pixels; beside an encoder of sound."""
    del keys["projector_type"]
    keys |= {
        "vision.projector_type": "gemma3nv",
        "audio.projector_type": "gemma3na",
        "has_audio_encoder": True,
        "vision.image_size": size,
        "vision.patch_size": size // 256,
        "vision.block_count": 128,
        "vision.attention.head_count": 8,
        "vision.image_mean": [0.0, 0.0, 0.0],
        "vision.image_std": [1.0, 1.0, 1.0],
        "vision.projection_dim": width,
        "audio.embedding_length": 16,
    }

    def conv(name: str, rows: int, columns: int, side: int) -> None:
        w.put(name + ".weight", rows, columns, side, side, scale=1 / (side * columns**0.5))

    def norm(name: str, size: int) -> None:
        w.norm(name, size, bias=False)

    def edge(at: str, columns: int, rows: int) -> None:
        conv(at + "conv_exp", 2 * columns, columns, 3)
        norm(at + "bn1", 2 * columns)
        conv(at + "conv_pwl", rows, 2 * columns, 1)
        norm(at + "bn2", rows)

    def inverted(at: str, columns: int, rows: int, start: int, middle: int) -> None:
        if start:
            conv(at + "dw_start.conv", columns, 1, start)
            norm(at + "dw_start.bn", columns)
        conv(at + "pw_exp.conv", 2 * columns, columns, 1)
        norm(at + "pw_exp.bn", 2 * columns)
        if middle:
            conv(at + "dw_mid.conv", 2 * columns, 1, middle)
            norm(at + "dw_mid.bn", 2 * columns)
        conv(at + "pw_proj.conv", rows, 2 * columns, 1)
        norm(at + "pw_proj.bn", rows)
        w.put(at + "layer_scale.gamma", rows, scale=1)

    def attention(at: str, size: int, *, strided: bool) -> None:
        norm(at + "norm", size)
        conv(at + "attn.query.proj", 32, size, 1)
        for part in ("key", "value"):
            if strided:
                conv(f"{at}attn.{part}.down_conv", size, 1, 3)
                norm(f"{at}attn.{part}.norm", size)
            conv(f"{at}attn.{part}.proj", 16, size, 1)
        conv(at + "attn.output.proj", size, 32, 1)
        w.put(at + "layer_scale.gamma", size, scale=1)

    conv("v.conv_stem.conv", 8, 3, 3)
    w.put("v.conv_stem.conv.bias", 1, 8, 1, 1)
    norm("v.conv_stem.bn", 8)
    edge("v.blk.0.0.", 8, 16)
    edge("v.blk.0.1.", 16, 16)
    inverted("v.blk.1.0.", 16, 24, 3, 5)
    inverted("v.blk.1.1.", 24, 24, 5, 0)
    inverted("v.blk.2.0.", 24, 32, 5, 5)
    inverted("v.blk.2.1.", 32, 32, 0, 0)
    attention("v.blk.2.2.", 32, strided=True)
    attention("v.blk.2.3.", 32, strided=True)
    inverted("v.blk.2.4.", 32, 32, 0, 0)
    inverted("v.blk.3.0.", 32, 40, 5, 5)
    attention("v.blk.3.1.", 40, strided=False)
    inverted("v.blk.3.2.", 40, 40, 0, 0)
    conv("v.msfa.ffn.pw_exp.conv", 144, 72, 1)
    norm("v.msfa.ffn.pw_exp.bn", 144)
    conv("v.msfa.ffn.pw_proj.conv", HIDDEN, 144, 1)
    norm("v.msfa.ffn.pw_proj.bn", HIDDEN)
    norm("v.msfa.norm", HIDDEN)
    w.put("mm.embedding.weight", 4, HIDDEN)
    norm("mm.hard_emb_norm", HIDDEN)
    norm("mm.soft_emb_norm", HIDDEN)
    w.linear("mm.input_projection", width, HIDDEN, bias=False)
    w.linear("mm.a.input_projection", width, 16, bias=False)


@writer("minimax_m3")
def _minimax_m3(w: Weights, keys: dict[str, Any], *, width: int = 48) -> None:
    """Heads of 80, which are not three thirds."""
    keys |= {
        "vision.projection_dim": width,
        "vision.embedding_length": 160,
        "vision.attention.head_count": 2,
        "vision.attention.layer_norm_epsilon": 1e-5,
        "vision.spatial_merge_size": 2,
        "use_gelu": True,
    }
    w.scale = 0.08
    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):
        w.put(name, 160, 3, PATCH, PATCH, scale=0.05)
    w.norm("v.pre_ln", 160)
    for layer in range(LAYERS):
        w.layer(f"v.blk.{layer}.", size=160)
    w.linear("mm.1", 64, 160)
    w.linear("mm.2", width, 64)
    w.linear("mm.merger.fc1", 64, 4 * width)
    w.linear("mm.merger.fc2", width, 64)


@writer("muse-glimmer")
def _muse_glimmer(w: Weights, keys: dict[str, Any], *, width: int = 48) -> None:
    """Six layers, of which the fourth and the last see the whole image; windows of 4 x 4."""
    keys |= {
        "vision.projection_dim": width,
        "vision.image_size": 112,
        "vision.block_count": 6,
        "vision.attention.layer_norm_epsilon": 1e-5,
        "vision.spatial_merge_size": 2,
    }
    w.put("v.patch_embd.weight", HIDDEN, 3, PATCH, PATCH, scale=0.05)
    w.put("v.position_embd.weight", 16, HIDDEN)
    w.norm("v.pre_ln")
    for layer in range(6):
        w.layer(f"v.blk.{layer}.")
    w.norm("v.post_ln")
    w.linear("mm.0", 64, 4 * HIDDEN, bias=False)
    w.linear("mm.1", 64, 64, bias=False)
    w.linear("mm.2", width, 64, bias=False)


@writer("ling3vl")
def _ling3vl(w: Weights, keys: dict[str, Any], *, width: int = 48) -> None:
    keys |= {"vision.projection_dim": width, "vision.spatial_merge_size": 2, "use_gelu": True}
    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):
        w.put(name, HIDDEN, 3, PATCH, PATCH, scale=0.05)
    w.put("v.position_embd.weight", 16, HIDDEN)
    for layer in range(LAYERS):
        w.layer(f"v.blk.{layer}.", fused=True)
    w.norm("mm.input_norm")
    w.linear("mm.0", width, 4 * HIDDEN)
    w.linear("mm.2", width, width)


@writer("mimovl")
def _mimovl(w: Weights, keys: dict[str, Any], *, width: int = 48) -> None:
    """Heads that are wider than their share of a row, two of them over each of keys; layers of all
    patches, of rows and of columns, the last one of columns; beside an encoder of sound.
    """
    del keys["projector_type"]
    keys |= {
        "vision.projector_type": "mimovl",
        "audio.projector_type": "mimo_audio",
        "has_audio_encoder": True,
        "vision.projection_dim": width,
        "vision.block_count": 6,
        "vision.attention.head_count_kv": 2,
        "vision.spatial_merge_size": 2,
        "vision.window_size": 6,
        "vision.wa_pattern_mode": [-1, 0, 1, 1, -1, 1],
        "vision.image_min_pixels": 8 * 784,
        "vision.image_max_pixels": 64 * 784,
        "use_silu": True,
    }
    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):
        w.put(name, HIDDEN, 3, PATCH, PATCH, scale=0.05)
    for layer, mode in enumerate(keys["vision.wa_pattern_mode"]):
        at = f"v.blk.{layer}."
        w.norm(at + "ln1", bias=False)
        w.norm(at + "ln2", bias=False)
        w.linear(at + "attn_qkv", (4 + 2 * 2) * 16, HIDDEN)
        w.linear(at + "attn_out", HIDDEN, 4 * 16)
        if mode >= 0:
            w.put(at + "attn_sinks", 4, scale=2)
        for part in ("ffn_up", "ffn_gate"):
            w.linear(at + part, FFN, HIDDEN)
        w.linear(at + "ffn_down", HIDDEN, FFN)
    w.norm("v.post_ln", bias=False)
    w.linear("mm.0", 4 * HIDDEN, 4 * HIDDEN, bias=False)
    w.linear("mm.2", width, 4 * HIDDEN, bias=False)
    w.linear("mm.a.mlp.1", width, 16, bias=False)
