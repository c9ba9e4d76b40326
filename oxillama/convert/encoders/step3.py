"""Step3-VL and Step 3.7."""

from __future__ import annotations

from oxillama.convert.encoder import ImageHyper, described, encoder, spread
from oxillama.convert.family import Hyper, Keys, Rule

# of the published image processor, which folders do not describe
_COLOURS = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_LONGEST = 3024
_BLOCK = "vision_model.transformer.resblocks.{b}."
_RULES: dict[str, str | Rule] = {
    "vision_model.conv1.weight": "v.patch_embd.weight",
    "vision_model.positional_embedding": "v.position_embd.weight",
    "vision_model.ln_pre.{w}": "v.pre_ln.{w}",
    _BLOCK + "attn.in_proj_{w}": "v.blk.{b}.attn_qkv.{w}",
    _BLOCK + "ls_1.gamma": "v.blk.{b}.ls1.weight",
    _BLOCK + "ls_2.gamma": "v.blk.{b}.ls2.weight",
    **spread(
        _BLOCK,
        {
            "ln_1": "ln1",
            "ln_2": "ln2",
            "attn.out_proj": "attn_out",
            "mlp.c_fc": "ffn_up",
            "mlp.c_proj": "ffn_down",
        },
    ),
    **spread("vision_model.vit_downsampler", {"1": "0", "2": "1"}, "mm."),
    "vit_large_projector.weight": "mm.model.fc.weight",
}


@encoder(
    "StepVLForConditionalGeneration",
    "Step3p7ForConditionalGeneration",
    projector="step3vl",
    parts=("vision_model.", "vit_large_projector."),
    halves=("v.patch_embd.weight", "mm.0.weight", "mm.1.weight"),
    defaults={
        "width": 1536,
        "layers": 47,
        "heads": 16,
        "image_size": 728,
        "patch_size": 14,
        "mlp_ratio": 8960 / 1536,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
    },
    rules=_RULES,
)
def step3vl(h: ImageHyper, k: Keys) -> None:
    """Step3-VL (StepFun 2026)."""
    h.images = Hyper({**_COLOURS, **h.images.config}, h.images.label)
    hidden = h.integer("hidden_size", "width")
    inner = h.integer("intermediate_size", default=None)
    if inner is None:
        inner = round(hidden * h.number("mlp_ratio"))
    described(h, k, "step3vl", resample=2, hidden=hidden, inner=inner)
    k.f32("vision.attention.layer_norm_epsilon", h.number("layer_norm_eps"))
    h.must_be("hidden_act", "quick_gelu")
    h.must_be("use_rope2d", True)
    h.whole.must_be("understand_projector_stride", 2)
    k.u32("vision.projector.scale_factor", 4)  # of two convolutions with that stride
    k.u32("vision.preproc_image_size", _LONGEST)
