"""MiniMax-Text-01 (MiniMax 2025, "MiniMax-01", section 2): most layers are lightning attention,
whose state decays at a rate of each head, every eighth is attention; residuals come from the norms.
"""

import numpy as np

from oxillama.model.blocks import alibi, attention, expert_ffn, routing_of
from oxillama.model.builder import Builder, Layer, Value, architecture


@architecture("minimax-01")
def minimax_text(b: Builder) -> Value:
    """Which layers are recurrent the file says by flags, or by the interval of those that are
    not.
    """
    keys = b.keys
    routing = routing_of(b, normalise=True)
    share = keys.number("residual_scale")
    every = keys.integer("full_attention_interval", minimum=1, default=8)
    recurrent = keys.flags(
        "attention.recurrent_layers",
        count=b.n_layers,
        default=[(i + 1) % every != 0 for i in range(b.n_layers)],
    )
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        mixer = _lightning if recurrent[layer.index] else _attention
        x = mixer(b, layer, y) + y * share
        y = layer.norm(x, "ffn_norm")
        x = expert_ffn(b, layer, y, act="silu", **routing) + y * share
    return b.logits(x)


def _attention(b: Builder, layer: Layer, x: Value) -> Value:
    """Part of each head rotates."""
    return attention(b, layer, x, style="neox")


def _lightning(b: Builder, layer: Layer, x: Value) -> Value:
    """S = exp(-rate) S + k v^T, y = S^T q, normed and gated (section 2.2.1): a state space whose
    time step is 1. Rates are ALiBi's slopes, less in deeper layers.
    """
    heads = layer.integer("attention.head_count", minimum=1, maximum=1 << 12)
    width = b.keys.integer("attention.key_length", minimum=1, maximum=1 << 12)
    inner = heads * width
    mixed = b.activate(layer.linear(x, "attn_qkv", 3 * inner), "silu")
    q, k, v = (mixed.columns(i * width, (i + 1) * width, heads=heads) for i in range(3))
    step = q.columns(0, 1, heads=heads) * 0.0 + np.ones(heads, np.float32)
    rate = alibi(b, heads) * np.float32(1 - layer.index / max(b.n_layers - 1, 1) + 1e-5)
    y = b.scan(v, step, k, q, a=-rate.reshape(heads, 1), d=None, groups=heads)
    y = layer.norm(y, "attn_norm_2")
    y = b.gate(layer.linear(x, "attn_gate", inner), y, act="sigmoid")
    return layer.linear(y, "attn_output", b.hidden)
