"""The encoder of PaddleOCR-VL (Cui et al. 2025, "PaddleOCR-VL", section 2.1): SigLIP over images of
any size, whose patches are rotated by row and column besides their learned positions.
"""

from oxillama.model.image_builder import ImageBuilder, encoder


@encoder("paddleocr")
def paddleocr(b: ImageBuilder) -> None:
    """Each patch is normed before squares of 2 x 2 of them go side by side through two layers with
    the exact GELU (erf), whatever the encoder has.
    """
    x, rope = b.patches() + b.grid_positions(), b.axial_rope()
    for layer in b.blocks():
        x = b.block(layer, x, kind="layer", act=b.activation(), rope=rope)
    x = b.norm(x, "v.post_ln", kind="layer")
    # 1e-5 is that of the published code; the file has that of the encoder
    b.mark_embedding(b.norm(x, "mm.input_norm", kind="layer", eps=1e-5))
    p, (y,) = b.projector(b.merge * b.merge)
    p.mark_embedding(p.two_layers(y, "mm.1", "mm.2"))
