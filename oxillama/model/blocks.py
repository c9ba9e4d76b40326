"""What several architectures share: attention over a paged cache, and the gated feed-forward.

A parameter stands here only when two architectures need it; what one needs alone stays in its own
file.
"""

from __future__ import annotations

import math

from oxillama.errors import ModelError
from oxillama.model.builder import Builder, Heads, Layer, Value
from oxillama.model.rope import Rope


def heads_of(b: Builder, layer: Layer) -> Heads:
    """The attention shape that the file's keys give this layer, checked for consistency."""
    query = layer.integer("attention.head_count", minimum=1, maximum=1 << 16)
    kv = layer.integer("attention.head_count_kv", default=query, minimum=1, maximum=query)
    if query % kv:
        raise ModelError(
            f"{b.arch}.attention.head_count_kv: found {kv}, wanted a divisor of head_count {query}"
        )
    if "attention.key_length" in b.keys:
        default = None
    else:
        default, rest = divmod(b.hidden, query)
        if rest:
            raise ModelError(
                f"{b.arch}.attention.head_count: found {query}, wanted a divisor of embedding_length {b.hidden}"
            )
    key_dim = b.keys.integer("attention.key_length", default=default, minimum=1, maximum=1 << 12)
    value_dim = b.keys.integer(
        "attention.value_length", default=key_dim, minimum=1, maximum=1 << 12
    )
    return Heads(query, kv, key_dim, value_dim)


def rope_dims(b: Builder, heads: Heads) -> int:
    """How many floats of each head are rotated."""
    return b.keys.integer(
        "rope.dimension_count", default=heads.key_dim, minimum=2, maximum=heads.key_dim
    )


def attention(
    b: Builder,
    layer: Layer,
    x: Value,
    *,
    style: str,
    qk_norm: bool = False,
    rope: Rope | None = None,
    window: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
) -> Value:
    """Grouped-query attention with rotary positions: q, k, v projections, causal attention, output
    projection.

    `style` is how pairs are rotated: "norm" (adjacent floats) or "neox" (the two halves).
    `rope=None` takes the file's own. `scale` defaults to 1/sqrt(key_dim).
    """
    heads = heads_of(b, layer)
    rope = rope or b.rope(rope_dims(b, heads))
    q = layer.linear(x, "attn_q", heads.query * heads.key_dim)
    k = layer.linear(x, "attn_k", heads.kv * heads.key_dim)
    v = layer.linear(x, "attn_v", heads.kv * heads.value_dim)
    norms = {}
    if qk_norm:
        norms = {
            "q_norm": layer.vector("attn_q_norm.weight", heads.key_dim),
            "k_norm": layer.vector("attn_k_norm.weight", heads.key_dim),
            "eps": b.keys.number("attention.layer_norm_rms_epsilon", minimum=0.0),
        }
    out = b.attend(
        q,
        k,
        v,
        heads=heads,
        rope=rope,
        style=style,
        scale=scale or 1.0 / math.sqrt(heads.key_dim),
        window=window,
        softcap=softcap,
        **norms,
    )
    return layer.linear(out, "attn_output", b.hidden)


def gated_ffn(b: Builder, layer: Layer, x: Value, *, act: str) -> Value:
    """Feed-forward with a gate: down(act(gate x) * up x)."""
    width = layer.integer("feed_forward_length", minimum=1, maximum=1 << 24)
    gate = layer.linear(x, "ffn_gate", width)
    up = layer.linear(x, "ffn_up", width)
    return layer.linear(b.gate(gate, up, act=act), "ffn_down", b.hidden)
