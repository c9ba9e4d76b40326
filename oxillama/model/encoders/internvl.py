"""InternVL 2.5 and 3 (Chen et al. 2024; Zhu et al. 2025): a transformer with layer scale, squares
of patches side by side under a norm and two layers.
"""

from oxillama.model.image_builder import ImageBuilder, encoder


@encoder("internvl")
def internvl(b: ImageBuilder) -> None:
    """The class token stands first, as in transformers."""
    x = b.patches(classed=True) + b.class_row() + b.position_embed(classed=True)
    for layer in b.blocks():
        x = b.block(layer, x, kind="layer", act=b.activation("gelu_erf"))
    if b.has("v.post_ln.weight"):
        x = b.norm(x, "v.post_ln", kind="layer")
    b.mark_embedding(x)
    scale = b.scale_factor(2)
    p, (y,) = b.projector(scale * scale)
    y = p.norm(y, "mm.model.mlp.0", kind="layer", eps=1e-5)
    p.mark_embedding(p.two_layers(y, "mm.model.mlp.1", "mm.model.mlp.3"))
