"""Nemotron-H (NVIDIA 2025, section 2.1) and Nemotron 3 with experts: a layer is Mamba 2, attention
without positions, or a feed-forward network under squared ReLU.
"""

from typing import Any

from oxillama.model.blocks import (
    attention,
    decoder,
    ffn,
    grouped_state_space,
    predicts,
    routed,
    routing_of,
)
from oxillama.model.builder import Builder, Layer, Value, architecture

# time_step_min of the published models, below which no step of the scan goes; no key says it.
_SHORTEST_STEP = 1e-3


@architecture("nemotron_h", "nemotron_h_moe")
def nemotron_h(b: Builder) -> Value:
    """A layer with KV heads is attention; one with a feed-forward length, or a router, a network.
    The layer that predicts further tokens is both, and ends in a layer norm.
    """
    routing = routing_of(b, gating="sigmoid", normalise=True)
    for name in ("freq_base", "dimension_count"):
        b.keys.number(f"rope.{name}", default=0.0)  # nothing is rotated

    def block(b: Builder, layer: Layer, x: Value) -> Value:
        y = layer.norm(x, "attn_norm")
        if predicts(layer):
            x = x + attention(b, layer, y, style="norm", rope=None)
            y = layer.norm(x, "post_attention_norm")
        if layer.has("ffn_gate_inp.weight"):
            return x + _experts(b, layer, y, **routing)
        if layer.integer("feed_forward_length"):
            return x + ffn(b, layer, y, act="relu2")
        if layer.integer("attention.head_count_kv"):
            return x + attention(b, layer, y, style="norm", rope=None)
        return x + grouped_state_space(b, layer, y, shortest=_SHORTEST_STEP)

    return decoder(b, block, last="layer")


def _experts(b: Builder, layer: Layer, x: Value, **routing: Any) -> Value:
    """Networks without gates; those of a latent model read and write fewer columns."""
    count = layer.integer("expert_count", minimum=1, maximum=1 << 12)
    width = layer.integer("expert_feed_forward_length", minimum=1, maximum=1 << 24)
    latent = layer.integer("moe_latent_size", default=0)
    routes = routed(b, layer, x, **routing)
    y = layer.linear(x, "ffn_latent_down", latent) if latent else x
    y = layer.experts(y, routes, "ffn_up_exps", width, count=count)
    y = b.activate(y, "relu2")
    y = layer.experts(y, routes, "ffn_down_exps", latent or b.hidden, count=count)
    y = b.combine(y, routes)
    y = layer.linear(y, "ffn_latent_up", b.hidden) if latent else y
    if not layer.has("ffn_up_shexp.weight"):
        return y
    rows = b.shape(layer.name("ffn_up_shexp.weight"), 2)[0]
    shared = b.activate(layer.linear(x, "ffn_up_shexp", rows), "relu2")
    return y + layer.linear(shared, "ffn_down_shexp", b.hidden)
