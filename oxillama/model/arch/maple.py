"""Maple (2026, by its converter and code for llama.cpp): Qwen 3 with experts, windowed layers that
rotate, and global ones that do not.
"""

from oxillama.model.blocks import (
    attention,
    expert_ffn,
    heads_of,
    is_windowed,
    near_ropes,
    rope_dims,
    routing_of,
)
from oxillama.model.builder import Builder, Value, architecture


@architecture("maple")
def maple(b: Builder) -> Value:
    """Gates and what they gate are clamped where the file has limits, one for each layer."""
    routing = routing_of(b, normalise=True)
    window = b.keys.integer("attention.sliding_window", minimum=1)
    near_rope = near_ropes(b, scaled=True)
    limits = b.keys.numbers("swiglu_clamp_exp", count=b.n_layers, default=(0.0,) * b.n_layers)
    x = b.embed()
    for layer in b.layers():
        near, dims = is_windowed(b, layer.index, 1), rope_dims(b, heads_of(b, layer))
        y = attention(
            *(b, layer, layer.norm(x, "attn_norm")),
            style="neox",
            qk_norm="heads",
            rope=near_rope(dims) if near else None,
            window=window if near else 0,
        )
        x = x + y
        y = layer.norm(x, "ffn_norm")
        limit = limits[layer.index]
        x = x + expert_ffn(b, layer, y, act="silu", limit=limit, early=True, **routing)
    return b.logits(x)
