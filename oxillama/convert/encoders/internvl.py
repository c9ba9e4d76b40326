"""The encoder of 300M of InternVL 2.5 and 3, in folders of transformers' own class."""

from __future__ import annotations

from oxillama.convert.encoder import ImageHyper, activation, described, encoder, spread, square
from oxillama.convert.family import Keys
from oxillama.errors import ConvertError


@encoder(
    "InternVLForConditionalGeneration",
    projector="internvl",
    parts=("vision_tower.", "multi_modal_projector."),
    unused=("vision_tower.embeddings.mask_token",),
    defaults={
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-6,
        "image_size": 448,
        "patch_size": 14,
    },
    rules={
        "vision_tower.embeddings.cls_token": "v.class_embd",
        "vision_tower.embeddings.patch_embeddings.projection.{w}": "v.patch_embd.{w}",
        "vision_tower.embeddings.position_embeddings": "v.position_embd.weight",
        "vision_tower.layernorm.{w}": "v.post_ln.{w}",
        "vision_tower.encoder.layer.{b}.lambda_1": "v.blk.{b}.ls1.weight",
        "vision_tower.encoder.layer.{b}.lambda_2": "v.blk.{b}.ls2.weight",
        **spread(
            "vision_tower.encoder.layer.{b}.",
            {
                "layernorm_before": "ln1",
                "layernorm_after": "ln2",
                "attention.q_proj": "attn_q",
                "attention.k_proj": "attn_k",
                "attention.v_proj": "attn_v",
                "attention.projection_layer": "attn_out",
                "mlp.fc1": "ffn_up",
                "mlp.fc2": "ffn_down",
            },
        ),
        **spread(
            "multi_modal_projector.",
            {"layer_norm": "0", "linear_1": "1", "linear_2": "3"},
            "mm.model.mlp.",
        ),
    },
)
def internvl(h: ImageHyper, k: Keys) -> None:
    """InternVL (Chen et al. 2024). Tiles are always cut: the processor of transformers does so
    whatever the folder says of `crop_to_patches`.
    """
    h.must_be("norm_type", "layer_norm")
    h.must_be("use_qk_norm", False)
    h.must_be("use_absolute_position_embeddings", True)
    h.whole.must_be("projector_hidden_act", "gelu")
    h.whole.must_be("vision_feature_layer", -1)
    h.whole.must_be("vision_feature_select_strategy", "default")
    described(h, k, "internvl", resample=3)
    square(h, "size")
    k.f32("vision.attention.layer_norm_epsilon", h.number("layer_norm_eps"))
    activation(h, k, gelu="gelu", silu="silu")
    ratio = h.whole.number("downsample_ratio", default=0.5)
    if not 0 < ratio <= 1 or 1 / ratio % 1:
        raise ConvertError(
            f"{h.whole.label}: downsample_ratio: found {ratio}, wanted one divided by an integer"
        )
    k.u32("vision.projector.scale_factor", int(1 / ratio))
    for name, usual in (("min", 1), ("max", 12)):
        tiles = h.images.integer(f"{name}_patches", default=usual)
        if tiles != usual:
            k.u32(f"vision.preproc_{name}_tiles", tiles)
