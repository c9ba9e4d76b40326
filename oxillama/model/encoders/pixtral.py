"""Pixtral (Agrawal et al. 2024), Mistral Small 3.1 and LightOnOCR: Llama's block over patches,
rotated by row and column.
"""

from oxillama.model.image_builder import ImageBuilder, encoder


@encoder("pixtral", "lightonocr")
def pixtral(b: ImageBuilder) -> None:
    """A row of the file, `v.token_embd.img_break`, follows every row of features but the last, in
    LightOnOCR none. With `mm.patch_merger` squares of patches become one first, channel by channel.
    """
    merges = b.has("mm.patch_merger.weight")
    x = b.norm(b.patches(), "v.pre_ln", kind="rms")
    rope = b.axial_rope("alternating")
    for layer in b.blocks():
        x = b.block(layer, x, kind="rms", act=b.activation(), rope=rope, style="norm")
    if merges:
        # the language model's epsilon, which the file lacks: Mistral's is that of the encoder,
        # LightOnOCR's is Qwen 3's
        x = b.norm(x, "mm.input_norm", kind="rms", eps=1e-6 if b.kind == "lightonocr" else None)
    b.mark_embedding(x)
    side = b.keys.integer("spatial_merge_size", default=1, minimum=1, maximum=16)
    if side > 1 and not merges:
        b.fail("clip.vision.spatial_merge_size", side, "1 of a file without mm.patch_merger.weight")
    p, (y,) = b.projector(side * side, by_channel=True)
    if merges:
        y = p.linear(y, "mm.patch_merger", b.hidden)
    p.mark_embedding(p.two_layers(y, "mm.1", "mm.2"))
    if b.kind == "pixtral":
        b.used.add("v.token_embd.img_break")
