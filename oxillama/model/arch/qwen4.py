"""Qwen 4 experimental (Alibaba 2026, by its code in transformers, `models/qwen4_exp`): the layers
of Qwen 3.5 with experts, over a residual of several streams (Zhu et al. 2024, "Hyper-Connections");
an indexer chooses the keys of attention in blocks; one layer adds rows of a table, which hashes of
the last tokens choose.
"""

import numpy as np

from oxillama.errors import ModelError
from oxillama.model.arch.qwen_hybrid import delta_net, gated_attention, recurrent_layers
from oxillama.model.blocks import routing_of, sections_of, sparse_ffn, trunk
from oxillama.model.builder import Builder, Layer, Value, architecture
from oxillama.model.hyper_connections import stream_count, stream_mean
from oxillama.model.indexer import Sizes, mean_choice


@architecture("qwen4exp")
def qwen4exp(b: Builder) -> Value:
    """The norm before each branch is that of the streams' mix; the last mix takes the place of the
    output norm.
    """
    recurrent, hashed = recurrent_layers(b), _hashed_layer(b)
    # tokens of a block, where an indexer chooses the keys
    ratios = b.keys.integers("attention.compress_ratios", count=b.n_layers, maximum=1 << 12)
    sections, routing = sections_of(b, mixed=True), routing_of(b, normalise=True)
    count = stream_count(b)
    x = b.repeat(b.embed(), count)
    for layer in trunk(b):
        if layer.index == hashed:
            x = x + _hashed_embedding(b, layer, x)
        for branch in ("attn", "ffn"):
            name = layer.name(f"hc_{branch}")
            normed, y = _mixed(b, name, x)
            if branch == "ffn":
                y = sparse_ffn(b, layer, y, **routing)
            elif recurrent[layer.index]:
                y = delta_net(b, layer, y, tiled=True, act="sigmoid")
            else:
                y = _attention(b, layer, y, sections, ratios[layer.index])
            given = b.linear(normed, f"{name}_inject", count) * (1.0 / count)
            given = b.activate(given, "sigmoid") * 2.0
            x = x + b.head_scale(b.repeat(y, count), given, heads=count)
    return b.head(_mixed(b, "output_hc", x)[1])


def _mixed(b: Builder, name: str, x: Value) -> tuple[Value, Value]:
    """(the streams under a norm each, their mean under the gates that a network of low rank makes
    of all of them).
    """
    count = stream_count(b)
    rank = b.keys.integer("hyper_connection.low_rank", minimum=1, maximum=1 << 20)
    normed = b.norm(x, f"{name}_norm", heads=count)
    y = b.activate(b.linear(normed, f"{name}_down", rank) * (1.0 / count), "silu")
    gates = b.linear(y, f"{name}_up", x.width)
    return normed, stream_mean(b, b.gate(gates, normed, act="sigmoid"))


def _attention(b: Builder, layer: Layer, x: Value, sections: list[int], ratio: int) -> Value:
    """Gated attention to the keys that an indexer chooses. llama.cpp's converter may write 0 for
    the tokens of a block where it does not know a layer's kind: such a layer sees all keys, and
    sequences have no more than would be chosen whatever their number is.
    """
    if ratio:
        return gated_attention(
            b, layer, x, sections, choose=lambda rope: mean_choice(b, layer, x, rope, ratio)
        )
    prefix = layer.name("indexer")
    b.used.update(name for name in b.reader.tensors if name.startswith(prefix))
    return gated_attention(b, layer, x, sections, most=Sizes.of(b).most)


def _hashed_layer(b: Builder) -> int | None:
    """The layer that adds rows of the table, None if none does."""
    layers = b.keys.integers("ple.layers", maximum=b.n_layers - 1, default=())
    if len(layers) > 1:
        raise ModelError(
            f"{b.keys.name('ple.layers')}: found {len(layers)} layers, wanted one: the file has "
            "the numbers of one hash"
        )
    return layers[0] if layers else None


def _hashed_embedding(b: Builder, layer: Layer, x: Value) -> Value:
    """What the table adds to each stream: a value, under a gate by the product of its key and the
    stream, and its past through a convolution whose taps are as far apart as the longest run of
    tokens that is hashed.
    """
    keys, count = b.keys, stream_count(b)
    length = keys.integer("ple.ngram_size", minimum=2, maximum=8)
    heads = (length - 1) * keys.integer("ple.heads_per_ngram", minimum=1, maximum=1 << 8)
    stop = keys.integer("ple.eos_token_id", maximum=b.vocab_size - 1)
    # products with tokens are below 2^63
    most = ((1 << 63) - 1) // b.vocab_size
    table = "per_layer_token_embd.weight"
    rows, width = b.shape(table, 2)
    keys.integer("embedding_length_per_layer_input", minimum=width, maximum=width)
    sizes = keys.integers("ple.head_vocab_sizes", count=heads, minimum=1, maximum=rows)
    offsets = keys.integers("ple.head_offsets", count=heads, maximum=rows - 1)
    if max(map(sum, zip(sizes, offsets))) > rows:
        raise ModelError(
            f"{table}: file has {rows} rows, {keys.name('ple.head_offsets')} and "
            f"head_vocab_sizes need {max(map(sum, zip(sizes, offsets)))}"
        )
    made = b.ngram_embed(
        table,
        multipliers=keys.integers("ple.layer_multipliers", count=length, minimum=1, maximum=most),
        sizes=sizes,
        offsets=offsets,
        stop=stop,
        # a row of an image; llama.cpp takes the same if a file does not say which token that is
        filler=keys.integer("ple.image_token_id", default=stop, maximum=b.vocab_size - 1),
    )
    key = layer.norm(layer.linear(made, "ple_key", x.width), "ple_norm_key", heads=count)
    query = layer.norm(x, "ple_norm_query", heads=count)
    score = b.measure(key * query, "sum", heads=count) * b.hidden**-0.5
    gate = b.activate(b.activate(score, "signed_root"), "sigmoid")
    value = b.repeat(layer.linear(made, "ple_value", b.hidden), count)
    value = b.head_scale(value, gate, heads=count)
    taps = keys.integer("ple.conv_kernel", minimum=2, maximum=64)
    spread = np.zeros((x.width, (taps - 1) * length + 1), np.float32)
    spread[:, ::length] = layer.array("ple_conv1d.weight", x.width, taps)
    return value + b.conv(layer.norm(value, "ple_norm_conv", heads=count), spread, act="silu")
