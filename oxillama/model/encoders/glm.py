"""The encoder of GLM-4.1V and GLM-4.5V (GLM-V team 2025, section 2.1) and of GLM-OCR: images of any
size, a convolution over squares of patches, a gated network.
"""

from oxillama.model.image_builder import ImageBuilder, encoder


@encoder("glm4v")
def glm4v(b: ImageBuilder) -> None:
    """GLM-OCR has norms of queries and keys in place of learned positions and of a norm of the
    patches: by tensor.
    """
    x, rope = b.patches(), b.axial_rope()
    if b.has("v.norm_embd.weight"):
        x = b.norm(x, "v.norm_embd")
    if b.has("v.position_embd.weight"):
        x = x + b.grid_positions()
    act = b.activation()
    for layer in b.blocks():
        x = b.block(layer, x, kind="rms", act=act, rope=rope)
    b.mark_embedding(b.norm(x, "v.post_ln"))
    p, (y,) = b.projector(b.merge * b.merge, by_channel=True)
    width = p.shape("mm.model.fc.weight", 2)[0]
    y = p.convolved(y, "mm.patch_merger", width, b.hidden, b.merge)
    # 1e-5 is the epsilon of a LayerNorm that is given none; the file has that of the encoder
    y = p.norm(p.linear(y, "mm.model.fc", width), "mm.post_norm", kind="layer", eps=1e-5)
    y = p.activate(y, "gelu_erf")
    inner = p.shape("mm.up.weight", 2)[0]
    y = p.gate(p.linear(y, "mm.gate", inner), p.linear(y, "mm.up", inner), act=act)
    p.mark_embedding(p.linear(y, "mm.down", width))
