"""CLIP and SigLIP under a projector of two layers: LLaVA 1.5 and 1.6; Pixtral's class in
transformers is the same.
"""

from __future__ import annotations

from oxillama.convert.encoder import Encoder, ImageHyper, described, encoder, spread, square
from oxillama.convert.encoders.pixtral import pixtral
from oxillama.convert.encoders.siglip import LAYER, TOWER
from oxillama.convert.family import Keys
from oxillama.errors import ConvertError

_KINDS = ("clip_vision_model", "siglip_vision_model")


def _feature_layers(h: ImageHyper) -> list[int]:
    """The layers whose outputs are the features; 0 is what goes into the first."""
    given = h.whole.get("vision_feature_layer", default=-2)
    found = []
    for layer in given if isinstance(given, list) else [given]:
        count = h.layers
        if isinstance(layer, bool) or not isinstance(layer, int) or not -count <= layer < count:
            raise ConvertError(
                f"{h.whole.label}: vision_feature_layer: found {layer!r:.80}, wanted one before "
                f"the last of {count} layers"
            )
        found.append(layer if layer >= 0 else count + 1 + layer)
    if not found or max(found) >= h.layers:
        raise ConvertError(
            f"{h.whole.label}: vision_feature_layer: found {given!r:.80}, wanted layers before the "
            f"last of {h.layers}"
        )
    return found


def _of_pixtral(h: ImageHyper) -> Encoder | None:
    return pixtral if h.get("model_type") == "pixtral" else None


@encoder(
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    projector="mlp",
    parts=("vision_tower.", "multi_modal_projector.", "image_newline"),
    unused=tuple(
        f"vision_tower.{more}{name}."
        for more in ("", "vision_model.")
        for name in ("head", "post_layernorm")
    ),
    prefixes=TOWER,
    defaults={
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": 224,
    },
    layers=lambda h: max(_feature_layers(h)),
    variant=_of_pixtral,
    rules={
        "vision_tower.embeddings.class_embedding": "v.class_embd",
        "vision_tower.embeddings.patch_embedding.{w}": "v.patch_embd.{w}",
        "vision_tower.embeddings.position_embedding.weight": "v.position_embd.weight",
        "vision_tower.pre_layrnorm.{w}": "v.pre_ln.{w}",
        **spread("vision_tower.encoder.layers.{b}.", LAYER),
        **spread("multi_modal_projector.", {"linear_1": "0", "linear_2": "2"}, "mm."),
        "image_newline": "model.image_newline",
    },
)
def llava(h: ImageHyper, k: Keys) -> None:
    """LLaVA 1.5 and 1.6 (Liu et al. 2023, 2024). The layers after the last feature layer are left
    out.
    """
    classed = h.get("model_type") != "siglip_vision_model"
    h.must_be("model_type", *_KINDS)
    layers = _feature_layers(h)
    described(h, k, "mlp", resample=3, layers=max(layers))
    size, side = h.size("size", "shortest_edge", "height", "width"), h.side("image_size")
    for edge in ("shortest_edge", "height", "width"):
        h.must_have(f"size: {edge}", size.integer(edge, default=None), side)
    if h.images.flag("do_center_crop", default=True):
        square(h, "crop_size")
    k.flag("has_text_encoder", False)
    k.flag("has_llava_projector", True)
    h.whole.must_be("projector_hidden_act", "gelu")
    # what "default" leaves out is the class token
    h.whole.must_be("vision_feature_select_strategy", "default" if classed else "full")
    if not classed and h.whole.get("vision_feature_select_strategy") is None:
        raise ConvertError(
            f"{h.whole.label}: vision_feature_select_strategy is missing, wanted 'full': "
            "SigLIP has no class token"
        )
    usual = "quick_gelu" if classed else "gelu_pytorch_tanh"
    act = h.get("hidden_act", default=usual)
    if act not in ((usual, "gelu") if classed else (usual,)):
        raise ConvertError(f"{h.label}: hidden_act: found {act!r:.80}, wanted {usual!r}")
    k.flag("use_gelu", act != "quick_gelu")
    eps = h.number("layer_norm_eps", default=1e-5 if classed else 1e-6)
    k.f32("vision.attention.layer_norm_epsilon", eps)
    k.integers("vision.feature_layer", layers)
    points = h.whole.get("image_grid_pinpoints")
    if points is None:
        return
    if not isinstance(points, list) or not all(
        isinstance(each, list) and len(each) == 2 for each in points
    ):
        raise ConvertError(
            f"{h.whole.label}: image_grid_pinpoints: found {points!r:.80}, wanted pairs of sides"
        )
    h.must_have("image_grid_pinpoints", h.images.get("image_grid_pinpoints"), points)
    k.text("vision.mm_patch_merge_type", "spatial_unpad")
    k.integers("vision.image_grid_pinpoints", [side for pair in points for side in pair])
