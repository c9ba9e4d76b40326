"""Llama (Touvron et al. 2023) and what is built alike: Mistral, SmolLM, TinyLlama, Llama 3 with its
frequency factors; with experts in place of its feed-forward network, Mixtral (Jiang et al. 2024).
"""

from oxillama.model.blocks import attention, expert_ffn, gated_ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("llama")
def llama(b: Builder) -> Value:
    """Pre-norm blocks, grouped-query attention with adjacent-pair rope, SiLU-gated feed-forward."""
    feed_forward = expert_ffn if b.keys.integer("expert_count", default=0) else gated_ffn
    x = b.embed()
    for layer in b.layers():
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style="norm")
        x = x + feed_forward(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)
