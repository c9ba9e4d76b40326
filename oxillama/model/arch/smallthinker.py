"""SmallThinker (Song et al. 2025, section 2): experts under ReLU gates, chosen before attention, so
that they can be fetched meanwhile; of four layers the first sees everything and does not rotate.
"""

from oxillama.model.blocks import (
    attention,
    expert_ffn,
    heads_of,
    is_windowed,
    rope_dims,
    routing_of,
)
from oxillama.model.builder import Builder, Value, architecture


@architecture("smallthinker")
def smallthinker(b: Builder) -> Value:
    """A file without a window is of the small model, whose layers all see everything and rotate."""
    routing = routing_of(b, normalise=True)
    window = b.keys.integer("attention.sliding_window", default=0)
    x = b.embed()
    for layer in b.layers():
        before = x
        near = window and is_windowed(b, layer.index, 4, first=True)
        rope = b.rope(rope_dims(b, heads_of(b, layer))) if near or not window else None
        y = layer.norm(x, "attn_norm")
        x = x + attention(b, layer, y, style="neox", rope=rope, window=window if near else 0)
        y = layer.norm(x, "ffn_norm")
        x = x + expert_ffn(b, layer, y, act="relu", scored=before, **routing)
    return b.logits(x)
