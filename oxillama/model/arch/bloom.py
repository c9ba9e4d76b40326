"""BLOOM (BigScience 2022), MPT (MosaicML 2023), Refact and Jais (Sengupta et al. 2023): ALiBi in
place of rotation.
"""

from oxillama.model.blocks import HeadNorm, attention, ffn, gated_ffn, heads_of
from oxillama.model.builder import Builder, Value, architecture


@architecture("bloom")
def bloom(b: Builder) -> Value:
    """A layer norm over the embedding (section 3.2.2 of the paper); slopes as published."""
    x = b.norm(b.embed(), "token_embd_norm", kind="layer")
    for layer in b.layers():
        y = layer.norm(x, "attn_norm", kind="layer")
        x = x + attention(b, layer, y, style="norm", rope=None, slopes=True)
        x = x + ffn(b, layer, layer.norm(x, "ffn_norm", kind="layer"), act="gelu_tanh")
    return b.logits(x, kind="layer")


@architecture("mpt")
def mpt(b: Builder) -> Value:
    """ALiBi where the file gives its largest bias, learned positions where it has their table; a
    norm over whole rows of queries and keys where it has one.
    """
    slopes = b.keys.number("attention.max_alibi_bias", default=0.0, minimum=0.0) > 0
    x = b.embed()
    if b.has("position_embd.weight"):
        x = x + b.position_embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm", kind="layer")
        norms: HeadNorm | None = "rows" if layer.has("attn_q_norm.weight") else None
        x = x + attention(
            *(b, layer, y),
            style="norm",
            rope=None,
            qk_norm=norms,
            norm_kind="layer",
            slopes=slopes,
        )
        x = x + ffn(b, layer, layer.norm(x, "ffn_norm", kind="layer"), act="gelu_erf")
    return b.logits(x, kind="layer")


@architecture("refact")
def refact(b: Builder) -> Value:
    """Refact 1.6B (published code, modeling_gpt_refact.py): ALiBi under RMS norms."""
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        x = x + attention(b, layer, y, style="norm", rope=None, slopes=True)
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)


@architecture("jais")
def jais(b: Builder) -> Value:
    """Scores are scaled by 1 / head size (maximal update parametrisation, section 3.2); the
    converter has put the scales of embedding and logits into the weights.
    """
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm", kind="layer")
        scale = 1.0 / heads_of(b, layer).key_dim
        x = x + attention(b, layer, y, style="norm", rope=None, slopes=True, scale=scale)
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm", kind="layer"), act="silu")
    return b.logits(x, kind="layer")
