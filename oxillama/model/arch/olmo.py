"""OLMo (Groeneveld et al. 2024), OLMo 2 (Allen Institute for AI 2024) and OLMo 3 (2025)."""

from oxillama.model.blocks import attention, gated_ffn, heads_of, is_windowed, near_ropes, rope_dims
from oxillama.model.builder import Builder, Value, architecture

# Three windowed layers, then a global one (OLMo 3); the file's own pattern wins.
_PATTERN = 4


@architecture("olmo")
def olmo(b: Builder) -> Value:
    """Layer norms without weights (section 2.1); q, k and v stay within the file's clamp."""
    x = b.embed()
    for layer in b.layers():
        x = x + attention(b, layer, b.norm(x, None, kind="layer"), style="norm")
        x = x + gated_ffn(b, layer, b.norm(x, None, kind="layer"), act="silu")
    return b.logits(x, norm=None, kind="layer")


@architecture("olmo2")
def olmo2(b: Builder) -> Value:
    """Nothing is normalised before a branch; norms come after each, and over whole rows of queries
    and keys. With windows (OLMo 3) only global layers take the file's rope scaling.
    """
    window = b.keys.integer("attention.sliding_window", default=0)
    near_rope = near_ropes(b)
    x = b.embed()
    for layer in b.layers():
        dims = rope_dims(b, heads_of(b, layer))
        if window and is_windowed(b, layer.index, _PATTERN):
            rope, reach = near_rope(dims), window
        else:
            rope, reach = b.rope(dims), 0
        y = attention(b, layer, x, style="neox", qk_norm="rows", rope=rope, window=reach)
        x = x + layer.norm(y, "post_attention_norm")
        x = x + layer.norm(gated_ffn(b, layer, x, act="silu"), "post_ffw_norm")
    return b.logits(x)
