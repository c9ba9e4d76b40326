"""The encoders of dots.ocr (Li et al. 2025, "dots.ocr"; published code, modeling_dots_vision.py)
and dots3-note (rednote hilab 2026, by its code in transformers, `models/dots3_note`): images of any
size, RMS norms, gates, a norm of patches.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from oxillama.model.builder import Layer, Value
from oxillama.model.image_builder import ImageBuilder, encoder


@encoder("dots_ocr", sized=False)
def dots_ocr(b: ImageBuilder) -> None:
    """A LayerNorm of each patch, then squares of them side by side through two layers."""
    _dots(b, b.keys.integer("projector.scale_factor", minimum=1, maximum=16))


@encoder("dots3note_v", sized=False)
def dots3note(b: ImageBuilder) -> None:
    """The same with norms of queries and keys, and experts in as many layers as the file says. The
    score of an expert is a sigmoid, and those of the chosen ones are divided by their sum.
    """
    counts = b.keys.integers("expert_count_per_layer", count=b.n_layers, maximum=1 << 12)
    used = b.keys.integer("expert_used_count", minimum=1, maximum=1 << 12)

    def network(layer: Layer, x: Value) -> Value:
        count = counts[layer.index]
        scores = layer.linear(x, "ffn_gate_inp", count)
        bias = layer.optional_vector("exp_probs_b.weight", count)
        chosen = min(used, count)
        routes = b.route(scores, used=chosen, gating="sigmoid", bias=bias, normalise=True)
        width = b.shape(layer.name("ffn_gate_exps.weight"), 3)[1]
        gate, up = (
            layer.experts(x, routes, f"ffn_{name}_exps", width, count=count)
            for name in ("gate", "up")
        )
        y = b.gate(gate, up, act=b.activation())
        return b.combine(layer.experts(y, routes, "ffn_down_exps", b.hidden, count=count), routes)

    _dots(b, b.merge, {layer: network for layer in range(b.n_layers) if counts[layer]})


def _dots(
    b: ImageBuilder,
    merge: int,
    networks: Mapping[int, Callable[[Layer, Value], Value]] = MappingProxyType({}),
) -> None:
    """networks: of layers that have another one than a gated network."""
    x, rope = b.norm(b.patches(), "v.pre_ln"), b.axial_rope()
    for layer in b.blocks():
        network = networks.get(layer.index)
        x = b.block(layer, x, kind="rms", act=b.activation(), rope=rope, network=network)
    x = b.norm(x, "mm.post_norm")  # of the encoder's last layer, in spite of its name
    # 1e-6 is that of the published code; the file has that of the encoder
    b.mark_embedding(b.norm(x, "mm.input_norm", kind="layer", eps=1e-6))
    p, (y,) = b.projector(merge * merge)
    p.mark_embedding(p.two_layers(y, "mm.0", "mm.2"))
