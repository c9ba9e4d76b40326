"""HunyuanOCR and HunyuanVL."""

from __future__ import annotations

import numpy as np

from oxillama.convert.encoder import (
    ImageHyper,
    activation,
    described,
    encoder,
    needed_limits,
    patched,
    spread,
)
from oxillama.convert.family import Hyper, Keys, Rule


def _unclassed(x: np.ndarray, h: Hyper) -> np.ndarray:
    """Positions without the first one, that of a class token which no image has."""
    return x[1:]


@encoder(
    "HunYuanVLForConditionalGeneration",
    projector="hunyuanvl",
    parts=("vit.",),
    halves=("v.patch_embd.weight", "mm.0.weight", "mm.2.weight"),
    defaults={
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "patch_size": 16,
        "max_image_size": 2048,
        "hidden_act": "gelu",
        "rms_norm_eps": 1e-5,
        "spatial_merge_size": 2,
    },
    rules={
        "vit.embeddings.patch_embedding.{w}": "v.patch_embd.{w}",
        "vit.embeddings.position_embedding.weight": Rule(("v.position_embd.weight",), _unclassed),
        **spread(
            "vit.layers.{b}.",
            {
                "input_layernorm": "ln1",
                "post_attention_layernorm": "ln2",
                **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
                "self_attn.o_proj": "attn_out",
                "mlp.dense_h_to_4h": "ffn_up",
                "mlp.dense_4h_to_h": "ffn_down",
            },
        ),
        **spread(
            "vit.perceive.",
            {
                "before_rms": "pre_norm",
                "proj.0": "0",
                "proj.2": "2",
                "mlp": "model.fc",
                "after_rms": "post_norm",
            },
            "mm.",
        ),
        "vit.perceive.image_newline": "v.image_newline",
        "vit.perceive.image_begin": "mm.image_begin",
        "vit.perceive.image_end": "mm.image_end",
        "vit.perceive.image_sep": "v.view_seperator",
    },
)
def hunyuanvl(h: ImageHyper, k: Keys) -> None:
    """HunyuanOCR (Tencent 2025). What `resample` says the published processor does not read: images
    are always resized with the bicubic filter.
    """
    resample = h.images.get("resample", default=3)
    described(h, k, "hunyuanvl", resample=resample, image_size=h.integer("max_image_size"))
    activation(h, k, gelu="gelu")
    k.f32("vision.attention.layer_norm_epsilon", h.number("rms_norm_eps"))
    k.u32("vision.spatial_merge_size", h.integer("spatial_merge_size"))
    h.must_be("interpolate_mode", "bilinear")
    h.must_be("num_key_value_heads", h.heads)
    patched(h)
    needed_limits(h, k)
