"""The audio encoder of Qwen3-ASR (Qwen 2026) and Qwen3-Omni (Xu et al. 2025, section 2.2): three
convolutions over frequency and time, of which each leaves every other place, and a transformer with
the exact GELU. That of dots3-note has the same convolutions.
"""

import numpy as np

from oxillama.model.audio_builder import AudioBuilder, encoder
from oxillama.model.builder import Value
from oxillama.model.rope import Rope

_ACT = "gelu_erf"
_SIDE = 3  # of the kernels
# rows that see one another in the published models: eight parts of thirteen
WINDOW = 104
MINUTE = 750  # rows of a window of dots3-note


def convolved(b: AudioBuilder) -> tuple[AudioBuilder, Value]:
    """The builder of the tape of the transformer, and its rows: moments, in which all frequencies
    are side by side. Rows of the first tape are places of frequency and time.
    """
    p, x, channels, high = b, b.features(0, _SIDE**2), 1, b.mels
    for number in (1, 2, 3):
        name = f"a.conv2d.{number}"
        rows = p.shape(name + ".weight", 4)[0]
        x = p.activate(p.convolved(x, name, rows, channels, _SIDE, _SIDE), _ACT)
        channels, high = rows, (high + 1) // 2
        p.mark_embedding(x)
        p, (x,) = p.projector(_SIDE**2 if number < 3 else high, by_channel=True)
    return p, x


@encoder("qwen3a")
def qwen3a(b: AudioBuilder) -> None:
    """Moments are tenths of a second of parts of a second."""
    p, x = convolved(b)
    p.most = WINDOW
    x = p.linear(x, "a.conv_out", p.hidden) + p.positions(x.width)
    for layer in p.blocks():
        x = p.block(layer, x, kind="layer", act=_ACT)
    p.mark_embedding(p.norm(x, "a.post_ln", kind="layer"))
    q, (y,) = p.projector(1)
    q.mark_embedding(q.two_layers(y, "mm.a.mlp.1", "mm.a.mlp.2"))


@encoder("dots3note_a")
def dots3note_a(b: AudioBuilder) -> None:
    """dots3-note (rednote hilab 2026, by its code in transformers, `models/dots3_note`): norms of
    mean squares, a gate, and a rotation of half of each head.
    """
    p, x = convolved(b)
    p.most = MINUTE
    heads = p.keys.integer("attention.head_count", minimum=1)
    if p.hidden % (4 * heads):
        p.fail("clip.audio.attention.head_count", heads, f"a divisor of {p.hidden} by four")
    dims = p.hidden // heads // 2
    rope = Rope(dims, (10000.0 ** (-np.arange(0, dims, 2) / dims)).astype(np.float32), 1.0)
    x = p.linear(x, "a.conv_out", p.hidden)
    for layer in p.blocks():
        x = p.block(layer, x, kind="rms", act="silu", rope=rope, style="neox")
    x = p.norm(x, "a.post_ln")
    # 1e-5 is the epsilon of the published code
    p.mark_embedding(p.norm(x, "mm.a.norm_pre", kind="layer", eps=1e-5))
    q, (y,) = p.projector(1)
    q.mark_embedding(q.two_layers(y, "mm.a.mlp.1", "mm.a.mlp.3"))
