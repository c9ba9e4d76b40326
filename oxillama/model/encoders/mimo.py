"""The encoder of MiMo-V2.5 (Xiaomi 2026, published code, modeling_mimo_v2.py): images of any size,
grouped queries, and attention to patches that are near in a sequence of rows or of columns.
"""

import numpy as np

from oxillama.model.attention import Heads
from oxillama.model.builder import Layer, Value
from oxillama.model.image_builder import ImageBuilder, encoder
from oxillama.model.rope import Rope

_FULL, _ROWS, _COLUMNS = -1, 0, 1  # what `wa_pattern_mode` says of a layer
_EXTRA = 8  # floats of a head that hold what is added to the score of the first patch


@encoder("mimovl")
def mimovl(b: ImageBuilder) -> None:
    """Squares of patches follow one another line by line; layers of columns have them column by
    column, in a tape of their own; the projector has them in either order. The batch brings a one
    in the row of the first patch.
    """
    key = "wa_pattern_mode"
    modes = b.keys.integers(key, minimum=_FULL, maximum=_COLUMNS, count=b.n_layers)
    window = b.keys.integer("window_size", minimum=1)
    x, first = b.patches(), b.features(b.columns, 1)
    p, by_column = b, False
    for index, mode in enumerate(modes):
        if (mode == _COLUMNS) != by_column:
            by_column = not by_column
            p, x, first = _turned(p, x, first)
        layer = Layer(p, index, "v.")
        y = layer.norm(x, "ln1")
        x = x + _attention(p, layer, y, first, 0 if mode == _FULL else window + 1)
        y = layer.norm(x, "ln2")
        width = p.shape(layer.name("ffn_up.weight"), 2)[0]
        gate, up = layer.linear(y, "ffn_gate", width), layer.linear(y, "ffn_up", width)
        x = x + layer.linear(p.gate(gate, up, act=p.activation()), "ffn_down", p.hidden)
    # 1e-6 is in the published code; the file has that of the encoder's other norms
    p.mark_embedding(p.norm(x, "v.post_ln", kind="layer", eps=1e-6))
    p, (y,) = p.projector(p.merge * p.merge)
    p.mark_embedding(p.two_layers(y, "mm.0", "mm.2"))


def _turned(p: ImageBuilder, x: Value, first: Value) -> tuple[ImageBuilder, Value, Value]:
    """The rows in the other order, in the next tape."""
    p.mark_embedding(p.concat(x, first))
    p, (y,) = p.projector(1)
    return p, y.columns(0, x.width), y.columns(x.width, x.width + 1)


def _attention(p: ImageBuilder, layer: Layer, x: Value, first: Value, window: int) -> Value:
    """`attn_sinks`, a number for each head, are added to the scores of the first patch: a product
    of further floats of queries and keys.
    """
    query = p.keys.integer("attention.head_count", minimum=1)
    kv = p.keys.integer("attention.head_count_kv", minimum=1)
    rows = p.shape(layer.name("attn_qkv.weight"), 2)[0]
    size = rows // (query + 2 * kv)
    if size % 4 or query % kv or size * (query + 2 * kv) != rows:
        p.fail(layer.name("attn_qkv.weight"), rows, f"rows of {query} and 2 x {kv} heads")
    y = layer.linear(x, "attn_qkv", rows)
    q = y.columns(0, query * size)
    k = y.columns(query * size, (query + kv) * size)
    v = y.columns((query + kv) * size, rows)
    width, scale = size, size**-0.5
    sinks = layer.optional_vector("attn_sinks", query)
    if sinks is not None:
        width += _EXTRA
        added = np.zeros((query, _EXTRA), np.float32)
        added[:, 0] = sinks / scale
        nothing = p.repeat(first, query * _EXTRA) * np.zeros(query * _EXTRA, np.float32)
        q = p.concat(q, nothing + added.reshape(-1), heads=query)
        one = np.tile(np.eye(1, _EXTRA, dtype=np.float32)[0], kv)
        k = p.concat(k, p.repeat(first, kv * _EXTRA) * one, heads=kv)
    base, quarter = p.keys.number("rope.freq_base", default=10000.0), size // 4
    rates = (base ** (-np.arange(quarter) / quarter)).astype(np.float32)
    sections = np.repeat(np.array([0, 1], np.int32), quarter)
    y = p.attend(
        *(q, k, v),
        heads=Heads(query, kv, width, size),
        rope=Rope(size, np.concatenate([rates, rates]), 1.0, sections=sections),
        style="neox",
        scale=scale,
        window=window,
    )
    return layer.linear(y, "attn_out", p.hidden)
