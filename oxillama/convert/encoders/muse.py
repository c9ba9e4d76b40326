"""Muse Glimmer."""

from __future__ import annotations

import numpy as np

from oxillama.convert.encoder import ImageHyper, described, encoder, rotation, spread
from oxillama.convert.family import Hyper, Keys, Rule
from oxillama.errors import ConvertError

_LAYERS = "vision_tower.layers.{b}."


def _pairs(x: np.ndarray, h: Hyper) -> np.ndarray:
    """The rows of heads whose halves are rotated together, as pairs side by side."""
    heads = h.integer("num_attention_heads")
    return x.reshape(heads, 2, len(x) // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def _summed(x: np.ndarray, h: Hyper) -> np.ndarray:
    """The kernels of both frames of a clip, which an image fills alike, as their sum."""
    side = h.integer("patch_size")
    frames = x.reshape(len(x), 2, 3, side, side)
    return frames[:, 0] + frames[:, 1]


@encoder(
    "MuseGlimmerForConditionalGeneration",
    projector="muse-glimmer",
    parts=("vision_tower.", "vision_adapter.", "vision_projection."),
    defaults={
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 50,
        "num_attention_heads": 16,
        "patch_size": 14,
        "pos_emb_height": 32,
        "pos_emb_width": 32,
        "merge_size": 2,
        "patch_temporal": 2,
        "layer_norm_eps": 1e-5,
        "hidden_act": "gelu",
    },
    rules={
        "vision_tower.patch_embedder.patch_embedding.weight":
            Rule(("v.patch_embd.weight",), _summed, values=True),
        "vision_tower.patch_embedder.position_embedding_table.weight": "v.position_embd.weight",
        "vision_tower.ln_pre.{w}": "v.pre_ln.{w}",
        "vision_tower.ln_post.{w}": "v.post_ln.{w}",
        **spread(_LAYERS, {
            "norm1": "ln1", "norm2": "ln2", "attn.v_proj": "attn_v", "attn.proj": "attn_out",
            "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
        }),
        **{f"{_LAYERS}attn.{part}_proj.{{w}}": Rule((f"v.blk.{{b}}.attn_{part}.{{w}}",), _pairs)
           for part in "qk"},
        **spread("vision_adapter.", {"fc1": "0", "fc2": "1"}, "mm."),
        "vision_projection.{w}": "mm.2.{w}",
    },
)  # fmt: skip
def muse_glimmer(h: ImageHyper, k: Keys) -> None:
    """Muse Glimmer (Meta 2026); which layers see the whole image is no value of its files."""
    merge = h.integer("merge_size")
    rows = h.integer("pos_emb_height")
    h.must_be("pos_emb_width", rows)
    h.must_be("patch_temporal", 2)
    h.must_be("hidden_act", "gelu")
    h.whole.must_be("projector_hidden_act", "gelu")
    described(h, k, "muse-glimmer", resample=1, image_size=rows * h.side("patch_size") * merge)
    k.f32("vision.attention.layer_norm_epsilon", h.number("layer_norm_eps"))
    k.u32("vision.spatial_merge_size", merge)
    last = h.layers - 1
    kinds = [
        "full_attention" if (each + 1) % 4 == 0 or each == last else "window_attention"
        for each in range(h.layers)
    ]
    if h.get("layer_types", default=kinds) != kinds:
        raise ConvertError(
            f"{h.label}: layer_types: found {h.get('layer_types')!r:.80}, wanted every fourth and "
            "the last to see the whole image"
        )
    rotation(h, k)
    h.must_have("patch_size", h.images.get("patch_size"), h.side("patch_size"))
    h.must_have("merge_size", h.images.get("merge_size"), merge)
    most = h.images.integer("max_image_tokens", default=4096)
    if most != 4096:
        k.u32("vision.image_max_pixels", most * (h.side("patch_size") * merge) ** 2)
