"""Grok 1 and 2 (xAI 2024, 2025, published code, model.py): experts under GELU gates, norms before
and after each branch, scores of attention below a soft cap, scaled embeddings and logits.
"""

from oxillama.model.blocks import attention, expert_ffn, gated_ffn, routing_of
from oxillama.model.builder import Builder, Value, architecture


@architecture("grok")
def grok(b: Builder) -> Value:
    """Grok 2 has a dense network parallel to the experts. If a file gives no scales, they are those
    of Grok 1. As elsewhere for these files, the router's scores have no cap, its weights sum to 1,
    and queries do not grow with their position.
    """
    keys = b.keys
    scale = keys.number("attention.output_scale", default=0.08838834764831845, minimum=0.0)
    cap = keys.number("attn_logit_softcapping", default=30.0, minimum=0.0)
    for key in ("router_logit_softcapping", "attention.temperature_length"):
        keys.number(key, default=0.0)
    routing = routing_of(b, normalise=True)
    x = b.embed(scale=keys.number("embedding_scale", default=78.38367176906169, minimum=0.0))
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        y = attention(b, layer, y, style="neox", scale=scale, softcap=cap)
        x = x + layer.norm(y, "attn_output_norm")
        normed = layer.norm(x, "ffn_norm")
        y = expert_ffn(b, layer, normed, act="gelu_tanh", **routing)
        if layer.has("ffn_up.weight"):
            y = (y + gated_ffn(b, layer, normed, act="gelu_tanh")) * 0.5**0.5
        after = "layer_output_norm" if layer.has("layer_output_norm.weight") else "post_ffw_norm"
        x = x + layer.norm(y, after)
    return b.logits(
        x,
        scale=keys.number("logit_scale", default=0.5773502691896257),
        softcap=keys.number("final_logit_softcapping", default=0.0, minimum=0.0),
    )
