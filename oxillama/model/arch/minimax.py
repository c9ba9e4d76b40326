"""MiniMax-M2 (MiniMax 2025, by its code in transformers, `models/minimax_m2`): norms over whole
rows of queries and keys, partial rotation, experts chosen by biased sigmoids. MiniMax-M3 (2026).
"""

from oxillama.model.arch.gpt_oss import LIMIT
from oxillama.model.blocks import (
    attention,
    heads_of,
    rope_dims,
    routing_of,
    sparse_decoder,
    sparse_ffn,
)
from oxillama.model.builder import Builder, Value, architecture
from oxillama.model.indexer import span_choice


@architecture("minimax-m2")
def minimax_m2(b: Builder) -> Value:
    """Every layer has experts, whose weights sum to 1."""
    routing = routing_of(b, gating="sigmoid", normalise=True)
    return sparse_decoder(b, style="neox", qk_norm="rows", **routing)


@architecture("minimax-m3")
def minimax_m3(b: Builder) -> Value:
    """Norms over heads, gates as in gpt-oss, and an indexer that chooses blocks of keys in layers
    with experts.
    """
    routing = routing_of(b, gating="sigmoid")
    limits = dict(limit=LIMIT, shared_limit=LIMIT, early=True, raised=True)
    x = b.embed()
    for layer in b.layers():
        heads = heads_of(b, layer)
        rope, y, choice = b.rope(rope_dims(b, heads)), layer.norm(x, "attn_norm"), None
        if layer.has("ffn_gate_inp.weight"):
            choice = span_choice(b, layer, y, rope, heads.kv)
        x = x + attention(b, layer, y, style="neox", qk_norm="heads", rope=rope, choice=choice)
        y = layer.norm(x, "ffn_norm")
        x = x + sparse_ffn(b, layer, y, act="gelu_quick", **limits, **routing)
    return b.logits(x)
