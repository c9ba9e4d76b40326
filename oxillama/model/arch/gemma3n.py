"""Gemma 3n (Google 2025, published code, modeling_gemma3n.py): four streams of which one runs
through the layers (AltUp, Baykal et al. 2023), a low-rank branch parallel to attention (LAuReL,
Menghani et al. 2024), a vector for each token and layer, and sparse gates.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from oxillama.errors import ModelError
from oxillama.model.arch.gemma4 import layer_inputs, per_layer_branch
from oxillama.model.blocks import heads_of, is_windowed, rope_dims
from oxillama.model.builder import Builder, Layer, Value, architecture

_TINY = 1e-12  # keeps a row of zeros out of a division


@architecture("gemma3n")
def gemma3n(b: Builder) -> Value:
    """The last layers attend to what the last one of their kind before them stored."""
    keys = b.keys
    streams = keys.integer("altup.num_inputs", default=4, minimum=2, maximum=64)
    active = keys.integer("altup.active_idx", default=0, maximum=streams - 1)
    own = b.n_layers - keys.integer(
        "attention.shared_kv_layers", default=15, maximum=b.n_layers - 1
    )
    stored: dict[bool, int] = {}
    x = b.embed(scale=math.sqrt(b.hidden))
    inputs = layer_inputs(b, x)
    if inputs is None:
        raise ModelError(f"{b.arch}.embedding_length_per_layer_input: found 0, wanted 1 or more")
    h = [x, *_as_large(b, x, "altup_proj", [x] * (streams - 1))]
    for layer in b.layers():
        made = _predicted(b, layer, h, active)
        x = made[active]
        y = layer.norm(x, "attn_norm")
        low = layer.linear(y, "laurel_l", b.shape(layer.name("laurel_l.weight"), 2)[0])
        low = y + layer.norm(layer.linear(low, "laurel_r", b.hidden), "laurel_post_norm")
        near = is_windowed(b, layer.index, 5)
        source = stored.get(near) if layer.index >= own else None
        y = _attention(b, layer, y, near=near, source=source)
        if source is None:
            stored[near] = len(b.pages) - 1
        y = (x + layer.norm(y, "post_attention_norm") + low) * 0.5**0.5
        y = y + layer.norm(_feed_forward(b, layer, layer.norm(y, "ffn_norm")), "post_ffw_norm")
        h = _corrected(b, layer, made, y, active)
        first = h[active] * layer.vector("altup_correct_scale.weight", b.hidden)
        first = per_layer_branch(b, layer, first, inputs)
        h = [h[0], *(stream + first for stream in h[1:])]
    x = h[0]
    for other in _as_large(b, h[0], "altup_unembd_proj", h[1:]):
        x = x + other
    cap = keys.number("final_logit_softcapping", default=30.0, minimum=0.0)
    return b.logits(x * (1.0 / streams), softcap=cap)


def _as_large(b: Builder, x: Value, name: str, others: Sequence[Value]) -> list[Value]:
    """A product of each other stream, made as large as x: its root mean square is that of x."""
    count, width = len(others), b.hidden
    y = b.stacked(b.concat(*others), name, width, count=count)
    y = b.weighted(b.norm(y, None, heads=count, eps=_TINY), b.measure(x, "rms"))
    return [y.columns(i * width, (i + 1) * width) for i in range(count)]


def _modes(b: Builder, layer: Layer, x: Value, streams: int) -> Value:
    """A number for each stream, between -1 and 1."""
    y = layer.norm(x, "altup_router_norm") * (1.0 / b.hidden)
    return b.activate(layer.linear(y, "altup_router", streams), "tanh")


def _predicted(b: Builder, layer: Layer, h: Sequence[Value], active: int) -> list[Value]:
    """Each stream plus a mixture of all."""
    n = len(h)
    mix = layer.linear(_modes(b, layer, h[active], n), "altup_predict_coef", n * n)
    together = b.concat(*h)
    return [h[i] + b.weighted(together, mix.columns(n * i, n * (i + 1))) for i in range(n)]


def _corrected(
    b: Builder, layer: Layer, made: Sequence[Value], y: Value, active: int
) -> list[Value]:
    """Each stream plus a share of the difference between the layer's result y and its
    prediction.
    """
    n = len(made)
    share = layer.linear(_modes(b, layer, y, n), "altup_correct_coef", n)
    share = share + np.ones(n, np.float32)
    news = y + made[active] * -1.0
    return [made[i] + b.weighted(news, share.columns(i, i + 1)) for i in range(n)]


def _attention(b: Builder, layer: Layer, x: Value, *, near: bool, source: int | None) -> Value:
    """Scores are not scaled; values have a norm without a weight."""
    heads = heads_of(b, layer)
    dims = rope_dims(b, heads)
    window = b.keys.integer("attention.sliding_window", minimum=1) if near else 0
    if near:
        rope = b.rope(dims, base_key="rope.freq_base_swa", base=10_000.0, scaled=False)
    else:
        rope = b.rope(dims, base=1_000_000.0)
    q = layer.linear(x, "attn_q", heads.query * heads.key_dim)
    q_norm = layer.vector("attn_q_norm.weight", heads.key_dim)
    how: dict[str, Any] = dict(
        heads=heads, rope=rope, style="neox", scale=1.0, window=window, eps=b.epsilon()
    )
    if source is not None:
        # some files hold copies, which nothing reads
        for name in ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight"):
            if layer.has(name):
                b.used.add(layer.name(name))
        y = b.attend_stored(q, layer=source, q_norm=q_norm, **how)
    else:
        k = layer.linear(x, "attn_k", heads.kv * heads.key_dim)
        v = b.norm(layer.linear(x, "attn_v", heads.kv * heads.value_dim), None, heads=heads.kv)
        k_norm = layer.vector("attn_k_norm.weight", heads.key_dim)
        y = b.attend(q, k, v, q_norm=q_norm, k_norm=k_norm, **how)
    return layer.linear(y, "attn_output", b.hidden)


def _feed_forward(b: Builder, layer: Layer, x: Value) -> Value:
    """A gate counts from its row's mean plus so many deviations on (the file's number, -inf:
    always).
    """
    width = layer.integer("feed_forward_length", minimum=1, maximum=1 << 24)
    gate = layer.linear(x, "ffn_gate", width)
    limit = _sparsity(b, layer.index)
    if limit > -math.inf:
        spread = b.measure(gate, "deviation")
        gate = b.norm(gate, None, kind="layer", eps=_TINY) + np.full(width, -limit, np.float32)
        gate = b.weighted(b.activate(gate, "relu"), spread)
    up = layer.linear(x, "ffn_up", width)
    return layer.linear(b.gate(gate, up, act="gelu_tanh"), "ffn_down", b.hidden)


def _sparsity(b: Builder, index: int) -> float:
    """Of the first ten layers the deviations that cut off 95 % where the file says nothing."""
    key = b.keys.name("activation_sparsity_scale")
    if key not in b.keys.metadata:
        return 1.6448536269514722 if index < 10 else -math.inf
    b.read.add(key)
    scales = b.keys.metadata[key]
    if len(scales) != b.n_layers or any(math.isnan(scale) for scale in scales):
        raise ModelError(f"{key}: found an array of {len(scales)}, wanted {b.n_layers} numbers")
    return float(scales[index])
