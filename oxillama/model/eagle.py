"""EAGLE-3 draft models (Li et al. 2025, "EAGLE-3", section 3.1), GGUF files of the architecture
`eagle3`: one decoder layer that reads a token and a row g for the token before it.

    target   rows that come into three of its layers --fc--> g
    draft    [norm of the token's row, norm of g] --attention--> + g --feed-forward--> p
             norm of p --output--> logits of its own, smaller vocabulary; p is the next token's g

A file may leave out its token table and its output, and uses those of the target then.
"""

from __future__ import annotations

from oxillama.errors import ConfigError, ModelError
from oxillama.gguf import GgufReader
from oxillama.gguf.keys import Keys
from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, Layer
from oxillama.model.extracts import target_layers
from oxillama.model.recorder import Value

ARCH = "eagle3"


def extracts_of(reader: GgufReader, target: GgufReader) -> tuple[int, ...]:
    """The layers of the target whose inputs a draft begins with; the number of layers stands for
    what comes out of the last one. ConfigError unless the draft was made for such a target.
    """
    keys, its = Keys(reader.metadata, ARCH), Keys(target.metadata)
    layers = target_layers(keys, its, count=3, out=True)
    wide, width = keys.integer("target_hidden_size"), its.integer("embedding_length")
    if wide != width:
        raise ConfigError(
            f"draft: found {ARCH}.target_hidden_size {wide}, wanted {width}, the embedding_length "
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
