"""BitNet b1.58 (Ma et al. 2024; Wang et al. 2023, BitNet, section 2): weights of three values under
one scale a matrix, and a norm before the last product of each branch.
"""

from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("bitnet")
def bitnet(b: Builder) -> Value:
    """Scales and inner norms are found by name. Activations are rounded as everywhere, not to the
    one scale a row that training used.
    """
    x = b.embed()
    for layer in b.layers():
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style="neox")
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)
