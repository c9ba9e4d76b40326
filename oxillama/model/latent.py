"""Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1), which several
architectures share.
"""

from __future__ import annotations

from collections.abc import Callable

from oxillama.errors import ModelError
from oxillama.model.attention import Heads
from oxillama.model.blocks import gate_of, latent_norm, under_gate
from oxillama.model.builder import Builder, Layer, Value
from oxillama.model.indexer import LatentIndexer
from oxillama.model.rope import Rope


def latent_attention(
    b: Builder,
    layer: Layer,
    x: Value,
    *,
    rotation: Callable[[Builder, int, int], tuple[Rope | None, float]],
    style: str = "norm",
    temper: tuple[float, int, int] | None = None,
    window: int = 0,
    indexer: LatentIndexer | None = None,
) -> Value:
    """Queries go through each head's key matrix into the latent, results through its value matrix
    out of it, so that a token keeps its latent and one rotated key alone (section 2.1.2, appendix
    C).
    rotation: of (builder, floats that are rotated, floats of a key) the rotation and the scale of
    scores; style: see `attention`; temper, window: see `Builder.attend`; indexer: it chooses the
    keys that rows see. Sizes of a layer with a window may have keys of their own. Where the file
    has a gate for each head, or for each float (`attn_gate`), the result is under its sigmoid;
    sinks of heads, and a norm of the rotated key, are found by name too.
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
    turned = keys.integer("rope.dimension_count", minimum=0, maximum=1 << 12)
    plain = size("key_length_mla", turned + 1, 1 << 12) - turned
    value = size("value_length_mla", 1, 1 << 12)
    # of the keys before they are absorbed, or of the latent: the tensors' shapes are checked anyway
    for key in ("attention.key_length", "attention.value_length"):
        keys.integer(key, default=0)
    least = 1 if indexer else 0
    rank = keys.integer("attention.q_lora_rank", default=0, minimum=least, maximum=1 << 16)
    rope, scale = rotation(b, turned, plain + turned)
    choice = None
    if rank:
        q = latent_norm(b, layer, layer.linear(x, "attn_q_a", rank), "attn_q_a_norm")
        if indexer is not None:
            choice = indexer.choose(layer, x, q, rope)
        q = layer.linear(q, "attn_q_b", heads * (plain + turned))
    else:
        q = layer.linear(x, "attn_q", heads * (plain + turned))
    absorbed = layer.stacked(q.columns(0, plain, heads=heads), "attn_k_b", latent, count=heads)
    if turned:
        q = b.concat(absorbed, q.columns(plain, plain + turned, heads=heads), heads=heads)
        kept = layer.linear(x, "attn_kv_a_mqa", latent + turned, take=slice(0, latent))
        k = layer.linear(x, "attn_kv_a_mqa", latent + turned, take=slice(latent, latent + turned))
        if layer.has("attn_k_norm.weight"):
            k = layer.norm(k, "attn_k_norm")
        k = b.concat(latent_norm(b, layer, kept, "attn_kv_a_norm"), k)
    else:
        q = absorbed
        k = latent_norm(b, layer, layer.linear(x, "attn_kv_a_mqa", latent), "attn_kv_a_norm")
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
        choice=choice,
    )
    y = layer.stacked(y, "attn_v_b", value, count=heads)
    gate = gate_of(b, layer, x, heads=heads, width=y.width)
    if gate is not None:
        y = under_gate(b, y, gate, heads=heads, act="sigmoid")
    return layer.linear(y, "attn_output", b.hidden)


def unfolded_attention(
    b: Builder,
    layer: Layer,
    x: Value,
    *,
    rotation: Callable[[Builder, int, int], tuple[Rope | None, float]] | None = None,
    style: str,
    temper: tuple[float, int, int] | None = None,
) -> Value:
    """The same with keys and values of each head, which `attn_kv_b` unfolds from the latent
    (section 2.1.1), and which are kept: the last floats of a key are rotated, alike for all heads.
    The parameters are those of `latent_attention`; rotation: None for the file's own, and scores
    over the root of a key's width.
    """
    keys = b.keys
    count = layer.integer("attention.head_count", minimum=1, maximum=1 << 12)
    layer.integer("attention.head_count_kv", default=count, minimum=count, maximum=count)
    turned = keys.integer("rope.dimension_count", minimum=2, maximum=1 << 12)
    width = keys.integer("attention.key_length", minimum=turned + 1, maximum=1 << 12)
    value = keys.integer("attention.value_length", default=b.hidden // count, minimum=1)
    rank = keys.integer("attention.q_lora_rank", default=0, maximum=1 << 16)
    latent = keys.integer("attention.kv_lora_rank", minimum=1, maximum=1 << 16)
    plain = width - turned
    rope, scale = (b.rope(turned), width**-0.5) if rotation is None else rotation(b, turned, width)
    if rank:
        q = latent_norm(b, layer, layer.linear(x, "attn_q_a", rank), "attn_q_a_norm")
        q = layer.linear(q, "attn_q_b", count * width)
    else:
        q = layer.linear(x, "attn_q", count * width)
    both = latent + turned
    kept = layer.linear(x, "attn_kv_a_mqa", both, take=slice(0, latent))
    turning = layer.linear(x, "attn_kv_a_mqa", both, take=slice(latent, both))
    kv = latent_norm(b, layer, kept, "attn_kv_a_norm")
    kv = layer.linear(kv, "attn_kv_b", count * (plain + value))
    k = b.concat(kv.columns(0, plain, heads=count), b.repeat(turning, count), heads=count)
    y = b.attend(
        q,
        k,
        kv.columns(plain, plain + value, heads=count),
        heads=Heads(count, count, width, value),
        rope=rope,
        rope_start=plain,
        style=style,
        scale=scale,
        temper=temper,
    )
    return layer.linear(y, "attn_output", b.hidden)
