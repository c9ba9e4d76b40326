"""Gemma 4 (Google 2026, published code, modeling_gemma4.py): Gemma 3 with heads of two sizes, a
vector for each token and layer in addition to the embedding, and, if the file has them, experts
parallel to the feed-forward network.
"""

import math
from typing import Any

from oxillama.model.attention import Heads
from oxillama.model.blocks import expert_gate_up, gated_ffn
from oxillama.model.builder import Builder, Layer, Value, architecture


@architecture("gemma4")
def gemma4(b: Builder) -> Value:
    """The last layers attend to what the last one of their kind before them stored."""
    near = b.keys.flags("attention.sliding_window_pattern", count=b.n_layers)
    shared = b.keys.integer("attention.shared_kv_layers", default=0, maximum=b.n_layers - 1)
    own = b.n_layers - shared
    stored: dict[bool, int] = {}
    x = b.embed(scale=math.sqrt(b.hidden))
    inputs = layer_inputs(b, x)
    for layer in b.layers():
        source = stored.get(near[layer.index]) if layer.index >= own else None
        x = decoder_layer(b, layer, x, inputs, near=near[layer.index], source=source)
        if source is None:
            stored[near[layer.index]] = len(b.pages) - 1
    return b.logits(x, softcap=b.keys.number("final_logit_softcapping", default=0.0, minimum=0.0))


def decoder_layer(
    b: Builder,
    layer: Layer,
    x: Value,
    inputs: Value | None = None,
    *,
    near: bool,
    source: int | None,
    ahead: int = 0,
) -> Value:
    """One layer, which is windowed if it is near. source: which attention's keys and values it
    reads, None for its own; ahead: see `attend_stored`.
    """
    y = layer.norm(x, "attn_norm")
    y = _attention(b, layer, y, near=near, source=source, ahead=ahead)
    x = x + layer.norm(y, "post_attention_norm")
    x = x + layer.norm(_feed_forward(b, layer, x), "post_ffw_norm")
    if inputs is not None:
        x = x + per_layer_branch(b, layer, x, inputs)
    if layer.has("layer_output_scale.weight"):
        x = x * float(layer.vector("layer_output_scale.weight", 1)[0])
    return x


def layer_inputs(b: Builder, x: Value) -> Value | None:
    """A vector for each layer side by side, of the token's own table and of its embedding x
    (Gemma 3n: per-layer embeddings); None where the file has none.
    """
    width = b.keys.integer("embedding_length_per_layer_input", default=0, maximum=1 << 16)
    if not width:
        return None
    total = width * b.n_layers
    stored = b.embed_extra("per_layer_token_embd.weight", scale=math.sqrt(width))
    made = b.linear(x, "per_layer_model_proj", total) * b.hidden**-0.5
    made = b.norm(made, "per_layer_proj_norm", heads=b.n_layers)
    return (made + stored) * 0.5**0.5


def per_layer_branch(b: Builder, layer: Layer, x: Value, inputs: Value) -> Value:
    """A row gates its layer's vector, which a norm brings back to the row."""
    width = inputs.width // b.n_layers
    own = inputs.columns(layer.index * width, (layer.index + 1) * width)
    y = b.gate(layer.linear(x, "inp_gate", width), own, act="gelu_tanh")
    return layer.norm(layer.linear(y, "proj", b.hidden), "post_norm")


def _attention(
    b: Builder, layer: Layer, x: Value, *, near: bool, source: int | None, ahead: int
) -> Value:
    """Scores are not scaled; values have a norm without a weight, and are the keys before theirs
    where the file has no matrix for them.
    """
    keys, suffix = b.keys, "_swa" if near else ""
    dim = keys.integer(f"attention.key_length{suffix}", minimum=1, maximum=1 << 12)
    keys.integer(f"attention.value_length{suffix}", minimum=dim, maximum=dim)
    query = layer.integer("attention.head_count", minimum=1, maximum=1 << 16)
    heads = Heads(query, layer.integer("attention.head_count_kv", minimum=1), dim, dim)
    dims = keys.integer(f"rope.dimension_count{suffix}", default=dim, minimum=2, maximum=dim)
    window = keys.integer("attention.sliding_window", minimum=1) if near else 0
    base = 10_000.0 if near else 1e6
    rope = b.rope(dims, base_key="rope.freq_base" + suffix, base=base, scaled=not near)
    q = layer.linear(x, "attn_q", heads.query * dim)
    q_norm = layer.vector("attn_q_norm.weight", dim)
    how: dict[str, Any] = dict(
        heads=heads, rope=rope, style="neox", scale=1.0, window=window, eps=b.epsilon()
    )
    if not near:
        how["strict"] = True  # rows of an image see each other in windowed layers alone
    if source is not None:
        y = b.attend_stored(q, layer=source, q_norm=q_norm, ahead=ahead, **how)
    else:
        k = layer.linear(x, "attn_k", heads.kv * dim)
        v = layer.linear(x, "attn_v", heads.kv * dim) if layer.has("attn_v.weight") else k
        v = b.norm(v, None, heads=heads.kv)
        k_norm = layer.vector("attn_k_norm.weight", dim)
        y = b.attend(q, k, v, q_norm=q_norm, k_norm=k_norm, **how)
    return layer.linear(y, "attn_output", b.hidden)


def _feed_forward(b: Builder, layer: Layer, x: Value) -> Value:
    y = gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="gelu_tanh")
    if not layer.has("ffn_gate_inp.weight"):
        return y
    return layer.norm(y, "post_ffw_norm_1") + layer.norm(_experts(b, layer, x), "post_ffw_norm_2")


def _experts(b: Builder, layer: Layer, x: Value) -> Value:
    """The router has a norm of its own; an expert's output has a scale, which goes into its
    weight.
    """
    count = layer.integer("expert_count", minimum=1, maximum=1 << 12)
    used = layer.integer("expert_used_count", minimum=1, maximum=count)
    width = layer.integer("expert_feed_forward_length", minimum=1)
    scores = b.norm(x, None) * b.hidden**-0.5 * layer.vector("ffn_gate_inp.scale", b.hidden)
    scores = b.linear(scores, layer.name("ffn_gate_inp"), count, scale=False)
    routes = b.route(scores, used=used, normalise=True)
    y = layer.norm(x, "pre_ffw_norm_2")
    gate, up = expert_gate_up(layer, y, routes, width, count)
    y = b.gate(gate, up, act="gelu_tanh")
    y = layer.experts(y, routes, "ffn_down_exps", b.hidden, count=count, scale=False)
    if layer.has("ffn_down_exps.scale"):
        ids, weights = routes.columns(0, used), routes.columns(used, 2 * used)
        scales = layer.array("ffn_down_exps.scale", count).reshape(count, 1)
        weights = weights * b.op("expert_bias", weights * 0.0, routes, bias=scales)
        routes = b.concat(ids, weights)
    return b.combine(y, routes)
