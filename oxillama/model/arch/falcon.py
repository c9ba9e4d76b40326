"""Falcon (Almazrouei et al. 2023): both branches side by side, few KV heads."""

from oxillama.model.blocks import attention, ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("falcon")
def falcon(b: Builder) -> Value:
    """One norm for both branches (7B), or `attn_norm_2` for attention alone (40B)."""
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm", kind="layer")
        split = layer.has("attn_norm_2.weight")
        z = layer.norm(x, "attn_norm_2", kind="layer") if split else y
        x = x + attention(b, layer, z, style="neox") + ffn(b, layer, y, act="gelu_erf")
    return b.logits(x, kind="layer")
