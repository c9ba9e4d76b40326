"""PaddleOCR-VL."""

from __future__ import annotations

import math

from oxillama.convert.encoder import (
    ImageHyper,
    activation,
    described,
    encoder,
    needed_limits,
    patched,
    rotation,
    spread,
)
from oxillama.convert.encoders.siglip import tower
from oxillama.convert.family import Keys


@encoder(
    "PaddleOCRVLForConditionalGeneration",
    projector="paddleocr",
    parts=("visual.", "mlp_AR.", "projector."),
    unused=(
        "visual.vision_model.head.",
        "visual.vision_model.embeddings.packing_position_embedding.",
    ),
    prefixes=(("projector.", "mlp_AR."),),
    defaults={
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "patch_size": 14,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
        "spatial_merge_size": 2,
    },
    rules={
        **tower("visual.vision_model"),
        **spread("mlp_AR.", {"pre_norm": "input_norm", "linear_1": "1", "linear_2": "2"}, "mm."),
    },
)
def paddleocr(h: ImageHyper, k: Keys) -> None:
    """PaddleOCR-VL (Cui et al. 2025)."""
    side = math.isqrt(needed_limits(h, k))  # images of any size, for which the file needs one
    described(h, k, "paddleocr", resample=3, image_size=side)
    activation(h, k, gelu="gelu_pytorch_tanh")
    k.f32("vision.attention.layer_norm_epsilon", h.number("layer_norm_eps"))
    h.must_be("spatial_merge_size", 2)
    patched(h)
    rotation(h, k)
