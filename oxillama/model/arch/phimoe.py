"""Phi-3.5-MoE (Microsoft 2024; GRIN: Liu et al. 2024, section 2.1): layer norms and biases around
experts that SparseMixer chooses, LongRoPE.
"""

from oxillama.model.blocks import attention, expert_ffn, routing_of
from oxillama.model.builder import Builder, Value, architecture


@architecture("phimoe")
def phimoe(b: Builder) -> Value:
    """The file gives the epsilon of its layer norms as that of rms norms."""
    routing = routing_of(b, gating="mixer")
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm", kind="layer")
        x = x + attention(b, layer, y, style="neox")
        y = layer.norm(x, "ffn_norm", kind="layer")
        x = x + expert_ffn(b, layer, y, act="silu", **routing)
    return b.logits(x, kind="layer")
