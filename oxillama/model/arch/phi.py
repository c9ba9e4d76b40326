"""Phi-3 and Phi-4 mini (Microsoft 2024, technical report): Llama with one matrix for q, k and v,
one for gate and up, and LongRoPE (Ding et al. 2024) where the file has its factors.
"""

from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("phi3")
def phi3(b: Builder) -> Value:
    """A window where the file has one, for all layers."""
    window = b.keys.integer("attention.sliding_window", default=0)
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        x = x + attention(b, layer, y, style="neox", window=window)
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)
