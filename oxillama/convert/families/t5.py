"""T5, and its encoder alone.

A file without `output.weight` means the token table, and scaled logits, as in T5 of 2019; one with
it means logits that are not scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from oxillama.convert.family import FAMILIES, Family, Hyper, Keys, Rule, family
from oxillama.errors import ConvertError


def _side(side: str, fed: int) -> dict[str, str]:
    """The names of one side's layers; fed: the number of the part that is feed-forward."""
    at, to = f"{side}.block.{{b}}.layer.", f"{side[:3]}.blk.{{b}}."
    return {
        f"{side}.final_layer_norm.weight": f"{side[:3]}.output_norm.weight",
        **{f"{at}0.SelfAttention.{part}.weight": f"{to}attn_{part}.weight" for part in "qkvo"},
        f"{at}0.SelfAttention.relative_attention_bias.weight": f"{to}attn_rel_b.weight",
        f"{at}0.layer_norm.weight": f"{to}attn_norm.weight",
        f"{at}{fed}.DenseReluDense.wi.weight": f"{to}ffn_up.weight",
        f"{at}{fed}.DenseReluDense.wi_0.weight": f"{to}ffn_gate.weight",
        f"{at}{fed}.DenseReluDense.wi_1.weight": f"{to}ffn_up.weight",
        f"{at}{fed}.DenseReluDense.wo.weight": f"{to}ffn_down.weight",
        f"{at}{fed}.layer_norm.weight": f"{to}ffn_norm.weight",
    }


_TABLE = "shared.weight"
_ENCODER = {_TABLE: "token_embd.weight", **_side("encoder", 1)}
_CROSS = "decoder.block.{b}.layer.1."
_BOTH = {
    **_ENCODER,
    **_side("decoder", 2),
    **{
        f"{_CROSS}EncDecAttention.{part}.weight": f"dec.blk.{{b}}.cross_attn_{part}.weight"
        for part in "qkvo"
    },
    f"{_CROSS}layer_norm.weight": "dec.blk.{b}.cross_attn_norm.weight",
    "lm_head.weight": "output.weight",
}
_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# what nothing reads
_UNREAD = f"{_CROSS}EncDecAttention.relative_attention_bias.weight"


def _twice(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, np.ndarray]:
    return x, x


def _differs(tensors: Mapping[str, Any], name: str, table: str) -> bool:
    """Whether a folder has a tensor of that name with other numbers than its table."""
    one, rows = tensors.get(name), tensors.get(table)
    if one is None:
        return False
    return rows is None or one.dtype != rows.dtype or not np.array_equal(one.data, rows.data)


def _headed(h: Hyper, *, scaled: Callable[[Hyper], bool]) -> Family:
    """The family of a folder, by its head: of its own, the token table, and scaled or not."""
    assert h.folder is not None
    made, tensors = FAMILIES[h.folder.architecture], h.folder.tensors
    table = next((name for name in (_TABLE, *_COPIES) if name in tensors), _TABLE)
    rules: dict[str, str | Rule] = {**_BOTH, table: "token_embd.weight"}
    dropped = [name for name in (_TABLE, *_COPIES) if name != table] + [_UNREAD]
    other = [name for name in (*_COPIES, "lm_head.weight") if _differs(tensors, name, table)]
    if other and other[0] in _COPIES:
        raise ConvertError(
            f"{h.folder.path}: {other[0]}: found other numbers than in {table}, wanted the same: "
            "both sides of a t5 file have one table"
        )
    own = "lm_head.weight" in other
    if own and scaled(h):
        raise ConvertError(
            f"{h.folder.path}: lm_head.weight: found one beside the token table for logits that "
            "are scaled (tie_word_embeddings), wanted none: a t5 file has no place for it"
        )
    if not own:
        dropped.append("lm_head.weight")
        if not scaled(h):
            rules[table] = Rule(("token_embd.weight", "output.weight"), _twice)
    for name in dropped:
        rules.pop(name, None)
    return replace(made, rules=rules, dropped=tuple(dropped), patterns=[])


def _keys(h: Hyper, k: Keys) -> None:
    h.must_be("relative_attention_max_distance", 128)
    h.must_be("feed_forward_proj", "relu", "gated-gelu")
    # which transformers makes of it where they are not said, and otherwise follows
    gated = h.get("feed_forward_proj", default="relu") == "gated-gelu"
    h.must_be("is_gated_act", gated)
    h.must_be("dense_act_fn", "gelu_new" if gated else "relu")
    k.u32("context_length", h.integer("n_positions", default=512))
    k.u32("embedding_length", h.hidden)
    k.u32("feed_forward_length", h.integer("d_ff"))
    k.u32("block_count", h.integer("num_layers"))
    k.u32("attention.head_count", h.integer("num_heads"))
    k.u32("attention.key_length", h.integer("d_kv"))
    k.u32("attention.value_length", h.integer("d_kv"))
    k.f32("attention.layer_norm_epsilon", h.number("layer_norm_epsilon"))
    k.u32("attention.relative_buckets_count", h.integer("relative_attention_num_buckets"))
    k.f32("attention.layer_norm_rms_epsilon", h.number("layer_norm_epsilon"))


@family("T5EncoderModel", "UMT5EncoderModel", arch="t5encoder", vocabulary="unigram",
        rules=_ENCODER, dropped=_COPIES[:1], held=lambda h: h.integer("num_layers"))  # fmt: skip
def t5_encoder(h: Hyper, k: Keys) -> None:
    """The encoder of T5 (Raffel et al. 2019), and of umT5 (Chung et al. 2023), each of whose layers
    has a bias by distance of its own; distances are binned up to 128.
    """
    _keys(h, k)


def _tied(h: Hyper) -> bool:
    return h.flag("tie_word_embeddings", default=True)


def _t5_scaled(h: Hyper) -> bool:
    """Newer folders say it, in older ones the logits of a head that is the table are scaled."""
    return h.flag("scale_decoder_outputs", default=_tied(h))


_T5 = partial(family, arch="t5", vocabulary="unigram", rules=_BOTH)


@_T5("UMT5ForConditionalGeneration", variant=partial(_headed, scaled=_tied))
@_T5("MT5ForConditionalGeneration", variant=partial(_headed, scaled=lambda h: False))
@_T5("T5ForConditionalGeneration", "T5WithLMHeadModel",
     variant=partial(_headed, scaled=_t5_scaled))  # fmt: skip
def t5(h: Hyper, k: Keys) -> None:
    """T5 (Raffel et al. 2019), 1.1 and Flan; mT5 (Xue et al. 2021), umT5 (Chung et al. 2023)."""
    _keys(h, k)
    k.u32("decoder_block_count", h.integer("num_decoder_layers", default=h.integer("num_layers")))
    k.u32("decoder_start_token_id", h.integer("decoder_start_token_id"))
