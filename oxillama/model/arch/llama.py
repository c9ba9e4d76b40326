"""Llama (Touvron et al. 2023) and what is built alike: Mistral, SmolLM, TinyLlama, Llama 3 with its
frequency factors.
"""

from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("llama")
def llama(b: Builder) -> Value:
    """Pre-norm blocks, grouped-query attention with adjacent-pair rope, SiLU-gated feed-forward."""
    x = b.embed()
    for layer in b.layers():
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style="norm")
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)
