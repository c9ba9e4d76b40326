"""Gemma 4's draft models, its assistants (Google 2026, published code,
modeling_gemma4_assistant.py), GGUF files of the architecture `gemma4-assistant`: a few layers of
queries alone, over the keys and values that the target's last windowed and last global layer
stored.

    target   t0 ... tn-1             keys and values of them; the row h of tn-1 behind its last norm
    draft    [row of tn in the target's table, h] --pre_projection--> layers --norm--> y
             y --token_embd--> logits;  y --post_projection--> h of the next candidate

All candidates of a step are drawn at the place of tn, which has no key yet: each sees the keys of
t0 to tn-1, or those of its window. A file may bring clusters of the vocabulary (`masked_embd_*`),
by which some programs compute a part of the logits alone; here all are computed.
"""

from __future__ import annotations

import math

from oxillama.errors import ConfigError, ModelError
from oxillama.gguf import GgufReader
from oxillama.gguf.keys import Keys
from oxillama.model.arch.gemma4 import decoder_layer
from oxillama.model.builder import Builder
from oxillama.model.recorder import Value
from oxillama.model.state import LayerState, Slot

ARCH, TARGET = "gemma4-assistant", "gemma4"
# tensors of the target, by their names in a draft's graph
LENT = {
    "target.token_embd.weight": "token_embd.weight",
    "target.output_norm.weight": "output_norm.weight",
}
_CLUSTERS = ("masked_embd_centroids.weight", "masked_embd_ordering")


def extracts_of(reader: GgufReader, target: GgufReader) -> tuple[int, ...]:
    """The layers of the target whose inputs a draft begins with: the number of layers, which stands
    for what comes out of the last one. ConfigError unless it was made for such a target.
    """
    keys, its = Keys(reader.metadata, ARCH), Keys(target.metadata)
    if its.arch != TARGET:
        raise ConfigError(f"draft: found {ARCH} for {its.arch}, wanted it for {TARGET}")
    wide, width = keys.integer("embedding_length_out"), its.integer("embedding_length")
    _same(keys, "embedding_length_out", wide, width, "the embedding_length")
    layers, count = keys.integer("block_count", minimum=1), its.integer("block_count")
    near = keys.flags("attention.sliding_window_pattern", count=layers)
    its_near = its.flags("attention.sliding_window_pattern", count=count)
    own = count - its.integer("attention.shared_kv_layers", default=0, maximum=count - 1)
    heads = keys.per_layer("attention.head_count_kv", layers, minimum=1)
    its_heads = its.per_layer("attention.head_count_kv", count, minimum=1)
    for windowed in sorted(set(near)):
        kind, suffix = ("windowed", "_swa") if windowed else ("global", "")
        stored = [at for at in range(own) if its_near[at] == windowed]
        if not stored:
            raise ConfigError(
                f"draft: found {kind} layers in {ARCH}, wanted none: no such layer of the target "
                "stores keys"
            )
        names = [f"attention.{part}_length{suffix}" for part in ("key", "value")]
        for name in (*names, "attention.sliding_window") if windowed else names:
            _same(keys, name, keys.integer(name), its.integer(name), "that")
        base, turned = f"rope.freq_base{suffix}", f"rope.dimension_count{suffix}"
        _same(keys, base, keys.number(base, default=None), its.number(base, default=None), "that")
        count_of = {"default": its.integer(names[0])}
        _same(
            keys, turned, keys.integer(turned, **count_of), its.integer(turned, **count_of), "that"
        )
        for one in {heads[at] for at in range(layers) if near[at] == windowed}:
            _same(keys, "attention.head_count_kv", one, its_heads[stored[-1]], f"{kind} layers'")
    return (count,)


def _same(keys: Keys, name: str, found: float | None, wanted: float | None, what: str) -> None:
    if found != wanted:
        raise ConfigError(
            f"draft: found {keys.name(name)} {found}, wanted {wanted}, {what} of the target"
        )


def assistant(b: Builder, states: tuple[LayerState, ...], width: int) -> tuple[Value, Builder]:
    """(logits of the draft; the graph that makes its row h of the target's row before its last
    norm, `width` floats). states: what the target's layers keep.
    """
    keys, layers = b.keys, b.n_layers
    for key, more in (("nextn_predict_layers", ()), ("attention.shared_kv_layers", (0,))):
        found = keys.integer(key, default=layers)
        if found not in (layers, *more):
            raise ModelError(
                f"{ARCH}.{key}: found {found}, wanted {layers}, all layers of the file"
            )
    keys.integer("embedding_length_per_layer_input", default=0, maximum=0)
    keys.integer("embedding_length_out", minimum=width, maximum=width)
    # neither the published code nor llama.cpp caps them
    keys.number("final_logit_softcapping", default=0.0)
    b.used.update(_CLUSTERS)
    b.pages = [state for state in states if not isinstance(state, Slot)]
    sources = {bool(state.window): at for at, state in enumerate(b.pages)}
    token = b.embed_extra("target.token_embd.weight", scale=math.sqrt(width))
    row = b.features(0, width, beside=True)
    x = b.linear(b.concat(token, row), "nextn.pre_projection", b.hidden)
    near = keys.flags("attention.sliding_window_pattern", count=layers)
    for layer in b.layers():
        windowed = near[layer.index]
        x = decoder_layer(b, layer, x, near=windowed, source=sources[windowed], ahead=1)
    y = b.norm(x, "output_norm")
    b.mark_carried(b.linear(y, "nextn.post_projection", width))
    logits = b.head(y)
    normed = b.aside()
    normed.mark_embedding(normed.norm(normed.features(0, width), "target.output_norm"))
    return logits, normed
