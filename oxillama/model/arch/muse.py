"""Muse Glimmer (Meta 2026, by its code in transformers, `models/muse_glimmer`): gated attention,
norms before and after each branch, windowed layers that rotate and global ones that do not.
"""

from oxillama.model.blocks import attention, gated_ffn, heads_of, is_windowed, near_ropes, rope_dims
from oxillama.model.builder import Builder, Layer, Value, architecture

# of the norms after a branch, which no key says
_EPSILON = 1e-8


@architecture("muse-glimmer")
def muse(b: Builder) -> Value:
    """The embedding is normed, logits are scaled and below a soft cap; gates are found by name."""
    keys = b.keys
    window = keys.integer("attention.sliding_window", minimum=1)
    near_rope = near_ropes(b)
    x = b.norm(b.embed(), None)
    for layer in b.layers():
        near, dims = is_windowed(b, layer.index, 4), rope_dims(b, heads_of(b, layer))
        y = attention(
            *(b, layer, layer.norm(x, "attn_norm")),
            style="norm",
            qk_norm="heads",
            rope=near_rope(dims) if near else None,
            window=window if near else 0,
        )
        x = x + _after(b, layer, y, "post_attention_norm")
        y = gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
        x = x + _after(b, layer, y, "post_ffw_norm")
    cap = keys.number("final_logit_softcapping", default=0.0, minimum=0.0)
    return b.logits(x, scale=keys.number("logit_scale"), softcap=cap)


def _after(b: Builder, layer: Layer, x: Value, name: str) -> Value:
    """The norm after a branch."""
    return b.norm(x, layer.name(name), eps=_EPSILON)
