"""GLM-4 (GLM team 2024), ChatGLM 3 and GLM-4-0414: half of each head rotated, gate and up in one
matrix.
"""

from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("chatglm")
def chatglm(b: Builder) -> Value:
    """Pre-norm blocks with biases of q, k and v."""
    x = b.embed()
    for layer in b.layers():
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style="norm")
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)


@architecture("glm4")
def glm4(b: Builder) -> Value:
    """A norm before and after each branch (GLM-4-0414, published code, modeling_glm4.py)."""
    x = b.embed()
    for layer in b.layers():
        y = attention(b, layer, layer.norm(x, "attn_norm"), style="norm")
        x = x + layer.norm(y, "post_attention_norm")
        y = gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
        x = x + layer.norm(y, "post_ffw_norm")
    return b.logits(x)
