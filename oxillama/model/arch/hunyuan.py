"""Hunyuan dense (Tencent 2025, published code, modeling_hunyuan_v1_dense.py): Llama with half-split
rope, and a norm of queries and keys after their rotation.
"""

from dataclasses import replace

import numpy as np

from oxillama.model.blocks import attention, gated_ffn, heads_of, rope_dims, sections_of
from oxillama.model.builder import Builder, Value, architecture
from oxillama.model.rope import SCALING, Rope


@architecture("hunyuan-dense")
def hunyuan_dense(b: Builder) -> Value:
    """The converter has put the dynamic NTK base of these models into `rope.freq_base`."""
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        x = x + attention(b, layer, y, style="neox", qk_norm="heads", norm_last=True)
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)


@architecture("hunyuan_vl")
def hunyuan_vl(b: Builder) -> Value:
    """The text part of HunyuanOCR (Tencent 2025, by its code in transformers,
    `models/hunyuan_vl`): the same, whose pairs are turned by several positions of a token.
    """
    sections = sections_of(b, mixed=False) if "rope.dimension_sections" in b.keys else None
    x = b.embed()
    for layer in b.layers():
        heads = heads_of(b, layer)
        rope = b.rope(rope_dims(b, heads), sections=sections or None)
        y = layer.norm(x, "attn_norm")
        rope = _stretched(b, rope)
        x = x + attention(b, layer, y, style="neox", qk_norm="heads", norm_last=True, rope=rope)
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)


def _stretched(b: Builder, rope: Rope) -> Rope:
    """The rotation by the base times alpha ^ (dims / (dims - 2)), where the file has an alpha."""
    alpha = b.keys.number(f"{SCALING}.alpha", default=0.0, minimum=0.0)
    if not alpha:
        return rope
    growth = alpha ** (-2.0 * np.arange(rope.dims // 2) / (rope.dims - 2))
    return replace(rope, inv_freq=(rope.inv_freq * growth).astype(np.float32))
