"""The encoder of EXAONE 4.5 (LG AI Research 2026, by its code in transformers, `models/exaone4_5`):
that of Qwen2.5-VL with fewer heads of keys than of queries.
"""

from oxillama.model.image_builder import ImageBuilder, encoder


@encoder("exaone4_5")
def exaone45(b: ImageBuilder) -> None:
    """Attention within windows in all but every `n_wa_pattern`-th layer, in none without that
    key.
    """
    every = b.keys.integer("n_wa_pattern", default=0, minimum=0, maximum=b.n_layers)
    b.keys.integer("window_size", default=112, minimum=b.merge * b.patch)
    x, rope = b.patches(), b.axial_rope()
    for layer in b.blocks():
        within = every > 0 and (layer.index + 1) % every != 0
        x = b.block(layer, x, kind="rms", act=b.activation(), rope=rope, spans=within)
    b.mark_embedding(b.norm(x, "v.post_ln", kind="rms"))
    p, (y,) = b.projector(b.merge * b.merge)
    p.mark_embedding(p.two_layers(y, "mm.0", "mm.2"))
