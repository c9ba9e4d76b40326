"""DBRX (Databricks 2024): experts under a router whose weights sum to 1, clamped queries, keys and
values, layer norms without bias.
"""

from oxillama.model.blocks import attention, expert_ffn, routing_of
from oxillama.model.builder import Builder, Value, architecture


@architecture("dbrx")
def dbrx(b: Builder) -> Value:
    """The norm before the experts is filed as `attn_output_norm`."""
    routing = routing_of(b, normalise=True)
    x = b.embed()
    for layer in b.layers():
        x = x + attention(b, layer, layer.norm(x, "attn_norm", kind="layer"), style="neox")
        y = layer.norm(x, "attn_output_norm", kind="layer")
        x = x + expert_ffn(b, layer, y, act="silu", **routing)
    return b.logits(x, kind="layer")
