"""The encoder of Whisper (Radford et al. 2023, section 2.2) under the projectors of Qwen2-Audio,
Qwen2.5-Omni, Ultravox and Voxtral: two convolutions over time, of which the second leaves every
other row, and a transformer with the exact GELU.
"""

from oxillama.model.audio_builder import AudioBuilder, encoder
from oxillama.model.builder import Value

_ACT = "gelu_erf"
_KERNEL = 3  # frames of both convolutions


def _whisper(b: AudioBuilder, *, spans: bool = False) -> tuple[AudioBuilder, Value]:
    """The builder of the transformer's tape, and what its last layer leaves. spans: rows see those
    of their window alone.
    """
    b.mark_embedding(b.activate(b.convolved(b.features(0, _KERNEL * b.mels), *_conv(b, 1)), _ACT))
    p, (joined,) = b.projector(_KERNEL, by_channel=True)
    x = p.activate(p.convolved(joined, *_conv(p, 2)), _ACT)
    x = x + p.positions(joined.width)
    p.most = p.shape("a.position_embd.weight", 2)[0]
    for layer in p.blocks():
        x = p.block(layer, x, kind="layer", act=_ACT, spans=spans)
    return p, x


def _conv(b: AudioBuilder, number: int) -> tuple[str, int, int, int]:
    """(name, rows, channels, frames) of a convolution."""
    return f"a.conv1d.{number}", b.hidden, b.mels if number == 1 else b.hidden, _KERNEL


def _pooled(b: AudioBuilder, *, spans: bool) -> None:
    """The mean of two rows, a norm, one product."""
    p, x = _whisper(b, spans=spans)
    p.mark_embedding(x)
    q, (pair,) = p.projector(2)
    y = q.norm(q.mean(pair, 2), "a.post_ln", kind="layer")
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
