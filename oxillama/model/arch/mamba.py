"""Mamba (Gu and Dao 2023) and Mamba 2 (Dao and Gu 2024): no attention, the past of a layer is a
state of fixed size.
"""

from oxillama.model.blocks import grouped_state_space, selective_state_space
from oxillama.model.builder import Builder, Value, architecture


@architecture("mamba")
def mamba(b: Builder) -> Value:
    """A norm and a mixer a layer; `attention.head_count` and `feed_forward_length` are 0."""
    check_zero(b)
    x = b.embed()
    for layer in b.layers():
        x = x + selective_state_space(b, layer, layer.norm(x, "attn_norm"))
    return b.logits(x)


@architecture("mamba2")
def mamba2(b: Builder) -> Value:
    """The same with a decay of one number a head."""
    check_zero(b)
    x = b.embed()
    for layer in b.layers():
        x = x + grouped_state_space(b, layer, layer.norm(x, "attn_norm"))
    return b.logits(x)


def check_zero(b: Builder) -> None:
    """Refuse a file that says it has what these models lack."""
    for key in ("attention.head_count", "feed_forward_length"):
        b.keys.integer(key, default=0, maximum=0)
