"""RADIO (Ranzinger et al. 2024, "AM-RADIO"), the encoder of Nemotron Nano V2 VL: a transformer with
several class tokens, squares of patches under a norm and two layers.
"""

from oxillama.errors import ModelError
from oxillama.model.image_builder import ImageBuilder, encoder


@encoder("nemotron_v2_vl")
def nemotron_v2_vl(b: ImageBuilder) -> None:
    """The class tokens stand first. A batch brings them, and the positions of patches, beside the
    colours: those of a class token are zeros.
    """
    name, held = "v.position_embd.weight", b.shape("v.position_embd.weight", 2)
    if held != (b.side**2, b.hidden):
        raise ModelError(f"{name}: file has {held}, {b.kind} needs {(b.side**2, b.hidden)}")
    count, width = b.shape("v.class_embd", 2)
    if width != b.hidden:
        raise ModelError(f"v.class_embd: file has {(count, width)}, {b.kind} needs {b.hidden} wide")
    b.used |= {name, "v.class_embd"}
    weight = b.kernels("v.patch_embd.weight", b.hidden, 3, b.patch)
    x = b.record("linear", (b.features(0, b.columns),), width=b.hidden, weight=weight, bias=None)
    x = x + b.features(b.columns, b.hidden)
    for layer in b.blocks():
        x = b.block(layer, x, kind="layer", act=b.activation("gelu_erf"))
    b.mark_embedding(x)
    p, (y,) = b.projector(b.scale_factor() ** 2)
    y = p.norm(y, "mm.model.mlp.0", eps=1e-5)  # that of the published code
    p.mark_embedding(p.two_layers(y, "mm.model.mlp.1", "mm.model.mlp.3", act="relu2"))
