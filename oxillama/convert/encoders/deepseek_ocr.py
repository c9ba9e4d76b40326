"""DeepSeek-OCR, Unlimited-OCR and DeepSeek-OCR 2: SAM in front of CLIP or of layers of Qwen 2."""

from __future__ import annotations

import copy
import math

import numpy as np

from oxillama.convert.encoder import ImageHyper, described, encoder, spread
from oxillama.convert.encoders.siglip import LAYER
from oxillama.convert.family import Hyper, Keys, Rule
from oxillama.errors import ConvertError

_BLOCK = "sam_model.blocks.{b}."
_LEAST = 2  # tiles of an image that is cut
_UNLIMITED = "UnlimitedOCRForCausalLM"


def _row(x: np.ndarray, h: Hyper) -> np.ndarray:
    return x[None]


_SAM: dict[str, str | Rule] = {
    "sam_model.pos_embed": "v.sam.pos_embd.weight",
    "sam_model.patch_embed.proj.{w}": "v.sam.patch_embd.{w}",
    **{f"{_BLOCK}attn.rel_pos_{side}": f"v.sam.blk.{{b}}.attn.pos_{side}.weight" for side in "hw"},
    **spread(
        _BLOCK,
        {
            "norm1": "pre_ln",
            "norm2": "post_ln",
            "attn.qkv": "attn.qkv",
            "attn.proj": "attn.out",
            "mlp.lin1": "mlp.lin1",
            "mlp.lin2": "mlp.lin2",
        },
        "v.sam.blk.{b}.",
    ),
    **{f"sam_model.neck.{at}.{{w}}": f"v.sam.neck.{at}.{{w}}" for at in range(4)},
    **{f"sam_model.net_{at}.weight": f"v.sam.net_{at}.weight" for at in (2, 3)},
    "projector.layers.{w}": "mm.model.fc.{w}",
    "view_seperator": Rule(("v.view_seperator",), _row),
}
_KEPT = (
    *("v.patch_embd.weight", "v.position_embd.weight", "v.sam.pos_embd.weight"),
    *(".attn.pos_h.weight", ".attn.pos_w.weight"),
    *(f"v.sam.neck.{at}.weight" for at in range(4)),
    *("v.sam.net_2.weight", "v.sam.net_3.weight"),
)
_HALVES = ("v.sam.patch_embd.weight",)


def _part(h: ImageHyper, name: str) -> Hyper:
    """The values of one of the encoder's two parts."""
    width = h.get("width")
    found = width.get(name) if isinstance(width, dict) else None
    if not isinstance(found, dict):
        raise ConvertError(f"{h.label}: width: found {width!r:.80}, wanted an object with {name}")
    return Hyper(found, f"{h.label}: width: {name}")


def _sam(h: ImageHyper, k: Keys, flat: ImageHyper, projector: str, most: int) -> None:
    """The keys of both. flat: with the values of the encoder after SAM."""
    described(flat, k, projector, resample=3)
    k.flag("use_gelu", True)
    k.f32("vision.attention.layer_norm_epsilon", h.number("layer_norm_eps", default=1e-6))
    k.u32("vision.window_size", h.integer("window_size", default=14))
    k.u32("vision.preproc_min_tiles", _LEAST)
    k.u32("vision.preproc_max_tiles", most)
    sam = _part(h, "sam_vit_b")
    k.u32("vision.sam.block_count", sam.integer("layers"))
    k.u32("vision.sam.embedding_length", sam.integer("width"))
    k.u32("vision.sam.head_count", sam.integer("heads"))
    across = math.isqrt(flat.images.integer("image_seq_length", default=256))
    factor = flat.side("image_size") // flat.side("patch_size") // max(across, 1)
    if factor not in (0, 4):
        k.u32("vision.projector.scale_factor", factor)


def _clip(h: ImageHyper) -> ImageHyper:
    """With the values of CLIP."""
    clip = _part(h, "clip-l-14-224")
    flat = copy.copy(h)
    heads = clip.integer("heads")
    flat.config = {
        "hidden_size": clip.integer("width"),
        "intermediate_size": 4 * heads,  # as llama.cpp's converter says; nobody reads it
        "num_hidden_layers": clip.integer("layers"),
        "num_attention_heads": heads,
        "image_size": clip.integer("image_size"),
        "patch_size": clip.integer("patch_size"),
    }
    return flat


@encoder(
    "DeepseekOCRForCausalLM",
    _UNLIMITED,
    projector="deepseekocr",
    parts=("sam_model.", "vision_model.", "projector.", "image_newline", "view_seperator"),
    unused=("vision_model.embeddings.position_ids",),
    halves=_HALVES,
    kept=_KEPT,
    layers=lambda h: _clip(h).layers,
    rules={
        **_SAM,
        "vision_model.embeddings.class_embedding": "v.class_embd",
        "vision_model.embeddings.patch_embedding.weight": "v.patch_embd.weight",
        "vision_model.embeddings.position_embedding.weight": "v.position_embd.weight",
        "vision_model.pre_layrnorm.{w}": "v.pre_ln.{w}",
        **spread(
            "vision_model.transformer.layers.{b}.", {**LAYER, "self_attn.qkv_proj": "attn_qkv"}
        ),
        "image_newline": "v.image_newline",
    },
)
def deepseekocr(h: ImageHyper, k: Keys) -> None:
    """DeepSeek-OCR (Wei et al. 2025) and Unlimited-OCR (Baidu 2026)."""
    assert h.folder is not None
    _sam(h, k, _clip(h), "deepseekocr", 32 if h.folder.architecture == _UNLIMITED else 9)


@encoder(
    "DeepseekOCR2ForCausalLM",
    projector="deepseekocr2",
    parts=("sam_model.", "qwen2_model.", "projector.", "view_seperator"),
    halves=_HALVES,
    kept=_KEPT,
    defaults={
        "intermediate_size": 4864,
        "layers": 24,
        "num_attention_heads": 14,
        "patch_size": 16,
        "image_size": 1024,
    },
    rules={
        **_SAM,
        "qwen2_model.query_768.weight": "v.resample_query_768.weight",
        "qwen2_model.query_1024.weight": "v.resample_query_1024.weight",
        **spread(
            "qwen2_model.model.model.layers.{b}.",
            {
                "input_layernorm": "ln1",
                "post_attention_layernorm": "ln2",
                **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
                "self_attn.o_proj": "attn_out",
                **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
            },
        ),
        "qwen2_model.model.model.norm.weight": "v.post_ln.weight",
    },
)
def deepseekocr2(h: ImageHyper, k: Keys) -> None:
    """DeepSeek-OCR 2 (Wei et al. 2026), whose code has the sizes of its layers of Qwen 2."""
    flat = copy.copy(h)
    flat.config = {**h.config, "hidden_size": _part(h, "qwen2-0-5b").integer("dim")}
    _sam(h, k, flat, "deepseekocr2", 6)
    k.u32("vision.attention.head_count_kv", 2)
