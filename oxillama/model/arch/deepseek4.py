"""DeepSeek V4 (DeepSeek-AI 2026, by its code in transformers, `models/deepseek_v4`): attention to a
window of tokens and to keys made of blocks of tokens before it, of which an indexer chooses some;
the residual is several streams that mix (Xie et al. 2025, "mHC: Manifold-Constrained
Hyper-Connections", section 4).
"""

import dataclasses

from oxillama.errors import ModelError
from oxillama.model.attention import Blocks
from oxillama.model.blocks import predicting, routing_of, sparse_ffn, trunk
from oxillama.model.builder import Builder, Layer, Value, architecture
from oxillama.model.hyper_connections import (
    last_stream,
    mixed_streams,
    open_weights,
    stream_count,
    stream_weights,
)
from oxillama.model.indexer import Sizes
from oxillama.model.rope import SCALING, Rope, Scaling

_RATIOS = (0, 4, 128)  # tokens of a block; 0: a layer attends to its window alone


@architecture("deepseek4")
def deepseek4(b: Builder) -> Value:
    """The first layers choose experts by the token alone."""
    keys, count, none = b.keys, stream_count(b), (0.0,) * b.n_layers
    ratios, ropes, indexer = _ratios(b), _rotations(b), Sizes.of(b)
    limits = keys.numbers("swiglu_clamp_exp", count=b.n_layers, default=none)
    shared = keys.numbers("swiglu_clamp_shexp", count=b.n_layers, default=limits)
    hashed = keys.integer("hash_layer_count", minimum=0, maximum=b.n_layers)
    # of the streams side by side
    keys.integer("embedding_length_out", default=0)
    routing = routing_of(b, gating="sqrt_softplus")

    def block(b: Builder, layer: Layer, x: Value) -> Value:
        at = layer.index
        if (at < hashed) != layer.has("ffn_gate_tid2eid.weight"):
            raise ModelError(
                f"{b.arch}.hash_layer_count: found {hashed}, and layer {at} "
                f"{'without' if at < hashed else 'with'} a table of experts by token"
            )
        if layer.has("exp_probs_b_vl.bias"):
            b.used.add(layer.name("exp_probs_b_vl.bias"))  # in place of the other for images
        for branch in ("attn", "ffn"):
            name = layer.name(f"hc_{branch}")
            taken, given, mixing = stream_weights(b, name, x, count, count, count * count)
            y = layer.norm(b.weighted(x, open_weights(b, taken)), f"{branch}_norm")
            if branch == "attn":
                y = _attention(b, layer, y, ratios[at], ropes[ratios[at] > 0], indexer)
            else:
                clamps = dict(limit=limits[at], shared_limit=shared[at], early=True)
                y = sparse_ffn(b, layer, y, **(routing | clamps))
            given = b.activate(given, "sigmoid") * 2.0
            x = mixed_streams(b, x, mixing) + b.head_scale(b.repeat(y, count), given, heads=count)
        return x

    x = b.repeat(b.embed(), count)
    for layer in trunk(b):
        x = block(b, layer, x)
    return predicting(b, x, block, normed=False, join=last_stream)


def _ratios(b: Builder) -> tuple[int, ...]:
    """Tokens of a block in each layer; some files have a number for layers that they lack."""
    key = "attention.compress_ratios"
    found = b.keys.integers(key)
    if len(found) < b.n_layers:
        raise ModelError(
            f"{b.keys.name(key)}: found an array of {len(found)}, wanted {b.n_layers} or more"
        )
    for ratio in found[: b.n_layers]:
        if ratio not in _RATIOS:
            raise ModelError(f"{b.keys.name(key)}: found {ratio}, wanted one of {_RATIOS}")
    return found


def _rotations(b: Builder) -> tuple[Rope, Rope]:
    """Of layers without blocks, and of those with them, which have a base of their own and the
    file's scaling. Its magnitude is 1 if the file does not say another.
    """
    keys, base = b.keys, "attention.compress_rope_freq_base"
    dims = keys.integer("rope.dimension_count", minimum=2, maximum=1 << 12)
    keys.number(base)
    plain, scaled = b.rope(dims, scaled=False), b.rope(dims, base_key=base)
    if Scaling.of(keys).kind != "yarn":
        return plain, scaled
    magnitude = keys.number(f"{SCALING}.yarn_attn_factor", default=1.0, minimum=0.0)
    return plain, dataclasses.replace(scaled, magnitude=magnitude)


def _attention(b: Builder, layer: Layer, x: Value, ratio: int, rope: Rope, indexer: Sizes) -> Value:
    """One row of each token is key and value of all heads. Projections of the result go through a
    smaller width for each group of heads.
    """
    keys = b.keys
    heads = layer.integer("attention.head_count", minimum=1, maximum=1 << 12)
    layer.integer("attention.head_count_kv", default=1, minimum=1, maximum=1)
    width = keys.integer("attention.key_length", minimum=rope.dims, maximum=1 << 12)
    keys.integer("attention.value_length", default=width, minimum=width, maximum=width)
    rank = keys.integer("attention.q_lora_rank", minimum=1, maximum=1 << 16)
    groups = keys.integer("attention.output_group_count", minimum=1, maximum=heads)
    if heads % groups:
        raise ModelError(
            f"{b.arch}.attention.output_group_count: found {groups}, wanted a divisor of {heads}"
        )
    group_rank = keys.integer("attention.output_lora_rank", minimum=16, maximum=1 << 16)
    latent = layer.norm(layer.linear(x, "attn_q_a", rank), "attn_q_a_norm")
    blocks = chosen = None
    if ratio:
        blocks = _compressed(b, layer, x, "attn", width, rope, ratio)
    if ratio == 4:
        chosen = _chosen(b, layer, x, latent, rope, indexer)
    y = b.attend_blocks(
        layer.linear(latent, "attn_q_b", heads * width),
        layer.linear(x, "attn_kv", width),
        heads=heads,
        rope=rope,
        scale=width**-0.5,
        window=keys.integer("attention.sliding_window", minimum=1),
        k_norm=layer.vector("attn_kv_a_norm.weight", width),
        sinks=layer.vector("attn_sinks.weight", heads),
        blocks=blocks,
        chosen=chosen,
    )
    y = layer.stacked(y, "attn_output_a", group_rank, count=groups)
    return layer.linear(y, "attn_output_b", b.hidden)


def _compressed(
    b: Builder, layer: Layer, x: Value, name: str, width: int, rope: Rope, ratio: int
) -> Blocks:
    """A key of `width` floats for each block. Small blocks overlap: each also reads the block
    before it.
    """
    overlap = ratio == 4
    parts = (1 + overlap) * width
    return b.compress(
        layer.linear(x, f"{name}_compressor_kv", parts),
        layer.linear(x, f"{name}_compressor_gate", parts),
        bias=layer.array(f"{name}_compressor_ape.weight", ratio, parts),
        weight=layer.vector(f"{name}_compressor_norm.weight", width),
        rope=rope,
        overlap=overlap,
    )


def _chosen(b: Builder, layer: Layer, x: Value, latent: Value, rope: Rope, indexer: Sizes) -> Value:
    """The blocks of each row with the highest scores, by queries and keys of their own."""
    heads = indexer.heads
    indexer.holds(b, rope)
    keys = _compressed(b, layer, x, "indexer", indexer.width, rope, 4)
    q = layer.linear(latent, "indexer.attn_q_b", heads * indexer.width)
    weights = layer.linear(x, "indexer.proj", heads)
    q = b.turn(q, rope, heads=heads, start=indexer.width - rope.dims)
    return b.choose_blocks(q, weights, keys, heads=heads, most=indexer.most)
