"""Llama's blocks with attention in both directions: EuroBERT (Boizard et al. 2025), and the text
embedders that NVIDIA makes of Llama (Babakhin et al. 2025).
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


def _blocks(b: Builder, *, style: str) -> None:
    b.see_all()
    x = b.embed()
    for layer in b.layers():
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style=style)
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    b.mark_embedding(b.norm(x, "output_norm"))
