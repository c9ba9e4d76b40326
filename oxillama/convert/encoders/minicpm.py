"""MiniCPM-V 4.6."""

from __future__ import annotations

from dataclasses import replace

from oxillama.convert.encoder import Encoder, ImageHyper, activation, described, encoder, spread
from oxillama.convert.encoders.siglip import LAYER
from oxillama.convert.family import Keys
from oxillama.errors import ConvertError

_ATTENTION = {f"self_attn.{part}_proj": f"attn_{part}" for part in ("q", "k", "v", "out")}
_SCALES = {"4x": 2, "16x": 4}  # sides of a feature, in patches


def _scale(h: ImageHyper) -> int:
    mode = h.images.get("downsample_mode", default=h.whole.get("downsample_mode", default="16x"))
    if mode not in _SCALES:
        raise ConvertError(
            f"{h.images.label}: downsample_mode: found {mode!r:.80}, wanted '4x' or '16x'"
        )
    h.whole.must_be("downsample_mode", mode)
    return _SCALES[mode]


def _without_merger(h: ImageHyper) -> Encoder | None:
    unused = ("vision_tower.vit_merger.",)
    return replace(minicpmv46, unused=unused) if _scale(h) == 2 else None


@encoder(
    "MiniCPMV4_6ForConditionalGeneration",
    projector="minicpmv4_6",
    parts=("vision_tower.", "merger."),
    defaults={
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "patch_size": 16,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
    },
    variant=_without_merger,
    rules={
        "vision_tower.embeddings.patch_embedding.{w}": "v.patch_embd.{w}",
        "vision_tower.embeddings.position_embedding.weight": "v.position_embd.weight",
        **spread("vision_tower.encoder.layers.{b}.", LAYER),
        "vision_tower.post_layernorm.{w}": "v.post_ln.{w}",
        **spread(
            "vision_tower.vit_merger.",
            {
                "layer_norm1": "ln1",
                **_ATTENTION,
                "pre_norm": "ds_ln",
                "linear_1": "ds_ffn_up",
                "linear_2": "ds_ffn_down",
            },
            "v.vit_merger.",
        ),
        **spread(
            "merger.mlp.0.", {"pre_norm": "input_norm", "linear_1": "up", "linear_2": "down"}, "mm."
        ),
    },
)
def minicpmv46(h: ImageHyper, k: Keys) -> None:
    """MiniCPM-V 4.6 (OpenBMB 2026); `image_size` is that of a slice. In folders with a
    `downsample_mode` of 4x patches are joined once.
    """
    described(
        h,
        k,
        "minicpmv4_6",
        resample=3,
        image_size=h.images.integer("scale_resolution", default=448),
    )
    activation(h, k, gelu="gelu_pytorch_tanh")
    k.f32("vision.attention.layer_norm_epsilon", h.number("layer_norm_eps"))
    k.u32("vision.projector.scale_factor", _scale(h))
    layer = h.whole.integer("insert_layer_id", default=h.integer("insert_layer_id", default=6))
    k.integers("vision.wa_layer_indexes", [layer])
    h.must_be("window_kernel_size", [2, 2])
    for name, wanted in (
        ("merge_kernel_size", [2, 2]), ("merger_times", 1), ("drop_vision_last_layer", False)
    ):  # fmt: skip
        h.whole.must_be(name, wanted)
    for name, usual in (
        ("patch_size", h.side("patch_size")), ("max_slice_nums", 9), ("slice_mode", True),
        ("use_image_id", True),
    ):  # fmt: skip
        h.must_have(name, h.images.get(name), usual)
