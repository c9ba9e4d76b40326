"""The encoder of Whisper (Radford et al. 2023, section 2.2) under the projectors of Qwen2-Audio,
Qwen2.5-Omni, Ultravox, Voxtral, GLM-ASR, Audio Flamingo 3 and MERaLiON 2: two convolutions over
time, of which the second leaves every other row, and a transformer with the exact GELU.
"""

import numpy as np

from oxillama.model.audio_builder import AudioBuilder, encoder
from oxillama.model.builder import Value
from oxillama.model.rope import Rope

_ACT = "gelu_erf"
_KERNEL = 3  # frames of both convolutions


def _whisper(
    b: AudioBuilder, *, spans: bool = False, rope: Rope | None = None
) -> tuple[AudioBuilder, Value]:
    """The builder of the transformer's tape, and what its last layer leaves. spans: rows see those
    of their window alone; rope: a rotation of adjacent pairs in place of learned positions.
    """
    b.mark_embedding(b.activate(b.convolved(b.features(0, _KERNEL * b.mels), *_conv(b, 1)), _ACT))
    p, (joined,) = b.projector(_KERNEL, by_channel=True)
    x = p.activate(p.convolved(joined, *_conv(p, 2)), _ACT)
    if rope is None:
        x = x + p.positions(joined.width)
    p.most = p.shape("a.position_embd.weight", 2)[0]
    for layer in p.blocks():
        x = p.block(layer, x, kind="layer", act=_ACT, spans=spans, rope=rope, style="norm")
    return p, x


def _conv(b: AudioBuilder, number: int) -> tuple[str, int, int, int]:
    """(name, rows, channels, frames) of a convolution."""
    return f"a.conv1d.{number}", b.hidden, b.mels if number == 1 else b.hidden, _KERNEL


def _halved(b: AudioBuilder, *, spans: bool = False) -> tuple[AudioBuilder, Value]:
    """The builder of the projector's tape, and the norm of the mean of two rows."""
    p, x = _whisper(b, spans=spans)
    p.mark_embedding(x)
    q, (pair,) = p.projector(2)
    return q, q.norm(q.mean(pair, 2), "a.post_ln", kind="layer")


def _pooled(b: AudioBuilder, *, spans: bool) -> None:
    """The mean of two rows, a norm, one product."""
    q, y = _halved(b, spans=spans)
    q.mark_embedding(q.linear(y, "mm.a.fc", q.shape("mm.a.fc.weight", 2)[0]))


@encoder("qwen2a")
def qwen2a(b: AudioBuilder) -> None:
    """Qwen2-Audio (Chu et al. 2024, section 2)."""
    _pooled(b, spans=False)


@encoder("qwen2.5o")
def qwen25o(b: AudioBuilder) -> None:
    """Qwen2.5-Omni (Xu et al. 2025, section 2.2): attention within windows of two seconds."""
    _pooled(b, spans=True)


@encoder("ultravox")
def ultravox(b: AudioBuilder) -> None:
    """Ultravox from 0.5 on (Fixie 2025, published code): rows side by side, norms before both
    products, and a gate, which is the second half, between them.
    """
    p, x = _whisper(b)
    p.mark_embedding(p.norm(x, "a.post_ln", kind="layer"))
    q, (y,) = p.projector(p.side_by_side)
    # 1e-6 is the epsilon of the published code
    y = q.norm(y, "mm.a.norm_pre", eps=1e-6)
    width = q.shape("mm.a.mlp.1.weight", 2)[0]
    if width % 2:
        q.fail("mm.a.mlp.1.weight", width, "an even number of rows")
    y = q.linear(y, "mm.a.mlp.1", width)
    y = q.gate(y.columns(width // 2, width), y.columns(0, width // 2), act="silu")
    y = q.norm(y, "mm.a.norm_mid", eps=1e-6)
    q.mark_embedding(q.linear(y, "mm.a.mlp.2", q.shape("mm.a.mlp.2.weight", 2)[0]))


@encoder("voxtral")
def voxtral(b: AudioBuilder) -> None:
    """Voxtral (Liu et al. 2025, section 2.2): rows side by side, two products."""
    p, x = _whisper(b)
    p.mark_embedding(p.norm(x, "a.post_ln", kind="layer"))
    q, (y,) = p.projector(p.side_by_side)
    q.mark_embedding(q.two_layers(y, "mm.a.mlp.1", "mm.a.mlp.2"))


@encoder("glma")
def glma(b: AudioBuilder) -> None:
    """GLM-ASR (Z.ai 2025, published code): half of each head is rotated, which stands in place of
    the learned positions that files have, too; a norm, rows side by side, two products. What files
    have for the ends of a clip is that of two tokens, which the published code takes.
    """
    heads = b.keys.integer("attention.head_count", minimum=1)
    if b.hidden % (4 * heads):
        b.fail("clip.audio.attention.head_count", heads, f"a divisor of {b.hidden} by four")
    dims = b.hidden // heads // 2
    rope = Rope(dims, (10000.0 ** (-np.arange(0, dims, 2) / dims)).astype(np.float32), 1.0)
    p, x = _whisper(b, rope=rope)
    p.mark_embedding(p.norm(x, "mm.a.norm_pre", kind="layer"))
    q, (y,) = p.projector(p.side_by_side)
    q.mark_embedding(q.two_layers(y, "mm.a.mlp.1", "mm.a.mlp.2"))
    b.used |= {"v.boi", "v.eoi"}


@encoder("musicflamingo")
def musicflamingo(b: AudioBuilder) -> None:
    """Audio Flamingo 3 (Goel et al. 2025, section 3.1): the mean of two rows, a norm, two
    products.
    """
    q, y = _halved(b)
    q.mark_embedding(q.two_layers(y, "mm.a.mlp.1", "mm.a.mlp.2"))


@encoder("meralion")
def meralion(b: AudioBuilder) -> None:
    """MERaLiON 2 (I2R 2025, published code): a norm of each row, rows side by side, a product, and
    a network with a gate.
    """
    p, x = _whisper(b)
    x = p.norm(x, "a.post_ln", kind="layer")
    p.mark_embedding(p.norm(x, "mm.a.norm_pre", kind="layer"))
    q, (y,) = p.projector(p.side_by_side)
    width, inner = (q.shape(f"mm.a.mlp.{at}.weight", 2)[0] for at in (0, 1))
    y = q.activate(q.linear(y, "mm.a.mlp.0", width), "silu")
    gate, up = (q.linear(y, f"mm.a.mlp.{at}", inner) for at in (1, 2))
    y = q.gate(gate, up, act="silu")
    q.mark_embedding(q.linear(y, "mm.a.mlp.3", q.shape("mm.a.mlp.3.weight", 2)[0]))
