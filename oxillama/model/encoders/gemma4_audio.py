"""The audio encoder of Gemma 4 (Google 2026, published code, modeling_gemma4.py): two convolutions
over time and frequency, and layers of a Conformer (Gulati et al. 2020, section 2), whose rows see
themselves and eleven rows before them.
"""

from decimal import Decimal
from functools import cache

import numpy as np

from oxillama.decimals import digits
from oxillama.model.attention import Heads
from oxillama.model.audio_builder import AudioBuilder, encoder
from oxillama.model.blocks import heads_of
from oxillama.model.builder import Layer, Value
from oxillama.model.encoders.gemma4 import limited
from oxillama.model.waves import heights, multiples, sine_and_cosine

_SIDE = 3  # of the kernels
EPS = 1e-6  # of the published models; llama.cpp's converter wrote other numbers
_SEEN = 12  # rows, the row itself and those before it
# rows of a period of the waves that a score by distance is made of, at least those seen
PERIOD = 15
_CAP = 50.0  # of scores
_BASE = 10000  # of the wavelengths of positions
# 1 / ln(2), and ln(1 + e) / ln(2), which the softplus of a scale is divided and multiplied by
QUERIES, _KEYS = 1.4426950408889634, 1.8946361239720116
ROWS = 750  # of a window of 30 seconds, the most that the published models take


@encoder("gemma4a")
def gemma4a(b: AudioBuilder) -> None:
    """Rows are places of time and frequency, then moments, in which all frequencies are side by
    side.
    """
    b.eps = EPS
    b.keys.number("attention.layer_norm_epsilon", default=EPS)
    p, x, channels, high = b, b.features(0, _SIDE**2), 1, b.mels
    for number in (0, 1):
        name = f"a.conv1d.{number}"
        rows = p.shape(name + ".weight", 4)[0]
        x = p.convolved(x, name, rows, channels, _SIDE, _SIDE, bias=False)
        x = p.activate(p.norm(x, name + ".norm", kind="layer"), "relu")
        channels, high = rows, (high + 1) // 2
        p.mark_embedding(x)
        p, (x,) = p.projector(high if number else _SIDE**2, by_channel=not number)
    p.causal, p.most = True, ROWS
    turn = p.features(x.width, PERIOD + 1)
    x = p.linear(x, "a.input_projection", p.hidden)
    for layer in p.blocks():
        x = x + network(p, layer, x, "")
        y = _attention(p, layer, layer.norm(x, "attn_pre_norm"), turn)
        x = x + layer.norm(y, "attn_post_norm")
        x = x + convolution(p, layer, x, p.shape(layer.name("conv_dw.weight"), 2))
        x = x + network(p, layer, x, "_1")
        x = layer.norm(x, "ln2")
    x = p.linear(x, "a.pre_encode.out", p.shape("a.pre_encode.out.weight", 2)[0])
    p.mark_embedding(x)
    q, (y,) = p.projector(1)
    width = q.shape("mm.a.input_projection.weight", 2)[0]
    q.mark_embedding(q.linear(q.norm(y, None), "mm.a.input_projection", width))


def network(p: AudioBuilder, layer: Layer, x: Value, end: str) -> Value:
    """Half of what a feed-forward network makes of x."""
    y, width = layer.norm(x, "ffn_norm" + end), p.shape(layer.name(f"ffn_up{end}.weight"), 2)[0]
    y = p.activate(limited(layer, y, "ffn_up" + end, width), "silu")
    y = limited(layer, y, "ffn_down" + end, p.hidden)
    return layer.norm(y, "ffn_post_norm" + end) * 0.5


def convolution(p: AudioBuilder, layer: Layer, x: Value, shape: tuple[int, ...]) -> Value:
    """A gate, a causal convolution of each channel, whose taps have this shape in the file, a norm
    and a product. llama.cpp's converter has the names of both norms the other way round.
    """
    width = p.hidden
    y = limited(layer, layer.norm(x, "conv_norm"), "conv_pw1", 2 * width)
    y = p.gate(y.columns(width, 2 * width), y.columns(0, width), act="sigmoid")
    weight = layer.array("conv_dw.weight", width, *shape[1:])
    y = p.conv(y, weight.reshape(width, -1))
    return limited(layer, p.activate(layer.norm(y, "norm_conv"), "silu"), "conv_pw2", width)


def _attention(p: AudioBuilder, layer: Layer, x: Value, turn: Value) -> Value:
    heads, width = heads_of(p, layer), p.hidden
    q, k, v = (limited(layer, x, f"attn_{name}", width) for name in "qkv")
    each = layer.vector("per_dim_scale.weight", heads.key_dim)
    q = q * np.tile(each * np.float32(QUERIES * heads.key_dim**-0.5), heads.query)
    y = near(p, q, k, v, turn, layer.array("attn_k_rel.weight", width, width), heads, _SEEN, _KEYS)
    return limited(layer, y, "attn_out", width)


def near(
    p: AudioBuilder,
    q: Value,
    k: Value,
    v: Value,
    turn: Value,
    weight: np.ndarray,
    heads: Heads,
    seen: int,
    scale: float = 1.0,
) -> Value:
    """Attention to the last `seen` rows. A score is q . (scale k + r), where r, the product of
    `weight` and a position, belongs to the distance (Dai et al. 2019, Transformer-XL, section 3.3).
    q . r is a sum of waves over distances, whose heights are products of q: further columns of
    queries, rotated by `turn`, and of keys, which are `turn` itself.
    """
    made = [
        p.measure(q * vector, "sum", heads=heads.query)
        for vector in heights(_by_distance(weight, seen), 0, PERIOD)
    ]
    q = p.concat(q, *made, heads=heads.query)
    return p.attend_turned(q, k * scale, v, turn, heads=heads, scale=1.0, window=seen, softcap=_CAP)


def _by_distance(weight: np.ndarray, seen: int) -> np.ndarray:
    """float64 (seen, rows): what queries are multiplied by for the score of each distance, the
    product of `weight`, float32 (rows, columns), and a position. Sums are in a fixed order.
    """
    made = np.zeros((seen, len(weight)))
    for column, each in zip(weight.T.astype(np.float64), _positions(weight.shape[1], seen)):
        made += each[:, None] * column
    return made


@cache
def _positions(width: int, seen: int) -> np.ndarray:
    """float64 (width, seen): each number of the positions of 0 to seen - 1, sines and then cosines
    of rising wavelengths.
    """
    half = width // 2
    with digits(30):
        step = Decimal(_BASE).ln() / max(half - 1, 1)
        numbers = [multiples(*sine_and_cosine((-step * k).exp()), seen) for k in range(half)]
    held = np.array(numbers, np.float64)  # (half, distance, sine and cosine)
    return np.concatenate([held[..., 0], held[..., 1]])
