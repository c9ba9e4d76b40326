"""SigLIP under the projectors of Gemma 3, of Idefics 3 and SmolVLM, of LFM2-VL and of Janus-Pro."""

from __future__ import annotations

import math

import numpy as np

from oxillama.convert.encoder import ImageHyper, activation, described, encoder, spread, square
from oxillama.convert.family import Hyper, Keys, Rule
from oxillama.convert.shapes import plus_one
from oxillama.errors import ConvertError

LAYER = {
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}


def tower(name: str) -> dict[str, str | Rule]:
    """The rules of an encoder whose names begin with `name.`"""
    return {
        f"{name}.embeddings.patch_embedding.{{w}}": "v.patch_embd.{w}",
        f"{name}.embeddings.position_embedding.weight": "v.position_embd.weight",
        **spread(f"{name}.encoder.layers.{{b}}.", LAYER),
        f"{name}.post_layernorm.{{w}}": "v.post_ln.{w}",
    }


# what transformers calls the tower since version 5, and before
TOWER = (("vision_tower.vision_model.", "vision_tower."),)
SIGLIP = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
_EMBEDDED = ("v.patch_embd.weight", "v.position_embd.weight")


@encoder(
    "Gemma3ForConditionalGeneration",
    projector="gemma3",
    parts=("vision_tower.", "multi_modal_projector."),
    unused=("vision_tower.head.", "vision_tower.vision_model.head."),
    prefixes=TOWER,
    defaults=SIGLIP,
    halves=("mm.input_projection.weight",),  # which readers transpose
    kept=_EMBEDDED,
    rules={
        **tower("vision_tower"),
        "multi_modal_projector.mm_input_projection_weight": "mm.input_projection.weight",
        "multi_modal_projector.mm_soft_emb_norm.weight":
            Rule(("mm.soft_emb_norm.weight",), plus_one, values=True),
    },
)  # fmt: skip
def gemma3(h: ImageHyper, k: Keys) -> None:
    """Gemma 3 (Google 2025)."""
    described(h, k, "gemma3", resample=2)
    square(h, "size")
    h.must_have("do_pan_and_scan", h.images.get("do_pan_and_scan"), False)
    activation(h, k, gelu="gelu_pytorch_tanh")
    k.f32("vision.attention.layer_norm_epsilon", h.number("layer_norm_eps"))
    patches = h.side("image_size") // h.side("patch_size")
    tokens = h.whole.integer("mm_tokens_per_image", default=256)
    across = math.isqrt(tokens)
    if not across or across**2 != tokens or patches % across:
        raise ConvertError(
            f"{h.whole.label}: mm_tokens_per_image: found {tokens}, wanted the square of a divisor "
            f"of {patches} patches"
        )
    if patches // across != 4:
        k.u32("vision.projector.scale_factor", patches // across)


@encoder(
    "Idefics3ForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
    projector="idefics3",
    parts=("vision_model.", "connector."),
    defaults={**SIGLIP, "hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32},
    kept=_EMBEDDED,
    rules={
        **tower("vision_model"),
        "connector.modality_projection.proj.weight": "mm.model.fc.weight",
    },
)
def idefics3(h: ImageHyper, k: Keys) -> None:
    """Idefics 3 (Laurençon et al. 2024) and SmolVLM."""
    described(h, k, "idefics3", resample=1)
    side = h.side("image_size")
    h.must_have("max_image_size: longest_edge", h.edge("max_image_size", "longest_edge"), side)
    h.must_have("do_image_splitting", h.images.get("do_image_splitting"), True)
    activation(h, k, gelu="gelu_pytorch_tanh")
    k.f32("vision.attention.layer_norm_epsilon", h.number("layer_norm_eps"))
    k.u32("vision.projector.scale_factor", h.whole.integer("scale_factor", default=2))
    k.u32("vision.preproc_image_size", h.edge("size", "longest_edge") or side)


def patch_of_colours(x: np.ndarray, h: Hyper) -> np.ndarray:
    """Kernels over (row, column, colour) as those over (colour, row, column)."""
    side = math.isqrt(x.shape[1] // 3)
    return x.reshape(len(x), side, side, 3).transpose(0, 3, 1, 2)


def _running(h: ImageHyper) -> int:
    """Layers up to the one whose output is the features: -1 is the last."""
    layer = h.whole.get("vision_feature_layer", default=-1)
    if isinstance(layer, bool) or not isinstance(layer, int) or not -h.layers <= layer < 0:
        raise ConvertError(
            f"{h.whole.label}: vision_feature_layer: found {layer!r:.80}, wanted one of -1 to "
            f"{-h.layers}"
        )
    return h.layers + layer + 1


@encoder(
    "Lfm2VlForConditionalGeneration",
    projector="lfm2",
    parts=("vision_tower.", "multi_modal_projector."),
    unused=("vision_tower.head.", "vision_tower.vision_model.head."),
    prefixes=TOWER,
    defaults=SIGLIP,
    layers=_running,
    rules={
        **tower("vision_tower"),
        "vision_tower.embeddings.patch_embedding.weight":
            Rule(("v.patch_embd.weight",), patch_of_colours),
        "multi_modal_projector.layer_norm.{w}": "mm.input_norm.{w}",
        **spread("multi_modal_projector.", {"linear_1": "1", "linear_2": "2"}, "mm."),
    },
)  # fmt: skip
def lfm2(h: ImageHyper, k: Keys) -> None:
    """LFM2-VL (Liquid AI 2025): images of any size, for which the file needs one."""
    factor = h.whole.integer("downsample_factor", default=2)
    described(h, k, "lfm2", resample=2, image_size=256, layers=_running(h))
    activation(h, k, gelu="gelu_pytorch_tanh")
    h.whole.must_be("projector_hidden_act", "gelu")
    k.f32("vision.attention.layer_norm_epsilon", h.number("layer_norm_eps"))
    k.u32("vision.projector.scale_factor", factor)
    for name, wanted in (
        *(("tile_size", 512), ("min_tiles", 2), ("max_tiles", 10), ("max_pixels_tolerance", 2.0)),
        *(("do_image_splitting", True), ("downsample_factor", factor)),
        ("encoder_patch_size", h.side("patch_size")),
    ):
        h.must_have(name, h.images.get(name), wanted)
    if not h.images.flag("use_thumbnail", default=True):
        k.flag("vision.use_thumbnail", False)
    area = (h.side("patch_size") * factor) ** 2
    for name, usual in (("min", 64), ("max", 256)):
        tokens = h.images.integer(f"{name}_image_tokens", default=usual)
        if tokens != usual:
            k.u32(f"vision.image_{name}_pixels", tokens * area)


@encoder(
    "JanusForConditionalGeneration",
    projector="janus_pro",
    parts=("vision_model.", "aligner."),
    defaults={
        **{key: SIGLIP[key] for key in ("layer_norm_eps", "patch_size")},
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 384,
        "hidden_act": "gelu",
        "mlp_ratio": 4.0,
        "depth": 2,
    },
    rules={
        **tower("vision_model"),
        "vision_model.encoder.layers.{b}.self_attn.projection_layer.{w}":
            "v.blk.{b}.attn_out.{w}",
        "aligner.fc1.{w}": "mm.0.{w}",
        "aligner.hidden_layers.0.{w}": "mm.1.{w}",
    },
)  # fmt: skip
def janus_pro(h: ImageHyper, k: Keys) -> None:
    """Janus-Pro (Chen et al. 2025), what it sees images with."""
    for name, wanted in (("depth", 2), ("use_qk_norm", False)):
        h.must_be(name, wanted)
    inner = h.integer("intermediate_size", default=None)
    if inner is None:
        inner = round(h.integer("hidden_size") * h.number("mlp_ratio"))
    layers = h.integer("num_hidden_layers")
    described(h, k, "janus_pro", resample=3, inner=inner, layers=layers)
    square(h, "size")
    h.must_have("min_size", h.images.get("min_size"), 14)
    ground = [int(each * 255) for each in h.channels("image_mean")]
    h.must_have("background_color", h.images.get("background_color"), ground)
    activation(h, k, gelu="gelu")
    k.f32("vision.attention.layer_norm_epsilon", h.number("layer_norm_eps"))
