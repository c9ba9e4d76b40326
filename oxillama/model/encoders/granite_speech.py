"""The encoder of Granite Speech (IBM 2025, by its code in transformers, `models/granite_speech`):
layers of a Conformer (Gulati et al. 2020, section 2), whose rows see those of their block, and a
few queries for each window of rows (Li et al. 2023, "BLIP-2", section 3.1).
"""

from math import lcm

import numpy as np

from oxillama.model.attention import Heads
from oxillama.model.audio_builder import AudioBuilder, encoder
from oxillama.model.blocks import heads_of
from oxillama.model.builder import Layer, Value
from oxillama.model.encoders.conformer import layers
from oxillama.model.tensors import Given
from oxillama.model.waves import heights

_EPS = 1e-12  # of the queries' norms, that of the published code
ROWS = 3000  # a minute, which is encoded at once; a file says no limit


def period_of(block: int) -> int:
    """Of the waves that a score by distance is made of: the distances in a block of rows."""
    return 2 * block - 1


@encoder("granite_speech")
def granite_speech(b: AudioBuilder) -> None:
    """Rows see those of their block; half way, each is told what it would be as a letter."""
    block = b.keys.integer("chunk_size", minimum=1, maximum=ROWS)
    taps = b.keys.integer("conv_kernel_size", minimum=1, maximum=ROWS)

    def seen(p: AudioBuilder, layer: Layer, x: Value, mask: Value, turn: Value) -> Value:
        return _attention(p, layer, x, turn, block)

    def told(p: AudioBuilder, layer: Layer, x: Value) -> Value:
        if layer.index + 1 != p.n_layers // 2:
            return x
        rows = p.shape("a.enc_ctc_out.weight", 2)[0]
        letters = p.softmax(p.linear(x, "a.enc_ctc_out", rows))
        return x + p.linear(letters, "a.enc_ctc_out_mid", p.hidden)

    x = b.linear(b.features(0, b.mels), "a.input_projection", b.hidden)
    p, x = layers(
        b,
        x,
        at=b.mels,
        waves=period_of(block) + 1,
        rows=ROWS,
        taps=taps,
        attention=seen,
        after=told,
    )
    p.mark_embedding(x)
    _queried(p)


def _attention(p: AudioBuilder, layer: Layer, x: Value, turn: Value, block: int) -> Value:
    """A score is q . (k + r), where r belongs to the distance (Shaw et al. 2018, section 3). q . r
    is a sum of waves over distances, whose heights are products of q: further columns of queries,
    rotated by `turn`, and of keys, which are `turn` itself.
    """
    heads, most = heads_of(p, layer), p.keys.integer("max_pos_emb", minimum=block)
    dim, wide = heads.key_dim, heads.query * heads.key_dim
    q, k, v = (layer.linear(x, f"attn_{name}", wide) for name in "qkv")
    name = layer.name("attn_rel_pos_emb")
    table = p.array(name, 2 * most + 1, dim)[most - block + 1 : most + block].astype(np.float64)
    weight = Given(f"{name} as waves", "F32", (turn.width, dim), values=_waves(table, block))
    made = [
        p.record(
            "linear",
            (q.columns(at * dim, (at + 1) * dim),),
            width=turn.width,
            weight=weight,
            bias=None,
        )
        for at in range(heads.query)
    ]
    q = p.concat(q, p.concat(*made), heads=heads.query)
    y = p.attend_turned(q, k, v, turn, heads=heads, scale=dim**-0.5, spans=True)
    return layer.linear(y, "attn_out", p.hidden)


def _waves(table: np.ndarray, block: int) -> np.ndarray:
    """`heights` of the distances in a block."""
    return heights(table, 1 - block, period_of(block))


def _queried(p: AudioBuilder) -> None:
    """The rows of a window and its queries, which the batch brings: these see one another, then the
    rows, in as many layers as the file has.
    """
    q, (rows,) = p.projector(1)
    window = q.keys.integer("projector.window_size", minimum=1, maximum=ROWS)
    rate = q.keys.integer("projector.downsample_rate", minimum=1, maximum=window)
    block = q.keys.integer("chunk_size")
    if lcm(block, window) > ROWS:
        q.fail(
            "clip.audio.chunk_size",
            block,
            f"one whose least common multiple with the {window} of a window is at most {ROWS}",
        )
    width = q.shape("a.proj_query", 3)[2]
    q.array("a.proj_query", 1, window // rate, width)  # which the batch brings
    if window % rate:
        q.fail("clip.audio.projector.downsample_rate", rate, f"a divisor of {window}")
    if q.mels % 2:
        q.fail("clip.audio.num_mel_bins", q.mels, "an even number, of two frames")
    heads = q.keys.integer("projector.head_count", minimum=1, maximum=width)
    if width % heads:
        q.fail("clip.audio.projector.head_count", heads, f"a divisor of {width}")
    x = q.features(rows.width, width)
    masks = [q.features(rows.width + width + at, 1) for at in (0, 1)]
    q.most = 2 * ROWS
    x = q.norm(x, "a.proj_norm", kind="layer", eps=_EPS)
    index = 0
    while not index or q.has(f"a.proj_blk.{index}.ffn_norm.weight"):
        name = f"a.proj_blk.{index}"
        for kind, seen, mask in zip(("self_attn", "cross_attn"), (x, rows), masks):
            x = _seen(q, f"{name}.{kind}", x, x if kind == "self_attn" else seen, mask, heads)
        y = q.two_layers(x, f"{name}.ffn_up", f"{name}.ffn_down")
        x = q.norm(x + y, f"{name}.ffn_norm", kind="layer", eps=_EPS)
        index += 1
    q.mark_embedding(x)
    r, (y,) = q.projector(1)
    r.mark_embedding(r.linear(y, "a.proj_linear", r.shape("a.proj_linear.weight", 2)[0]))


def _seen(q: AudioBuilder, name: str, x: Value, seen: Value, mask: Value, heads: int) -> Value:
    """Attention to `seen` where the mask hides no key, and a norm of the sum."""
    width = x.width
    dim = width // heads
    asked = q.linear(x, name + "_q", width)
    k, v = (q.linear(seen, f"{name}_{part}", width) for part in "kv")
    asked, k = (
        q.concat(part, more, heads=heads) for part, more in zip((asked, k), q.hiding(mask, heads))
    )
    shape = Heads(heads, heads, asked.width // heads, dim)
    y = q.attend(asked, k, v, heads=shape, rope=None, style="neox", scale=dim**-0.5, spans=True)
    y = q.linear(y, name + "_out", width)
    return q.norm(x + y, name + "_norm", kind="layer", eps=_EPS)
