"""T5 (Raffel et al. 2020), a decoder behind an encoder, and umT5 (Chung et al. 2023); the encoder
alone, in a file of its own.

    source   tokens --encoder--> rows --k, v of each decoder layer--> pages, at the source's tokens
    target   tokens --decoder--> logits; a layer attends to its earlier tokens, then to the source

Each layer of the decoder keeps both in the same pages: the source's tokens come first, the
decoder's behind them. Layers of the encoder use pages of the decoder's first, one after the other,
before anything is kept there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from oxillama.errors import ConfigError
from oxillama.model.attention import Heads
from oxillama.model.blocks import ffn, gated_ffn, heads_of
from oxillama.model.builder import Builder, Layer, Value, architecture

_FURTHEST = 128  # distances from here on share a bucket; no key says another number


@architecture("t5encoder")
def t5_encoder(b: Builder) -> None:
    """Scores are not scaled; the first layer's bias by distance is that of all layers, but each
    layer of umT5 has its own. Version 1.0 has a ReLU, 1.1 and Flan a gate.
    """
    b.see_all()
    b.mark_embedding(_encoded(b))


@architecture("t5")
def t5(b: Builder) -> Value:
    """The encoder reads a text, the decoder answers it. An output that is the token table, as in
    version 1.0, is scaled; one of its own is not.
    """
    if b.depth < b.n_layers:
        raise ConfigError(
            f"depth: found {b.depth} for {b.arch}, wanted all {b.n_layers} layers: a decoder needs "
            "what its whole encoder makes"
        )
    b.start_token = b.keys.integer("decoder_start_token_id", maximum=b.vocab_size - 1)
    b.source = source = b.aside()
    b.n_layers = b.depth = b.keys.integer(
        "decoder_block_count", default=b.n_layers, minimum=1, maximum=1 << 14
    )
    logits = _decoded(b)
    source.causal, source.pages = False, b.pages
    y = source.mark_embedding(_encoded(source, pages=0))
    for layer in b.layers("dec."):
        heads = heads_of(b, layer)
        k, v = (
            source.linear(y, layer.name(f"cross_attn_{name}"), heads.kv * width)
            for name, width in (("k", heads.key_dim), ("v", heads.value_dim))
        )
        source.store(k, v, heads=heads, layer=layer.index)
    return logits


def _encoded(b: Builder, *, pages: int | None = None) -> Value:
    """The normed rows that leave the encoder. pages: of the layer that all of it use, None for
    their own.
    """
    b.keys.number("attention.layer_norm_epsilon", default=0.0)  # all norms are RMS norms
    relative = None
    x = b.embed()
    for layer in b.layers("enc."):
        relative = _relative(b, layer, relative)
        x = x + _attended(b, layer, layer.norm(x, "attn_norm"), relative=relative, pages=pages)
        x = x + _fed(b, layer, layer.norm(x, "ffn_norm"))
    return b.norm(x, "enc.output_norm")


def _decoded(b: Builder) -> Value:
    """The logits of the decoder."""
    relative = None
    x = b.embed()
    for layer in b.layers("dec."):
        relative = _relative(b, layer, relative, later=False)
        # published files of version 1.0 have one that nothing reads
        b.used.add(layer.name("cross_attn_rel_b.weight"))
        x = x + _attended(b, layer, layer.norm(x, "attn_norm"), relative=relative, behind=True)
        x = x + _crossed(b, layer, layer.norm(x, "cross_attn_norm"), heads_of(b, layer))
        x = x + _fed(b, layer, layer.norm(x, "ffn_norm"))
    scale = 1.0 if b.has("output.weight") else b.hidden**-0.5
    return b.logits(x, norm="dec.output_norm", scale=scale)


def _attended(b: Builder, layer: Layer, x: Value, **how: Any) -> Value:
    """Attention to the tokens of the same side; how: parameters of `Builder.attend`."""
    heads = heads_of(b, layer)
    widths = (
        heads.query * heads.key_dim,
        heads.kv * heads.key_dim,
        heads.kv * heads.value_dim,
    )
    q, k, v = (layer.linear(x, f"attn_{name}", width) for name, width in zip("qkv", widths))
    y = b.attend(q, k, v, heads=heads, rope=None, style="neox", scale=1.0, **how)
    return layer.linear(y, "attn_o", b.hidden)


def _crossed(b: Builder, layer: Layer, x: Value, heads: Heads) -> Value:
    """Attention to the source."""
    q = layer.linear(x, "cross_attn_q", heads.query * heads.key_dim)
    y = b.attend_stored(
        q, heads=heads, layer=layer.index, rope=None, style="neox", scale=1.0, spans=True
    )
    return layer.linear(y, "cross_attn_o", b.hidden)


def _fed(b: Builder, layer: Layer, x: Value) -> Value:
    if layer.has("ffn_gate.weight"):
        return gated_ffn(b, layer, x, act="gelu_tanh")
    return ffn(b, layer, x, act="relu")


def _relative(
    b: Builder, layer: Layer, before: np.ndarray | None, *, later: bool = True
) -> np.ndarray:
    """The bias of each head for each distance key - query from -128 to 128, float32 (heads, 257):
    the layer's own, or that of the layer before. later: keys may come later.
    """
    if before is not None and not layer.has("attn_rel_b.weight"):
        return before
    # what is for single distances, a quarter or half of them, is fewer than all
    most = (4 if later else 2) * _FURTHEST - 1
    buckets = b.keys.integer("attention.relative_buckets_count", minimum=4, maximum=most)
    bias = layer.array("attn_rel_b.weight", buckets, heads_of(b, layer).query)
    distances = np.arange(-_FURTHEST, _FURTHEST + 1)
    return np.ascontiguousarray(bias[bucket_of(distances, buckets, later=later)].T)


def bucket_of(distances: np.ndarray, buckets: int, *, later: bool = True) -> np.ndarray:
    """The bucket of each distance key - query: half of them for keys that come later, if such are
    seen; of the rest, and of that half, half for single distances, the others for wider and wider
    ranges (section 2.1).
    """
    half = buckets // 2 if later else buckets
    exact = half // 2
    far = np.abs(distances)
    wide = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(exact))
    wide = wide / np.float32(math.log(_FURTHEST / exact)) * np.float32(half - exact)
    wide = np.minimum(exact + wide.astype(np.int64), half - 1)
    ahead = half if later else 0
    return np.where(distances > 0, ahead, 0) + np.where(far < exact, far, wide)
