"""Pixtral, Mistral Small 3.1 and LightOnOCR."""

from __future__ import annotations

from typing import Any

import numpy as np

from oxillama.convert.encoder import (
    Encoder,
    ImageHyper,
    activation,
    described,
    encoder,
    rotation,
    spread,
    square,
)
from oxillama.convert.family import Keys, Rule
from oxillama.convert.safetensors import StoredTensor
from oxillama.convert.shapes import paired_keys, paired_queries
from oxillama.errors import ConvertError

_ATTENTION = "vision_tower.transformer.layers.{b}.attention."
_RULES: dict[str, str | Rule] = {
    "vision_tower.patch_conv.weight": "v.patch_embd.weight",
    "vision_tower.ln_pre.weight": "v.pre_ln.weight",
    _ATTENTION + "q_proj.weight": Rule(("v.blk.{b}.attn_q.weight",), paired_queries),
    _ATTENTION + "k_proj.weight": Rule(("v.blk.{b}.attn_k.weight",), paired_keys),
    **spread(
        "vision_tower.transformer.layers.{b}.",
        {
            "attention_norm": "ln1",
            "ffn_norm": "ln2",
            "attention.v_proj": "attn_v",
            "attention.o_proj": "attn_out",
            "feed_forward.gate_proj": "ffn_gate",
            "feed_forward.up_proj": "ffn_up",
            "feed_forward.down_proj": "ffn_down",
        },
    ),
    "multi_modal_projector.norm.weight": "mm.input_norm.weight",
    "multi_modal_projector.patch_merger.merging_layer.weight": "mm.patch_merger.weight",
    **spread("multi_modal_projector.", {"linear_1": "1", "linear_2": "2"}, "mm."),
}
_DEFAULTS = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 1024,
    "patch_size": 16,
    "hidden_act": "gelu",
}
_BREAK = "[IMG_BREAK]"


def _line_end(h: ImageHyper) -> dict[str, Any]:
    """The embedding of the token after a line of an image, which the encoder's file holds."""
    folder = h.folder
    assert folder is not None
    number = None
    held = folder.json("tokenizer_config.json").get("added_tokens_decoder")
    if isinstance(held, dict):
        for key, one in held.items():
            if isinstance(one, dict) and one.get("content") == _BREAK and str(key).isdecimal():
                number = int(key)
    for one in folder.json("tokenizer.json").get("added_tokens") or []:
        if isinstance(one, dict) and one.get("content") == _BREAK and number is None:
            number = one.get("id")
    table = next(
        (one for name, one in folder.tensors.items() if name.endswith("embed_tokens.weight")), None
    )
    if not isinstance(number, int) or table is None or not 0 <= number < len(table.data):
        raise ConvertError(
            f"{folder.path}: {_BREAK}: found "
            f"{'no embeddings' if table is None else f'token {number}'}, wanted its embedding"
        )
    row = StoredTensor(table.dtype, table.data[number])
    return {"v.token_embd.img_break": np.ascontiguousarray(row.floats())}


def _keys(h: ImageHyper, k: Keys, projector: str) -> None:
    described(h, k, projector, resample=3)
    k.f32("vision.attention.layer_norm_epsilon", 1e-5)  # that of every norm of the encoder
    # the other GELU, that of the class where a folder is silent, has no place in a file
    activation(h, k, silu="silu", gelu="gelu_pytorch_tanh")
    h.must_be("head_dim", h.integer("hidden_size") // h.heads)
    rotation(h, k)
    h.whole.must_be("projector_hidden_act", "gelu")
    h.whole.must_be("vision_feature_layer", -1)
    patch = h.images.get("patch_size")
    if isinstance(patch, dict):
        square(h, "patch_size", h.side("patch_size"))
    else:
        h.must_have("patch_size", patch, h.side("patch_size"))
    longest = h.edge("size", "longest_edge")
    if longest is not None and longest != h.side("image_size"):
        k.u32("vision.preproc_image_size", longest)


def _merged(h: ImageHyper, k: Keys, eps: float) -> None:
    """Squares of patches become one under a norm whose epsilon the file lacks."""
    found = h.text.number("rms_norm_eps", default=1e-6)
    if found != eps:
        raise ConvertError(
            f"{h.text.label}: rms_norm_eps: found {found}, wanted {eps}: the file has none for the "
            "norm before the projector"
        )
    k.u32("vision.spatial_merge_size", h.whole.integer("spatial_merge_size", default=2))


def _pixtral(h: ImageHyper, k: Keys) -> None:
    """Pixtral (Agrawal et al. 2024)."""
    h.whole.must_be("vision_feature_select_strategy", "full")
    _keys(h, k, "pixtral")


pixtral: Encoder = encoder(
    projector="pixtral",
    parts=("vision_tower.", "multi_modal_projector."),
    defaults=_DEFAULTS,
    extra=_line_end,
    rules=_RULES,
)(_pixtral)


@encoder(
    "Mistral3ForConditionalGeneration",
    projector="pixtral",
    parts=("vision_tower.", "multi_modal_projector."),
    defaults=_DEFAULTS,
    extra=_line_end,
    rules=_RULES,
)
def mistral3(h: ImageHyper, k: Keys) -> None:
    """Mistral Small 3.1 (Mistral 2025)."""
    _keys(h, k, "pixtral")
    _merged(h, k, 1e-5)


@encoder(
    "LightOnOcrForConditionalGeneration",
    "LightOnOCRForConditionalGeneration",
    projector="lightonocr",
    parts=("vision_encoder.", "vision_projection."),
    prefixes=(
        ("vision_encoder.", "vision_tower."),
        ("vision_projection.", "multi_modal_projector."),
    ),
    defaults=_DEFAULTS,
    rules=_RULES,
)
def lightonocr(h: ImageHyper, k: Keys) -> None:
    """LightOnOCR (LightOn 2025)."""
    _keys(h, k, "lightonocr")
    _merged(h, k, 1e-6)
