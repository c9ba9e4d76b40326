"""PLaMo 3 (Preferred Networks 2025, published code, modeling_plamo.py): a norm before and after
each branch, normed heads, and windowed layers between global ones, which turn by another base.
"""

from oxillama.model.blocks import attention, gated_ffn, heads_of, is_windowed, near_ropes, rope_dims
from oxillama.model.builder import Builder, Value, architecture

# every how many layers one is global, where the file does not say
_PATTERN = 8


@architecture("plamo3")
def plamo3(b: Builder) -> Value:
    """Norms' offsets are in the file's weights."""
    window = b.keys.integer("attention.sliding_window", default=0, minimum=0)
    near_rope = near_ropes(b)
    x = b.embed()
    for layer in b.layers():
        near = window if window and is_windowed(b, layer.index, _PATTERN) else 0
        dims = rope_dims(b, heads_of(b, layer))
        rope = b.rope(dims)
        if near:
            rope = near_rope(dims)
        y = layer.norm(x, "attn_norm")
        y = attention(b, layer, y, style="neox", qk_norm="heads", rope=rope, window=near)
        x = x + layer.norm(y, "post_attention_norm")
        y = gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
        x = x + layer.norm(y, "post_ffw_norm")
    return b.logits(x)
