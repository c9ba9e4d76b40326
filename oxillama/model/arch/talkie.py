"""Talkie (2026, published code, modeling_talkie.py): norms without weights, a gain for each query
head, and the normed embedding added again after every layer.
"""

from dataclasses import replace

import numpy as np

from oxillama.model.blocks import gated_ffn, heads_of, rope_dims
from oxillama.model.builder import Builder, Layer, Value, architecture


@architecture("talkie")
def talkie(b: Builder) -> Value:
    """Logits have a scale, as the last product of each branch may."""
    x = start = b.norm(b.embed(), None)
    for layer in b.layers():
        x = x + _attention(b, layer, b.norm(x, None))
        x = x + gated_ffn(b, layer, b.norm(x, None), act="silu")
        x = x + start * float(layer.vector("layer_output_scale.weight", 1)[0])
    return b.logits(x, norm=None, scale=b.keys.number("logit_scale"))


def _attention(b: Builder, layer: Layer, x: Value) -> Value:
    """Queries are normed, then under the gain of their head. The model rotates before that, which
    makes no difference but for a magnitude of the rotation, which a norm takes away.
    """
    heads = heads_of(b, layer)
    q = layer.linear(x, "attn_q", heads.query * heads.key_dim)
    k = layer.linear(x, "attn_k", heads.kv * heads.key_dim)
    v = layer.linear(x, "attn_v", heads.kv * heads.value_dim)
    gain = layer.array("attn_q_norm.weight", heads.query, 1)
    q = b.norm(q, None, heads=heads.query) * np.repeat(gain, heads.key_dim)
    y = b.attend(
        *(q, b.norm(k, None, heads=heads.kv), v),
        heads=heads,
        rope=replace(b.rope(rope_dims(b, heads)), magnitude=1.0),
        style="neox",
        scale=heads.key_dim**-0.5,
    )
    return layer.linear(y, "attn_output", b.hidden)
