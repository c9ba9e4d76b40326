"""Mellum 2 (JetBrains 2026, by its code in transformers, `models/mellum`): Qwen 3 with experts and
windowed layers, which have a rotation of their own.
"""

from oxillama.model.blocks import (
    attention,
    heads_of,
    is_windowed,
    near_ropes,
    rope_dims,
    routing_of,
    sparse_ffn,
)
from oxillama.model.builder import Builder, Value, architecture


@architecture("mellum")
def mellum(b: Builder) -> Value:
    """Windowed layers take `rope.freq_base_swa` unscaled; a file without a window has none."""
    keys = b.keys
    routing = routing_of(b, normalise=True)
    window = keys.integer("attention.sliding_window", default=0)
    near_rope = near_ropes(b)
    x = b.embed()
    for layer in b.layers():
        dims = rope_dims(b, heads_of(b, layer))
        near = window > 0 and is_windowed(b, layer.index, 4)
        rope = near_rope(dims) if near else b.rope(dims)
        x = x + attention(
            b,
            layer,
            layer.norm(x, "attn_norm"),
            style="neox",
            qk_norm="heads",
            rope=rope,
            window=window if near else 0,
        )
        x = x + sparse_ffn(b, layer, layer.norm(x, "ffn_norm"), **routing)
    return b.logits(x)
