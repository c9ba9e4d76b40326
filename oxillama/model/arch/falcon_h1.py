"""Falcon-H1 (TII 2025, section 2): attention and Mamba 2 side by side in every layer, on one
norm.
"""

from oxillama.model.blocks import attention, gated_ffn, grouped_state_space
from oxillama.model.builder import Builder, Value, architecture


@architecture("falcon-h1")
def falcon_h1(b: Builder) -> Value:
    """The model's multipliers are in the file's weights."""
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        x = x + (attention(b, layer, y, style="neox") + grouped_state_space(b, layer, y))
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)
