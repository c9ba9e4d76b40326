"""Granite 3 (IBM 2024) and MiniCPM (Hu et al. 2024, section 3.2): Llama whose embedding, residuals,
scores and logits are scaled by constants.
"""

import math
from typing import Any

from oxillama.model.blocks import (
    attention,
    expert_ffn,
    gated_ffn,
    heads_of,
    rope_dims,
    routing_of,
)
from oxillama.model.builder import Builder, Value, architecture


@architecture("granite")
def granite(b: Builder) -> Value:
    """The scales are keys; logits are divided by theirs. Granite 4 without recurrent layers and
    experts is filed here, its network as the one that all tokens share.
    """
    read_unused(b)
    width = b.keys.integer("expert_shared_feed_forward_length", default=0, maximum=1 << 24)
    return _scaled(b, embedding=1.0, residual=1.0, logits=1.0, width=width, images=True)


def read_unused(b: Builder) -> None:
    """Reads what files of Granite 4 say of layers that they may not have: the sizes of recurrent
    ones, and the rotation of those that rotate.
    """
    for name in ("conv_kernel", "group_count", "inner_size", "state_size", "time_step_rank"):
        b.keys.number(f"ssm.{name}", default=0.0)
    for name in ("freq_base", "dimension_count"):
        b.keys.number(f"rope.{name}", default=0.0)


@architecture("minicpm")
def minicpm(b: Builder) -> Value:
    """Early files lack the scales of the 2B model."""
    return _scaled(b, embedding=12.0, residual=1.4 / math.sqrt(b.n_layers), logits=b.hidden / 256)


@architecture("granite_swa")
def granite_swa(b: Builder) -> Value:
    """Windowed layers by the file's pattern; `attention.rope_pattern` says which layers rotate. In
    some files networks are experts, with a shared one.
    """
    return _scaled(b, embedding=1.0, residual=1.0, logits=1.0, windows=True, images=True)


def _scaled(
    b: Builder,
    *,
    embedding: float,
    residual: float,
    logits: float,
    width: int = 0,
    windows: bool = False,
    images: bool = False,
) -> Value:
    """The decoder with these scales where the file says none; 0 in a file says none either. width:
    of the feed-forward network, 0 for the file's. images: the file may say which features of an
    image are added before a layer (Granite Vision 4), -1 for none.
    """
    keys = b.keys
    embedding = keys.number("embedding_scale", default=embedding, minimum=0.0) or 1.0
    residual = keys.number("residual_scale", default=residual, minimum=0.0) or 1.0
    logits = keys.number("logit_scale", default=logits, minimum=0.0) or 1.0
    # here this flag says whether anything is rotated (NoPE models)
    turned = (keys.flag("rope.scaling.finetuned", default=True),) * b.n_layers
    near = (False,) * b.n_layers
    routing: dict[str, Any] = {}
    if windows:
        routing = routing_of(b, normalise=True)
        turned = keys.flags("attention.rope_pattern", count=b.n_layers, default=turned)
        near = keys.flags("attention.sliding_window_pattern", count=b.n_layers)
        window = keys.integer("attention.sliding_window", minimum=1)
    added = (-1,) * b.n_layers
    if images:
        bounds = dict(count=b.n_layers, minimum=-1, maximum=b.n_layers)
        added = keys.integers("deepstack_mapping", default=added, **bounds)
    x = b.embed(scale=embedding)
    for layer in b.layers():
        if added[layer.index] > 0:
            x = x + b.features(added[layer.index] * b.hidden, b.hidden)
        reach = window if near[layer.index] else 0
        rope = b.rope(rope_dims(b, heads_of(b, layer))) if turned[layer.index] else None
        y = layer.norm(x, "attn_norm")
        x = x + attention(b, layer, y, style="norm", rope=rope, window=reach) * residual
        y = layer.norm(x, "ffn_norm")
        if windows and layer.has("ffn_gate_inp.weight"):
            y = expert_ffn(b, layer, y, act="silu", **routing)
        else:
            y = gated_ffn(b, layer, y, act="silu", width=width)
        x = x + y * residual
    return b.logits(x, scale=1.0 / logits)
