"""BERT (Devlin et al. 2019) and what is built alike: norms after each branch, every token sees the
whole text. RoBERTa, XLM-RoBERTa and DistilBERT come as files of `bert`.
"""

from __future__ import annotations

import numpy as np

from oxillama.model.blocks import (
    alibi,
    attention,
    ffn,
    fused,
    gated_ffn,
    heads_of,
    routed,
)
from oxillama.model.builder import Builder, Layer, Value, architecture


@architecture("bert")
def bert(b: Builder) -> None:
    """Learned positions. A file's positions begin at its first token: the rows that RoBERTa keeps
    for padding are cut off.
    """
    x = _begin(b)
    for layer in b.layers():
        x = layer.norm(
            x + attention(b, layer, x, style="neox", rope=None), "attn_output_norm", kind="layer"
        )
        x = layer.norm(x + ffn(b, layer, x, act="gelu_erf"), "layer_output_norm", kind="layer")
    b.mark_embedding(x)
    # DistilBERT, the one without token types, has a ReLU where the others have a tanh
    b.classify(act="tanh" if b.has("token_types.weight") else "relu", pooling="cls")


@architecture("nomic-bert")
def nomic_bert(b: Builder) -> None:
    """Rotated positions and a gated feed-forward (Nussbaum et al. 2024)."""
    x = _begin(b, positions=False)
    for layer in b.layers():
        x = layer.norm(x + attention(b, layer, x, style="neox"), "attn_output_norm", kind="layer")
        x = layer.norm(x + gated_ffn(b, layer, x, act="silu"), "layer_output_norm", kind="layer")
    b.mark_embedding(x)
    b.classify(act="tanh", pooling="cls")


@architecture("nomic-bert-moe")
def nomic_bert_moe(b: Builder) -> None:
    """The same with experts in every other layer, without a gate (Nussbaum and Duderstadt 2025)."""
    every = b.keys.integer("moe_every_n_layers", default=0)
    x = _begin(b, positions=False)
    for layer in b.layers():
        x = layer.norm(x + attention(b, layer, x, style="neox"), "attn_output_norm", kind="layer")
        sparse = every and layer.index % every == 1
        y = _experts(b, layer, x) if sparse else ffn(b, layer, x, act="gelu_erf")
        x = layer.norm(x + y, "layer_output_norm", kind="layer")
    b.mark_embedding(x)


def _experts(b: Builder, layer: Layer, x: Value) -> Value:
    count = b.keys.integer("expert_count", minimum=1, maximum=1 << 12)
    width = layer.integer("feed_forward_length", minimum=1, maximum=1 << 24)
    routes = routed(b, layer, x)
    up = b.activate(layer.experts(x, routes, "ffn_up_exps", width, count=count), "gelu_erf")
    return b.combine(layer.experts(up, routes, "ffn_down_exps", b.hidden, count=count), routes)


@architecture("jina-bert-v3")
def jina_bert_v3(b: Builder) -> None:
    """XLM-RoBERTa with rotated positions (Sturua et al. 2024); its adapters are merged or left
    out.
    """
    x = _begin(b, positions=False)
    for layer in b.layers():
        x = layer.norm(x + attention(b, layer, x, style="neox"), "attn_output_norm", kind="layer")
        x = layer.norm(x + ffn(b, layer, x, act="gelu_erf"), "layer_output_norm", kind="layer")
    b.mark_embedding(x)
    b.classify(act="tanh", pooling="cls")


@architecture("jina-bert-v2")
def jina_bert_v2(b: Builder) -> None:
    """ALiBi in both directions and a gated feed-forward (Guenther et al. 2023, section 3); the code
    variant normalises rows of queries and keys, and has a second norm after attention. Gate and up
    may be one matrix, the gate's rows first; in the code variant last.
    """
    x = _begin(b, positions=False)
    length = b.keys.integer("context_length", minimum=1, maximum=1 << 20)
    for layer in b.layers():
        y = x + attention(
            b,
            layer,
            x,
            style="neox",
            rope=None,
            qk_norm="rows" if layer.has("attn_q_norm.weight") else None,
            norm_kind="layer",
            relative=_alibi(b, heads_of(b, layer).query, length),
        )
        y = layer.norm(y, "attn_output_norm", kind="layer")
        code = layer.has("attn_norm_2.weight")
        if code:
            y = layer.norm(x + y, "attn_norm_2", kind="layer")
        if code and layer.has("ffn_up.weight") and not layer.has("ffn_gate.weight"):
            width = layer.integer("feed_forward_length", minimum=1, maximum=1 << 24)
            up, gate = fused(layer, y, "ffn_up", (width, width))
            z = layer.linear(b.gate(gate, up, act="gelu_erf"), "ffn_down", b.hidden)
        else:
            z = gated_ffn(b, layer, y, act="gelu_erf")
        x = layer.norm(y + z, "layer_output_norm", kind="layer")
    b.mark_embedding(x)


# of attention.max_alibi_bias, where a file does not say it
_ALIBI = 8.0


def _begin(b: Builder, *, positions: bool = True) -> Value:
    """The embeddings of tokens, of the first token type and of positions, normalised."""
    b.see_all()
    x = b.embed()
    if b.has("token_types.weight"):
        # GGUF engines evaluate one text, whose tokens are all of the first type
        count = b.shape("token_types.weight", 2)[0]
        x = x + np.ascontiguousarray(b.array("token_types.weight", count, b.hidden)[0])
    if positions:
        x = x + b.position_embed()
    return b.norm(x, "token_embd_norm", kind="layer")


def _alibi(b: Builder, heads: int, length: int) -> np.ndarray:
    """What each head adds by distance, (heads, 2 length - 1): its slope times the distance,
    negative on both sides (Press et al. 2021, section 3).
    """
    distance = np.abs(np.arange(1 - length, length))
    return (-alibi(b, heads, default=_ALIBI)[:, None] * distance).astype(np.float32)
