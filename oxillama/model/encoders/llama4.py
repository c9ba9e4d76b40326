"""The encoder of Llama 4 (Meta 2025, by its code in transformers, `models/llama4`): tiles of one
size, patches rotated by column and row, a square of them side by side under three products.
"""

from oxillama.model.image_builder import ImageBuilder, encoder


@encoder("llama4")
def llama4(b: ImageBuilder) -> None:
    """The class token stands last, at row and column 0, which rotates nothing; those of patches
    begin at 1. The two layers of the adapter have the exact GELU (erf), whatever the encoder has.
    """
    rope, act = b.axial_rope(column_first=True), b.activation("gelu_erf")
    x = b.linear(b.features(0, b.columns), "v.patch_embd", b.hidden)
    x = x + b.class_row() + b.position_embed(classed=True)
    x = b.norm(x, "v.pre_ln", kind="layer")
    for layer in b.blocks():
        # what converters since Gemma 4 call the same norm
        second = "attn_post_norm" if layer.has("attn_post_norm.weight") else "ln2"
        x = b.block(layer, x, kind="layer", act=act, rope=rope, style="norm", second=second)
    b.mark_embedding(b.norm(x, "v.post_ln", kind="layer"))
    scale = b.scale_factor(2)
    p, (y,) = b.projector(scale * scale)
    y = p.activate(p.two_layers(y, "mm.model.mlp.1", "mm.model.mlp.2"), "gelu_erf")
    p.mark_embedding(p.linear(y, "mm.model.fc", p.shape("mm.model.fc.weight", 2)[0]))
