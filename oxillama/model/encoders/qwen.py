"""The encoders of Qwen2-VL (Wang et al. 2024), Qwen2.5-VL (Bai et al. 2025), Qwen3-VL (Qwen 2025)
and, of the same layers, Ling 3 VL: images of any size, squares of 2 x 2 patches become a feature.
"""

from oxillama.model.image_builder import ImageBuilder, encoder


@encoder("qwen2vl_merger")
def qwen2vl(b: ImageBuilder) -> None:
    """Layer norms and a feed-forward network without a gate."""
    x, rope = b.patches(), b.axial_rope()
    for layer in b.blocks():
        x = b.block(layer, x, kind="layer", act=b.activation(), rope=rope)
    b.mark_embedding(b.norm(x, "v.post_ln", kind="layer"))
    p, (y,) = b.projector(b.merge * b.merge)
    p.mark_embedding(p.two_layers(y, "mm.0", "mm.2"))


@encoder("qwen2.5vl_merger", "qwen2.5o")
def qwen25vl(b: ImageBuilder) -> None:
    """RMS norms, gates, and attention within windows in all but every `n_wa_pattern`-th layer. That
    of Qwen2.5-Omni is the same, in a file with an encoder of sound.
    """
    within_windows(b, b.keys.integer("n_wa_pattern", minimum=0, maximum=b.n_layers))


def within_windows(b: ImageBuilder, every: int) -> None:
    """The layers of Qwen2.5-VL and their projector; attention is within windows in all but every
    `every`-th layer, in none if that is 0.
    """
    b.keys.integer("window_size", default=112, minimum=b.merge * b.patch)
    x, rope = b.patches(), b.axial_rope()
    for layer in b.blocks():
        within = every > 0 and (layer.index + 1) % every != 0
        x = b.block(layer, x, kind="rms", act=b.activation(), rope=rope, spans=within)
    b.mark_embedding(b.norm(x, "v.post_ln", kind="rms"))
    p, (y,) = b.projector(b.merge * b.merge)
    p.mark_embedding(p.two_layers(y, "mm.0", "mm.2"))


@encoder("qwen3vl_merger")
def qwen3vl(b: ImageBuilder) -> None:
    """Learned positions on a grid, which the batch brings interpolated; what some layers leave
    becomes features of its own, which the language model adds after its first layers (deepstack).
    """
    deep = b.keys.flags("is_deepstack_layers", count=b.n_layers)
    x, rope = b.patches() + b.grid_positions(), b.axial_rope()
    kept = []
    for layer in b.blocks():
        x = b.block(layer, x, kind="layer", act=b.activation(), rope=rope)
        if deep[layer.index]:
            kept.append((layer.index, x))
    x = b.norm(x, "v.post_ln", kind="layer")
    b.mark_embedding(b.concat(x, *(each for _, each in kept)) if kept else x)
    p, (main, *others) = b.projector(b.merge * b.merge, 1 + len(kept))
    made = [p.two_layers(main, "mm.0", "mm.2")]
    for (index, _), y in zip(kept, others):
        name = f"v.deepstack.{index}"
        y = p.norm(y, f"{name}.norm", kind="layer")
        made.append(p.two_layers(y, f"{name}.fc1", f"{name}.fc2"))
    p.mark_embedding(p.concat(*made) if kept else made[0])


@encoder("ling3vl")
def ling3vl(b: ImageBuilder) -> None:
    """The layers of Qwen3-VL, then a norm of each patch, and the exact GELU between products."""
    x, rope = b.patches() + b.grid_positions(), b.axial_rope()
    for layer in b.blocks():
        x = b.block(layer, x, kind="layer", act=b.activation(), rope=rope)
    b.mark_embedding(b.norm(x, "mm.input_norm", kind="layer"))
    p, (y,) = b.projector(b.merge * b.merge)
    p.mark_embedding(p.two_layers(y, "mm.0", "mm.2"))
