"""Mamba (Gu and Dao 2023) and Mamba 2 (Dao and Gu 2024): no attention, the past of a layer is a state of
fixed size.
"""

import numpy as np

from oxillama.model.blocks import fused, selective_state_space
from oxillama.model.builder import Builder, Layer, Value, architecture


@architecture("mamba")
def mamba(b: Builder) -> Value:
    """A norm and a mixer a layer; `attention.head_count` and `feed_forward_length` are 0."""
    check_zero(b)
    x = b.embed()
    for layer in b.layers():
        x = x + selective_state_space(b, layer, layer.norm(x, "attn_norm"))
    return b.logits(x)


@architecture("mamba2")
def mamba2(b: Builder) -> Value:
    """The same with a decay of one number a head."""
    check_zero(b)
    x = b.embed()
    for layer in b.layers():
        x = x + _mixer(b, layer, layer.norm(x, "attn_norm"))
    return b.logits(x)


def check_zero(b: Builder) -> None:
    """Refuse a file that says it has what these models lack."""
    for key in ("attention.head_count", "feed_forward_length"):
        b.keys.integer(key, default=0, maximum=0)


def _mixer(b: Builder, layer: Layer, x: Value) -> Value:
    """The mixer of Mamba 2 (section 7): x, B and C go through the convolution; a gated norm over each
    group comes before the output projection.
    """
    keys = b.keys
    inner = keys.integer("ssm.inner_size", minimum=1, maximum=1 << 20)
    heads = keys.integer("ssm.time_step_rank", minimum=1, maximum=1 << 16)
    groups = keys.integer("ssm.group_count", minimum=1, maximum=heads)
    states = groups * keys.integer("ssm.state_size", minimum=1, maximum=1 << 12)
    taps = keys.integer("ssm.conv_kernel", minimum=2, maximum=64)
    z, x, b_in, c_out, dt = fused(layer, x, "ssm_in", (inner, inner, states, states, heads))
    taken = []
    width = inner + 2 * states
    weight, bias = (
        layer.array("ssm_conv1d.weight", width, taps),
        layer.vector("ssm_conv1d.bias", width),
    )
    at = 0
    for part in (x, b_in, c_out):
        rows = slice(at, at + part.width)
        taken.append(b.conv(part, weight[rows], np.ascontiguousarray(bias[rows]), act="silu"))
        at += part.width
    dt = b.activate(dt + layer.vector("ssm_dt.bias", heads), "softplus")
    y = b.scan(
        *(taken[0], dt, *taken[1:]),
        a=layer.array("ssm_a", heads, 1),
        d=layer.array("ssm_d", heads, 1).reshape(-1),
        groups=groups,
    )
    y = layer.norm(b.gate(z, y, act="silu"), "ssm_norm", heads=groups)
    return layer.linear(y, "ssm_out", b.hidden)
