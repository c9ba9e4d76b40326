"""GLM-4.1V, GLM-4.5V and GLM-OCR."""

from __future__ import annotations

from oxillama.convert.encoder import (
    ImageHyper,
    activation,
    described,
    encoder,
    limits,
    rotation,
    spread,
)
from oxillama.convert.encoders.qwen import PATCHES
from oxillama.convert.family import Keys

_LAYER = {
    "norm1": "ln1",
    "norm2": "ln2",
    "attn.qkv": "attn_qkv",
    "attn.proj": "attn_out",
    "attn.q_norm": "attn_q_norm",
    "attn.k_norm": "attn_k_norm",
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
}
_MERGER = {
    "proj": "model.fc",
    "post_projection_norm": "post_norm",
    **{f"{part}_proj": part for part in ("gate", "up", "down")},
}


@encoder(
    "Glm4vForConditionalGeneration",
    "Glm4vMoeForConditionalGeneration",
    "GlmOcrForConditionalGeneration",
    projector="glm4v",
    parts=("visual.",),
    defaults={
        "depth": 24,
        "hidden_size": 1536,
        "intermediate_size": 13696,
        "num_heads": 12,
        "image_size": 336,
        "patch_size": 14,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
    rules={
        **PATCHES,
        "visual.post_conv_layernorm.weight": "v.norm_embd.weight",
        "visual.embeddings.position_embedding.weight": "v.position_embd.weight",
        **spread("visual.blocks.{b}.", _LAYER),
        "visual.post_layernorm.weight": "v.post_ln.weight",
        "visual.downsample.{w}": "mm.patch_merger.{w}",
        **spread("visual.merger.", _MERGER, "mm."),
    },
)
def glm4v(h: ImageHyper, k: Keys) -> None:
    """GLM-4.1V (GLM-V team 2025); an image counts as two frames of a clip."""
    described(h, k, "glm4v", resample=3)
    activation(h, k, silu="silu")
    h.must_be("temporal_patch_size", 2)
    k.f32("vision.attention.layer_norm_epsilon", h.number("rms_norm_eps"))
    rotation(h, k)
    if h.integer("spatial_merge_size") != 2:
        k.u32("vision.spatial_merge_size", h.integer("spatial_merge_size"))
    h.must_have("patch_size", h.images.get("patch_size"), h.side("patch_size"))
    h.must_have("merge_size", h.images.get("merge_size"), h.integer("spatial_merge_size"))
    limits(h, k, 8, 6144, frames=2)
