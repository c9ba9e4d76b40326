"""CLIP and SigLIP under a projector of two layers: LLaVA 1.5 and 1.6 (Liu et al. 2023, "Improved
Baselines with Visual Instruction Tuning").
"""

from oxillama.model.image_builder import ImageBuilder, encoder


@encoder("mlp")
def llava(b: ImageBuilder) -> None:
    """The features are what the layers of `feature_layer` leave (0: what goes into the first), by
    default the last layer of the file, which lacks those that LLaVA does not run.
    """
    classed = b.has("v.class_embd")
    x = b.patches(classed=classed)
    if classed:
        x = x + b.class_row()
    x = x + b.position_embed(classed=classed)
    if b.has("v.pre_ln.weight"):
        x = b.norm(x, "v.pre_ln", kind="layer")
    wanted = b.keys.integers("feature_layer", default=None)
    layers = [b.n_layers] if wanted is None else list(wanted)
    if not layers or min(layers) < 0 or max(layers) > b.n_layers:
        b.fail("clip.vision.feature_layer", layers, f"layers of 0 to {b.n_layers}")
    kept = {0: x}
    for layer in b.blocks():
        if layer.index < max(layers):
            x = b.block(
                layer, x, kind="layer", act=b.activation("gelu_erf" if classed else "gelu_tanh")
            )
            kept[layer.index + 1] = x
        else:
            b.skip(layer)
    if b.has("v.post_ln.weight"):
        kept[b.n_layers] = b.norm(kept.get(b.n_layers, x), "v.post_ln", kind="layer")
    x = kept[layers[0]] if len(layers) == 1 else b.concat(*(kept[each] for each in layers))
    b.mark_embedding(x)

    p, (y,) = b.projector(1)
    if p.has("mm.norm.weight"):
        y = p.norm(y, "mm.norm", kind="layer")
    width = p.shape("mm.0.weight", 2)[0]
    y = p.linear(y, "mm.0", width)
    if p.has("mm.2.weight"):
        y = p.activate(y, "gelu_erf")
        y = p.linear(y, "mm.2", p.shape("mm.2.weight", 2)[0])
    p.mark_embedding(y)
    if b.has("model.image_newline"):
        b.used.add("model.image_newline")
