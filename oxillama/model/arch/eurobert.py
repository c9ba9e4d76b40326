"""Llama's blocks with attention in both directions: EuroBERT (Boizard et al. 2025), NeoBERT (Le
Breton et al. 2025), and the text embedders that NVIDIA makes of Llama (Babakhin et al. 2025).
"""

from __future__ import annotations

from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, architecture


@architecture("eurobert")
def eurobert(b: Builder) -> None:
    """Half-split rope."""
    _blocks(b, style="neox")


@architecture("llama-embed")
def llama_embed(b: Builder) -> None:
    """Adjacent-pair rope, as Llama's files have it."""
    _blocks(b, style="norm")


@architecture("neo-bert")
def neo_bert(b: Builder) -> None:
    """NeoBERT (Le Breton et al. 2025): fused projections, adjacent-pair rope."""
    _blocks(b, style="norm", norm="enc.output_norm")
    b.classify(act="tanh", pooling="cls")


def _blocks(b: Builder, *, style: str, norm: str = "output_norm") -> None:
    b.see_all()
    x = b.embed()
    for layer in b.layers():
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style=style)
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    b.mark_embedding(b.norm(x, norm))
