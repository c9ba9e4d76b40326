"""Maincoder (Maincode 2025, published code, modeling_maincoder.py): Llama with a norm of queries
and keys after their rotation.
"""

from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("maincoder")
def maincoder(b: Builder) -> Value:
    """Adjacent-pair rope."""
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        x = x + attention(b, layer, y, style="norm", qk_norm="heads", norm_last=True)
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)
