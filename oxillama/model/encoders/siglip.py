"""SigLIP (Zhai et al. 2023) under the projectors of Gemma 3, of Idefics 3, of LFM2-VL and of
Janus-Pro.
"""

from oxillama.model.image_builder import ImageBuilder, encoder


def _siglip(b: ImageBuilder, *, sized: bool = False, gelu: str = "gelu_tanh") -> None:
    """sized: images of any size, whose positions the batch brings. gelu: which one the file's
    `clip.use_gelu` means.
    """
    x = b.patches() + (b.grid_positions() if sized else b.position_embed())
    for layer in b.blocks():
        x = b.block(layer, x, kind="layer", act=b.activation(gelu))
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
    p.mark_embedding(p.two_layers(y, "mm.1", "mm.2"))


@encoder("janus_pro")
def janus_pro(b: ImageBuilder) -> None:
    """Janus-Pro (Chen et al. 2025): each patch through two layers with the encoder's activation,
    in published models the exact
    GELU (erf).
    """
    _siglip(b, gelu="gelu_erf")
    p, (y,) = b.projector(1)
    p.mark_embedding(p.two_layers(y, "mm.0", "mm.1", act=p.activation("gelu_erf")))
