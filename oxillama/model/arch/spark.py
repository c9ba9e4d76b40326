"""Spark 2.5 (iFlytek 2026, published code, modeling_spark.py): Llama with windowed layers, whose
rotation has a base of its own, a gate for each head, and GELU.
"""

from oxillama.model.blocks import attention, gated_ffn, heads_of, is_windowed, near_ropes, rope_dims
from oxillama.model.builder import Builder, Value, architecture


@architecture("spark2_5")
def spark(b: Builder) -> Value:
    """Gates of heads are found by name."""
    window = b.keys.integer("attention.sliding_window", minimum=1)
    near_rope = near_ropes(b, scaled=True)
    x = b.embed()
    for layer in b.layers():
        near = is_windowed(b, layer.index, 1)
        dims = rope_dims(b, heads_of(b, layer))
        rope = b.rope(dims)
        if near:
            dims = b.keys.integer("rope.dimension_count_swa", default=dims, minimum=2)
            rope = near_rope(dims)
        y = layer.norm(x, "attn_norm")
        x = x + attention(b, layer, y, style="neox", rope=rope, window=window if near else 0)
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="gelu_tanh")
    return b.logits(x)
