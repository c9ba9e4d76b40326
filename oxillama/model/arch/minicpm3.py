"""Multi-head latent attention whose keys and values are unfolded for each head: MiniCPM 3 4B
(OpenBMB 2024, published code, modeling_minicpm.py), under MiniCPM's scales, and PLM (Deng et al.
2025, section 2).
"""

import math

from oxillama.model.blocks import ffn, gated_ffn
from oxillama.model.builder import Builder, Value, architecture
from oxillama.model.latent import unfolded_attention


@architecture("minicpm3")
def minicpm3(b: Builder) -> Value:
    """Its scales are in no key: 12 for the embedding, 1.4 / sqrt(layers) for branches, 256 / hidden
    for logits.
    """
    share = 1.4 / math.sqrt(b.n_layers)
    x = b.embed(scale=12.0)
    for layer in b.layers():
        x = x + unfolded_attention(b, layer, layer.norm(x, "attn_norm"), style="neox") * share
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu") * share
    return b.logits(x, scale=256 / b.hidden)


@architecture("plm")
def plm(b: Builder) -> Value:
    """Queries of full rank, adjacent-pair rope, a squared ReLU without a gate."""
    x = b.embed()
    for layer in b.layers():
        x = x + unfolded_attention(b, layer, layer.norm(x, "attn_norm"), style="norm")
        x = x + ffn(b, layer, layer.norm(x, "ffn_norm"), act="relu2")
    return b.logits(x)
