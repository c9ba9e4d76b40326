"""Llama Nemotron (NVIDIA 2025, "Llama-Nemotron", section 2) and DeciLM: Llama after a search that
took attention or feed-forward networks out of some layers, or put one matrix in place of attention.
"""

from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("deci")
def deci(b: Builder) -> Value:
    """A layer without heads has no attention, one without KV heads a matrix in its place; a
    feed-forward width of 0 is none.
    """
    x = b.embed()
    for layer in b.layers():
        heads = layer.integer("attention.head_count", minimum=0, maximum=1 << 16)
        shared = layer.integer("attention.head_count_kv", default=heads, maximum=1 << 16)
        if heads:
            y = layer.norm(x, "attn_norm")
            if shared:
                x = x + attention(b, layer, y, style="norm")
            else:
                x = x + layer.linear(y, "attn_output", b.hidden)
        if layer.integer("feed_forward_length", maximum=1 << 24):
            x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)
