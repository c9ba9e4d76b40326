"""Qwen3-Next (Alibaba 2025) and Qwen 3.5 (2026): three layers of gated delta networks (Yang et al.
2024), then one of gated attention, by their code in transformers (`models/qwen3_next`,
`models/qwen3_5`).
"""

from collections.abc import Callable, Sequence
from typing import Any

from oxillama.model.attention import Choice
from oxillama.model.blocks import (
    attention,
    convolved,
    decoder,
    fused,
    gated_ffn,
    heads_of,
    predicts,
    rope_dims,
    routing_of,
    sections_of,
    sparse_ffn,
)
from oxillama.model.builder import Builder, Layer, Value, architecture
from oxillama.model.rope import Rope

_EPSILON = 1e-6  # of the norms of queries and keys of the delta rule, in the published code


@architecture("qwen3next")
def qwen3next(b: Builder) -> Value:
    """Decays and strengths are in one matrix, with value heads next to the key head that they
    share.
    """
    routing = routing_of(b, normalise=True)
    return _hybrid(b, sparse_ffn, tiled=False, sections=None, **routing)


@architecture("qwen35")
def qwen35(b: Builder) -> Value:
    """Dense; value head h takes the key head h mod their number."""
    sections = sections_of(b, mixed=True)
    return _hybrid(b, gated_ffn, tiled=True, sections=sections, act="silu")


@architecture("qwen35moe")
def qwen35moe(b: Builder) -> Value:
    """The same with experts."""
    sections, routing = sections_of(b, mixed=True), routing_of(b, normalise=True)
    return _hybrid(b, sparse_ffn, tiled=True, sections=sections, **routing)


def _hybrid(
    b: Builder,
    network: Callable[..., Value],
    *,
    tiled: bool,
    sections: list[int] | None,
    **params: Any,
) -> Value:
    recurrent = recurrent_layers(b)

    def block(b: Builder, layer: Layer, x: Value) -> Value:
        y = layer.norm(x, "attn_norm")
        if recurrent[layer.index] and not predicts(layer):
            x = x + delta_net(b, layer, y, tiled=tiled)
        else:
            x = x + gated_attention(b, layer, y, sections)
        return x + network(b, layer, layer.norm(x, "post_attention_norm"), **params)

    return decoder(b, block)


def recurrent_layers(b: Builder) -> Sequence[bool]:
    """Whether each layer is recurrent."""
    every = b.keys.integer("full_attention_interval", minimum=1, default=4)
    return b.keys.flags(
        "attention.recurrent_layers",
        count=b.n_layers,
        default=[(i + 1) % every != 0 for i in range(b.n_layers)],
    )


def gated_attention(
    b: Builder,
    layer: Layer,
    x: Value,
    sections: list[int] | None,
    *,
    most: int = 0,
    choose: Callable[[Rope], Choice] | None = None,
) -> Value:
    """Attention whose gate is beside the queries of each head; most: see `Builder.attend`; choose:
    makes its choice of keys, given the rotation.
    """
    dims = rope_dims(b, heads_of(b, layer))
    # the sections are those of a whole head, of which the first pairs turn
    rope = b.rope(dims, sections=sections and sections[: dims // 2])
    choice = choose(rope) if choose else None
    more: dict[str, Any] = dict(most=most, choice=choice)
    return attention(b, layer, x, style="neox", qk_norm="heads", rope=rope, **more)


def delta_net(b: Builder, layer: Layer, x: Value, *, tiled: bool, act: str = "silu") -> Value:
    """q, k and v go through the convolution; q and k have length 1 then; a norm over each head of
    the result is gated by a projection of its own, under act (Gated Delta Networks, section 3.3).
    """
    keys = b.keys
    inner = keys.integer("ssm.inner_size", minimum=1, maximum=1 << 20)
    heads = keys.integer("ssm.time_step_rank", minimum=1, maximum=1 << 16)
    key_heads = keys.integer("ssm.group_count", minimum=1, maximum=heads)
    width = keys.integer("ssm.state_size", minimum=1, maximum=1 << 12)
    taps = keys.integer("ssm.conv_kernel", minimum=2, maximum=64)
    if layer.has("ssm_in.weight"):  # files of 2025: q, k, v and the gate of each key head in turn
        wide = inner // key_heads
        every = layer.linear(x, "ssm_in", 2 * key_heads * width + 2 * inner)
        ends = (0, width, 2 * width, 2 * width + wide, 2 * width + 2 * wide)
        *parts, z = (every.columns(*part, heads=key_heads) for part in zip(ends, ends[1:]))
    else:
        parts = fused(layer, x, "attn_qkv", (key_heads * width, key_heads * width, inner))
        z = layer.linear(x, "attn_gate", inner)
    if tiled:
        strength, decay = (layer.linear(x, f"ssm_{name}", heads) for name in ("beta", "alpha"))
    else:
        share, both = heads // key_heads, layer.linear(x, "ssm_ba", 2 * heads)
        strength = both.columns(0, share, heads=key_heads)
        decay = both.columns(share, 2 * share, heads=key_heads)
    decay = b.activate(decay + layer.vector("ssm_dt.bias", heads), "softplus")
    q, k, v = convolved(b, layer, parts, taps)
    # a norm by the root of the mean square leaves a length of sqrt(width)
    q, k = (b.norm(part, None, heads=key_heads, eps=_EPSILON / width) for part in (q, k))
    y = b.delta(
        *(q, k * width**-0.5, v),
        decay * layer.vector("ssm_a", heads),
        b.activate(strength, "sigmoid"),
        heads=heads,
        key_heads=key_heads,
        tiled=tiled,
        scale=1.0 / width,
    )
    y = b.gate(z, layer.norm(y, "ssm_norm", heads=heads), act=act)
    return layer.linear(y, "ssm_out", b.hidden)
