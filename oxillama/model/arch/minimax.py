"""MiniMax-M2 (MiniMax 2025, by its code in transformers, `models/minimax_m2`): norms over whole
rows of queries and keys, partial rotation, experts chosen by biased sigmoids.
"""

from oxillama.model.blocks import routing_of, sparse_decoder
from oxillama.model.builder import Builder, Value, architecture


@architecture("minimax-m2")
def minimax_m2(b: Builder) -> Value:
    """Every layer has experts, whose weights sum to 1."""
    routing = routing_of(b, gating="sigmoid", normalise=True)
    return sparse_decoder(b, style="neox", qk_norm="rows", **routing)
