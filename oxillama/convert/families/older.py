"""Older decoders: fused q, k, v, learned positions or ALiBi, layer norms with biases."""

from __future__ import annotations

import numpy as np

from oxillama.convert.families.dense import PLAIN
from oxillama.convert.family import Hyper, Keys, Rule, family
from oxillama.convert.keys import epsilons, longrope, partial_rotation, unusual_rotation
from oxillama.convert.shapes import groups_apart, heads_apart, transposed
from oxillama.errors import ConvertError


def _sizes(h: Hyper, k: Keys, *, context: int, width: int, kv: int | None) -> None:
    k.u32("context_length", context)
    k.u32("embedding_length", h.hidden)
    k.u32("feed_forward_length", width)
    k.u32("block_count", h.layers)
    k.u32("attention.head_count", h.heads)
    if kv is not None:
        k.u32("attention.head_count_kv", kv)
    epsilons(h, k)


@family("BloomForCausalLM", "BloomModel", arch="bloom", rules={
    "{p}word_embeddings.weight".format(p="transformer."): "token_embd.weight",
    "transformer.word_embeddings_layernorm.{w}": "token_embd_norm.{w}",
    "transformer.ln_f.{w}": "output_norm.{w}",
    "transformer.h.{b}.input_layernorm.{w}": "blk.{b}.attn_norm.{w}",
    "transformer.h.{b}.post_attention_layernorm.{w}": "blk.{b}.ffn_norm.{w}",
    "transformer.h.{b}.self_attention.query_key_value.{w}":
        Rule(("blk.{b}.attn_qkv.{w}",), heads_apart),
    "transformer.h.{b}.self_attention.dense.{w}": "blk.{b}.attn_output.{w}",
    "transformer.h.{b}.mlp.dense_h_to_4h.{w}": "blk.{b}.ffn_up.{w}",
    "transformer.h.{b}.mlp.dense_4h_to_h.{w}": "blk.{b}.ffn_down.{w}",
    "lm_head.weight": "output.weight",
})  # fmt: skip
def bloom(h: Hyper, k: Keys) -> None:
    h.must_be("apply_residual_connection_post_layernorm", False)
    context = h.integer("seq_length", default=h.hidden)
    _sizes(h, k, context=context, width=4 * h.hidden, kv=h.heads)


def _falcon_groups(h: Hyper) -> int:
    """Key heads: one where `multi_query` says so, but in the newer of the two layers."""
    one = h.get("multi_query") and not h.get("new_decoder_architecture")
    return 1 if one else h.integer("num_kv_heads", "n_head_kv", default=h.heads)


def _falcon_qkv(x: np.ndarray, h: Hyper) -> np.ndarray:
    if _falcon_groups(h) == h.heads:
        return heads_apart(x, h)
    return np.concatenate(groups_apart(x, h.but(num_key_value_heads=_falcon_groups(h))))


@family("FalconForCausalLM", "RWForCausalLM", arch="falcon", meant={
    "activation": ("gelu",),
}, rules={
    "transformer.word_embeddings.weight": "token_embd.weight",
    "transformer.ln_f.{w}": "output_norm.{w}",
    "lm_head.weight": "output.weight",
    "transformer.h.{b}.input_layernorm.{w}": "blk.{b}.attn_norm.{w}",
    "transformer.h.{b}.ln_mlp.{w}": "blk.{b}.attn_norm.{w}",
    "transformer.h.{b}.ln_attn.{w}": "blk.{b}.attn_norm_2.{w}",
    "transformer.h.{b}.self_attention.query_key_value.{w}":
        Rule(("blk.{b}.attn_qkv.{w}",), _falcon_qkv),
    "transformer.h.{b}.self_attention.dense.{w}": "blk.{b}.attn_output.{w}",
    "transformer.h.{b}.mlp.dense_h_to_4h.{w}": "blk.{b}.ffn_up.{w}",
    "transformer.h.{b}.mlp.dense_4h_to_h.{w}": "blk.{b}.ffn_down.{w}",
})  # fmt: skip
def falcon(h: Hyper, k: Keys) -> None:
    """Trained on 2048 tokens; one or more key heads that all query heads share."""
    h.must_be("alibi", False)
    h.must_be("parallel_attn", True)
    k.text("tensor_data_layout", "jploski")
    _sizes(h, k, context=2048, width=4 * h.hidden, kv=_falcon_groups(h))
    unusual_rotation(h, k)


_TANH = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")  # one function under three names


# of GPT-NeoX: transformers 5 reads these alone, and not the names that other classes have
_OWN_NAMES = (
    ("rope_theta", "rotary_emb_base", 10000.0),
    ("partial_rotary_factor", "rotary_pct", 0.25),
)


@family("GPTNeoXForCausalLM", arch="gptneox", meant={
    "hidden_act": ("gelu", *_TANH),
}, rules={
    "gpt_neox.embed_in.weight": "token_embd.weight",
    "gpt_neox.final_layer_norm.{w}": "output_norm.{w}",
    "embed_out.weight": "output.weight",
    "gpt_neox.layers.{b}.input_layernorm.{w}": "blk.{b}.attn_norm.{w}",
    "gpt_neox.layers.{b}.post_attention_layernorm.{w}": "blk.{b}.ffn_norm.{w}",
    "gpt_neox.layers.{b}.attention.query_key_value.{w}":
        Rule(("blk.{b}.attn_qkv.{w}",), heads_apart),
    "gpt_neox.layers.{b}.attention.dense.{w}": "blk.{b}.attn_output.{w}",
    "gpt_neox.layers.{b}.mlp.dense_h_to_4h.{w}": "blk.{b}.ffn_up.{w}",
    "gpt_neox.layers.{b}.mlp.dense_4h_to_h.{w}": "blk.{b}.ffn_down.{w}",
}, dropped=(
    "gpt_neox.layers.{b}.attention.bias",
    "gpt_neox.layers.{b}.attention.masked_bias",
    "gpt_neox.layers.{b}.attention.rotary_emb.inv_freq",
))  # fmt: skip
def gptneox(h: Hyper, k: Keys) -> None:
    context, width = h.integer("max_position_embeddings"), h.integer("intermediate_size")
    _sizes(h, k, context=context, width=width, kv=None)
    h.must_be("hidden_act", "gelu", *_TANH)
    h.must_be("head_dim", h.hidden // h.heads)
    if h.get("hidden_act") in _TANH:  # that of the 20B, and of no Pythia
        k.text("hidden_activation", "gelu_pytorch_tanh")
    h.rope()  # whose words are objects with numbers
    said = {**(h.get("rope_scaling") or {}), **(h.get("rope_parameters") or {})}
    rope = {name: value for name, value in said.items() if value is not None}
    for name, own, usual in _OWN_NAMES:
        if name not in rope:
            h.must_be(name, h.number(own, default=usual))
    share = rope.get("partial_rotary_factor", h.number("rotary_pct", default=0.25))
    k.u32("rope.dimension_count", int(share * (h.hidden // h.heads)))
    k.flag("use_parallel_residual", h.flag("use_parallel_residual", default=True))
    unusual_rotation(h, k)


def _gpt2(prefix: str) -> dict:
    def matrix(name: str) -> Rule:
        return Rule((name,), transposed)

    return {
        f"{prefix}wte.weight": "token_embd.weight",
        f"{prefix}wpe.weight": "position_embd.weight",
        f"{prefix}ln_f.{{w}}": "output_norm.{w}",
        f"{prefix}h.{{b}}.ln_1.{{w}}": "blk.{b}.attn_norm.{w}",
        f"{prefix}h.{{b}}.ln_2.{{w}}": "blk.{b}.ffn_norm.{w}",
        f"{prefix}h.{{b}}.attn.c_attn.{{w}}": matrix("blk.{b}.attn_qkv.{w}"),
        f"{prefix}h.{{b}}.attn.c_proj.{{w}}": matrix("blk.{b}.attn_output.{w}"),
        f"{prefix}h.{{b}}.mlp.c_fc.{{w}}": matrix("blk.{b}.ffn_up.{w}"),
        f"{prefix}h.{{b}}.mlp.c_proj.{{w}}": matrix("blk.{b}.ffn_down.{w}"),
    }


@family("GPT2LMHeadModel", arch="gpt2", rules={
    **_gpt2("transformer."), **_gpt2(""), "lm_head.weight": "output.weight",
}, dropped=(
    "transformer.h.{b}.attn.bias",
    "transformer.h.{b}.attn.masked_bias",
    "h.{b}.attn.bias",
    "h.{b}.attn.masked_bias",
))  # fmt: skip
def gpt2(h: Hyper, k: Keys) -> None:
    h.must_be("activation_function", *_TANH)
    h.must_be("scale_attn_by_inverse_layer_idx", False)
    context = h.integer("n_ctx", "n_positions", "max_position_embeddings")
    width = h.integer("n_inner", default=None) or 4 * h.hidden
    _sizes(h, k, context=context, width=width, kv=None)


@family("GPTBigCodeForCausalLM", arch="starcoder", rules={
    name: to.targets[0] if isinstance(to, Rule) else to
    for name, to in {**_gpt2("transformer."), "lm_head.weight": "output.weight"}.items()
}, dropped=("transformer.h.{b}.attn.bias", "transformer.h.{b}.attn.masked_bias"))  # fmt: skip
def starcoder(h: Hyper, k: Keys) -> None:
    """One key head that all query heads share."""
    h.must_be("activation_function", *_TANH)
    h.must_be("multi_query", True)
    width = h.integer("n_inner", default=None) or 4 * h.hidden
    _sizes(h, k, context=h.integer("n_positions"), width=width, kv=1)


@family("PhiForCausalLM", arch="phi2", meant={
    "hidden_act": _TANH,
}, rules={
    **PLAIN,
    "model.final_layernorm.{w}": "output_norm.{w}",
    "model.layers.{b}.self_attn.dense.{w}": "blk.{b}.attn_output.{w}",
    "model.layers.{b}.mlp.fc1.{w}": "blk.{b}.ffn_up.{w}",
    "model.layers.{b}.mlp.fc2.{w}": "blk.{b}.ffn_down.{w}",
}, special=lambda h, ids: {"add_bos": False})  # fmt: skip
def phi2(h: Hyper, k: Keys) -> None:
    h.must_be("qk_layernorm", False)
    context, width = h.integer("max_position_embeddings"), h.integer("intermediate_size")
    _sizes(h, k, context=context, width=width, kv=h.kv_heads)
    k.u32("rope.dimension_count", int(partial_rotation(h)))
    unusual_rotation(h, k)


@family("Phi3ForCausalLM", arch="phi3", extra=longrope, rules={
    **PLAIN,
    "model.layers.{b}.self_attn.qkv_proj.{w}": "blk.{b}.attn_qkv.{w}",
    "model.layers.{b}.mlp.gate_up_proj.{w}": "blk.{b}.ffn_up.{w}",
})  # fmt: skip
def phi3(h: Hyper, k: Keys) -> None:
    phi3_keys(h, k)


def phi3_keys(h: Hyper, k: Keys) -> None:
    """LongRoPE (Ding et al. 2024): factors for short and long sequences, and one of attention."""
    context = h.integer("max_position_embeddings")
    original = h.integer("original_max_position_embeddings", default=context)
    rope = h.rope()
    k.u32("context_length", context)
    k.u32("rope.scaling.original_context_length", original)
    k.u32("embedding_length", h.hidden)
    k.u32("feed_forward_length", h.integer("intermediate_size"))
    k.u32("block_count", h.layers)
    k.u32("attention.head_count", h.heads)
    k.u32("attention.head_count_kv", h.kv_heads)
    epsilons(h, k)
    k.u32("rope.dimension_count", partial_rotation(h))
    k.f32("rope.freq_base", rope.get("rope_theta", 10000.0))
    k.u32("attention.sliding_window", h.integer("sliding_window", default=0))
    if rope["rope_type"] in ("longrope", "su"):
        scale = Hyper(rope, f"{h.label}: rope_parameters").number(
            "factor", default=context / original
        )
        factor = 1.0 if scale <= 1 else float(np.sqrt(1 + np.log(scale) / np.log(original)))
        factor = Hyper(rope, f"{h.label}: rope_parameters").number(
            "attention_factor", default=factor
        )
        k.f32("rope.scaling.attn_factor", factor)
    elif rope["rope_type"] != "default":
        raise ConvertError(f"{h.label}: rope_type: found {rope['rope_type']!r}, wanted longrope")


@family("MPTForCausalLM", "MptForCausalLM", arch="mpt", rules={
    "transformer.wte.weight": "token_embd.weight",
    "transformer.wpe.weight": "position_embd.weight",
    "transformer.norm_f.{w}": "output_norm.{w}",
    "transformer.blocks.{b}.norm_1.{w}": "blk.{b}.attn_norm.{w}",
    "transformer.blocks.{b}.norm_2.{w}": "blk.{b}.ffn_norm.{w}",
    "transformer.blocks.{b}.attn.Wqkv.{w}": "blk.{b}.attn_qkv.{w}",
    "transformer.blocks.{b}.attn.out_proj.{w}": "blk.{b}.attn_output.{w}",
    "transformer.blocks.{b}.attn.q_ln.{w}": "blk.{b}.attn_q_norm.{w}",
    "transformer.blocks.{b}.attn.k_ln.{w}": "blk.{b}.attn_k_norm.{w}",
    "transformer.blocks.{b}.ffn.up_proj.{w}": "blk.{b}.ffn_up.{w}",
    "transformer.blocks.{b}.ffn.down_proj.{w}": "blk.{b}.ffn_down.{w}",
    "lm_head.weight": "output.weight",
})  # fmt: skip
def mpt(h: Hyper, k: Keys) -> None:
    """ALiBi; the width of the feed-forward is four times the model's, whatever the ratio says."""
    attention = Hyper(h.get("attn_config", default={}), f"{h.label}: attn_config")
    attention.must_be("prefix_lm", False)
    kv = attention.get("kv_n_heads")
    k.u32("context_length", h.integer("max_seq_len"))
    k.u32("embedding_length", h.hidden)
    k.u32("block_count", h.layers)
    k.u32("feed_forward_length", 4 * h.hidden)
    k.u32("attention.head_count", h.heads)
    if kv is not None:
        k.u32("attention.head_count_kv", int(kv))
    k.f32("attention.layer_norm_epsilon", 1e-5)
    if attention.get("clip_qkv") is not None:
        k.f32("attention.clamp_kqv", attention.number("clip_qkv"))
    bias = attention.number("alibi_bias_max", default=8.0) if attention.get("alibi") else 0.0
    k.f32("attention.max_alibi_bias", bias)
