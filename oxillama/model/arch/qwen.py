"""Qwen 2 and 3 (Alibaba 2024, 2025): Llama with half-split rope; 2 has q, k, v biases, 3 has
RMS-normed queries and keys.
"""

from typing import Literal

from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("qwen2")
def qwen2(b: Builder) -> Value:
    """The biases are in the file and are found by name."""
    return _qwen(b, qk_norm=None)


@architecture("qwen3")
def qwen3(b: Builder) -> Value:
    """A norm over each query and key head comes before the rotation. Rerankers (Zhang et al. 2025,
    "Qwen3 Embedding") keep the head's rows of "yes" and "no" alone, for the last token.
    """
    b.classify(act="tanh", pooling="last")
    return _qwen(b, qk_norm="heads")


def _qwen(b: Builder, *, qk_norm: Literal["heads"] | None) -> Value:
    x = b.embed()
    for layer in b.layers():
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style="neox", qk_norm=qk_norm)
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)
