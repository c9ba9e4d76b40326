"""Qwen 4 experimental: Qwen 3.5's layers over a residual of several streams, with an indexer and a
table by hashes of the last tokens.
"""

from __future__ import annotations

import numpy as np

from oxillama.convert.families.hybrid import QWEN35
from oxillama.convert.families.recurrent import delta_keys
from oxillama.convert.family import Hyper, Keys, Rule, family
from oxillama.convert.keys import common
from oxillama.convert.shapes import plus_one, squeezed
from oxillama.errors import ConvertError

_LAYER = "model.layers.{b}."
_TABLE = _LAYER + "ple.ple_embedding."
# the numbers of the hash, which are keys in a file
_HASH = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")


def _indexer_parts(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, np.ndarray]:
    """The indexer's queries and its one key, one under the other."""
    rows = h.integer("indexer_n_heads") * h.integer("indexer_head_dim")
    return x[:rows], x[rows:]


def _mixer(theirs: str, ours: str) -> dict[str, str | Rule]:
    """The network that mixes the streams, for one branch or behind the last layer."""
    return {
        f"{theirs}hc_norm.weight": Rule((f"{ours}_norm.weight",), plus_one, values=True),
        f"{theirs}input_mix_weight_down.weight": f"{ours}_down.weight",
        f"{theirs}input_mix_weight_up.weight": f"{ours}_up.weight",
        f"{theirs}block_inject_weight.weight": f"{ours}_inject.weight",
    }


QWEN4: dict[str, str | Rule] = {
    **QWEN35,
    **_mixer("model.hyper_connection_mixer.", "output_hc"),
    **_mixer(_LAYER + "attn_hyper_connection.", "blk.{b}.hc_attn"),
    **_mixer(_LAYER + "mlp_hyper_connection.", "blk.{b}.hc_ffn"),
    _LAYER + "self_attn.indexer.index_qk_proj.weight": Rule(
        ("blk.{b}.indexer.q_proj.weight", "blk.{b}.indexer.k_proj.weight"), _indexer_parts
    ),
    **{
        f"{_LAYER}self_attn.indexer.{part}_layernorm.weight": Rule(
            (f"blk.{{b}}.indexer.{part}_norm.weight",), plus_one, values=True
        )
        for part in "qk"
    },
    _LAYER + "ple.key_proj.weight": "blk.{b}.ple_key.weight",
    _LAYER + "ple.value_proj.weight": "blk.{b}.ple_value.weight",
    **{
        f"{_LAYER}ple.norm_{part}.weight": Rule(
            (f"blk.{{b}}.ple_norm_{part}.weight",), plus_one, values=True
        )
        for part in ("key", "query", "conv")
    },
    _LAYER + "ple.conv1d.weight": Rule(("blk.{b}.ple_conv1d.weight",), squeezed),
    _TABLE + "ngram_embedding.weight": "per_layer_token_embd.weight",
    _TABLE + "ngram_embedding.shard_{e}.weight": Rule(
        ("per_layer_token_embd.weight",), joined=True
    ),
}


@family("Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration", arch="qwen4exp", rules=QWEN4,
        dropped=tuple(_TABLE + name for name in _HASH))  # fmt: skip
def qwen4exp(h: Hyper, k: Keys) -> None:
    """The text part of Qwen 4 experimental; a file has no word for other gates than these."""
    h.must_be("hidden_act", "silu")
    gate = h.get("output_gate_type", "hidden_act", default="silu")
    if gate != "sigmoid":
        raise ConvertError(f"{h.label}: output_gate_type: found {gate!r}, wanted 'sigmoid'")
    h.must_be("norm_topk_prob", True)
    h.must_be("indexer_kv_heads", 1)
    common(h, k)
    delta_keys(h, k)
    k.u32("hyper_connection.count", h.integer("hc_count"))
    k.u32("hyper_connection.low_rank", h.integer("hc_lowrank"))
    k.u32("attention.indexer.head_count", h.integer("indexer_n_heads"))
    k.u32("attention.indexer.key_length", h.integer("indexer_head_dim"))
    k.u32("attention.indexer.top_k", h.integer("indexer_budget"))
    ratio = h.integer("indexer_compress_ratio")
    recurrent, _ = k.found["qwen4exp.attention.recurrent_layers"]
    k.integers("attention.compress_ratios", [0 if past else ratio for past in recurrent])
    _hash_keys(h, k)


def _hash_keys(h: Hyper, k: Keys) -> None:
    """The layer with a table, and the hash that chooses its rows."""
    layers = h.get("ple_layer_ids", default=[])
    if not layers:
        return
    if not isinstance(layers, list) or len(set(layers)) != 1 or not 0 < layers[0] <= h.layers:
        raise ConvertError(
            f"{h.label}: ple_layer_ids: found {layers!r:.80}, wanted one layer from 1 to {h.layers}"
        )
    layer = layers[0] - 1
    length, heads = h.integer("ngram_size", default=3), h.integer("heads_per_ngram", default=8)
    k.integers("ple.layers", [layer])
    k.u32("ple.ngram_size", length)
    k.u32("ple.heads_per_ngram", heads)
    k.u32("ple.conv_kernel", h.integer("ple_conv_kernel_size", default=4))
    k.u32("ple.eos_token_id", _end_of_text(h))
    if h.get("image_token_id") is not None:
        k.u32("ple.image_token_id", h.integer("image_token_id"))
    width = h.integer("ple_embed_dim", default=h.hidden)
    k.u32("embedding_length_per_layer_input", width // ((length - 1) * heads))
    for name, key in zip(_HASH, ("layer_multipliers", "head_vocab_sizes", "head_offsets")):
        values = _constants(h, f"layers.{layer}.ple.ple_embedding.{name}")
        k.put(f"ple.{key}", values, "array[uint64]")


def _end_of_text(h: Hyper) -> int:
    """The token that ends what a hash sees: the first one that the text part names."""
    config = h.config if h.folder is None else h.folder.json("config.json")
    said = config.get("text_config", config).get("eos_token_id")
    first = said[0] if isinstance(said, list) and said else said
    return Hyper({"eos_token_id": first}, h.label).integer("eos_token_id")


def _constants(h: Hyper, name: str) -> list[int]:
    """A tensor of whole numbers."""
    found = [] if h.folder is None else [*h.folder.tensors.items()]
    for full, tensor in found:
        if full.endswith(name):
            if tensor.dtype != "I64" or len(tensor.shape) != 1 or (tensor.data < 0).any():
                raise ConvertError(
                    f"{h.label}: {full}: found {tensor.dtype} of shape {list(tensor.shape)}, "
                    "wanted a list of I64 from 0"
                )
            return [int(one) for one in tensor.data]
    raise ConvertError(f"{h.label}: {name}: missing, wanted the numbers of the hash")
