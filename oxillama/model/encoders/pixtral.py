"""Pixtral (Agrawal et al. 2024): Llama's block over patches, rotated by row and column."""

from oxillama.model.image_builder import ImageBuilder, encoder


@encoder("pixtral")
def pixtral(b: ImageBuilder) -> None:
    """A row of the file, `v.token_embd.img_break`, follows every row of patches but the last."""
    x = b.norm(b.patches(), "v.pre_ln", kind="rms")
    rope = b.axial_rope("alternating")
    for layer in b.blocks():
        x = b.block(layer, x, kind="rms", act=b.activation(), rope=rope, style="norm")
    b.mark_embedding(x)
    p, (y,) = b.projector(1)
    y = p.activate(p.linear(y, "mm.1", p.shape("mm.1.weight", 2)[0]), "gelu_erf")
    y = p.linear(y, "mm.2", p.shape("mm.2.weight", 2)[0])
    p.mark_embedding(y)
    b.used.add("v.token_embd.img_break")
