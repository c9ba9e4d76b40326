"""DFlash draft models (Chen et al. 2026, "DFlash: Block Diffusion for Flash Speculative Decoding"),
GGUF files of the architecture `dflash`: a few layers that fill in a whole block of tokens at once.

    target   rows that come into some of its layers --fc, norm--> g of each token
    context  g --k, v of each layer--> pages
    block    [tn, mask, mask, ...] --layers--> a row for each of the tokens after tn
             every row sees the context and the whole block; in causal layers none of it behind
             its own

DSpark drafts have a Markov head besides: the logits of each candidate get a bias by the token
before it, so that the candidates of a block follow from one another. Their first row may predict
already.

    bias     markov_w2 (markov_w1 row of the token before)

DFlash2 drafts mix each row of a block with those before it, around attention and network, by
weights that are made of the row (a convolution). Of the likeliest tokens of a row a selector
chooses by the token before, too:

    score    logit + sum of (predecessor row of the token before) (selector_hidden row) (successor
             row of the token)

A file may leave out its token table and its output, and uses those of the target then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oxillama.errors import ConfigError, ModelError
from oxillama.gguf import GgufReader
from oxillama.gguf.keys import Keys
from oxillama.model.blocks import gated_ffn, heads_of, hidden_act, rope_dims
from oxillama.model.builder import Builder, Layer
from oxillama.model.extracts import target_layers
from oxillama.model.recorder import Value

ARCH = "dflash"
_ACTS = {"silu": "silu", "gelu": "gelu_erf", "gelu_pytorch_tanh": "gelu_tanh"}
# a head that estimates whether candidates are accepted, which is measured here
_CONFIDENCE = ("conf_proj.weight", "conf_proj.bias", "conf_proj.scale")
# what is not computed, by a key of it
_OTHERS = {
    "hyper_connection.count": "drafts with the layers of DeepSeek V4",
}


@dataclass(frozen=True, slots=True)
class Block:
    """What a draft fills in. rows: of a block; first: the one that predicts the first candidate;
    mask: the token of those behind the first; layers: which are causal.
    """

    rows: int
    first: int
    mask: int
    layers: tuple[bool, ...]

    @property
    def causal(self) -> bool:
        """Whether no row sees one of the block behind it."""
        return all(self.layers)

    @property
    def most(self) -> int:
        """Candidates of a block."""
        return self.rows - self.first


def extracts_of(reader: GgufReader, target: GgufReader) -> tuple[int, ...]:
    """The layers of the target whose inputs a draft begins with; ConfigError unless it was made for
    such a target.
    """
    keys, its = Keys(reader.metadata, ARCH), Keys(target.metadata)
    for key, what in _OTHERS.items():
        found = keys.integer(key, default=0)
        if found:
            raise ConfigError(
                f"draft: found {keys.name(key)} {found}, wanted no such key: {what} are not "
                "computed here"
            )
    layers = target_layers(keys, its)
    hidden, width = keys.integer("embedding_length"), its.integer("embedding_length")
    if "token_embd.weight" not in reader.tensors and hidden != width:
        raise ConfigError(
            f"draft: found {ARCH}.embedding_length {hidden} without token_embd.weight, wanted "
            f"{width}, the embedding_length of the target"
        )
    fc = reader.tensors.get("fc.weight")
    wide = len(layers) * width
    if not layers or fc is not None and fc.shape[-1] != wide:
        columns = "no fc.weight" if fc is None else f"fc.weight of {fc.shape[-1]} columns"
        raise ConfigError(
            f"draft: found {columns} for {len(layers)} target_layers, wanted {wide}, a row of the "
            "target for each of at least one"
        )
    return layers


def _block(b: Builder) -> Block:
    """The blocks of a file."""
    keys = b.keys
    first = 1
    if b.has("markov_w1.weight"):
        first = 0 if keys.flag("sample_from_anchor", default=True) else 1
    elif keys.flag("sample_from_anchor", default=False):
        raise ModelError(
            f"{ARCH}.sample_from_anchor: found True, wanted False: there is no markov_w1.weight"
        )
    causal = keys.flag("attention.causal", default=False)
    return Block(
        keys.integer("block_size", default=16, minimum=2, maximum=1 << 10),
        first,
        keys.root.integer("tokenizer.ggml.mask_token_id", maximum=b.vocab_size - 1),
        # files of `oxillama convert` say it of each layer where they differ
        keys.flags("attention.causal_pattern", count=b.n_layers, default=(causal,) * b.n_layers),
    )


@dataclass(frozen=True, slots=True)
class Graphs:
    """What a draft computes besides the logits of a block. context: keeps keys and values of a
    target's token. markov: the bias of the logits by the token before. before, after: the rows that
    a selector has of a token before a candidate, and of the candidate; None without. most: the
    tokens that it chooses among, 0 without one.
    """

    context: Builder
    markov: Builder | None = None
    before: Builder | None = None
    after: Builder | None = None
    most: int = 0


def dflash(b: Builder, width: int) -> tuple[Value, Block, Graphs]:
    """(logits of a block's rows; what a block is; the draft's other graphs). width: of the target's
    rows.
    """
    keys, block = b.keys, _block(b)
    wide = len(keys.integers("target_layers")) * width
    keys.flag("has_confidence_head", default=False)
    b.used.update(_CONFIDENCE)
    act = hidden_act(b, _ACTS)
    windows = _windows(b, block)
    _one_section(b)
    # the file's is that of a block alone; a batch says what rows of it see
    b.causal = True
    context = b.aside()
    context.pages = b.pages
    g = context.norm(context.linear(context.features(0, wide), "fc", b.hidden), "enc.output_norm")
    context.mark_embedding(g)
    x = b.embed(scale=keys.number("embedding_scale", default=0.0) or 1.0)
    for layer in b.layers():
        strict = block.layers[layer.index]
        x = _layer(b, layer, x, window=windows[layer.index], strict=strict, act=act)
        _keep(context, Layer(context, layer.index), g, window=windows[layer.index])
    y = b.norm(x, "output_norm")
    b.mark_embedding(y)
    more = _selector(b, y)
    head = "output" if b.has("output.weight") else "token_embd"
    rows = b.shape(f"{head}.weight", 2)[0]
    scale = keys.number("logit_scale", default=0.0) or 1.0
    cap = keys.number("final_logit_softcapping", default=0.0, minimum=0.0)
    logits = b.softcap(b.linear(y, head, rows) * scale, cap)
    if not b.has("markov_w1.weight"):
        return logits, block, Graphs(context, **more)
    if (scale, cap) != (1.0, 0.0):
        raise ModelError(
            f"{ARCH}.logit_scale, {ARCH}.final_logit_softcapping: found {scale:g} and {cap:g} "
            "beside markov_w1.weight, wanted 1 and 0"
        )
    markov = b.aside()
    markov.mark_embedding(markov.linear(markov.embed_extra("markov_w1.weight"), "markov_w2", rows))
    return logits, block, Graphs(context, markov)


def _selector(b: Builder, y: Value) -> dict[str, Any]:
    """The selector as parameters of `Graphs`; its rows of a block are carried."""
    if not b.has("selector_hidden.weight"):
        return {}
    if b.has("markov_w1.weight"):
        raise ModelError("markov_w1.weight: found it beside selector_hidden.weight, wanted one")
    rank = b.keys.integer("selector_rank", minimum=1, maximum=1 << 16)
    most = b.keys.integer("selector_top_k", minimum=1, maximum=b.vocab_size)
    b.mark_carried(b.linear(y, "selector_hidden", rank))
    made = {}
    for part, name in (("before", "predecessor"), ("after", "successor")):
        graph = b.aside()
        table = f"selector_{name}.weight"
        graph.matrix(table, b.vocab_size, rank)
        graph.mark_embedding(graph.embed_extra(table))
        made[part] = graph
    return {**made, "most": most}


def _windows(b: Builder, block: Block) -> tuple[int, ...]:
    """The window of each layer, 0 for all keys."""
    window = b.keys.integer("attention.sliding_window", default=0)
    if not window:
        return (0,) * b.n_layers
    near = b.keys.flags("attention.sliding_window_pattern", count=b.n_layers)
    if any(near) and window < block.rows:
        raise ModelError(
            f"{ARCH}.attention.sliding_window: found {window}, wanted at least the block_size, "
            f"{block.rows}"
        )
    return tuple(window if each else 0 for each in near)


def _one_section(b: Builder) -> None:
    """All pairs are rotated by the first of a token's positions."""
    sections = b.keys.integers("rope.dimension_sections", default=())
    if any(sections[1:]):
        raise ModelError(
            f"{ARCH}.rope.dimension_sections: found {list(sections)}, wanted zeros behind the first"
        )


def _layer(b: Builder, layer: Layer, x: Value, *, window: int, strict: bool, act: str) -> Value:
    """Norms behind attention and network, and a factor for the layer's result, if there are any.
    strict: a row sees none behind it.
    """
    keys, heads = b.keys, heads_of(b, layer)
    if heads.key_dim != heads.value_dim:
        raise ModelError(
            f"{ARCH}.attention.value_length: found {heads.value_dim}, wanted {heads.key_dim}, as "
            "that of keys"
        )
    normed, mixed = _convolved(b, layer, layer.norm(x, "attn_norm"), "attn_conv")
    q = layer.linear(normed, "attn_q", heads.query * heads.key_dim)
    k, v = _keys_and_values(b, layer, normed)
    y = b.attend(
        q,
        k,
        v,
        heads=heads,
        rope=b.rope(rope_dims(b, heads)),
        style="neox",
        scale=keys.number("attention.scale", default=0.0, minimum=0.0) or heads.key_dim**-0.5,
        window=window,
        strict=strict,
        q_norm=layer.vector("attn_q_norm.weight", heads.key_dim),
        k_norm=layer.vector("attn_k_norm.weight", heads.key_dim),
        eps=b.epsilon(),
        sinks=layer.optional_vector("attn_sinks.weight", heads.query),
    )
    y = layer.linear(y, "attn_output", b.hidden)
    y = mixed(y * (keys.number("attention.value_scale", default=0.0) or 1.0))
    if layer.has("post_attention_norm.weight"):
        y = layer.norm(y, "post_attention_norm")
    x = x + y
    normed, mixed = _convolved(b, layer, layer.norm(x, "ffn_norm"), "ffn_conv")
    y = mixed(gated_ffn(b, layer, normed, act=act))
    if layer.has("post_ffw_norm.weight"):
        y = layer.norm(y, "post_ffw_norm")
    x = x + y
    factor = layer.optional_vector("layer_output_scale.weight", 1)
    return x if factor is None else x * float(factor[0])


def _convolved(
    b: Builder, layer: Layer, x: Value, name: str
) -> tuple[Value, Callable[[Value], Value]]:
    """(x mixed with the rows before it; what mixes the result), where the layer has a convolution
    of that name: the weight of a row is a number for each float, and one that x gives for each
    group of them.
    """
    if not layer.has(f"{name}_proj.weight"):
        return x, lambda y: y
    taps = b.keys.integer("conv_kernel_size", minimum=1, maximum=64)
    size = b.keys.integer("conv_group_size", minimum=1, maximum=b.hidden)
    if b.hidden % size:
        raise ModelError(
            f"{ARCH}.conv_group_size: found {size}, wanted a divisor of embedding_length {b.hidden}"
        )
    groups = b.hidden // size
    fixed = layer.array(f"{name}_base", 2, taps, b.hidden)
    made = layer.linear(x, f"{name}_proj", 2 * taps * groups)

    def mixed(y: Value, side: int) -> Value:
        total = None
        for tap in range(taps):
            first = (side * taps + tap) * groups
            y = b.shift(y) if tap else y
            part = y * fixed[side, tap]
            part = part + b.head_scale(y, made.columns(first, first + groups), heads=groups)
            total = part if total is None else total + part
        assert total is not None
        return total

    return mixed(x, 0), lambda y: mixed(y, 1)


def _keep(context: Builder, layer: Layer, g: Value, *, window: int) -> None:
    """Keep a layer's keys and values of the target's tokens."""
    heads = heads_of(context, layer)
    k, v = _keys_and_values(context, layer, g)
    context.store(
        k,
        v,
        heads=heads,
        layer=layer.index,
        window=window,
        rope=context.rope(rope_dims(context, heads)),
        k_norm=layer.vector("attn_k_norm.weight", heads.key_dim),
        eps=context.epsilon(),
    )


def _keys_and_values(b: Builder, layer: Layer, x: Value) -> tuple[Value, Value]:
    """If the layer has no values, they are its keys under a norm without a weight."""
    heads = heads_of(b, layer)
    k = layer.linear(x, "attn_k", heads.kv * heads.key_dim)
    if layer.has("attn_v.weight"):
        return k, layer.linear(x, "attn_v", heads.kv * heads.value_dim)
    return k, b.norm(k, None, heads=heads.kv)
