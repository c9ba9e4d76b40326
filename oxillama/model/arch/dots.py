"""dots.llm1 (rednote-hilab 2025, section 2.1): attention as in Qwen 3, experts chosen as in
DeepSeek V3; dots3-note (2026), with latent attention.
"""

from oxillama.model.blocks import (
    is_windowed,
    near_ropes,
    routing_of,
    sparse_decoder,
    sparse_ffn,
    trunk,
)
from oxillama.model.builder import Builder, Value, architecture
from oxillama.model.indexer import LatentIndexer
from oxillama.model.latent import latent_attention
from oxillama.model.rope import Rope


@architecture("dots1")
def dots1(b: Builder) -> Value:
    """Files may leave out that scores are sigmoids."""
    routing = routing_of(b, gating="sigmoid")
    return sparse_decoder(b, style="neox", qk_norm="heads", **routing)


@architecture("dots3note")
def dots3(b: Builder) -> Value:
    """dots3-note: latent attention under a gate for each head, with a norm of the rotated key.
    Layers with a window have heads and latents of their own; the others choose keys by an
    indexer.
    """
    keys, indexer = b.keys, LatentIndexer(b, style="norm")
    for key in ("attention.key_length_swa", "attention.value_length_swa"):
        keys.integer(key, default=0)  # of the latent: the tensors' shapes are checked anyway
    window = keys.integer("attention.sliding_window", minimum=1)
    near_rope = near_ropes(b, scaled=True)
    routing = routing_of(b, gating="sigmoid")

    def turned(b: Builder, dims: int, width: int) -> tuple[Rope, float]:
        return b.rope(dims), width**-0.5

    def turned_near(b: Builder, dims: int, width: int) -> tuple[Rope, float]:
        return near_rope(dims), width**-0.5

    x = b.embed()
    for layer in trunk(b):
        y = layer.norm(x, "attn_norm")
        if is_windowed(b, layer.index, 1):
            x = x + latent_attention(b, layer, y, rotation=turned_near, window=window)
        else:
            x = x + latent_attention(b, layer, y, rotation=turned, indexer=indexer)
        x = x + sparse_ffn(b, layer, layer.norm(x, "ffn_norm"), **routing)
    return b.logits(x)
