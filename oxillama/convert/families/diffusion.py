"""Models that fill in masks: LLaDA, under names of its own, and what is made of Qwen."""

from __future__ import annotations

from oxillama.convert.families.dense import PLAIN
from oxillama.convert.families.experts import ROUTED
from oxillama.convert.family import Hyper, Keys, Rule, family
from oxillama.convert.keys import common
from oxillama.convert.shapes import paired_keys, paired_queries

_BLOCK = "model.transformer.blocks.{b}."
_LLADA: dict[str, str | Rule] = {
    "model.transformer.wte.weight": "token_embd.weight",
    "model.transformer.ln_f.weight": "output_norm.weight",
    "model.transformer.ff_out.weight": "output.weight",
    f"{_BLOCK}attn_norm.weight": "blk.{b}.attn_norm.weight",
    f"{_BLOCK}q_proj.weight": Rule(("blk.{b}.attn_q.weight",), paired_queries),
    f"{_BLOCK}k_proj.weight": Rule(("blk.{b}.attn_k.weight",), paired_keys),
    f"{_BLOCK}v_proj.weight": "blk.{b}.attn_v.weight",
    f"{_BLOCK}attn_out.weight": "blk.{b}.attn_output.weight",
    f"{_BLOCK}ff_norm.weight": "blk.{b}.ffn_norm.weight",
    f"{_BLOCK}ff_proj.weight": "blk.{b}.ffn_gate.weight",
    f"{_BLOCK}up_proj.weight": "blk.{b}.ffn_up.weight",
    f"{_BLOCK}ff_out.weight": "blk.{b}.ffn_down.weight",
}


def _masks(h: Hyper, k: Keys, *, shifted: bool, usual: int | None = None) -> None:
    """The mask, `usual` where a folder does not name it, and whether a row predicts the token after
    its own, which files say if it does not.
    """
    default = {} if usual is None else {"default": usual}
    k.flag("attention.causal", False)
    k.found["tokenizer.ggml.mask_token_id"] = h.integer("mask_token_id", **default), "uint32"
    if not shifted:
        k.found["diffusion.shift_logits"] = False, "bool"


@family("LLaDAModelLM", arch="llada", rules=_LLADA,
        special=lambda h, ids: {"add_bos": True})  # fmt: skip
def llada(h: Hyper, k: Keys) -> None:
    """LLaDA 8B and 1.5 (Nie et al. 2025), whose code has more kinds of blocks than any model."""
    for name, wanted in (
        ("activation_type", "silu"),
        ("block_type", "llama"),
        ("layer_norm_type", "rms"),
        ("rope", True),
        *((each, False) for each in ("alibi", "attention_layer_norm", "include_bias")),
        *((each, False) for each in ("include_qkv_bias", "input_emb_norm", "scale_logits")),
        ("embedding_size", h.integer("vocab_size")),
    ):
        h.must_be(name, wanted)
    common(h, k)
    k.u32("feed_forward_length", h.integer("mlp_hidden_size"))
    k.u32("vocab_size", h.integer("vocab_size"))
    k.u32("rope.dimension_count", h.head_dim)
    _masks(h, k, shifted=False)


@family("DreamModel", arch="dream", rules=PLAIN)
def dream(h: Hyper, k: Keys) -> None:
    """Dream 7B and Dream-Coder (Ye et al. 2025)."""
    common(h, k)
    _masks(h, k, shifted=True)


@family("LLaDAMoEModelLM", "LLaDAMoEModel", arch="llada-moe", rules={**PLAIN, **ROUTED})
def llada_moe(h: Hyper, k: Keys) -> None:
    """LLaDA-MoE 7B-A1B; its folders do not name the mask."""
    h.must_be("norm_topk_prob", False)
    h.must_be("moe_router_score_function", "softmax")
    for name in ("moe_router_enable_expert_bias", "shared_expert_intermediate_size"):
        h.must_be(name, False)
    h.must_be("qk_layernorm", True)
    h.must_be("moe_layer_freq", [1] * h.layers)
    h.must_be("partial_rotary_factor", 1)
    h.must_be("router_num_group", 1)
    common(h, k)
    k.u32("expert_feed_forward_length", h.integer("expert_intermediate_size"))
    _masks(h, k, shifted=False, usual=156895)


@family("RND1", "RND1LM", arch="rnd1", rules={**PLAIN, **ROUTED})
def rnd1(h: Hyper, k: Keys) -> None:
    """RND1 30B-A3B, made of Qwen 3 with experts."""
    h.must_be("norm_topk_prob", True)
    h.must_be("decoder_sparse_step", 1)
    h.must_be("mlp_only_layers", [])
    common(h, k)
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    _masks(h, k, shifted=True)
