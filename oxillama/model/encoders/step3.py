"""The encoder of Step3-VL and Step 3.7 (StepFun 2026, by its code in transformers,
`models/step3p7`): tiles of two sizes with learned positions, patches rotated by column and row,
layer scale, two convolutions that each halve a side.
"""

from oxillama.model.image_builder import ImageBuilder, encoder


@encoder("step3vl")
def step3vl(b: ImageBuilder) -> None:
    """The kernels of the convolutions are 3 x 3 and overlap, so each has a tape of its own."""
    key = "projector.scale_factor"
    scale = b.keys.integer(key, minimum=1, maximum=16)
    if scale != 4:
        b.fail(b.keys.name(key), scale, "4, of two convolutions with a stride of 2")
    rope = b.axial_rope(column_first=True)
    x = b.norm(b.patches() + b.grid_positions(), "v.pre_ln", kind="layer")
    for layer in b.blocks():
        x = b.block(layer, x, kind="layer", act=b.activation(), rope=rope, style="norm")
    p, width = b, b.hidden
    for name in ("mm.0", "mm.1"):
        p.mark_embedding(x)
        p, (x,) = p.projector(9, by_channel=True)
        outer = p.shape(f"{name}.weight", 4)[0]
        x, width = p.convolved(x, name, outer, width, 3), outer
    p.mark_embedding(p.linear(x, "mm.model.fc", p.shape("mm.model.fc.weight", 2)[0]))
