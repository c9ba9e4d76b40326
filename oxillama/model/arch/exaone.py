"""EXAONE 3 (LG AI Research 2024) and EXAONE 4 (2025)."""

from oxillama.model.blocks import attention, gated_ffn, heads_of, is_windowed, rope_dims, trunk
from oxillama.model.builder import Builder, Value, architecture

# Three windowed layers, then a global one (EXAONE 4.0, section 2.1); the file's own pattern wins.
_PATTERN = 4


@architecture("exaone")
def exaone(b: Builder) -> Value:
    """Llama with half-split rope and its frequency factors."""
    x = b.embed()
    for layer in b.layers():
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style="neox")
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)


@architecture("exaone4")
def exaone4(b: Builder) -> Value:
    """Norms after each branch and over heads of queries and keys; global layers of a model with
    windows have no positions.
    """
    window = b.keys.integer("attention.sliding_window", default=0)
    x = b.embed()
    for layer in trunk(b):
        near = window > 0 and is_windowed(b, layer.index, _PATTERN)
        turned = near or not window
        rope = b.rope(rope_dims(b, heads_of(b, layer))) if turned else None
        y = attention(
            *(b, layer, x),
            style="neox",
            qk_norm="heads",
            rope=rope,
            window=window if near else 0,
        )
        x = x + layer.norm(y, "post_attention_norm")
        x = x + layer.norm(gated_ffn(b, layer, x, act="silu"), "post_ffw_norm")
    return b.logits(x)
