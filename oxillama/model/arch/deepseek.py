"""DeepSeek V2 (DeepSeek-AI 2024) and V3: multi-head latent attention in its absorbed form, routed
and shared experts; and the earlier DeepSeekMoE.
"""

import dataclasses
import math
from collections.abc import Callable

from oxillama.errors import ModelError
from oxillama.model.blocks import (
    dense_reach,
    latent_norm,
    routing_of,
    sparse_decoder,
    sparse_ffn,
    trunk,
)
from oxillama.model.builder import Builder, Layer, Value, architecture
from oxillama.model.rope import SCALING, Rope, Scaling


@architecture("deepseek")
def deepseek(b: Builder) -> Value:
    """DeepSeekMoE 16B (Dai et al. 2024, section 3): plain attention, the first layers dense."""
    return sparse_decoder(b, style="norm", **routing_of(b))


@architecture("deepseek2-ocr")
def deepseek2_ocr(b: Builder) -> Value:
    """The text part of DeepSeek-OCR (Wei et al. 2025, section 3.3): DeepSeekMoE with half-split
    rope.
    """
    return sparse_decoder(b, style="neox", **routing_of(b))


@architecture("deepseek2", "mistral4")
def deepseek2(b: Builder) -> Value:
    """The first layers are dense; sigmoid gating is V3's, whose groups count by their two best.
    Mistral Large 3 and 4 (Mistral AI 2025, 2026) are built so; their queries may grow with their
    position.
    """
    routing = routing_of(b)
    rate = b.keys.number("attention.temperature_scale", default=0.0)
    span = b.keys.integer("attention.temperature_length", default=0) if rate else 0
    temper = (rate, span or Scaling.of(b.keys).original, 0) if rate else None
    x = b.embed()
    for layer in trunk(b):
        y = layer.norm(x, "attn_norm")
        x = x + latent_attention(b, layer, y, rotation=_rotation, temper=temper)
        x = x + sparse_ffn(b, layer, layer.norm(x, "ffn_norm"), **routing)
    return b.logits(x)


@architecture("deepseek32", "glm-dsa")
def deepseek32(b: Builder) -> Value:
    """DeepSeek V3.2 (DeepSeek-AI 2025) and GLM 5 (Zhipu AI 2026): V3 whose indexer chooses the keys
    that a row sees. Sequences are as long as it chooses all of them; longer ones are refused.
    """
    most = dense_reach(b)
    if "attention.indexer.types" in b.keys:
        b.keys.flags("attention.indexer.types", count=b.n_layers)
    routing = routing_of(b, gating="sigmoid")
    x = b.embed()
    for layer in trunk(b):
        y = layer.norm(x, "attn_norm")
        x = x + latent_attention(b, layer, y, rotation=_rotation, most=most)
        x = x + sparse_ffn(b, layer, layer.norm(x, "ffn_norm"), **routing)
    return b.logits(x)


def latent_attention(
    b: Builder,
    layer: Layer,
    x: Value,
    *,
    rotation: Callable[[Builder, int, int], tuple[Rope | None, float]],
    style: str = "norm",
    temper: tuple[float, int, int] | None = None,
    window: int = 0,
    most: int = 0,
) -> Value:
    """Queries go through each head's key matrix into the latent, results through its value matrix
    out of it, so that a token keeps its latent and one rotated key alone (section 2.1.2, appendix
    C).
    rotation: of (builder, floats that are rotated, floats of a key) the rotation and the scale of
    scores; style: see `attention`; temper, window, most: see `Builder.attend`. Sizes of a layer
    with a window may have keys of their own. Where the file has a gate for each head, or for each
    float (`attn_gate`), the result is under its sigmoid; sinks of heads, and a norm of the rotated
    key, are found by name too.
    """
    keys = b.keys
    heads = layer.integer("attention.head_count", minimum=1, maximum=1 << 12)
    if not layer.integer("attention.head_count_kv", default=1, maximum=1):
        raise ModelError(f"{b.arch}.attention.head_count_kv: found 0, wanted 1")

    def size(key: str, least: int, most: int) -> int:
        """The size of that key, or of the one for layers with a window where there is one."""
        own = f"attention.{key}_swa"
        near = window and own in keys
        return keys.integer(own if near else f"attention.{key}", minimum=least, maximum=most)

    latent = size("kv_lora_rank", 1, 1 << 16)
    turned = keys.integer("rope.dimension_count", minimum=2, maximum=1 << 12)
    plain = size("key_length_mla", turned + 1, 1 << 12) - turned
    value = size("value_length_mla", 1, 1 << 12)
    # of the keys before they are absorbed, or of the latent: the tensors' shapes are checked anyway
    for key in ("attention.key_length", "attention.value_length"):
        keys.integer(key, default=0)
    rank = keys.integer("attention.q_lora_rank", default=0, maximum=1 << 16)
    rope, scale = rotation(b, turned, plain + turned)
    if rank:
        q = latent_norm(b, layer, layer.linear(x, "attn_q_a", rank), "attn_q_a_norm")
        q = layer.linear(q, "attn_q_b", heads * (plain + turned))
    else:
        q = layer.linear(x, "attn_q", heads * (plain + turned))
    absorbed = layer.stacked(q.columns(0, plain, heads=heads), "attn_k_b", latent, count=heads)
    q = b.concat(absorbed, q.columns(plain, plain + turned, heads=heads), heads=heads)
    width = latent + turned
    kept = layer.linear(x, "attn_kv_a_mqa", width, take=slice(0, latent))
    turning = layer.linear(x, "attn_kv_a_mqa", width, take=slice(latent, width))
    if layer.has("attn_k_norm.weight"):
        turning = layer.norm(turning, "attn_k_norm")
    k = b.concat(latent_norm(b, layer, kept, "attn_kv_a_norm"), turning)
    y = b.attend_latent(
        *(q, k),
        heads=heads,
        value=latent,
        rope=rope,
        style=style,
        scale=scale,
        temper=temper,
        sinks=layer.optional_vector("attn_sinks.weight", heads),
        window=window,
        most=most,
    )
    y = layer.stacked(y, "attn_v_b", value, count=heads)
    if layer.has("attn_gate.weight"):
        single = b.reader.tensors[layer.name("attn_gate.weight")].shape[0] == heads
        gate = layer.linear(x, "attn_gate", heads if single else y.width)
        if single:
            y = b.head_scale(y, b.activate(gate, "sigmoid"), heads=heads)
        else:
            y = b.gate(gate, y, act="sigmoid")
    return layer.linear(y, "attn_output", b.hidden)


def _rotation(b: Builder, turned: int, width: int) -> tuple[Rope, float]:
    """The rotation, and the scale of scores: YaRN's magnitude goes into the scale, squared, by the
    file's multiplier (section 3.1.4).
    """
    rope, scale = b.rope(turned), width**-0.5
    multiplier = b.keys.number(f"{SCALING}.yarn_log_multiplier", default=0.0, minimum=0.0)
    scaling = Scaling.of(b.keys)
    if scaling.kind == "yarn" and multiplier:
        rope = dataclasses.replace(rope, magnitude=1.0)
        scale *= (1.0 + multiplier * math.log(scaling.factor)) ** 2
    return rope, scale
