"""dots.ocr."""

from __future__ import annotations

from oxillama.convert.encoder import (
    ImageHyper,
    described,
    encoder,
    needed_limits,
    patched,
    spread,
)
from oxillama.convert.family import Keys, Rule

_DEFAULTS = {
    "intermediate_size": 4224,
    "num_hidden_layers": 42,
    "patch_size": 14,
    "rms_norm_eps": 1e-5,
    "spatial_merge_size": 2,
}
_ATTENTION = {"attn.qkv": "attn_qkv", "attn.proj": "attn_out"}
_NETWORK = {"mlp.fc1": "ffn_gate", "mlp.fc2": "ffn_down", "mlp.fc3": "ffn_up"}


def _merger(name: str) -> dict[str, str | Rule]:
    """The rules of what makes features of patches, whose names begin with `name`."""
    return spread(name, {"ln_q": "input_norm", "mlp.0": "0", "mlp.2": "2"}, "mm.")


def _dots(h: ImageHyper, k: Keys, projector: str) -> None:
    described(h, k, projector, resample=3, image_size=0, hidden=h.integer("embed_dim"))
    k.flag("use_silu", True)
    k.f32("vision.attention.layer_norm_epsilon", h.number("rms_norm_eps"))
    h.must_be("temporal_patch_size", 1)
    h.must_be("use_bias", False)
    h.must_be("is_causal", False)
    patched(h)
    needed_limits(h, k)


@encoder(
    "DotsOCRForCausalLM",
    projector="dots_ocr",
    parts=("vision_tower.",),
    defaults={**_DEFAULTS, "embed_dim": 1536, "num_attention_heads": 12},
    rules={
        **spread(
            "vision_tower.patch_embed.patchifier.", {"proj": "patch_embd", "norm": "pre_ln"}, "v."
        ),
        **spread(
            "vision_tower.blocks.{b}.",
            {"norm1": "ln1", "norm2": "ln2", **_ATTENTION, **_NETWORK},
        ),
        "vision_tower.post_trunk_norm.weight": "mm.post_norm.weight",
        **_merger("vision_tower.merger."),
    },
)
def dots_ocr(h: ImageHyper, k: Keys) -> None:
    """dots.ocr (Li et al. 2025)."""
    h.must_be("post_norm", True)
    _dots(h, k, "dots_ocr")
    k.u32("vision.projector.scale_factor", h.integer("spatial_merge_size"))
