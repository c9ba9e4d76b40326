"""Multi-head latent attention whose keys and values are unfolded for each head: MiniCPM 3 4B
(OpenBMB 2024, published code, modeling_minicpm.py), under MiniCPM's scales, and PLM (Deng et al.
2025, section 2).
"""

import math

from oxillama.model.attention import Heads
from oxillama.model.blocks import ffn, gated_ffn, latent_norm
from oxillama.model.builder import Builder, Layer, Value, architecture


@architecture("minicpm3")
def minicpm3(b: Builder) -> Value:
    """Its scales are in no key: 12 for the embedding, 1.4 / sqrt(layers) for branches, 256 / hidden
    for logits.
    """
    share = 1.4 / math.sqrt(b.n_layers)
    x = b.embed(scale=12.0)
    for layer in b.layers():
        x = x + _attention(b, layer, layer.norm(x, "attn_norm"), style="neox") * share
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu") * share
    return b.logits(x, scale=256 / b.hidden)


@architecture("plm")
def plm(b: Builder) -> Value:
    """Queries of full rank, adjacent-pair rope, a squared ReLU without a gate."""
    x = b.embed()
    for layer in b.layers():
        x = x + _attention(b, layer, layer.norm(x, "attn_norm"), style="norm")
        x = x + ffn(b, layer, layer.norm(x, "ffn_norm"), act="relu2")
    return b.logits(x)


def _attention(b: Builder, layer: Layer, x: Value, *, style: str) -> Value:
    """The last floats of a head's key are rotated, one key for all heads (DeepSeek-V2, section
    2.1).
    """
    keys = b.keys
    count = layer.integer("attention.head_count", minimum=1, maximum=1 << 12)
    layer.integer("attention.head_count_kv", default=count, minimum=count, maximum=count)
    turned = keys.integer("rope.dimension_count", minimum=2, maximum=1 << 12)
    width = keys.integer("attention.key_length", minimum=turned + 1, maximum=1 << 12)
    value = keys.integer("attention.value_length", default=b.hidden // count, minimum=1)
    rank = keys.integer("attention.q_lora_rank", default=0, maximum=1 << 16)
    latent = keys.integer("attention.kv_lora_rank", minimum=1, maximum=1 << 16)
    plain = width - turned
    if rank:
        q = latent_norm(b, layer, layer.linear(x, "attn_q_a", rank), "attn_q_a_norm")
        q = layer.linear(q, "attn_q_b", count * width)
    else:
        q = layer.linear(x, "attn_q", count * width)
    both = latent + turned
    kept = layer.linear(x, "attn_kv_a_mqa", both, take=slice(0, latent))
    turning = layer.linear(x, "attn_kv_a_mqa", both, take=slice(latent, both))
    kv = latent_norm(b, layer, kept, "attn_kv_a_norm")
    kv = layer.linear(kv, "attn_kv_b", count * (plain + value))
    k = b.concat(kv.columns(0, plain, heads=count), b.repeat(turning, count), heads=count)
    y = b.attend(
        q,
        k,
        kv.columns(plain, plain + value, heads=count),
        heads=Heads(count, count, width, value),
        rope=b.rope(turned),
        rope_start=plain,
        style=style,
        scale=width**-0.5,
    )
    return layer.linear(y, "attn_output", b.hidden)
