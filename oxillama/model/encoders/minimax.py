"""The encoder of MiniMax M3 (MiniMax 2026, by its code in transformers, `models/minimax_m3_vl`):
images of any size, heads rotated in part, by row and by column, and a projector of two networks.
"""

import numpy as np

from oxillama.model.blocks import heads_of
from oxillama.model.builder import Layer, Value
from oxillama.model.image_builder import ImageBuilder, encoder
from oxillama.model.rope import Rope


@encoder("minimax_m3")
def minimax_m3(b: ImageBuilder) -> None:
    """The first network runs over patches, the second over squares of them."""
    x = b.norm(b.patches(), "v.pre_ln", kind="layer")
    act = b.activation("gelu_erf")
    for layer in b.blocks():
        x = x + _attention(b, layer, layer.norm(x, "ln1", kind="layer"))
        width = b.shape(layer.name("ffn_up.weight"), 2)[0]
        y = b.activate(layer.linear(layer.norm(x, "ln2", kind="layer"), "ffn_up", width), act)
        x = x + layer.linear(y, "ffn_down", b.hidden)
    b.mark_embedding(b.two_layers(x, "mm.1", "mm.2"))
    p, (y,) = b.projector(b.merge * b.merge)
    p.mark_embedding(p.two_layers(y, "mm.merger.fc1", "mm.merger.fc2"))


def _attention(b: ImageBuilder, layer: Layer, x: Value) -> Value:
    """A head is a third for the time, which is 0, one for the row and one for the column, each with
    its halves side by side, and a rest. Halves of rows and columns are put together, so that both
    rotate as one.
    """
    heads = heads_of(b, layer)
    half = heads.key_dim // 3 // 2
    edges = [0, *(half * i for i in (2, 3, 4, 5, 6)), heads.key_dim]
    order = [i for i in (0, 1, 3, 2, 4, 5) if edges[i] < edges[i + 1]]

    def placed(name: str) -> Value:
        y = layer.linear(x, name, heads.query * heads.key_dim)
        parts = [y.columns(edges[i], edges[i + 1], heads=heads.query) for i in order]
        return b.concat(*parts, heads=heads.query)

    base = b.keys.number("rope.freq_base", default=10000.0)
    rates = (base ** (-np.arange(half) / half)).astype(np.float32)
    sections = np.repeat(np.array([0, 1], np.int32), half)
    y = b.attend(
        placed("attn_q"),
        placed("attn_k"),
        layer.linear(x, "attn_v", heads.kv * heads.value_dim),
        heads=heads,
        rope=Rope(4 * half, np.concatenate([rates, rates]), 1.0, sections=sections),
        rope_start=2 * half,
        style="neox",
        scale=heads.key_dim**-0.5,
    )
    return layer.linear(y, "attn_out", b.hidden)
