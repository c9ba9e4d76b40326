"""The encoder of Muse Glimmer (Meta 2026, by its code in transformers, `models/muse_glimmer`):
images of any size, attention within windows in three layers of four, patches rotated by column and
by row.
"""

from oxillama.model.image_builder import ImageBuilder, encoder

_EVERY = 4  # of so many layers the last one sees the whole image, as does the last of all


@encoder("muse-glimmer")
def muse_glimmer(b: ImageBuilder) -> None:
    """Files have the sum of the kernels of both frames. The language model norms what comes of a
    feature, as it does its embeddings.
    """
    x = b.patches() + b.grid_positions()
    x, rope = b.norm(x, "v.pre_ln", kind="layer"), b.axial_rope(column_first=True)
    for layer in b.blocks():
        whole = (layer.index + 1) % _EVERY == 0 or layer.index + 1 == b.n_layers
        x = b.block(
            layer, x, kind="layer", act="gelu_erf", rope=rope, style="norm", spans=not whole
        )
    b.mark_embedding(b.norm(x, "v.post_ln", kind="layer"))
    p, (y,) = b.projector(b.merge * b.merge, by_channel=True)
    y = p.activate(p.two_layers(y, "mm.0", "mm.1"), "gelu_erf")
    p.mark_embedding(p.linear(y, "mm.2", p.shape("mm.2.weight", 2)[0]))
