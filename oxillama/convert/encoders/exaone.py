"""EXAONE 4.5."""

from __future__ import annotations

from oxillama.convert.encoder import (
    ImageHyper,
    activation,
    described,
    encoder,
    needed_limits,
    patched,
    rotation,
    spread,
)
from oxillama.convert.encoders.qwen import PATCHES, whole_every
from oxillama.convert.family import Keys


@encoder(
    "Exaone4_5_ForConditionalGeneration",
    projector="exaone4_5",
    parts=("visual.",),
    defaults={
        "depth": 32,
        "hidden_size": 3584,
        "intermediate_size": 3420,
        "num_heads": 16,
        "num_key_value_heads": 8,
        "patch_size": 14,
        "hidden_act": "silu",
        "spatial_merge_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
    rules={
        **PATCHES,
        **spread(
            "visual.blocks.{b}.",
            {
                "norm1": "ln1",
                "norm2": "ln2",
                "attn.qkv": "attn_qkv",
                "attn.proj": "attn_out",
                **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
            },
        ),
        "visual.merger.ln_q.weight": "v.post_ln.weight",
        **spread("visual.merger.mlp.", {"0": "0", "2": "2"}, "mm."),
    },
)
def exaone45(h: ImageHyper, k: Keys) -> None:
    """EXAONE 4.5 (LG AI Research 2026): Qwen2.5-VL's with fewer heads of keys than of queries."""
    described(h, k, "exaone4_5", resample=3, image_size=560)
    activation(h, k, silu="silu")
    k.f32("vision.attention.layer_norm_epsilon", 1e-6)  # that of every norm of the encoder
    k.u32("vision.attention.head_count_kv", h.integer("num_key_value_heads"))
    k.u32("vision.n_wa_pattern", whole_every(h))
    k.u32("vision.window_size", h.integer("window_size"))
    if h.integer("spatial_merge_size") != 2:
        k.u32("vision.spatial_merge_size", h.integer("spatial_merge_size"))
    patched(h)
    rotation(h, k)
    needed_limits(h, k)
