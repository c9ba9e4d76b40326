"""Gemma 4, and the unified Gemma 4, whose encoder has no layers."""

from __future__ import annotations

import numpy as np

from oxillama.convert.encoder import ImageHyper, described, encoder, rotation
from oxillama.convert.encoders.siglip import patch_of_colours
from oxillama.convert.family import Hyper, Keys, Rule
from oxillama.errors import ConvertError

_LAYER = "vision_tower.encoder.layers.{b}."
_PRODUCTS = {
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    "self_attn.o_proj": "attn_out",
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
}
_NORMS = {
    "input_layernorm": "ln1",
    "post_attention_layernorm": "attn_post_norm",
    "pre_feedforward_layernorm": "ln2",
    "post_feedforward_layernorm": "ffn_post_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
_WIDTHS = (1536, 2560)  # E2B and E4B, in which the rows of an image do not see each other


def _one(x: np.ndarray, h: Hyper) -> np.ndarray:
    return x.reshape(1)


@encoder(
    "Gemma4ForConditionalGeneration",
    projector="gemma4v",
    parts=("vision_tower.", "embed_vision."),
    defaults={
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 16,
        "num_attention_heads": 12,
        "head_dim": 64,
        "patch_size": 16,
        "pooling_kernel_size": 3,
        "rms_norm_eps": 1e-6,
    },
    rules={
        "vision_tower.patch_embedder.input_proj.weight":
            Rule(("v.patch_embd.weight",), patch_of_colours),
        "vision_tower.patch_embedder.position_embedding_table": "v.position_embd.weight",
        "vision_tower.std_bias": "v.std_bias",
        "vision_tower.std_scale": "v.std_scale",
        **{f"{_LAYER}{theirs}.weight": f"v.blk.{{b}}.{ours}.weight"
           for theirs, ours in _NORMS.items()},
        **{f"{_LAYER}{theirs}{linear}.weight": f"v.blk.{{b}}.{ours}.weight"
           for theirs, ours in _PRODUCTS.items() for linear in ("", ".linear")},
        **{f"{_LAYER}{theirs}.{side}_{end}": Rule((f"v.blk.{{b}}.{ours}.{side}_{end}",), _one)
           for theirs, ours in _PRODUCTS.items()
           for side in ("input", "output") for end in ("min", "max")},
        "embed_vision.embedding_projection.weight": "mm.input_projection.weight",
    },
)  # fmt: skip
def gemma4v(h: ImageHyper, k: Keys) -> None:
    """Gemma 4 (Google 2026): images of any size, for which the file needs one."""
    described(h, k, "gemma4v", resample=3, image_size=224)
    h.must_be("hidden_activation", "gelu_pytorch_tanh")
    h.must_be("head_dim", h.integer("hidden_size") // h.heads)
    h.must_be("num_key_value_heads", h.heads)
    rotation(h, k, usual=100.0)
    _shared(h, k)
    # what files cannot say, and readers guess
    sees, width = h.text.get("use_bidirectional_attention"), h.text.hidden
    if (sees == "vision") == (width in _WIDTHS):
        raise ConvertError(
            f"{h.text.label}: use_bidirectional_attention: found {sees!r:.80} with embeddings of "
            f"{width}, wanted {'None' if width in _WIDTHS else repr('vision')}, as readers of the "
            "file take it to be"
        )


def _shared(h: ImageHyper, k: Keys) -> None:
    k.found["clip.vision.projector_type"] = k.found.pop("clip.projector_type")
    k.f32("vision.attention.layer_norm_epsilon", h.number("rms_norm_eps"))
    pooled = h.integer("pooling_kernel_size")
    if pooled != 3:
        k.u32("vision.projector.scale_factor", pooled)
    for name, wanted in (("patch_size", h.side("patch_size")), ("pooling_kernel_size", pooled)):
        h.must_have(name, h.images.get(name), wanted)
    most = h.images.integer("max_soft_tokens", default=280)
    if most != 280:
        k.u32("vision.image_max_pixels", most * (h.side("patch_size") * pooled) ** 2)


def _by_colour(x: np.ndarray, h: Hyper) -> np.ndarray:
    """Columns over (row, column, colour) of a patch as those over (colour, row, column)."""
    return patch_of_colours(x.reshape(-1, x.shape[-1]), h).reshape(x.shape)


def _axis_first(x: np.ndarray, h: Hyper) -> np.ndarray:
    return x.swapaxes(0, 1)


@encoder(
    "Gemma4UnifiedForConditionalGeneration",
    projector="gemma4uv",
    parts=("vision_embedder.", "embed_vision."),
    defaults={
        "mm_embed_dim": 3840,
        "patch_size": 16,
        "pooling_kernel_size": 3,
        "rms_norm_eps": 1e-6,
        **dict.fromkeys(("intermediate_size", "num_hidden_layers", "num_attention_heads"), 0),
    },
    rules={
        "vision_embedder.patch_ln1.{w}": Rule(("v.patch_norm.1.{w}",), _by_colour),
        "vision_embedder.patch_dense.weight": Rule(("v.patch_embd.weight",), _by_colour),
        "vision_embedder.patch_dense.bias": "v.patch_embd.bias",
        "vision_embedder.patch_ln2.{w}": "v.patch_norm.2.{w}",
        "vision_embedder.pos_embedding": Rule(("v.position_embd.weight",), _axis_first),
        "vision_embedder.pos_norm.{w}": "v.patch_norm.3.{w}",
        "embed_vision.embedding_projection.weight": "mm.input_projection.weight",
    },
)
def gemma4uv(h: ImageHyper, k: Keys) -> None:
    """The unified Gemma 4 (Google 2026)."""
    described(h, k, "gemma4uv", resample=3, image_size=224, hidden=h.integer("mm_embed_dim"))
    _shared(h, k)
    h.must_be("model_patch_size", h.side("patch_size") * h.integer("pooling_kernel_size"))
    sees = h.text.get("use_bidirectional_attention")
    if sees != "vision":
        raise ConvertError(
            f"{h.text.label}: use_bidirectional_attention: found {sees!r:.80}, wanted 'vision', as "
            "readers of the file take it to be"
        )
