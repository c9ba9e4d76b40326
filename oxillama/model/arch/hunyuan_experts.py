"""Hunyuan with experts (Tencent 2024, "Hunyuan-Large", section 2.1, and Hunyuan-A13B 2025), and Hy3
(Tencent 2026, by its code in transformers, `models/hy_v3`).
"""

from oxillama.model.blocks import attention, decoder, expert_ffn, gated_ffn, routing_of
from oxillama.model.builder import Builder, Layer, Value, architecture


@architecture("hunyuan-moe")
def hunyuan_moe(b: Builder) -> Value:
    """Queries and keys are normed after their rotation; an expert is as wide as a dense network,
    whatever `expert_feed_forward_length` says.
    """
    routing = routing_of(b, normalise=True)
    x = b.embed()
    for layer in b.layers():
        width = layer.integer("feed_forward_length", minimum=1, maximum=1 << 24)
        y = layer.norm(x, "attn_norm")
        x = x + attention(b, layer, y, style="neox", qk_norm="heads", norm_last=True)
        y = layer.norm(x, "ffn_norm")
        x = x + expert_ffn(b, layer, y, act="silu", width=width, **routing)
    return b.logits(x)


@architecture("hy_v3")
def hy_v3(b: Builder) -> Value:
    """Layers without a router are dense; norms come before the rotation."""
    routing = routing_of(b, gating="sigmoid", normalise=True)

    def block(b: Builder, layer: Layer, x: Value) -> Value:
        y = layer.norm(x, "attn_norm")
        x = x + attention(b, layer, y, style="neox", qk_norm="heads")
        y = layer.norm(x, "ffn_norm")
        if layer.has("ffn_gate_inp.weight"):
            return x + expert_ffn(b, layer, y, act="silu", **routing)
        return x + gated_ffn(b, layer, y, act="silu")

    return decoder(b, block)
