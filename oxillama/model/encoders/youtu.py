"""The encoder of Youtu-VL (Tencent 2026, published code): SigLIP 2 without learned positions, whose
patches are rotated by row and column, with windows in most layers.
"""

from oxillama.model.image_builder import ImageBuilder, encoder


@encoder("youtuvl")
def youtuvl(b: ImageBuilder) -> None:
    """Attention within windows in all layers but those of `wa_layer_indexes`. The colours of a
    pixel stand side by side in a patch.
    """
    whole = set(b.keys.integers("wa_layer_indexes", maximum=b.n_layers - 1))
    b.keys.integer("window_size", minimum=b.merge * b.patch, maximum=1 << 14)
    rope = b.axial_rope()
    x = b.linear(b.features(0, b.columns), "v.patch_embd", b.hidden)
    for layer in b.blocks():
        within = layer.index not in whole
        x = b.block(layer, x, kind="layer", act=b.activation(), rope=rope, spans=within)
    x = b.norm(x, "v.post_ln", kind="layer")
    # 1e-6 is that of the published code
    b.mark_embedding(b.norm(x, "mm.input_norm", eps=1e-6))
    p, (y,) = b.projector(b.merge * b.merge)
    p.mark_embedding(p.two_layers(y, "mm.0", "mm.2"))
