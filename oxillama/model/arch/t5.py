"""The encoder of T5 (Raffel et al. 2020) and umT5 (Chung et al. 2023), in a file of its own."""

from __future__ import annotations

import math

import numpy as np

from oxillama.model.blocks import attention, ffn, gated_ffn, heads_of
from oxillama.model.builder import Builder, architecture

_FURTHEST = 128  # distances from here on share a bucket; no key says another number


@architecture("t5encoder")
def t5_encoder(b: Builder) -> None:
    """Scores are not scaled; the first layer's bias by distance is that of all layers, but each
    layer of umT5 has its own. Version 1.0 has a ReLU, 1.1 and Flan a gate.
    """
    b.see_all()
    b.keys.number("attention.layer_norm_epsilon", default=0.0)  # all norms are RMS norms
    relative = None
    x = b.embed()
    for layer in b.layers("enc."):
        if layer.has("attn_rel_b.weight"):
            relative = _relative(b, layer.name("attn_rel_b.weight"), heads_of(b, layer).query)
        x = x + attention(
            b,
            layer,
            layer.norm(x, "attn_norm"),
            style="neox",
            rope=None,
            scale=1.0,
            relative=relative,
            output="attn_o",
        )
        y = layer.norm(x, "ffn_norm")
        if layer.has("ffn_gate.weight"):
            x = x + gated_ffn(b, layer, y, act="gelu_tanh")
        else:
            x = x + ffn(b, layer, y, act="relu")
    b.mark_embedding(b.norm(x, "enc.output_norm"))


def _relative(b: Builder, name: str, heads: int) -> np.ndarray:
    """The bias of each head for each distance key - query from -128 to 128, float32 (heads,
    257).
    """
    # a quarter of them is for single distances, which are fewer than all
    most = 4 * _FURTHEST - 1
    buckets = b.keys.integer("attention.relative_buckets_count", minimum=4, maximum=most)
    bias = b.array(name, buckets, heads)
    distances = np.arange(-_FURTHEST, _FURTHEST + 1)
    return np.ascontiguousarray(bias[bucket_of(distances, buckets)].T)


def bucket_of(distances: np.ndarray, buckets: int) -> np.ndarray:
    """The bucket of each distance key - query: half of them for keys that come later; of each half
    half for single distances, the rest for wider and wider ranges (section 2.1).
    """
    half = buckets // 2
    exact = half // 2
    far = np.abs(distances)
    wide = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(exact))
    wide = wide / np.float32(math.log(_FURTHEST / exact)) * np.float32(half - exact)
    wide = np.minimum(exact + wide.astype(np.int64), half - 1)
    return np.where(distances > 0, half, 0) + np.where(far < exact, far, wide)
