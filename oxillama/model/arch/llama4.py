"""Llama 4 (Meta 2025, by its code in transformers, `models/llama4`): attention within chunks, every
few layers over everything and without rotation; an expert's weight scales what it reads.
"""

from oxillama.model.blocks import (
    attention,
    expert_gate_up,
    gated_ffn,
    heads_of,
    is_windowed,
    rope_dims,
    routed,
    routing_of,
    shared_ffn,
)
from oxillama.model.builder import Builder, Layer, Value, architecture

# The published models' attention_chunk_size, and floor_scale and attn_scale of the queries of
# global layers, which no key of the file says.
_CHUNK = 8192
_SPAN, _GROWTH = 8192, 0.1
# The model of 128 experts is the one that does not norm queries and keys.
_EXPERTS_UNNORMED = 128


@architecture("llama4")
def llama4(b: Builder) -> Value:
    """A file with a sliding window of 0 is of a model that rotates and sees everything
    everywhere.
    """
    keys = b.keys
    plain = keys.integer("attention.sliding_window", default=_CHUNK) == 0
    step = keys.integer("interleave_moe_layer_step", default=0)
    normed = keys.integer("expert_count", default=0) != _EXPERTS_UNNORMED
    routing = routing_of(b, gating="chosen_sigmoid")
    x = b.embed()
    for layer in b.layers():
        near = plain or is_windowed(b, layer.index, 4)
        heads = heads_of(b, layer)
        x = x + attention(
            b,
            layer,
            layer.norm(x, "attn_norm"),
            style="norm",
            # without a weight it may come before the rotation as well
            qk_norm="plain" if near and normed else None,
            rope=b.rope(rope_dims(b, heads)) if near else None,
            chunk=_CHUNK if near and not plain else 0,
            temper=None if near else (_GROWTH, _SPAN, 1),
        )
        y = layer.norm(x, "ffn_norm")
        if step and (layer.index + 1) % step == 0:
            x = x + _experts(b, layer, y, **routing)
        else:
            x = x + gated_ffn(b, layer, y, act="silu")
    return b.logits(x)


def _experts(b: Builder, layer: Layer, x: Value, **routing) -> Value:
    """The sum of what experts make of a row times their sigmoids, and a shared one."""
    count = layer.integer("expert_count", minimum=1, maximum=1 << 12)
    width = layer.integer("expert_feed_forward_length", minimum=1, maximum=1 << 24)
    # that of dense layers, which a model of experts alone (Scout) says too
    layer.integer("feed_forward_length", default=0)
    routes = routed(b, layer, x, **routing)
    used = routes.width // 2
    parts = [b.weighted(x, routes.columns(used + k, used + k + 1)) for k in range(used)]
    gate, up = expert_gate_up(layer, b.concat(*parts), routes, width, count)
    made = b.gate(gate, up, act="silu")
    made = layer.experts(made, routes, "ffn_down_exps", b.hidden, count=count)
    y = shared_ffn(b, layer, x, act="silu")
    for k in range(used):
        y = y + made.columns(k * b.hidden, (k + 1) * b.hidden)
    return y
