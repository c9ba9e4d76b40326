"""The encoder of Gemma 4 (Google 2026, published code, modeling_gemma4.py): images of any size,
norms around each branch, products within limits that the file says.
"""

import numpy as np

from oxillama.errors import ModelError
from oxillama.model.blocks import heads_of
from oxillama.model.builder import Layer, Value
from oxillama.model.image_builder import ImageBuilder, encoder
from oxillama.model.rope import Rope

_MOST = 3.4e38  # what an infinite limit becomes: the largest of the op
_ENDS = (("min", -np.inf), ("max", np.inf))  # of a limit, and what a file without it means


@encoder("gemma4v")
def gemma4v(b: ImageBuilder) -> None:
    """The published models' GELU and their squares of 3 x 3 patches, which a file need not say.
    Colours run from -1 to 1. A patch has a learned vector for its column and one for its row,
    whose sum the batch brings; the mean of a square of patches becomes a feature.
    """
    if b.root.flag("use_silu", default=False):
        b.fail("clip.use_silu", True, "False: gemma4v has the tanh GELU")
    colours = b.features(0, b.columns) * 2.0 + np.full(b.columns, -1.0, np.float32)
    x = b.convolved(colours, "v.patch_embd", b.hidden, 3, b.patch)
    table, places = "v.position_embd.weight", b.shape("v.position_embd.weight", 3)
    if (places[0], places[2]) != (2, b.hidden):
        raise ModelError(f"{table}: file has {places}, gemma4v needs (2, any, {b.hidden})")
    x = x + b.features(b.columns, b.hidden)
    rope = b.axial_rope(base=100.0, column_first=True)
    for layer in b.blocks():
        y = _attention(b, layer, layer.norm(x, "ln1"), rope)
        x = x + layer.norm(y, "attn_post_norm")
        y = layer.norm(x, "ln2")
        width = b.shape(layer.name("ffn_up.weight"), 2)[0]
        gate, up = (limited(layer, y, name, width) for name in ("ffn_gate", "ffn_up"))
        y = limited(layer, b.gate(gate, up, act="gelu_tanh"), "ffn_down", b.hidden)
        x = x + layer.norm(y, "ffn_post_norm")
    b.mark_embedding(x)
    scale = b.keys.integer("projector.scale_factor", default=3, minimum=1, maximum=16)
    p, (y,) = b.projector(scale * scale)
    y = p.mean(y, scale * scale) * b.hidden**0.5
    if p.has("v.std_bias"):
        y = (y + -p.vector("v.std_bias", b.hidden)) * p.vector("v.std_scale", b.hidden)
    width = p.shape("mm.input_projection.weight", 2)[0]
    p.mark_embedding(p.linear(p.norm(y, None), "mm.input_projection", width))


def _attention(b: ImageBuilder, layer: Layer, x: Value, rope: Rope) -> Value:
    """Scores are not scaled, and values have a norm without a weight. Each half of a head is
    rotated by halves: the second and the third quarter change places, after which the whole is.
    """
    heads = heads_of(b, layer)
    part = heads.key_dim // 4

    def placed(y: Value) -> Value:
        quarters = [y.columns(i * part, (i + 1) * part, heads=heads.query) for i in (0, 2, 1, 3)]
        return b.concat(*quarters, heads=heads.query)

    def weight(name: str) -> np.ndarray:
        held = layer.vector(name, heads.key_dim)
        return np.ascontiguousarray(held.reshape(4, part)[[0, 2, 1, 3]]).reshape(-1)

    q, k, v = (limited(layer, x, f"attn_{name}", b.hidden) for name in "qkv")
    y = b.attend(
        placed(q),
        placed(k),
        b.norm(v, None, heads=heads.kv),
        heads=heads,
        rope=rope,
        style="neox",
        scale=1.0,
        q_norm=weight("attn_q_norm.weight"),
        k_norm=weight("attn_k_norm.weight"),
        eps=b.epsilon(),
    )
    return limited(layer, y, "attn_out", b.hidden)


def limited(layer: Layer, x: Value, name: str, rows: int) -> Value:
    """A product whose rows and results are kept within the limits of the file, where it has any."""

    def limit(tensor: str, default: float) -> float:
        held = layer.optional_vector(tensor, 1)
        return default if held is None else float(held[0])

    def within(y: Value, side: str) -> Value:
        low, high = (limit(f"{name}.{side}_{end}", most) for end, most in _ENDS)
        if not low <= high:
            start = layer.name(f"{name}.{side}")
            raise ModelError(f"{start}_min: found {low}, wanted at most {high}, {start}_max")
        if (low, high) == (-np.inf, np.inf):
            return y
        return layer.builder.clamp(y, *np.clip([low, high], -_MOST, _MOST))

    return within(layer.linear(within(x, "input"), name, rows), "output")
