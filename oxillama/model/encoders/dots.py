"""The encoder of dots.ocr (Li et al. 2025, "dots.ocr"; published code, modeling_dots_vision.py):
images of any size, RMS norms, gates, a norm of patches.
"""

from oxillama.model.image_builder import ImageBuilder, encoder


@encoder("dots_ocr", sized=False)
def dots_ocr(b: ImageBuilder) -> None:
    """A LayerNorm of each patch, then squares of them side by side through two layers."""
    x, rope = b.norm(b.patches(), "v.pre_ln"), b.axial_rope()
    for layer in b.blocks():
        x = b.block(layer, x, kind="rms", act=b.activation(), rope=rope)
    x = b.norm(x, "mm.post_norm")  # of the encoder's last layer, in spite of its name
    # 1e-6 is that of the published code; the file has that of the encoder
    b.mark_embedding(b.norm(x, "mm.input_norm", kind="layer", eps=1e-6))
    merge = b.keys.integer("projector.scale_factor", minimum=1, maximum=16)
    p, (y,) = b.projector(merge * merge)
    p.mark_embedding(p.two_layers(y, "mm.0", "mm.2"))
