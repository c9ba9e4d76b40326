"""The encoder of Granite Vision 4 (IBM 2026, by its code in transformers,
`models/granite4_vision`): SigLIP, whose patches of a window a few queries gather (Li et al. 2023,
"BLIP-2", section 3.1), once for each layer of the language model that features are added before.
"""

import numpy as np

from oxillama.model.attention import Heads
from oxillama.model.builder import Value
from oxillama.model.image_builder import ImageBuilder, encoder

# floats of a head of the projectors
_HEAD = 64
# a block's corner that a projector without a mean reads
_CORNERS = 4


@encoder("granite4_vision")
def granite4_vision(b: ImageBuilder) -> None:
    """Each projector reads what a layer of `feature_layer` leaves. Its queries begin as the mean of
    their square of patches or, by `projector.spatial_offsets`, as a corner of one; they see each
    other, then the patches of their window, which stand before them in the rows of both tapes and
    are passed through by the first.
    """
    layers = b.keys.integers("feature_layer", minimum=0, maximum=b.n_layers - 1)
    count = len(layers)
    key = "projector.spatial_offsets"
    corners = b.keys.integers(key, count=count, minimum=-1, maximum=_CORNERS - 1)
    query = b.keys.integer("projector.query_side", minimum=1, maximum=b.side)
    window = b.keys.integer("projector.window_side", minimum=query, maximum=b.side)
    ratio = window // query
    if window % query or b.side % window or (max(corners, default=-1) >= 0 and ratio != 2):
        b.fail(
            b.keys.name("projector.window_side"),
            window,
            f"a multiple of the {query} of projector.query_side (twice that for a corner) and a "
            f"divisor of {b.side}, the patches along a side",
        )
    if not count or b.hidden % _HEAD:
        b.fail("clip.vision.embedding_length", b.hidden, f"a multiple of {_HEAD}, for projectors")

    x = b.patches() + b.position_embed()
    kept = {}
    for layer in b.blocks():
        if layer.index > max(layers):
            b.skip(layer)
            continue
        x = b.block(layer, x, kind="layer", act=b.activation())
        kept[layer.index] = x
    b.used |= {name for name in b.reader.tensors if name.startswith("v.post_ln.")}
    # 1e-6 and 1e-12 are the epsilons of the published code
    names = [f"v.proj_blk.{at}" for at in range(count)]
    normed = [
        b.norm(kept[layer], f"{name}.norm", kind="layer", eps=1e-6)
        for layer, name in zip(layers, names)
    ]
    b.mark_embedding(b.concat(*normed))

    p, squares = b.projector(ratio * ratio, count)
    at = sum(each.width for each in squares)
    asks = p.repeat(p.features(at, 1), b.hidden)
    seen = asks * -1.0 + np.ones(b.hidden, np.float32)
    made = []
    for index, (name, square, corner) in enumerate(zip(names, squares, corners)):
        first = max(corner, 0) * b.hidden
        y = square.columns(first, first + b.hidden)
        y = y if corner >= 0 else p.mean(square, ratio * ratio)
        y = y + p.features(at + 1 + index * b.hidden, b.hidden)
        p.used |= {f"{name}.query", f"{name}.img_pos"}
        asked = p.norm(y, f"{name}.post_norm", kind="layer", eps=1e-12)
        made.append(_attended(p, name, "self_attn", asked) * asks + y * seen)
    p.mark_embedding(p.concat(*made))

    q, rows = p.projector(1, count)
    mask = q.features(count * b.hidden, 1)
    q.mark_embedding(
        q.concat(*(_attended(q, name, "cross_attn", y, mask) for name, y in zip(names, rows)))
    )
    r, rows = q.projector(1, count)
    r.mark_embedding(r.concat(*(_projected(r, name, y) for name, y in zip(names, rows))))
    b.used.add("v.image_newline")


def _attended(b: ImageBuilder, name: str, kind: str, x: Value, mask: Value | None = None) -> Value:
    """Attention within the spans of a batch, and a norm of the sum. mask: see `hiding`."""
    heads = b.hidden // _HEAD
    q, k, v = (b.linear(x, f"{name}.{kind}_{part}", b.hidden) for part in "qkv")
    if mask is not None:
        q, k = (
            b.concat(part, more, heads=heads) for part, more in zip((q, k), b.hiding(mask, heads))
        )
    shape = Heads(heads, heads, q.width // heads, _HEAD)
    y = b.attend(q, k, v, heads=shape, rope=None, style="neox", scale=_HEAD**-0.5, spans=True)
    y = b.linear(y, f"{name}.{kind}_out", b.hidden)
    return b.norm(x + y, f"{name}.{kind}_norm", kind="layer", eps=1e-12)


def _projected(b: ImageBuilder, name: str, x: Value) -> Value:
    """The network of a query, a norm of the sum, and the product that makes a feature."""
    y = b.two_layers(x, f"{name}.ffn_up", f"{name}.ffn_down")
    y = b.norm(x + y, f"{name}.ffn_norm", kind="layer", eps=1e-12)
    return b.linear(y, f"{name}.linear", b.shape(f"{name}.linear.weight", 2)[0])
