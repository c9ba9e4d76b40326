"""Windowed attention between global layers, and experts chosen by sigmoids: MiMo-V2 (Xiaomi 2025),
Step 3.5 Flash (StepFun 2026), Laguna (Poolside 2026) and K-EXAONE (LG AI Research 2025, "K-EXAONE
Technical Report"), by their published code.
"""

from typing import Literal

from oxillama.gguf.keys import REQUIRED
from oxillama.model.blocks import (
    attention,
    decoder,
    expert_ffn,
    gated_ffn,
    heads_of,
    is_windowed,
    near_ropes,
    rope_dims,
    routing_of,
    sparse_ffn,
    trunk,
)
from oxillama.model.builder import Builder, Layer, Value, architecture
from oxillama.model.rope import Rope


@architecture("exaone-moe")
def exaone_moe(b: Builder) -> Value:
    """Three windowed layers that rotate, then a global one that does not; norms over the heads of
    queries and keys; experts as in DeepSeek V3.
    """
    routing = routing_of(b, gating="sigmoid", normalise=True)
    window = b.keys.integer("attention.sliding_window", minimum=1)
    x = b.embed()
    for layer in trunk(b):
        near = is_windowed(b, layer.index, 4)
        rope = b.rope(rope_dims(b, heads_of(b, layer))) if near else None
        x = x + attention(
            b,
            layer,
            layer.norm(x, "attn_norm"),
            style="neox",
            qk_norm="heads",
            rope=rope,
            window=window if near else 0,
        )
        x = x + sparse_ffn(b, layer, layer.norm(x, "ffn_norm"), **routing)
    return b.logits(x)


@architecture("mimo2")
def mimo2(b: Builder) -> Value:
    """Attention sinks, keys wider than values, and results of attention under one scale."""
    routing = routing_of(b, gating="sigmoid", normalise=True)
    scale = b.keys.number("attention.value_scale", default=1.0)

    def block(b: Builder, layer: Layer, x: Value) -> Value:
        near, rope = _kind(b, layer)
        y = layer.norm(x, "attn_norm")
        x = x + attention(b, layer, y, style="neox", rope=rope, window=near) * scale
        y = layer.norm(x, "ffn_norm")
        if layer.has("ffn_gate_inp.weight"):
            return x + expert_ffn(b, layer, y, act="silu", **routing)
        return x + gated_ffn(b, layer, y, act="silu")

    return decoder(b, block, normed=False)


@architecture("step35")
def step35(b: Builder) -> Value:
    """Half of a head rotates in global layers; each head has a gate; the last layers clamp
    experts.
    """
    routing = routing_of(b, gating="sigmoid")
    b.keys.integer("moe_every_n_layers", default=1, minimum=1, maximum=1)
    limits = [
        b.keys.numbers(f"swiglu_clamp_{kind}", count=b.n_layers, default=(0.0,) * b.n_layers)
        for kind in ("exp", "shexp")
    ]

    def block(b: Builder, layer: Layer, x: Value) -> Value:
        near, rope = _kind(b, layer, full=rope_dims(b, heads_of(b, layer)) // 2)
        y = layer.norm(x, "attn_norm")
        normed: Literal["heads"] | None = "heads" if layer.has("attn_q_norm.weight") else None
        x = x + attention(b, layer, y, style="neox", qk_norm=normed, rope=rope, window=near)
        limit, shared = (each[layer.index] for each in limits)
        return x + sparse_ffn(
            *(b, layer, layer.norm(x, "ffn_norm")),
            limit=limit,
            shared_limit=shared,
            **routing,
        )

    return decoder(b, block, normed=False)


@architecture("laguna")
def laguna(b: Builder) -> Value:
    """More heads in some layers than in others; a softplus of each head's, or each float's,
    gate.
    """
    routing = routing_of(b, gating="sigmoid")
    x = b.embed()
    for layer in b.layers():
        near, rope = _kind(b, layer, first=True)
        y = layer.norm(x, "attn_norm")
        x = x + attention(
            *(b, layer, y),
            style="neox",
            qk_norm="heads",
            rope=rope,
            window=near,
            gate_act="softplus",
        )
        x = x + sparse_ffn(b, layer, layer.norm(x, "ffn_norm"), **routing)
    return b.logits(x)


def _kind(b: Builder, layer: Layer, *, full: int = 0, first: bool = False) -> tuple[int, Rope]:
    """(The window of a layer, 0 for all, its rotation): windowed layers have a base of their own
    and no scaling. full: floats that rotate in global layers, the file's where it is 0; first: of
    four layers the first one is global, where the file has no pattern.
    """
    keys = b.keys
    window = keys.integer("attention.sliding_window", default=0 if first else REQUIRED, minimum=0)
    dims = rope_dims(b, heads_of(b, layer))
    if not window or not is_windowed(b, layer.index, 4, first=first):
        return 0, b.rope(full or dims)
    near = keys.integer("rope.dimension_count_swa", default=dims, minimum=2, maximum=1 << 12)
    return window, near_ropes(b)(near)
