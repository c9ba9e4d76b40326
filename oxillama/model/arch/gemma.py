"""Gemma (Google 2024), Gemma 2 (2024) and Gemma 3 (2025): the embedding is scaled by the root of
its width, norm weights in the file already include the one that Gemma adds.
"""

import math

from oxillama.model.blocks import attention, gated_ffn, heads_of, is_windowed, rope_dims
from oxillama.model.builder import Builder, Value, architecture

# Five windowed layers, then a global one (Gemma 3 technical report, section 2); the file's own
# pattern wins.
_PATTERN = 6
# The 27B model of Gemma 2 alone does so too; it has 46 layers.
_LAYERS_27B_2 = 46
# The 27B model alone scales queries by hidden/heads instead of the key length; it is the one with
# 62 layers.
_LAYERS_27B = 62


@architecture("gemma")
def gemma(b: Builder) -> Value:
    """Llama with half-split rope and a gate of GELU."""
    x = b.embed(scale=math.sqrt(b.hidden))
    for layer in b.layers():
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style="neox")
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="gelu_tanh")
    return b.logits(x)


@architecture("gemma2")
def gemma2(b: Builder) -> Value:
    """Norms before and after each branch, every other layer windowed, scores and logits capped
    (technical report, section 2).
    """
    window = b.keys.integer("attention.sliding_window", minimum=1)
    cap = b.keys.number("attn_logit_softcapping", default=50.0, minimum=0.0)
    x = b.embed(scale=math.sqrt(b.hidden))
    for layer in b.layers():
        heads = heads_of(b, layer)
        wide = b.n_layers == _LAYERS_27B_2
        y = attention(
            b,
            layer,
            layer.norm(x, "attn_norm"),
            style="neox",
            window=window if is_windowed(b, layer.index, 2) else 0,
            scale=(b.hidden // heads.query if wide else heads.key_dim) ** -0.5,
            softcap=cap,
        )
        x = x + layer.norm(y, "post_attention_norm")
        y = gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="gelu_tanh")
        x = x + layer.norm(y, "post_ffw_norm")
    return b.logits(x, softcap=b.keys.number("final_logit_softcapping", default=30.0, minimum=0.0))


@architecture("gemma3")
def gemma3(b: Builder) -> Value:
    """Norms before and after each branch, windowed layers between global ones, two rope bases."""
    window = b.keys.integer("attention.sliding_window", minimum=1)
    cap = b.keys.number("attn_logit_softcapping", default=0.0, minimum=0.0)
    b.keys.number("rope.freq_base", default=0.0)  # of global layers, which a file may lack
    x = b.embed(scale=math.sqrt(b.hidden))
    for layer in b.layers():
        heads = heads_of(b, layer)
        dims = rope_dims(b, heads)
        if is_windowed(b, layer.index, _PATTERN):
            rope, reach = b.rope(dims, base_key="rope.freq_base_swa", scaled=False), window
        else:
            rope, reach = b.rope(dims, base=1_000_000.0), 0
        scale = 1.0 / math.sqrt(
            b.hidden // heads.query if b.n_layers == _LAYERS_27B else heads.key_dim
        )
        y = attention(
            b,
            layer,
            layer.norm(x, "attn_norm"),
            style="neox",
            qk_norm="heads",
            rope=rope,
            window=reach,
            scale=scale,
            softcap=cap,
        )
        x = x + layer.norm(y, "post_attention_norm")
        y = gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="gelu_tanh")
        x = x + layer.norm(y, "post_ffw_norm")
    return b.logits(x, softcap=b.keys.number("final_logit_softcapping", default=0.0, minimum=0.0))
