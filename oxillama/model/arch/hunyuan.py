"""Hunyuan dense (Tencent 2025, published code, modeling_hunyuan_v1_dense.py): Llama with half-split
rope, and a norm of queries and keys after their rotation.
"""

from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("hunyuan-dense")
def hunyuan_dense(b: Builder) -> Value:
    """The converter has put the dynamic NTK base of these models into `rope.freq_base`."""
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        x = x + attention(b, layer, y, style="neox", qk_norm="heads", norm_last=True)
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)
