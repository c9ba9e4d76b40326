"""The audio encoder of Gemma 3n (Google 2025, published code, modeling_gemma3n.py), a Universal
Speech Model (Zhang et al. 2023, section 3): two convolutions over time and frequency, each under a
norm of all that is before, and layers of a Conformer (Gulati et al. 2020, section 2), whose rows
see themselves and twelve rows before them.
"""

from decimal import Decimal

import numpy as np

from oxillama.decimals import digits
from oxillama.model.audio_builder import AudioBuilder, encoder
from oxillama.model.blocks import heads_of
from oxillama.model.builder import Layer, Value
from oxillama.model.encoders.gemma4_audio import (
    EPS,
    PERIOD,
    QUERIES,
    ROWS,
    convolution,
    near,
    network,
)

_SIDE = 3  # of the kernels
_SEEN = 13  # rows, the row itself and those before it
_GROUP_EPS = 1e-3  # of the norms after convolutions
_FINER = 1024.0  # the root of numbers below 1e-6 is none: they are this much larger, squared


@encoder("gemma3na")
def gemma3na(b: AudioBuilder) -> None:
    """Rows are places of time and frequency and moments, in which all frequencies are side by side,
    in turns. Features are of every fourth row, and of rows of the encoder's own table of tokens.
    """
    b.eps = EPS
    b.keys.number("attention.layer_norm_epsilon", default=EPS)
    p, x, channels, high = b, b.features(0, _SIDE**2), 1, b.mels
    for number in (0, 1):
        name = f"a.conv1d.{number}"
        rows = p.shape(name + ".weight", 4)[0]
        p.mark_embedding(p.convolved(x, name, rows, channels, _SIDE, _SIDE, bias=False))
        channels, high = rows, (high + 1) // 2
        p, (joined,) = p.projector(high)
        x = p.activate(_normed(p, name + ".norm", joined, channels), "relu")
        if not number:
            p.mark_embedding(x)
            p, (x,) = p.projector(_SIDE**2, by_channel=True, split=high)
    p.causal, p.most = True, ROWS
    turn = p.features(joined.width + 2, PERIOD + 1)
    x = p.linear(x, "a.pre_encode.out", p.hidden)
    for layer in p.blocks():
        x = x + network(p, layer, x, "")
        x = x + layer.norm(_attention(p, layer, layer.norm(x, "ln1"), turn), "ln2")
        x = x + convolution(p, layer, x, p.shape(layer.name("conv_dw.weight"), 3))
        x = x + network(p, layer, x, "_1")
        x = layer.norm(x, "layer_pre_norm")
    p.mark_embedding(p.norm(x, "mm.a.soft_emb_norm"))
    q, (y,) = p.projector(1)
    width = q.shape("mm.a.input_projection.weight", 2)[0]
    q.mark_embedding(q.norm(q.linear(y, "mm.a.input_projection", width), None))
    # for the processor: what fills a window and what ends a clip are tokens of the encoder
    q.array("mm.a.embedding.weight", q.shape("mm.a.embedding.weight", 2)[0], q.hidden)
    q.vector("mm.a.hard_emb_norm.weight", q.hidden)


def _normed(p: AudioBuilder, name: str, x: Value, channels: int) -> Value:
    """x less its mean over all moments until now, by the deviation of these numbers, where each
    moment's count from the mean until then. The batch brings a column of ones, with which a scan
    sums up, and one of the share that a moment has in such a mean.
    """
    one, share = (p.features(x.width + at, 1) for at in (0, 1))

    def until_now(of_each: Value) -> Value:
        return p.scan(of_each, one, one, share, a=np.zeros((1, 1), np.float32), d=None)

    own = p.measure(x, "sum") * (1 / x.width)
    mean = until_now(own) * -1.0
    away, spread = own + mean, p.measure(x, "deviation")
    variance = until_now(spread * spread + away * away)
    # 1 / sqrt(variance + _GROUP_EPS) is the first of two numbers whose mean square that is
    root = p.activate(variance * (2 * _FINER**2), "signed_root") * (1 / _FINER)
    first = (2 * _GROUP_EPS) ** 0.5
    by = p.norm(p.concat(one * first, root), None, eps=0.0).columns(0, 1) * (1 / first)
    y = p.head_scale(x + p.repeat(mean, x.width), by, heads=1)
    return y * np.tile(p.vector(name + ".weight", channels), x.width // channels)


def _attention(p: AudioBuilder, layer: Layer, x: Value, turn: Value) -> Value:
    heads, width = heads_of(p, layer), p.hidden
    q, k, v = (layer.linear(x, f"attn_{name}", width) for name in "qkv")
    each = _softplus(layer.array("per_dim_scale", heads.key_dim))
    q = q * np.tile(each * np.float32(QUERIES * heads.key_dim**-0.5), heads.query)
    weight = layer.array("linear_pos.weight", width, width)
    return layer.linear(near(p, q, k, v, turn, weight, heads, _SEEN), "attn_out", width)


def _softplus(x: np.ndarray) -> np.ndarray:
    """ln(1 + exp(x)), float32, with the same bits on every machine."""
    with digits(30):
        numbers = [Decimal(each) for each in x.tolist()]
        made = [each.max(0) + (1 + (-abs(each)).exp()).ln() for each in numbers]
    return np.array(made, np.float64).astype(np.float32)
