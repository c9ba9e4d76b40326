"""EXAONE with experts (LG AI Research 2025, "K-EXAONE Technical Report", by its code in
transformers, `models/exaone_moe`): windowed layers that rotate, global ones that do not; experts as
in DeepSeek V3.
"""

from oxillama.model.blocks import (
    attention,
    heads_of,
    is_windowed,
    rope_dims,
    routing_of,
    sparse_ffn,
    trunk,
)
from oxillama.model.builder import Builder, Value, architecture


@architecture("exaone-moe")
def exaone_moe(b: Builder) -> Value:
    """Norms over the heads of queries and keys; three windowed layers, then a global one."""
    routing = routing_of(b, gating="sigmoid", normalise=True)
    window = b.keys.integer("attention.sliding_window", minimum=1)
    x = b.embed()
    for layer in trunk(b):
        near = is_windowed(b, layer.index, 4)
        rope = b.rope(rope_dims(b, heads_of(b, layer))) if near else None
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
