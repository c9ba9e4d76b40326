"""Llama 4."""

from __future__ import annotations

from oxillama.convert.encoder import (
    ImageHyper,
    activation,
    described,
    encoder,
    rotation,
    spread,
    square,
)
from oxillama.convert.family import Keys
from oxillama.errors import ConvertError


@encoder(
    "Llama4ForConditionalGeneration",
    projector="llama4",
    parts=("vision_model.", "multi_modal_projector."),
    defaults={
        "hidden_size": 768,
        "intermediate_size": 5632,
        "num_hidden_layers": 34,
        "num_attention_heads": 16,
        "image_size": 448,
        "patch_size": 14,
        "hidden_act": "gelu",
        "norm_eps": 1e-5,
        "pixel_shuffle_ratio": 0.5,
    },
    rules={
        "vision_model.class_embedding": "v.class_embd",
        "vision_model.patch_embedding.linear.weight": "v.patch_embd.weight",
        "vision_model.positional_embedding_vlm": "v.position_embd.weight",
        "vision_model.layernorm_pre.{w}": "v.pre_ln.{w}",
        "vision_model.layernorm_post.{w}": "v.post_ln.{w}",
        **spread(
            "vision_model.model.layers.{b}.",
            {
                "input_layernorm": "ln1",
                "post_attention_layernorm": "ln2",
                **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
                "self_attn.o_proj": "attn_out",
                "mlp.fc1": "ffn_up",
                "mlp.fc2": "ffn_down",
            },
        ),
        "vision_model.vision_adapter.mlp.fc1.weight": "mm.model.mlp.1.weight",
        "vision_model.vision_adapter.mlp.fc2.weight": "mm.model.mlp.2.weight",
        "multi_modal_projector.linear_1.weight": "mm.model.fc.weight",
    },
)
def llama4(h: ImageHyper, k: Keys) -> None:
    """Llama 4 Scout and Maverick (Meta 2025)."""
    described(h, k, "llama4", resample=2)
    square(h, "size")
    h.must_have("max_patches", h.images.get("max_patches"), 16)
    h.must_have("resize_to_max_canvas", h.images.get("resize_to_max_canvas"), False)
    h.must_be("vision_feature_select_strategy", "default")
    activation(h, k, gelu="gelu")
    k.f32("vision.attention.layer_norm_epsilon", h.number("norm_eps"))
    ratio = h.number("pixel_shuffle_ratio")
    if not 0 < ratio <= 1 or 1 / ratio % 1:
        raise ConvertError(
            f"{h.label}: pixel_shuffle_ratio: found {ratio}, wanted one divided by an integer"
        )
    k.u32("vision.projector.scale_factor", int(1 / ratio))
    rotation(h, k)
