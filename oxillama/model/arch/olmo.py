"""OLMo 2 (Allen Institute for AI 2024): norms after each branch, and over whole rows of queries and
keys.
"""

from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("olmo2")
def olmo2(b: Builder) -> Value:
    """Nothing is normalised before a branch."""
    x = b.embed()
    for layer in b.layers():
        y = attention(b, layer, x, style="neox", qk_norm="rows")
        x = x + layer.norm(y, "post_attention_norm")
        x = x + layer.norm(gated_ffn(b, layer, x, act="silu"), "post_ffw_norm")
    return b.logits(x)
