"""Layers of a Conformer (Gulati et al. 2020, section 2) whose convolutions see rows on both sides,
and the encoders of LFM2-Audio (Liquid AI 2025, published code, liquid-audio) and Nemotron Nano VL
(NVIDIA 2026, by `nemotron_h_omni` in transformers): a Fast Conformer (Rekesh et al. 2023), of which
an eighth of the frames is left and a row sees all others.
"""

from collections.abc import Callable

import numpy as np

from oxillama.model.audio_builder import AudioBuilder, encoder
from oxillama.model.blocks import heads_of
from oxillama.model.builder import Layer, Value
from oxillama.model.tensors import Given

ROWS = 3000  # four minutes, which are encoded at once; a file says no limit
_SIDE = 3  # of the kernels
_BATCH_EPS = 1e-5  # of a norm over a batch


def layers(
    p: AudioBuilder,
    x: Value,
    *,
    at: int,
    waves: int,
    rows: int,
    taps: int,
    attention: Callable[[AudioBuilder, Layer, Value, Value, Value], Value],
    axes: tuple[int, ...] = (),
    after: Callable[[AudioBuilder, Layer, Value], Value] = lambda p, layer, x: x,
) -> tuple[AudioBuilder, Value]:
    """The builder of the last tape, and what the last layer leaves of at most so many rows.

    A convolution over `taps` rows is causal, in the tape of its layer, over further rows at the
    end; the tape after that takes what it leaves a few rows later. The batch brings, from column
    `at` on, whether a row is none of those, and `waves` floats for `attention` to turn queries by.
    axes: those of length 1 before the others of a convolution's weights.
    """
    more = (taps - 1) // 2
    mask, turn = p.features(at, 1), p.features(at + 1, waves)
    p.most = rows + more
    for layer in p.blocks():
        layer = Layer(p, layer.index, layer.prefix)
        x = x + _network(p, layer, x, "")
        x = x + attention(p, layer, layer.norm(x, "ln1", kind="layer"), mask, turn)
        y = layer.norm(x, "norm_conv", kind="layer")
        wide = p.shape(layer.name("conv_pw1.weight"), 2)[0]
        if wide % 2:
            p.fail(layer.name("conv_pw1.weight"), wide, "an even number of rows")
        y, inner = _place(p, layer, y, "conv_pw1", wide), wide // 2
        y = p.gate(y.columns(inner, wide), y.columns(0, inner), act="sigmoid")
        weight = layer.array("conv_dw.weight", *axes, inner, taps).reshape(inner, taps)
        bias = layer.optional_vector("conv_dw.bias", inner)
        p.mark_embedding(p.concat(p.conv(y * p.repeat(mask, inner), weight, bias), x))
        p, (pair,) = p.projector(2)
        p.most = rows + more
        layer = Layer(p, layer.index, layer.prefix)
        half = pair.width // 2
        x, y = pair.columns(inner, half), pair.columns(half, half + inner)
        if layer.index + 1 < p.n_layers:
            mask, turn = p.features(pair.width, 1), p.features(pair.width + 1, waves)
        y = p.activate(_batch_norm(layer, y), "silu")
        x = x + _place(p, layer, y, "conv_pw2", p.hidden)
        x = x + _network(p, layer, x, "_1")
        x = after(p, layer, layer.norm(x, "ln2", kind="layer"))
    return p, x


def _network(p: AudioBuilder, layer: Layer, x: Value, end: str) -> Value:
    """Half of what a feed-forward network makes of x."""
    y = layer.norm(x, "ffn_norm" + end, kind="layer")
    width = p.shape(layer.name(f"ffn_up{end}.weight"), 2)[0]
    y = p.activate(layer.linear(y, "ffn_up" + end, width), "silu")
    return layer.linear(y, "ffn_down" + end, p.hidden) * 0.5


def _place(p: AudioBuilder, layer: Layer, x: Value, name: str, rows: int) -> Value:
    """A convolution of one place."""
    name = layer.name(name)
    bias = p.channels(name, rows) if p.has(name + ".bias") else None
    weight = p.matrix(name + ".weight", rows, x.width)
    return p.record("linear", (x,), width=rows, weight=weight, bias=bias)


def _batch_norm(layer: Layer, x: Value) -> Value:
    """A norm over a batch, which most files have as a factor and a summand; some of llama.cpp's
    converters give it another name.
    """
    name = "conv_norm" if layer.has("conv_norm.weight") else "conv_norm_var"
    weight, bias = (layer.vector(f"{name}.{end}", x.width) for end in ("weight", "bias"))
    if layer.has("conv_norm_mean"):
        mean, variance = (
            layer.vector(f"conv_norm_{each}", x.width).astype(np.float64)
            for each in ("mean", "var")
        )
        factor = weight / np.sqrt(variance + _BATCH_EPS)
        weight, bias = factor.astype(np.float32), (bias - mean * factor).astype(np.float32)
    return x * weight + bias


def relative(p: AudioBuilder, layer: Layer, x: Value, mask: Value, turn: Value) -> Value:
    """Attention to all rows, and to all alike of rows that are masked. A score is (q + u) . k +
    (q + v) . r, where r, a product of sines and cosines of the distance, belongs to it (Dai et al.
    2019, Transformer-XL, section 3.3). The second part is a sum of waves over distances, whose
    heights are products of q + v: further columns of queries, rotated by `turn`, and of keys, which
    are `turn` itself.
    """
    heads, width = heads_of(p, layer), p.hidden
    dim = heads.key_dim
    q, k, v = (layer.linear(x, f"attn_{name}", width) for name in "qkv")
    name = layer.name("linear_pos.weight")
    near, far = (layer.array(f"pos_bias_{at}", heads.query, dim).reshape(-1) for at in "uv")
    table, asked, made = p.array(name, width, width), q + far, []
    for head in range(heads.query):
        own = slice(head * dim, (head + 1) * dim)
        # of cosines, and of sines turned round
        waves = np.concatenate([table[own, 1::2], -table[own, ::2]], axis=1).T
        weight = Given(f"{name}, head {head}", "F32", (width, dim), values=waves)
        part = asked.columns(own.start, own.stop)
        made.append(p.record("linear", (part,), width=width, weight=weight, bias=None))
    q = p.concat(q + near, p.concat(*made), heads=heads.query)
    q = q * p.repeat(mask, q.width)
    y = p.attend_turned(q, k, v, turn, heads=heads, scale=dim**-0.5, spans=True)
    return layer.linear(y, "attn_out", width)


def _subsampled(b: AudioBuilder) -> tuple[AudioBuilder, Value]:
    """The builder of the tape in which all frequencies of a row are side by side, and these: three
    convolutions over time and frequency, of which each leaves every other place, the latter two of
    each channel on its own.
    """
    name = "a.conv1d.0"
    channels = b.shape(name + ".weight", 4)[0]
    x = b.convolved(b.features(0, _SIDE**2), name, channels, 1, _SIDE, _SIDE)
    p, x = b, b.activate(x, "relu")
    for number in (2, 5):
        p.mark_embedding(x)
        p, (joined,) = p.projector(_SIDE**2, by_channel=True)
        name = f"a.conv1d.{number}"
        weight = p.array(name + ".weight", channels, 1, _SIDE, _SIDE).reshape(-1)
        y = p.measure(joined * weight, "sum", heads=channels) + p.channels(name, channels)
        y = p.convolved(y, f"a.conv1d.{number + 1}", channels, channels, 1, 1)
        x = p.activate(y, "relu")
    p.mark_embedding(x)
    p, (x,) = p.projector(-(-b.mels // 8), by_channel=True)
    return p, x


def _fast(b: AudioBuilder, axes: tuple[int, ...] = ()) -> tuple[AudioBuilder, Value]:
    """The builder of the last tape of a Fast Conformer, and what its last layer leaves. axes: as
    those of `layers`.
    """
    p, x = _subsampled(b)
    at, taps = x.width, p.shape("a.blk.0.conv_dw.weight", len(axes) + 2)[-1]
    if taps % 2 == 0:
        p.fail("a.blk.0.conv_dw.weight", taps, "an odd number of taps")
    if p.hidden % 2:
        p.fail("clip.audio.embedding_length", p.hidden, "an even number")
    x = p.linear(x, "a.pre_encode.out", p.hidden)
    return layers(p, x, at=at, waves=p.hidden, rows=ROWS, taps=taps, attention=relative, axes=axes)


@encoder("lfm2a")
def lfm2a(b: AudioBuilder) -> None:
    """A norm and two products. What the model speaks with, a table of its codes and what is around
    it, is in these files, too.
    """
    p, x = _fast(b)
    p.mark_embedding(p.norm(x, "mm.a.mlp.0", kind="layer"))
    q, (y,) = p.projector(1)
    q.mark_embedding(q.two_layers(y, "mm.a.mlp.1", "mm.a.mlp.3"))
    b.used |= {"a.position_embd.weight", "a.position_embd_norm.weight", "a.embd_to_logits.weight"}


@encoder("parakeet")
def parakeet(b: AudioBuilder) -> None:
    """A norm and two products with the square of what is above zero between them. The file has the
    taper and the bands of the spectrogram.
    """
    b.keys.integer("subsampling_factor", minimum=8, maximum=8)
    taps = b.keys.integer("conv_kernel_size")
    held = b.shape("a.blk.0.conv_dw.weight", 4)[3]
    if held != taps:
        b.fail("clip.audio.conv_kernel_size", taps, f"the {held} taps of the file's convolutions")
    p, x = _fast(b, (1, 1))
    # 1e-5 is the epsilon of the published code
    p.mark_embedding(p.norm(x, "mm.a.norm_pre", eps=1e-5))
    q, (y,) = p.projector(1)
    q.mark_embedding(q.two_layers(y, "mm.a.mlp.1", "mm.a.mlp.2", act="relu2"))
    b.used |= {"a.mel_filters", "a.window"}  # which the processor reads
