"""GLM-4 (GLM team 2024), ChatGLM 3, GLM-4-0414 and the text models of GLM-4.1V and GLM-OCR: half of
each head rotated, gate and up in one matrix.
"""

from oxillama.model.blocks import attention, gated_ffn, heads_of, rope_dims, sections_of, trunk
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
    """A norm before and after each branch (GLM-4-0414, published code, modeling_glm4.py). A file of
    a vision model says which of a token's positions turns which pair, and pairs halves of a head.
    """
    sections = sections_of(b, mixed=False) if "rope.dimension_sections" in b.keys else None
    x = b.embed()
    for layer in trunk(b):
        rope = b.rope(rope_dims(b, heads_of(b, layer)), sections=sections)
        y = layer.norm(x, "attn_norm")
        y = attention(b, layer, y, style="neox" if sections else "norm", rope=rope)
        x = x + layer.norm(y, "post_attention_norm")
        y = gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
        x = x + layer.norm(y, "post_ffw_norm")
    return b.logits(x)
