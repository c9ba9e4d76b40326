"""MiniMax M3."""

from __future__ import annotations

import numpy as np

from oxillama.convert.encoder import (
    ImageHyper,
    activation,
    described,
    encoder,
    limits,
    rotation,
    spread,
)
from oxillama.convert.encoders.qwen import split_frames
from oxillama.convert.encoders.siglip import LAYER
from oxillama.convert.family import Hyper, Keys, Rule

_LAYERS = "vision_tower.vision_model.encoder.layers.{b}."


def _by_axis(x: np.ndarray, h: Hyper) -> np.ndarray:
    """The rows of heads with both halves of an axis side by side: the folder has the first halves
    of time, row and column before the second ones.
    """
    heads = h.integer("num_attention_heads")
    each = x.reshape(heads, len(x) // heads, *x.shape[1:])
    half = each.shape[1] // 3 // 2
    turned = each[:, : 6 * half].reshape(heads, 2, 3, half, *x.shape[1:]).swapaxes(1, 2)
    turned = turned.reshape(heads, 6 * half, *x.shape[1:])
    return np.concatenate([turned, each[:, 6 * half :]], axis=1).reshape(x.shape)


@encoder(
    "MiniMaxM3SparseForConditionalGeneration",
    "MiniMaxM3VLForConditionalGeneration",
    projector="minimax_m3",
    parts=("vision_tower.", "multi_modal_projector.", "patch_merge_mlp."),
    defaults={
        "hidden_size": 1280,
        "intermediate_size": 5120,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "image_size": 2016,
        "patch_size": 14,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
    },
    rules={
        "vision_tower.vision_model.embeddings.patch_embedding.weight":
            Rule(("v.patch_embd.weight", "v.patch_embd.weight.1"), split_frames),
        "vision_tower.vision_model.pre_layrnorm.{w}": "v.pre_ln.{w}",
        **spread(_LAYERS, LAYER),
        **{f"{_LAYERS}self_attn.{part}_proj.{{w}}":
               Rule((f"v.blk.{{b}}.attn_{part}.{{w}}",), _by_axis) for part in "qk"},
        **spread("multi_modal_projector.", {"linear_1": "1", "linear_2": "2"}, "mm."),
        **spread("patch_merge_mlp.", {"linear_1": "merger.fc1", "linear_2": "merger.fc2"}, "mm."),
    },
)  # fmt: skip
def minimax_m3(h: ImageHyper, k: Keys) -> None:
    """MiniMax M3 (MiniMax 2026)."""
    described(h, k, "minimax_m3", resample=3)
    activation(h, k, gelu="gelu")
    k.f32("vision.attention.layer_norm_epsilon", h.number("layer_norm_eps"))
    joined = Hyper(h.get("img_token_compression_config", default={}), h.label)
    merge = joined.integer("spatial_merge_size", default=h.integer("spatial_merge_size", default=2))
    h.must_be("spatial_merge_size", merge)
    h.must_be("temporal_patch_size", 2)
    joined.must_be("temporal_patch_size", 2)
    k.u32("vision.spatial_merge_size", merge)
    rotation(h, k)
    h.must_have("patch_size", h.images.get("patch_size"), h.side("patch_size"))
    h.must_have("merge_size", h.images.get("merge_size"), merge)
    limits(h, k, 4, 576, merge=merge)
