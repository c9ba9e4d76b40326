"""Youtu-VL."""

from __future__ import annotations

from oxillama.convert.encoder import ImageHyper, activation, described, encoder, patched, spread
from oxillama.convert.encoders.siglip import LAYER
from oxillama.convert.family import Keys
from oxillama.errors import ConvertError


@encoder(
    "YoutuVLForConditionalGeneration",
    projector="youtuvl",
    parts=("siglip2.", "merger."),
    unused=("siglip2.vision_model.head.",),
    defaults={
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "patch_size": 16,
        "image_size": 560,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
        "spatial_merge_size": 2,
    },
    rules={
        "siglip2.vision_model.embeddings.patch_embedding.{w}": "v.patch_embd.{w}",
        **spread("siglip2.vision_model.encoder.layers.{b}.", LAYER),
        "siglip2.vision_model.post_layernorm.{w}": "v.post_ln.{w}",
        **spread("merger.", {"ln_q": "input_norm", "mlp.0": "0", "mlp.2": "2"}, "mm."),
    },
)
def youtuvl(h: ImageHyper, k: Keys) -> None:
    """Youtu-VL (Tencent 2026)."""
    described(h, k, "youtuvl", resample=2)
    activation(h, k, gelu="gelu_pytorch_tanh")
    k.f32("vision.attention.layer_norm_epsilon", h.number("layer_norm_eps"))
    k.u32("vision.spatial_merge_size", h.integer("spatial_merge_size"))
    k.u32("vision.window_size", h.integer("window_size"))
    whole = h.get("fullatt_block_indexes")
    if not isinstance(whole, list) or any(one not in range(h.layers) for one in whole):
        raise ConvertError(
            f"{h.label}: fullatt_block_indexes: found {whole!r:.80}, wanted layers of {h.layers}"
        )
    k.integers("vision.wa_layer_indexes", whole)
    h.must_have("max_num_patches", h.images.get("max_num_patches"), 36864)
    patched(h)
