"""Ling and Ring (Inclusion AI 2025): Ling-lite and -plus ("Every FLOP Counts", section 2), and Ling
2 by its published code (modeling_bailing_moe_v2).
"""

from oxillama.model.blocks import routing_of, sparse_decoder
from oxillama.model.builder import Builder, Value, architecture


@architecture("bailingmoe")
def bailingmoe(b: Builder) -> Value:
    """A softmax over all experts, shared ones beside them."""
    return sparse_decoder(b, style="norm", **routing_of(b))


@architecture("bailingmoe2")
def bailingmoe2(b: Builder) -> Value:
    """Experts in groups chosen as in DeepSeek V3; norms over the heads of queries and keys."""
    routing = routing_of(b, gating="sigmoid", normalise=True)
    return sparse_decoder(b, style="neox", qk_norm="heads", **routing)
