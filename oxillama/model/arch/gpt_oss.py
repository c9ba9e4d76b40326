"""gpt-oss (OpenAI 2025, model card, section 2): attention sinks, windows in every other layer,
experts with biases whose gates are clamped.
"""

from oxillama.model.blocks import (
    attention,
    expert_gate_up,
    heads_of,
    is_windowed,
    limited,
    rope_dims,
    routed,
    routing_of,
)
from oxillama.model.builder import Builder, Layer, Value, architecture

LIMIT = 7.0  # of gates from above, of what they gate from both sides


@architecture("gpt-oss")
def gpt_oss(b: Builder) -> Value:
    """Sinks and biases are found by name; the norm before the experts is `post_attention_norm`."""
    routing = routing_of(b, gating="chosen")
    window = b.keys.integer("attention.sliding_window", minimum=1)
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        rope = b.rope(rope_dims(b, heads_of(b, layer)))
        reach = window if is_windowed(b, layer.index, 2) else 0
        x = x + attention(b, layer, y, style="neox", rope=rope, window=reach)
        x = x + _experts(b, layer, layer.norm(x, "post_attention_norm"), **routing)
    return b.logits(x)


def _experts(b: Builder, layer: Layer, x: Value, **routing) -> Value:
    """gate sigmoid(1.702 gate) (up + 1), both within the limit."""
    count = layer.integer("expert_count", minimum=1, maximum=1 << 12)
    width = layer.integer("expert_feed_forward_length", minimum=1, maximum=1 << 24)
    # a dense network's, which no layer has
    layer.integer("feed_forward_length", default=0)
    routes = routed(b, layer, x, **routing)
    gate, up = expert_gate_up(layer, x, routes, width, count)
    y = limited(b, gate, up, act="gelu_quick", limit=LIMIT, early=True, raised=True)
    return b.combine(layer.experts(y, routes, "ffn_down_exps", b.hidden, count=count), routes)
