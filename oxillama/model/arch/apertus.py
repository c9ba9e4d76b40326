"""Apertus (Swiss AI Initiative 2025, technical report): Llama with half-split rope, a norm over
heads of queries and keys, and xIELU (Huang and Schlag 2025) in place of a gate.
"""

import math

from oxillama.errors import ModelError
from oxillama.model.blocks import attention
from oxillama.model.builder import Builder, Layer, Value, architecture


@architecture("apertus")
def apertus(b: Builder) -> Value:
    """The parameters of xIELU are keys without the architecture's name."""
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        x = x + attention(b, layer, y, style="neox", qk_norm="heads")
        width = layer.integer("feed_forward_length", minimum=1, maximum=1 << 24)
        y = layer.linear(layer.norm(x, "ffn_norm"), "ffn_up", width)
        x = x + layer.linear(_xielu(b, layer, y), "ffn_down", b.hidden)
    return b.logits(x)


def _xielu(b: Builder, layer: Layer, x: Value) -> Value:
    """beta x, plus p x^2 above 0 or n (exp(x) - 1 - x) below, where p = softplus(alpha_p) and n =
    beta + softplus(alpha_n) (section 3).
    """
    alpha_n, alpha_p, beta, eps = (
        _number(b, layer, f"xielu.{name}") for name in ("alpha_n", "alpha_p", "beta", "eps")
    )
    # keeps a rounded exp(x) - 1 away from 0, which is exact here
    if abs(eps) > 1e-5:
        raise ModelError(f"xielu.eps: found {eps:g}, wanted at most 1e-5 from 0")
    above = b.activate(x, "relu2") * math.log1p(math.exp(alpha_p))
    below = b.activate(x, "exp_excess") * (beta + math.log1p(math.exp(alpha_n)))
    return above + below + x * beta


def _number(b: Builder, layer: Layer, key: str) -> float:
    """A number of all layers, or of each."""
    keys = b.keys.root
    if isinstance(keys.metadata.get(key), (int, float)):
        return keys.number(key, minimum=-50.0, maximum=50.0)
    return keys.numbers(key, count=b.n_layers, minimum=-50.0, maximum=50.0)[layer.index]
