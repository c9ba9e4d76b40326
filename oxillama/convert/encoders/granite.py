"""Granite Vision 4."""

from __future__ import annotations

from typing import Any

from oxillama.convert.encoder import ImageHyper, activation, described, encoder, spread, square
from oxillama.convert.encoders.siglip import SIGLIP, TOWER, tower
from oxillama.convert.family import Hyper, Keys
from oxillama.errors import ConvertError

_KINDS = ("layerwise_projectors", "spatial_projectors")
_QFORMER = "projectors.{e}.qformer.encoder.layer.0."


def _integers(h: ImageHyper, name: str) -> list[Any]:
    found = h.whole.get(name, default=[])
    if not isinstance(found, list):
        raise ConvertError(f"{h.whole.label}: {name}: found {found!r:.80}, wanted a list")
    return found


def _projectors(h: ImageHyper) -> list[tuple[int, int, str, int]]:
    """(layer of the language model, layer of the encoder, kind, number of that kind) of each
    projector, as the language model reads their features.
    """

    def of(name: str, value: Any, layers: int, least: int) -> int:
        if isinstance(value, bool) or value not in range(-layers, least):
            raise ConvertError(
                f"{h.whole.label}: {name}: found {value!r:.80}, wanted one of -{layers} to "
                f"{least - 1}"
            )
        return int(value) % layers

    # of the encoder counted from its end: from its beginning, 0 would be what goes into the first
    first, last = h.layers, h.text.layers
    found = []
    name = "deepstack_layer_map"
    pairs = _integers(h, name)
    if any(not isinstance(one, list) or len(one) != 2 for one in pairs):
        raise ConvertError(f"{h.whole.label}: {name}: found {pairs!r:.80}, wanted pairs of layers")
    for number, (seen, target) in enumerate(sorted(pairs)):
        found.append((of(name, target, last, last), of(name, seen, first, 0), _KINDS[0], number))
    seen = h.whole.get("spatial_vision_layer", default=-1)
    for number, target in enumerate(_integers(h, "spatial_target_layers")):
        spatial = of("spatial_vision_layer", seen, first, 0)
        found.append((of("spatial_target_layers", target, last, last), spatial, _KINDS[1], number))
    return sorted(found, key=lambda one: one[0])


def _numbered(h: ImageHyper, name: str) -> str:
    """A projector of a kind as one of all."""
    kind, _, rest = name.partition(".")
    if kind not in _KINDS:
        return name
    number, _, rest = rest.partition(".")
    for index, one in enumerate(_projectors(h)):
        if (kind, number) == (one[2], str(one[3])):
            return f"projectors.{index}.{rest}"
    return name


@encoder(
    "Granite4VisionForConditionalGeneration",
    projector="granite4_vision",
    parts=("vision_tower.", *(f"{kind}." for kind in _KINDS), "image_newline"),
    unused=("vision_tower.head.", "vision_tower.vision_model.head."),
    prefixes=TOWER,
    defaults=SIGLIP,
    renamed=_numbered,
    rules={
        **tower("vision_tower"),
        "image_newline": "v.image_newline",
        "projectors.{e}.query": "v.proj_blk.{e}.query",
        "projectors.{e}.image_positions": "v.proj_blk.{e}.img_pos",
        **spread(
            "projectors.{e}.",
            {"norm": "norm", "out_linear": "linear", "qformer.layernorm": "post_norm"},
            "v.proj_blk.{e}.",
        ),
        **spread(
            _QFORMER,
            {
                f"{theirs}.{name}": f"{ours}_{part}"
                for theirs, ours in (("attention", "self_attn"), ("crossattention", "cross_attn"))
                for name, part in (
                    *(("attention.query", "q"), ("attention.key", "k"), ("attention.value", "v")),
                    *(("output.dense", "out"), ("output.LayerNorm", "norm")),
                )
            },
            "v.proj_blk.{e}.",
        ),
        **spread(
            _QFORMER,
            {
                "intermediate_query.dense": "ffn_up",
                "output_query.dense": "ffn_down",
                "output_query.LayerNorm": "ffn_norm",
            },
            "v.proj_blk.{e}.",
        ),
    },
)
def granite4_vision(h: ImageHyper, k: Keys) -> None:
    """Granite Vision 4 (IBM 2026)."""
    h.must_be("model_type", "siglip_vision_model")
    h.whole.must_be("vision_feature_select_strategy", "full")
    described(h, k, "granite4_vision", resample=3)
    square(h, "crop_size")
    activation(h, k, gelu="gelu_pytorch_tanh")
    k.f32("vision.attention.layer_norm_epsilon", h.number("layer_norm_eps"))
    k.u32("vision.preproc_image_size", h.side("image_size"))
    rate = h.whole.get("downsample_rate")
    sides = rate.split("/") if isinstance(rate, str) else []
    if len(sides) != 2 or not all(side.isdecimal() and len(side) < 5 for side in sides):
        raise ConvertError(
            f"{h.whole.label}: downsample_rate: found {rate!r:.80}, wanted two sides such as '4/8'"
        )
    k.u32("vision.projector.query_side", int(sides[0]))
    k.u32("vision.projector.window_side", int(sides[1]))
    asked = Hyper(h.whole.get("qformer_config", default={}), f"{h.whole.label}: qformer_config")
    for name, wanted in (
        ("hidden_act", "gelu"), ("layer_norm_eps", 1e-12), ("num_hidden_layers", 1)
    ):  # fmt: skip
        asked.must_be(name, wanted)
    made = _projectors(h)
    k.integers("vision.feature_layer", [one[1] for one in made])
    k.integers(
        "vision.projector.spatial_offsets", [one[3] if one[2] == _KINDS[1] else -1 for one in made]
    )
    points = _integers(h, "image_grid_pinpoints")
    if not points or any(not isinstance(one, list) or len(one) != 2 for one in points):
        raise ConvertError(
            f"{h.whole.label}: image_grid_pinpoints: found {points!r:.80}, wanted pairs of sides"
        )
    h.must_have("image_grid_pinpoints", h.images.get("image_grid_pinpoints"), points)
    k.integers("vision.image_grid_pinpoints", [side for pair in points for side in pair[::-1]])
