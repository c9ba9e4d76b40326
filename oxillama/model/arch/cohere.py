"""Command R (Cohere 2024) and Command R7B: one layer norm for both branches, which run side by
side, and scaled logits.
"""

from oxillama.model.blocks import HeadNorm, attention, gated_ffn, heads_of, is_windowed, rope_dims
from oxillama.model.builder import Builder, Value, architecture

# Three windowed layers, then a global one (published code, modeling_cohere2.py); the file's own
# pattern wins.
_PATTERN = 4


@architecture("command-r")
def command_r(b: Builder) -> Value:
    """Queries and keys have a norm for each head where the file has its weights (Command R+)."""
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm", kind="layer")
        norms: HeadNorm | None = "heads" if layer.has("attn_q_norm.weight") else None
        x = x + attention(b, layer, y, style="norm", qk_norm=norms, norm_kind="layer")
        x = x + gated_ffn(b, layer, y, act="silu")
    return b.logits(x, scale=b.keys.number("logit_scale", default=1.0), kind="layer")


@architecture("cohere2")
def cohere2(b: Builder) -> Value:
    """Windowed layers rotate, global ones have no positions."""
    window = b.keys.integer("attention.sliding_window", minimum=1)
    x = b.embed()
    for layer in b.layers():
        near = is_windowed(b, layer.index, _PATTERN)
        rope = b.rope(rope_dims(b, heads_of(b, layer))) if near else None
        y = layer.norm(x, "attn_norm", kind="layer")
        x = x + attention(b, layer, y, style="norm", rope=rope, window=window if near else 0)
        x = x + gated_ffn(b, layer, y, act="silu")
    return b.logits(x, scale=b.keys.number("logit_scale"), kind="layer")


@architecture("plamo")
def plamo(b: Builder) -> Value:
    """PLaMo 13B (Preferred Networks 2023, published code, modeling_plamo.py): one RMS norm for both
    branches.
    """
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        x = x + attention(b, layer, y, style="neox") + gated_ffn(b, layer, y, act="silu")
    return b.logits(x)
