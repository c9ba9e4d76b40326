"""Arctic (Snowflake 2024, "Snowflake Arctic Cookbook"): a dense model with experts that read the
input of each layer in parallel.
"""

from oxillama.model.blocks import attention, expert_ffn, gated_ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("arctic")
def arctic(b: Builder) -> Value:
    """The dense network is as wide as the rows; the file's width is that of experts."""
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "ffn_norm_exps")
        routed = expert_ffn(b, layer, y, act="silu")
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style="norm")
        y = layer.norm(x, "ffn_norm")
        x = x + gated_ffn(b, layer, y, act="silu", width=b.hidden) + routed
    return b.logits(x)
