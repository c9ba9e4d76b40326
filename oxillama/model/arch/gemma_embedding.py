"""EmbeddingGemma (Google 2025): Gemma 3 with attention in both directions, and two dense layers
over the embedding.
"""

from __future__ import annotations

import math

from oxillama.model.blocks import attention, gated_ffn, heads_of, rope_dims
from oxillama.model.builder import Builder, architecture

_PATTERN = 6  # five windowed layers, then a global one


@architecture("gemma-embedding")
def gemma_embedding(b: Builder) -> None:
    """A window reaches half of the file's number to each side."""
    window = b.keys.integer("attention.sliding_window", minimum=1)
    pattern = b.keys.integer("attention.sliding_window_pattern", default=_PATTERN, minimum=1)
    b.see_all()
    x = b.embed(scale=math.sqrt(b.hidden))
    for layer in b.layers():
        dims = rope_dims(b, heads_of(b, layer))
        if (layer.index + 1) % pattern:
            rope, reach = b.rope(dims, base_key="rope.freq_base_swa", scaled=False), window // 2 + 1
        else:
            rope, reach = b.rope(dims, base=1_000_000.0), 0
        y = layer.norm(x, "attn_norm")
        y = attention(b, layer, y, style="neox", qk_norm="heads", rope=rope, window=reach)
        x = x + layer.norm(y, "post_attention_norm")
        y = gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="gelu_tanh")
        x = x + layer.norm(y, "post_ffw_norm")
    b.mark_embedding(b.norm(x, "output_norm"))
    b.dense_head("dense_2", "dense_3")
