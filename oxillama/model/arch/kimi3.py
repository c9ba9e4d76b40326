"""Kimi K3 (Moonshot AI 2026): Kimi Linear's layers with gated attention, whose branches read a
softmax over the residuals of earlier blocks of layers; experts over fewer columns.
"""

from typing import Any

from oxillama.model.arch.kimi_linear import bound_of_decay, delta_attention, unrotated
from oxillama.model.blocks import expert_gate_up, routed, routing_of
from oxillama.model.builder import Builder, Layer, Value, architecture
from oxillama.model.latent import latent_attention


@architecture("kimi-k3")
def kimi3(b: Builder) -> Value:
    """A block's first layer begins a new residual; the one before it is kept for the layers after
    it. Layers without KV heads are recurrent.
    """
    keys = b.keys
    size = keys.integer("attn_res.block_size", minimum=0)
    lowest = bound_of_decay(b)
    dense = keys.integer("leading_dense_block_count", default=0)
    routing = routing_of(b, gating="sigmoid")
    kept: list[Value] = []
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(_read(b, layer.name("attn_res_score"), x, kept), "attn_norm")
        first = size and layer.index % size == 0
        if first:
            kept.append(x)
        if layer.integer("attention.head_count_kv", minimum=0):
            y = latent_attention(b, layer, y, rotation=unrotated)
        else:
            y = delta_attention(b, layer, y, lowest=lowest)
        x = y if first else x + y
        y = layer.norm(_read(b, layer.name("ffn_res_score"), x, kept), "ffn_norm")
        if layer.index < dense:
            x = x + _network(b, layer, y, "", keys.integer("feed_forward_length", minimum=1))
        else:
            x = x + _experts(b, layer, y, **routing)
    return b.logits(_read(b, "output_res_score", x, kept))


def _read(b: Builder, name: str, x: Value, kept: list[Value]) -> Value:
    """The residuals kept and x, weighted by a softmax over their scores: the sums of their normed
    rows times a weight.
    """
    if not kept:
        if b.has(name + ".weight"):  # the first layer has one that has nothing to weigh
            b.vector(name + ".weight", x.width)
        return x
    count = len(kept) + 1
    rows = b.concat(*kept, x)
    scores = b.measure(b.norm(rows, name, heads=count), "sum", heads=count)
    return b.weighted(rows, b.softmax(scores))


def _gated(b: Builder, gate: Value, up: Value) -> Value:
    """sigmoid(gate) * cap(gate) * cap'(up): the caps are tanh's, in the file."""
    cap = b.keys.number("activation.situ_beta", minimum=0.0)
    linear = b.keys.number("activation.situ_linear_beta")
    return b.gate(gate, b.softcap(gate, cap), act="sigmoid") * b.softcap(up, max(linear, 0.0))


def _network(b: Builder, layer: Layer, x: Value, suffix: str, width: int) -> Value:
    gate, up = (layer.linear(x, f"ffn_{name}{suffix}", width) for name in ("gate", "up"))
    return layer.linear(_gated(b, gate, up), f"ffn_down{suffix}", b.hidden)


def _experts(b: Builder, layer: Layer, x: Value, **routing: Any) -> Value:
    """Experts read and write fewer columns, where the file says so; shared ones all of them."""
    count = layer.integer("expert_count", minimum=1, maximum=1 << 12)
    width = layer.integer("expert_feed_forward_length", minimum=1, maximum=1 << 24)
    latent = layer.integer("expert_latent_length", default=0)
    routes = routed(b, layer, x, **routing)
    y = layer.linear(x, "ffn_routed_down", latent) if latent else x
    y = _gated(b, *expert_gate_up(layer, y, routes, width, count))
    y = b.combine(
        layer.experts(y, routes, "ffn_down_exps", latent or b.hidden, count=count), routes
    )
    if layer.has("ffn_routed_norm.weight"):
        y = layer.norm(y, "ffn_routed_norm")
    y = layer.linear(y, "ffn_routed_up", b.hidden) if latent else y
    if not layer.has("ffn_up_shexp.weight"):
        return y
    wide = b.shape(layer.name("ffn_up_shexp.weight"), 2)[0]
    return y + _network(b, layer, x, "_shexp", wide)
