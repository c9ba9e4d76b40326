"""AFMoE (Arcee AI 2025, Trinity, by its code in transformers, `models/afmoe`): gated attention,
norms before and after each branch, windowed layers that rotate and global ones that do not.
"""

import math

from oxillama.model.blocks import (
    attention,
    heads_of,
    is_windowed,
    rope_dims,
    routing_of,
    sparse_ffn,
)
from oxillama.model.builder import Builder, Value, architecture


@architecture("afmoe")
def afmoe(b: Builder) -> Value:
    """Embeddings are scaled by the root of their width; the gate is found by name. The published
    code always makes the weights of experts sum to 1, so a file that does not say means that.
    """
    routing = routing_of(b, gating="sigmoid", normalise=True)
    window = b.keys.integer("attention.sliding_window", minimum=1)
    x = b.embed(scale=math.sqrt(b.hidden))
    for layer in b.layers():
        near = is_windowed(b, layer.index, 4)
        rope = b.rope(rope_dims(b, heads_of(b, layer))) if near else None
        y = attention(
            b,
            layer,
            layer.norm(x, "attn_norm"),
            style="neox",
            qk_norm="heads",
            rope=rope,
            window=window if near else 0,
        )
        x = x + layer.norm(y, "post_attention_norm")
        y = sparse_ffn(b, layer, layer.norm(x, "ffn_norm"), **routing)
        x = x + layer.norm(y, "post_ffw_norm")
    return b.logits(x)
