"""EAGLE-3 draft models (Li et al. 2025, "EAGLE-3", section 3.1), GGUF files of the architecture
`eagle3`: one decoder layer that reads a token and a row g for the token before it.

    target   rows that come into three of its layers --fc--> g
    draft    [norm of the token's row, norm of g] --attention--> + g --feed-forward--> p
             norm of p --output--> logits of its own, smaller vocabulary; p is the next token's g

A file may leave out its token table and its output, and uses those of the target then.
"""

from __future__ import annotations

import numpy as np

from oxillama.errors import ConfigError, ModelError
from oxillama.gguf import GgufReader
from oxillama.gguf.keys import Keys
from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, Layer
from oxillama.model.recorder import Value

ARCH = "eagle3"
# architectures whose layers read one row of several that they add to
_STREAMS = ("gemma3n", "glm5-next")


def extracts_of(reader: GgufReader, target: GgufReader) -> tuple[int, ...]:
    """The layers of the target whose inputs a draft begins with; the number of layers stands for
    what comes out of the last one. ConfigError unless the draft was made for such a target.
    """
    keys, its = Keys(reader.metadata, ARCH), Keys(target.metadata)
    if its.arch in _STREAMS:
        raise ConfigError(
            f"draft: found {ARCH} for {its.arch}, wanted it for a model whose layers add to one row"
        )
    layers = keys.integers("target_layers", count=3)
    wide, width = keys.integer("target_hidden_size"), its.integer("embedding_length")
    if wide != width:
        raise ConfigError(
            f"draft: found {ARCH}.target_hidden_size {wide}, wanted {width}, the embedding_length "
            "of the target"
        )
    extra = its.integer("nextn_predict_layers", default=0)
    most = its.integer("block_count") - extra
    if max(layers) > most:
        raise ConfigError(
            f"draft: found {ARCH}.target_layers {list(layers)}, wanted at most {most}, the layers "
            "of the target"
        )
    return layers


def eagle(b: Builder, width: int) -> tuple[Value, Builder]:
    """(logits of the draft; the graph that makes its row g of three rows of the target's, `width`
    floats each).
    """
    keys = b.keys
    if b.n_layers != 1:
        raise ModelError(f"{ARCH}.block_count: found {b.n_layers}, wanted 1")
    layer = Layer(b, 0)
    token = layer.norm(b.embed(), "attn_norm")
    before = b.features(0, b.hidden, beside=True)
    row = layer.norm(before, "attn_norm_2")
    y = attention(b, layer, b.concat(token, row), style="norm")
    x = (row if keys.flag("norm_before_residual", default=False) else before) + y
    x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    b.mark_carried(x)
    x = b.norm(x, "output_norm")
    b.mark_embedding(x)
    logits = b.linear(x, "output", b.shape("output.weight", 2)[0])
    fusion = b.aside()
    g = fusion.features(0, 3 * width)
    if keys.flag("norm_before_fc", default=False):
        g = fusion.norm(g, "enc.output_norm")
    fusion.mark_embedding(fusion.linear(g, "fc", b.hidden))
    return logits, fusion


def target_tokens(b: Builder, rows: int, vocabulary: int) -> np.ndarray | None:
    """The target's token of each row of the draft's output, int64 (rows,), from the file's `d2t`;
    None where they are the same.
    """
    if not b.has("d2t"):
        if rows != vocabulary:
            raise ConfigError(
                f"draft: found output.weight of {rows} rows without d2t, wanted {vocabulary}, the "
                "vocabulary of the target"
            )
        return None
    b.used.add("d2t")
    info = b.reader.tensors["d2t"]
    if tuple(info.shape) != (rows,) or info.type_name != "I64":
        raise ModelError(
            f"d2t: file has {info.type_name} {tuple(info.shape)}, {ARCH} needs I64 {(rows,)}"
        )
    tokens = b.reader.data("d2t").view("<i8").astype(np.int64)
    if not 0 <= tokens.min() <= tokens.max() < vocabulary:
        raise ConfigError(
            f"d2t: found tokens from {tokens.min()} to {tokens.max()}, wanted 0 to "
            f"{vocabulary - 1}, the vocabulary of the target"
        )
    if len(np.unique(tokens)) < rows:
        raise ModelError(f"d2t: found tokens twice, wanted {rows} of the target's")
    return tokens
