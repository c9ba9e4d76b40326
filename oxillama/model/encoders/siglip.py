"""SigLIP (Zhai et al. 2023) under the projectors of Gemma 3, of Idefics 3 and of LFM2-VL."""

from oxillama.model.image_builder import ImageBuilder, encoder


def _siglip(b: ImageBuilder, *, sized: bool = False) -> None:
    """sized: images of any size, whose positions the batch brings."""
    x = b.patches() + (b.grid_positions() if sized else b.position_embed())
    for layer in b.blocks():
        x = b.block(layer, x, kind="layer", act=b.activation())
    b.mark_embedding(b.norm(x, "v.post_ln", kind="layer"))


@encoder("gemma3")
def gemma3(b: ImageBuilder) -> None:
    """Gemma 3 (Google 2025, section 2.1): the mean of a square of patches, a norm, a product."""
    _siglip(b)
    scale = b.scale_factor(4)
    p, (y,) = b.projector(scale * scale)
    y = p.norm(p.mean(y, scale * scale), "mm.soft_emb_norm")
    name = "mm.input_projection"
    p.mark_embedding(p.turned(y, name, p.shape(name + ".weight", 2)[1]))


@encoder("idefics3")
def idefics3(b: ImageBuilder) -> None:
    """Idefics 3 (Laurençon et al. 2024, section 2.3) and SmolVLM: a square of patches side by side,
    one product.
    """
    _siglip(b)
    scale = b.scale_factor()
    p, (y,) = b.projector(scale * scale)
    p.mark_embedding(p.linear(y, "mm.model.fc", p.shape("mm.model.fc.weight", 2)[0]))


@encoder("lfm2")
def lfm2(b: ImageBuilder) -> None:
    """LFM2-VL (Liquid AI 2025): SigLIP 2 (Tschannen et al. 2025, section 2.4.2) over images of any
    size, a square of patches side by side under a norm, which later models leave out, and two
    layers. Files hold as many layers as run.
    """
    _siglip(b, sized=True)
    scale = b.keys.integer("projector.scale_factor", default=2, minimum=1, maximum=16)
    p, (y,) = b.projector(scale * scale)
    if p.has("mm.input_norm.weight"):
        y = p.norm(y, "mm.input_norm", kind="layer", eps=1e-5)
    y = p.activate(p.linear(y, "mm.1", p.shape("mm.1.weight", 2)[0]), "gelu_erf")
    p.mark_embedding(p.linear(y, "mm.2", p.shape("mm.2.weight", 2)[0]))
