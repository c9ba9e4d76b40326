"""LFM 2 (Liquid AI 2025): short gated convolutions, and attention where a layer has KV heads; with
experts chosen by biased sigmoids, LFM2-MoE. Embedding models see all of a text (LFM2.5-Embedding,
LFM2.5-ColBERT), or have a dense layer over each row (ColBERT), or both.
"""

from collections.abc import Callable
from typing import Any

from oxillama.errors import ModelError
from oxillama.model.blocks import attention, fused, gated_ffn, routing_of, sparse_ffn
from oxillama.model.builder import Builder, Layer, Value, architecture


@architecture("lfm2")
def lfm2(b: Builder) -> Value | None:
    """The norm before the head is filed as `token_embd_norm`."""
    return _lfm(b, gated_ffn, act="silu")


@architecture("lfm2moe")
def lfm2moe(b: Builder) -> Value | None:
    """The first layers are dense."""
    return _lfm(b, sparse_ffn, **routing_of(b, gating="sigmoid", normalise=True))


def _lfm(b: Builder, network: Callable[..., Value], **params: Any) -> Value | None:
    causal = b.keys.flag("attention.causal", default=True)
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        if layer.integer("attention.head_count_kv"):
            x = x + attention(b, layer, y, style="neox", qk_norm="heads")
        else:
            x = x + _convolution(b, layer, y, causal)
        x = x + network(b, layer, layer.norm(x, "ffn_norm"), **params)
    if causal and not b.has("dense_2.weight"):
        return b.logits(x, norm="token_embd_norm")
    x = b.norm(x, "token_embd_norm")
    if b.has("dense_2.weight"):
        width = b.shape("dense_2.weight", 2)[0]
        b.keys.integer("embedding_length_out", default=width, minimum=width, maximum=width)
        x = b.linear(x, "dense_2", width)
    b.mark_embedding(x)
    return None


def _convolution(b: Builder, layer: Layer, x: Value, causal: bool) -> Value:
    """C * conv(B * x), all three from one projection."""
    taps = b.keys.integer("shortconv.l_cache", minimum=2, maximum=64)
    if not causal and not taps % 2:
        raise ModelError(
            f"{b.arch}.shortconv.l_cache: found {taps}, wanted an odd number where attention is "
            "not causal"
        )
    gate_in, gate_out, y = fused(layer, x, "shortconv.in_proj", (b.hidden,) * 3)
    y = b.conv(gate_in * y, layer.array("shortconv.conv.weight", b.hidden, taps), causal=causal)
    return layer.linear(gate_out * y, "shortconv.out_proj", b.hidden)
