"""Seed-OSS (ByteDance 2025): Llama with half-split rope and biases of q, k and v."""

from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("seed_oss")
def seed_oss(b: Builder) -> Value:
    """The norm before the feed-forward network is filed as `post_attention_norm`."""
    x = b.embed()
    for layer in b.layers():
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style="neox")
        x = x + gated_ffn(b, layer, layer.norm(x, "post_attention_norm"), act="silu")
    return b.logits(x)
