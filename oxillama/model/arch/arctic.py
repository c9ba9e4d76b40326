"""Arctic (Snowflake 2024, "Snowflake Arctic Cookbook"): a dense model, and experts beside each
layer that read what went into it.
"""

from oxillama.model.blocks import attention, expert_ffn, gated_ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("arctic")
def arctic(b: Builder) -> Value:
    """The dense network is as wide as the rows; the file's width is that of experts."""
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "ffn_norm_exps")
        beside = expert_ffn(b, layer, y, act="silu")
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style="norm")
        y = layer.norm(x, "ffn_norm")
        x = x + gated_ffn(b, layer, y, act="silu", width=b.hidden) + beside
    return b.logits(x)
