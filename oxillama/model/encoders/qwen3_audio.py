"""The audio encoder of Qwen3-ASR (Qwen 2026) and Qwen3-Omni (Xu et al. 2025, section 2.2): three
convolutions over frequency and time, of which each leaves every other place, and a transformer with
the exact GELU.
"""

from oxillama.model.audio_builder import AudioBuilder, encoder

_ACT = "gelu_erf"
_SIDE = 3  # of the kernels
# rows that see one another in the published models: eight parts of thirteen
WINDOW = 104


@encoder("qwen3a")
def qwen3a(b: AudioBuilder) -> None:
    """Rows are places of a part of a second, then the parts' tenths of a second, in which all
    frequencies are side by side.
    """
    p, x, channels, high = b, b.features(0, _SIDE**2), 1, b.mels
    for number in (1, 2, 3):
        name = f"a.conv2d.{number}"
        rows = p.shape(name + ".weight", 4)[0]
        x = p.activate(p.convolved(x, name, rows, channels, _SIDE, _SIDE), _ACT)
        channels, high = rows, (high + 1) // 2
        p.mark_embedding(x)
        p, (x,) = p.projector(_SIDE**2 if number < 3 else high, by_channel=True)
    p.most = WINDOW
    x = p.linear(x, "a.conv_out", p.hidden) + p.positions(x.width)
    for layer in p.blocks():
        x = p.block(layer, x, kind="layer", act=_ACT)
    p.mark_embedding(p.norm(x, "a.post_ln", kind="layer"))
    q, (y,) = p.projector(1)
    q.mark_embedding(q.two_layers(y, "mm.a.mlp.1", "mm.a.mlp.2"))
