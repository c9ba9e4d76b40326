"""RADIO under the projector of Nemotron Nano V2 VL."""

from __future__ import annotations

import math

import numpy as np

from oxillama.convert.encoder import ImageHyper, described, encoder, spread
from oxillama.convert.family import Hyper, Keys, Rule
from oxillama.errors import ConvertError

_MODEL = "vision_model.radio_model.model."


def _side(h: Hyper) -> int:
    """Patches along a side of a tile."""
    assert isinstance(h, ImageHyper)
    return h.whole.integer("force_image_size", default=512) // h.side("patch_size")


def _squares(x: np.ndarray, h: Hyper) -> np.ndarray:
    """Kernels as rows, as those over (colour, row, column)."""
    side = math.isqrt(x.shape[1] // 3)
    return x.reshape(len(x), 3, side, side)


def _places(x: np.ndarray, h: Hyper) -> np.ndarray:
    """Learned positions of a grid, (1, places, width), between whose corners as many are taken as a
    tile has patches (bilinear).
    """
    count, held = _side(h), math.isqrt(x.shape[1])
    if held * held != x.shape[1] or len(x) != 1:
        raise ValueError(f"found positions of shape {x.shape}, wanted those of a square")
    if count == held:
        return x
    at = np.arange(count, dtype=np.float32) * np.float32((held - 1) / max(count - 1, 1))
    low = np.minimum(at.astype(int), held - 1)
    high, over = np.minimum(low + 1, held - 1), (at - low).astype(np.float32)
    grid = x.reshape(held, held, -1)
    made = np.zeros((count, count, grid.shape[2]), np.float32)
    for rows, down in ((low, 1 - over), (high, over)):
        for columns, across in ((low, 1 - over), (high, over)):
            made += grid[np.ix_(rows, columns)] * (down[:, None] * across)[:, :, None]
    return made.reshape(1, count * count, -1)


@encoder(
    "NemotronH_Nano_VL_V2",
    projector="nemotron_v2_vl",
    parts=(_MODEL, "mlp1."),
    unused=(_MODEL + "patch_generator.video_embedder.",),
    defaults={  # ViT-H, whose sizes the folder lacks
        "hidden_size": 1280,
        "intermediate_size": 5120,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "patch_size": 16,
    },
    rules={
        _MODEL + "patch_generator.embedder.weight": Rule(("v.patch_embd.weight",), _squares),
        _MODEL + "patch_generator.cls_token.token": "v.class_embd",
        _MODEL + "patch_generator.pos_embed":
            Rule(("v.position_embd.weight",), _places, values=True),
        **spread(
            _MODEL + "blocks.{b}.",
            {
                "norm1": "ln1",
                "norm2": "ln2",
                "attn.qkv": "attn_qkv",
                "attn.proj": "attn_out",
                "mlp.fc1": "ffn_up",
                "mlp.fc2": "ffn_down",
            },
        ),
        **{f"mlp1.{layer}.weight": f"mm.model.mlp.{layer}.weight" for layer in "013"},
    },
)  # fmt: skip
def nemotron_v2_vl(h: ImageHyper, k: Keys) -> None:
    """Nemotron Nano V2 VL (NVIDIA 2025)."""
    colours = {}
    for name in ("mean", "std"):
        other = f"norm_{name}"
        colours[f"image_{name}"] = h.images.get(other, default=h.whole.get(other))
    h.images = Hyper({**colours, **h.images.config}, h.images.label)
    size = h.whole.integer("force_image_size", default=512)
    described(h, k, "nemotron_v2_vl", resample=3, image_size=size)
    k.flag("use_gelu", True)
    k.f32("vision.attention.layer_norm_epsilon", 1e-6)
    h.must_have("image_size", h.images.get("image_size"), size)
    h.must_have("max_num_tiles", h.images.get("max_num_tiles"), 12)
    h.must_have("use_thumbnail", h.images.get("use_thumbnail"), True)
    ratio = h.whole.number("downsample_ratio", default=0.5)
    if not 0 < ratio <= 1 or 1 / ratio % 1:
        raise ConvertError(
            f"{h.whole.label}: downsample_ratio: found {ratio}, wanted one divided by an integer"
        )
    k.u32("vision.projector.scale_factor", int(1 / ratio))
