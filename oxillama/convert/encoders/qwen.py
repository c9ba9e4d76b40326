"""Qwen2-VL, Qwen2.5-VL, Qwen2.5-Omni, Qwen3-VL, Qwen3-Omni and Qwen 3.5."""

from __future__ import annotations

import math

import numpy as np

from oxillama.convert.encoder import (
    ImageHyper,
    activation,
    described,
    encoder,
    limits,
    rotation,
    spread,
)
from oxillama.convert.family import Hyper, Keys, Rule
from oxillama.errors import ConvertError

_PARTS = ("visual.",)
_BLOCKS = "visual.blocks.{b}."
_FEATURES = 8, 4096  # of an image, where a file says nothing
_COMMON = {"spatial_merge_size": 2, "temporal_patch_size": 2}


def split_frames(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, np.ndarray]:
    """The kernels over both frames of a clip, (rows, 3, 2, side, side)."""
    if x.ndim != 5 or x.shape[2] != 2:
        raise ValueError(f"found kernels of shape {x.shape}, wanted two frames")
    return x[:, :, 0], x[:, :, 1]


def _thirds(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, ...]:
    return tuple(np.split(x, 3))


PATCHES: dict[str, str | Rule] = {
    "visual.patch_embed.proj.weight":
        Rule(("v.patch_embd.weight", "v.patch_embd.weight.1"), split_frames),
    "visual.patch_embed.proj.bias": "v.patch_embd.bias",
}  # fmt: skip
_SPLIT: dict[str, str | Rule] = {
    **PATCHES,
    _BLOCKS + "attn.qkv.{w}":
        Rule(tuple(f"v.blk.{{b}}.attn_{part}.{{w}}" for part in "qkv"), _thirds),
    "visual.merger.ln_q.{w}": "v.post_ln.{w}",
    **spread("visual.merger.mlp.", {"0": "0", "2": "2"}, "mm."),
}  # fmt: skip
_NORMS = {"norm1": "ln1", "norm2": "ln2", "attn.proj": "attn_out"}


def _shared(h: ImageHyper, k: Keys) -> None:
    h.must_be("temporal_patch_size", 2)
    rotation(h, k)
    k.f32("vision.attention.layer_norm_epsilon", 1e-6)  # that of every norm of the encoder
    h.must_have("patch_size", h.images.get("patch_size"), h.side("patch_size"))
    h.must_have("merge_size", h.images.get("merge_size"), h.integer("spatial_merge_size"))
    h.must_have("temporal_patch_size", h.images.get("temporal_patch_size"), 2)
    limits(h, k, *_FEATURES)


def _merge(h: ImageHyper, k: Keys) -> None:
    if h.integer("spatial_merge_size") != 2:
        k.u32("vision.spatial_merge_size", h.integer("spatial_merge_size"))


@encoder(
    "Qwen2VLForConditionalGeneration",
    projector="qwen2vl_merger",
    parts=_PARTS,
    defaults={
        **_COMMON,
        "depth": 32,
        "embed_dim": 1280,
        "num_heads": 16,
        "mlp_ratio": 4,
        "patch_size": 14,
        "hidden_act": "quick_gelu",
    },
    rules={**_SPLIT, **spread(_BLOCKS, {**_NORMS, "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"})},
)
def qwen2vl(h: ImageHyper, k: Keys) -> None:
    """Qwen2-VL (Wang et al. 2024), whose `hidden_size` is that of the language model."""
    hidden = h.integer("embed_dim")
    inner = int(hidden * h.number("mlp_ratio"))
    described(h, k, "qwen2vl_merger", resample=3, image_size=560, hidden=hidden, inner=inner)
    h.must_be("hidden_act", "quick_gelu")
    _shared(h, k)
    _merge(h, k)


def whole_every(h: ImageHyper) -> int:
    """n, where every n-th layer has no windows."""
    whole = h.get("fullatt_block_indexes")
    every = whole[0] + 1 if isinstance(whole, list) and whole and whole[0] in range(1 << 12) else 1
    if whole != list(range(every - 1, h.layers, every)):
        raise ConvertError(
            f"{h.label}: fullatt_block_indexes: found {whole!r:.80}, wanted every n-th of "
            f"{h.layers} layers"
        )
    return every


_QWEN25 = {
    **_COMMON,
    "depth": 32,
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "num_heads": 16,
    "patch_size": 14,
    "hidden_act": "silu",
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
_QWEN25_RULES: dict[str, str | Rule] = {
    **_SPLIT,
    **spread(_BLOCKS, _NORMS),
    **spread(_BLOCKS, {f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}),
}


def _qwen25(h: ImageHyper, k: Keys, kind: str) -> None:
    described(h, k, kind, resample=3, image_size=560)
    activation(h, k, silu="silu")
    k.u32("vision.n_wa_pattern", whole_every(h))
    if h.integer("window_size") != 112:
        k.u32("vision.window_size", h.integer("window_size"))
    _shared(h, k)
    _merge(h, k)


@encoder(
    "Qwen2_5_VLForConditionalGeneration",
    projector="qwen2.5vl_merger",
    parts=_PARTS,
    defaults=_QWEN25,
    rules=_QWEN25_RULES,
)
def qwen25vl(h: ImageHyper, k: Keys) -> None:
    """Qwen2.5-VL (Bai et al. 2025)."""
    _qwen25(h, k, "qwen2.5vl_merger")


@encoder(
    "Qwen2_5OmniModel",
    "Qwen2_5OmniForConditionalGeneration",
    "Qwen2_5OmniThinkerForConditionalGeneration",
    projector="qwen2.5o",
    parts=_PARTS,
    defaults=_QWEN25,
    rules={
        **_QWEN25_RULES,
        **spread(_BLOCKS, {f"attn.{part}": f"attn_{part}" for part in "qkv"}),
    },
)
def qwen25o(h: ImageHyper, k: Keys) -> None:
    """The images of Qwen2.5-Omni (Xu et al. 2025), whose other encoder hears."""
    _qwen25(h, k, "qwen2.5o")


def _deep(h: ImageHyper, name: str) -> str:
    """A merger of the list as that of the layer before it."""
    start = "visual.deepstack_merger_list."
    if not name.startswith(start):
        return name
    number, _, rest = name.removeprefix(start).partition(".")
    layers = _deep_layers(h)
    if not number.isdecimal() or int(number) >= len(layers):
        raise ConvertError(
            f"{h.label}: deepstack_visual_indexes: found {len(layers)}, and a tensor {name}"
        )
    return f"{start}{layers[int(number)]}.{rest}"


def _deep_layers(h: ImageHyper) -> list[int]:
    found = h.get("deepstack_visual_indexes", default=[])
    if not isinstance(found, list) or any(one not in range(h.layers) for one in found):
        raise ConvertError(
            f"{h.label}: deepstack_visual_indexes: found {found!r:.80}, wanted layers of {h.layers}"
        )
    return found


_QWEN3 = {
    **_COMMON,
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "num_position_embeddings": 2304,
}
_MERGER = {"linear_fc1": "0", "linear_fc2": "2"}
_DEEP = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}
_QWEN3_RULES: dict[str, str | Rule] = {
    **PATCHES,
    "visual.pos_embed.weight": "v.position_embd.weight",
    **spread(
        _BLOCKS,
        {
            **_NORMS,
            "attn.qkv": "attn_qkv",
            "mlp.linear_fc1": "ffn_up",
            "mlp.linear_fc2": "ffn_down",
        },
    ),
    "visual.merger.norm.{w}": "v.post_ln.{w}",
    **spread("visual.merger.", _MERGER, "mm."),
    **spread("visual.deepstack_merger_list.{b}.", _DEEP, "v.deepstack.{b}."),
}


def _qwen3(h: ImageHyper, k: Keys) -> None:
    side = math.isqrt(h.integer("num_position_embeddings"))
    described(h, k, "qwen3vl_merger", resample=3, image_size=side * h.side("patch_size"))
    activation(h, k, gelu="gelu_pytorch_tanh")
    k.u32("vision.spatial_merge_size", h.integer("spatial_merge_size"))
    layers = _deep_layers(h)
    k.flags("vision.is_deepstack_layers", [layer in layers for layer in range(h.layers)])
    _shared(h, k)


@encoder(
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    projector="qwen3vl_merger",
    parts=_PARTS,
    defaults={**_QWEN3, "deepstack_visual_indexes": [8, 16, 24]},
    renamed=_deep,
    rules=_QWEN3_RULES,
)
def qwen3vl(h: ImageHyper, k: Keys) -> None:
    """Qwen3-VL (Qwen 2025)."""
    _qwen3(h, k)


_OMNI_MERGERS = (
    ("merger_list.", "deepstack_merger_list."),
    ("ln_q.", "norm."),
    ("mlp.0.", "linear_fc1."),
    ("mlp.2.", "linear_fc2."),
)


def _omni(h: ImageHyper, name: str) -> str:
    """A tensor of a merger by its name in Qwen3-VL."""
    if name.startswith(("visual.merger.", "visual.merger_list.")):
        for old, new in _OMNI_MERGERS:
            name = name.replace(old, new)
    return _deep(h, name)


@encoder(
    "Qwen3OmniMoeForConditionalGeneration",
    "Qwen3OmniMoeThinkerForConditionalGeneration",
    projector="qwen3vl_merger",
    parts=_PARTS,
    defaults={**_QWEN3, "deepstack_visual_indexes": [8, 16, 24]},
    renamed=_omni,
    rules=_QWEN3_RULES,
)
def qwen3_omni(h: ImageHyper, k: Keys) -> None:
    """The images of Qwen3-Omni (Xu et al. 2025), whose other encoder hears."""
    _qwen3(h, k)


@encoder(
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    projector="qwen3vl_merger",
    parts=_PARTS,
    defaults=_QWEN3,
    renamed=_deep,
    rules=_QWEN3_RULES,
)
def qwen35(h: ImageHyper, k: Keys) -> None:
    """Qwen 3.5 (Qwen 2026): the same without further features."""
    _qwen3(h, k)
