"""ERNIE 4.5 with experts (Baidu 2025, "ERNIE 4.5 Technical Report", section 2): a bias per expert
takes part in the choice, from the softmax over all of them.
"""

from oxillama.model.blocks import attention, expert_ffn, gated_ffn, routing_of, trunk
from oxillama.model.builder import Builder, Value, architecture


@architecture("ernie4_5-moe")
def ernie4_5_moe(b: Builder) -> Value:
    """Experts every `interleave_moe_layer_step` layers after the leading dense ones."""
    routing = routing_of(b, normalise=True)
    dense = b.keys.integer("leading_dense_block_count", default=0)
    step = b.keys.integer("interleave_moe_layer_step", default=1, minimum=1)
    x = b.embed()
    for layer in trunk(b):
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style="norm")
        y = layer.norm(x, "ffn_norm")
        if layer.index >= dense and (layer.index + 1) % step == 0:
            x = x + expert_ffn(b, layer, y, act="silu", **routing)
        else:
            x = x + gated_ffn(b, layer, y, act="silu")
    return b.logits(x)
