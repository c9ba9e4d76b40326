"""The encoder of HunyuanOCR and HunyuanVL (Tencent 2025, by its code in transformers,
`models/hunyuan_vl`): images of any size with learned positions, convolutions over squares of
patches, a row after each line of features.
"""

from oxillama.model.image_builder import ImageBuilder, encoder


@encoder("hunyuanvl")
def hunyuanvl(b: ImageBuilder) -> None:
    """All GELUs are exact (erf). The row of the file that ends a line, `v.image_newline`, goes
    through the last product, those around an image, `mm.image_begin` and `mm.image_end`, through
    the last norm alone. `v.view_seperator` takes no part, as in transformers.
    """
    x = b.patches() + b.grid_positions()
    for layer in b.blocks():
        x = b.block(layer, x, kind="layer", act=b.activation("gelu_erf"))
    b.mark_embedding(b.norm(x, "mm.pre_norm"))
    p, (y,) = b.projector(b.merge * b.merge, by_channel=True)
    inner = p.shape("mm.0.weight", 4)[0]
    y = p.activate(p.convolved(y, "mm.0", inner, b.hidden, b.merge), "gelu_erf")
    outer = p.shape("mm.2.weight", 4)[0]
    p.mark_embedding(p.convolved(y, "mm.2", outer, inner, 1))
    q, (y,) = p.projector(1)
    q.mark_embedding(q.linear(y, "mm.model.fc", q.shape("mm.model.fc.weight", 2)[0]))
    r, (y,) = q.projector(1)
    r.mark_embedding(r.norm(y, "mm.post_norm"))
    b.used |= {"v.image_newline", "mm.image_begin", "mm.image_end", "v.view_seperator"}
