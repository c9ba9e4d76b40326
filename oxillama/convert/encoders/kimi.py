"""MoonViT: Kimi-VL and Kimi K2.5."""

from __future__ import annotations

from typing import Any

import numpy as np

from oxillama.convert.encoder import ImageHyper, described, encoder, spread
from oxillama.convert.family import Hyper, Keys, Rule
from oxillama.errors import ConvertError

_BLOCKS = "vision_tower.encoder.blocks.{b}."
_SHARED: dict[str, str | Rule] = {
    "vision_tower.patch_embed.proj.{w}": "v.patch_embd.{w}",
    **spread(
        _BLOCKS,
        {
            "norm0": "ln1",
            "norm1": "ln2",
            "wo": "attn_out",
            "mlp.fc0": "ffn_up",
            "mlp.fc1": "ffn_down",
        },
    ),
    "vision_tower.encoder.final_layernorm.{w}": "v.post_ln.{w}",
}
_DEFAULTS = {
    "patch_size": 14,
    "init_pos_emb_height": 64,
    "init_pos_emb_width": 64,
    "merge_kernel_size": [2, 2],
}


def _thirds(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, ...]:
    return tuple(np.split(x, 3))


def _halves(x: np.ndarray, h: Hyper) -> np.ndarray:
    """Queries, keys and values with the pairs of a head by column before those by row: in the
    folder they take turns.
    """
    heads = h.integer("num_attention_heads", "vt_num_attention_heads")
    quarter = len(x) // 3 // heads // 4
    query, key, value = np.split(x, 3)
    rest = x.shape[1:]
    turned = (
        each.reshape(heads, quarter, 2, 2, *rest).swapaxes(1, 2).reshape(each.shape)
        for each in (query, key)
    )
    return np.concatenate([*turned, value])


def _flat(x: np.ndarray, h: Hyper) -> np.ndarray:
    return x.reshape(-1, x.shape[-1])


def _moonvit(h: ImageHyper, k: Keys, kind: str, limit: str, usual: int, **sizes: Any) -> int:
    """The shared keys; the most patches of an image. limit: what the image processor calls them."""
    rows = h.integer("init_pos_emb_height")
    h.must_be("init_pos_emb_width", rows)
    described(h, k, kind, resample=3, image_size=rows * h.side("patch_size"), **sizes)
    merge = h.side("merge_kernel_size")
    k.flag("use_gelu", True)
    k.u32("vision.projector.scale_factor", merge)
    h.must_have("patch_size", h.images.get("patch_size"), h.side("patch_size"))
    h.must_have("merge_kernel_size", h.images.get("merge_kernel_size"), merge, [merge, merge])
    most = h.images.integer(limit, default=usual)
    if not most:
        raise ConvertError(f"{h.images.label}: {limit}: found 0, wanted at least one patch")
    return most


@encoder(
    "KimiVLForConditionalGeneration",
    projector="kimivl",
    parts=("vision_tower.", "multi_modal_projector."),
    defaults={
        **_DEFAULTS,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
    },
    rules={
        **_SHARED,
        "vision_tower.patch_embed.pos_emb.weight": Rule(("v.position_embd.weight",), _flat),
        _BLOCKS + "wqkv.{w}":
            Rule(tuple(f"v.blk.{{b}}.attn_{part}.{{w}}" for part in "qkv"), _thirds),
        **spread(
            "multi_modal_projector.",
            {"pre_norm": "input_norm", "linear_1": "1", "linear_2": "2"},
            "mm.",
        ),
    },
)  # fmt: skip
def kimivl(h: ImageHyper, k: Keys) -> None:
    """Kimi-VL (Kimi Team 2025)."""
    most = _moonvit(h, k, "kimivl", "in_token_limit", 4096)
    k.f32("vision.attention.layer_norm_epsilon", 1e-5)  # that of every norm of the encoder
    h.must_have("pad_input", h.images.get("pad_input"), True)
    if most != 4096:
        k.u32("vision.image_max_pixels", most * h.side("patch_size") ** 2)


@encoder(
    "KimiK25ForConditionalGeneration",
    projector="kimik25",
    parts=("vision_tower.", "mm_projector."),
    defaults={
        **_DEFAULTS,
        "init_pos_emb_time": 4,
        "vt_num_attention_heads": 16,
        "vt_num_hidden_layers": 27,
        "vt_hidden_size": 1152,
        "vt_intermediate_size": 4304,
        "projector_hidden_act": "gelu",
        "projector_ln_eps": 1e-5,
    },
    rules={
        **_SHARED,
        "vision_tower.patch_embed.pos_emb.weight": "v.position_embd.weight",
        _BLOCKS + "wqkv.{w}": Rule(("v.blk.{b}.attn_qkv.{w}",), _halves),
        **spread("mm_projector.", {"pre_norm": "input_norm", "proj.0": "1", "proj.2": "2"}, "mm."),
    },
)
def kimik25(h: ImageHyper, k: Keys) -> None:
    """Kimi K2.5 (Moonshot 2026); its norms have one epsilon."""
    most = _moonvit(
        h,
        k,
        "kimik25",
        "in_patch_limit",
        16384,
        hidden=h.integer("hidden_size", "vt_hidden_size"),
        inner=h.integer("intermediate_size", "vt_intermediate_size"),
    )
    for name, wanted in (
        ("pos_emb_type", "divided_fixed"),
        ("mm_projector_type", "patchmerger"),
        ("merge_type", "sd2_tpool"),
        ("projector_hidden_act", "gelu"),
        ("projector_ln_eps", 1e-5),
    ):
        h.must_be(name, wanted)
    for axis in ("height", "width", "time"):  # these stand without `clip.` in its files
        k.found[f"vision.pos_emb_{axis}"] = h.integer(f"init_pos_emb_{axis}"), "uint32"
    k.f32("vision.attention.layer_norm_epsilon", h.number("projector_ln_eps"))
    h.must_have("patch_limit_on_one_side", h.images.get("patch_limit_on_one_side"), 512)
    area = h.side("patch_size") ** 2
    k.u32("vision.image_min_pixels", 8 * area)
    k.u32("vision.image_max_pixels", most * area)
