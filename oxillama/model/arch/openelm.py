"""OpenELM (Mehta et al. 2024, section 2.1): layers of different widths, normed queries and keys."""

from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("openelm")
def openelm(b: Builder) -> Value:
    """Heads and feed-forward widths are arrays with a value for each layer."""
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        x = x + attention(b, layer, y, style="neox", qk_norm="heads")
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)
