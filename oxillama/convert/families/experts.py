"""Mixtures of experts: matrices of all experts of a layer become one tensor of three dimensions."""

from __future__ import annotations

import numpy as np

from oxillama.convert.families.dense import HEADS, LAYER, LLAMA, PLAIN, _granite
from oxillama.convert.family import Hyper, Keys, Rule, family
from oxillama.convert.keys import SIGMOID, common, partial_rotation, windows
from oxillama.convert.shapes import (
    experts_transposed,
    halves,
    interleaved_gate_up,
    latent_keys_values,
)
from oxillama.errors import ConvertError

ROUTED = {
    "model.layers.{b}.mlp.gate.weight": "blk.{b}.ffn_gate_inp.weight",
    "model.layers.{b}.mlp.gate.e_score_correction_bias": "blk.{b}.exp_probs_b.bias",
    "model.layers.{b}.mlp.experts.{e}.gate_proj.weight": "blk.{b}.ffn_gate_exps.weight",
    "model.layers.{b}.mlp.experts.{e}.up_proj.weight": "blk.{b}.ffn_up_exps.weight",
    "model.layers.{b}.mlp.experts.{e}.down_proj.weight": "blk.{b}.ffn_down_exps.weight",
    # transformers 5 saves some families with all experts in one tensor
    "model.layers.{b}.mlp.experts.gate_up_proj": Rule(
        ("blk.{b}.ffn_gate_exps.weight", "blk.{b}.ffn_up_exps.weight"), halves
    ),
    "model.layers.{b}.mlp.experts.down_proj": "blk.{b}.ffn_down_exps.weight",
}
SHARED = {
    f"model.layers.{{b}}.mlp.{name}.{part}_proj.weight": f"blk.{{b}}.ffn_{part}_shexp.weight"
    for name in ("shared_experts", "shared_expert", "shared_mlp")
    for part in ("gate", "up", "down")
}
SHARED_GATE = {
    "model.layers.{b}.mlp.shared_expert_gate.weight": "blk.{b}.ffn_gate_inp_shexp.weight"
}


@family("Qwen3MoeForCausalLM", arch="qwen3moe", rules={**PLAIN, **ROUTED})
def qwen3moe(h: Hyper, k: Keys) -> None:
    h.must_be("norm_topk_prob", True)
    _every_layer_routed(h)
    common(h, k)
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))


@family("Qwen2MoeForCausalLM", arch="qwen2moe",
        rules={**PLAIN, **ROUTED, **SHARED, **SHARED_GATE})  # fmt: skip
def qwen2moe(h: Hyper, k: Keys) -> None:
    h.must_be("norm_topk_prob", False)
    _every_layer_routed(h)
    common(h, k)
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    k.u32("expert_shared_feed_forward_length", h.integer("shared_expert_intermediate_size"))


def _every_layer_routed(h: Hyper) -> None:
    h.must_be("decoder_sparse_step", 1)
    h.must_be("mlp_only_layers", [])


@family("OlmoeForCausalLM", arch="olmoe", rules={**PLAIN, **ROUTED})
def olmoe(h: Hyper, k: Keys) -> None:
    h.must_be("norm_topk_prob", False)
    h.must_be("clip_qkv", None)
    common(h, k)


@family("MellumForCausalLM", arch="mellum", rules={**PLAIN, **ROUTED})
def mellum(h: Hyper, k: Keys) -> None:
    h.must_be("norm_topk_prob", True)
    common(h, k)
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    windows(h, k, pattern=True)


@family("GraniteMoeForCausalLM", arch="granitemoe", rules={
    **LLAMA,
    "model.layers.{b}.block_sparse_moe.input_linear.weight": Rule(
        ("blk.{b}.ffn_gate_exps.weight", "blk.{b}.ffn_up_exps.weight"), halves
    ),
    "model.layers.{b}.block_sparse_moe.output_linear.weight": "blk.{b}.ffn_down_exps.weight",
    "model.layers.{b}.block_sparse_moe.router.layer.weight": "blk.{b}.ffn_gate_inp.weight",
})  # fmt: skip
def granitemoe(h: Hyper, k: Keys) -> None:
    _granite(h, k)


@family("GptOssForCausalLM", arch="gpt-oss", rules={
    **PLAIN,
    "model.layers.{b}.post_attention_layernorm.{w}": "blk.{b}.post_attention_norm.{w}",
    "model.layers.{b}.self_attn.sinks": "blk.{b}.attn_sinks.weight",
    "model.layers.{b}.mlp.router.{w}": "blk.{b}.ffn_gate_inp.{w}",
    "model.layers.{b}.mlp.experts.gate_up_proj": Rule(
        ("blk.{b}.ffn_gate_exps.weight", "blk.{b}.ffn_up_exps.weight"), interleaved_gate_up
    ),
    "model.layers.{b}.mlp.experts.gate_up_proj_bias": Rule(
        ("blk.{b}.ffn_gate_exps.bias", "blk.{b}.ffn_up_exps.bias"), interleaved_gate_up
    ),
    "model.layers.{b}.mlp.experts.down_proj": Rule(
        ("blk.{b}.ffn_down_exps.weight",), experts_transposed
    ),
    "model.layers.{b}.mlp.experts.down_proj_bias": "blk.{b}.ffn_down_exps.bias",
})  # fmt: skip
def gpt_oss(h: Hyper, k: Keys) -> None:
    """The clamp of 7 and the slope 1.702 of its gate belong to the name."""
    h.must_be("swiglu_limit", 7.0)
    h.must_be("swiglu_alpha", 1.702)
    common(h, k)
    windows(h, k, pattern=False)
    k.u32("expert_feed_forward_length", h.integer("intermediate_size"))


DEEPSEEK = {
    **HEADS,
    **{name: to for name, to in LAYER.items() if "k_proj" not in name and "v_proj" not in name},
    **ROUTED,
    **SHARED,
    "model.layers.{b}.self_attn.q_a_proj.{w}": "blk.{b}.attn_q_a.{w}",
    "model.layers.{b}.self_attn.q_a_layernorm.{w}": "blk.{b}.attn_q_a_norm.{w}",
    "model.layers.{b}.self_attn.q_b_proj.{w}": "blk.{b}.attn_q_b.{w}",
    "model.layers.{b}.self_attn.kv_a_proj_with_mqa.{w}": "blk.{b}.attn_kv_a_mqa.{w}",
    "model.layers.{b}.self_attn.kv_a_layernorm.{w}": "blk.{b}.attn_kv_a_norm.{w}",
    "model.layers.{b}.self_attn.kv_b_proj.weight": Rule(
        ("blk.{b}.attn_k_b.weight", "blk.{b}.attn_v_b.weight"), latent_keys_values
    ),
}


@family("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM",
        "YoutuForCausalLM", arch="deepseek2", rules=DEEPSEEK)  # fmt: skip
def deepseek2(h: Hyper, k: Keys) -> None:
    """Latent attention as one key head of latent and rotated part (DeepSeek-V2, section 2.1)."""
    h.must_be("topk_method", "greedy", "noaux_tc", "group_limited_greedy")
    h.must_be("rope_interleave", True)
    common(h, k)
    rope, latent = h.integer("qk_rope_head_dim"), h.integer("kv_lora_rank")
    dense = h.integer("first_k_dense_replace", default=None)
    width = h.integer("moe_intermediate_size", default=None)
    k.u32("attention.head_count_kv", 1)
    k.u32("leading_dense_block_count", h.layers if dense is None else dense)
    k.u32("vocab_size", h.integer("vocab_size"))
    if h.get("q_lora_rank") is not None:
        k.u32("attention.q_lora_rank", h.integer("q_lora_rank"))
    k.u32("attention.kv_lora_rank", latent)
    k.u32("attention.key_length", latent + rope)
    k.u32("attention.value_length", latent)
    k.u32("attention.key_length_mla", h.integer("qk_nope_head_dim") + rope)
    k.u32("attention.value_length_mla", h.integer("v_head_dim"))
    k.u32("expert_feed_forward_length", h.integer("intermediate_size") if width is None else width)
    k.u32("expert_shared_count", h.integer("n_shared_experts", default=0))
    if h.get("routed_scaling_factor") is not None:
        k.f32("expert_weights_scale", h.number("routed_scaling_factor"))
    if h.flag("norm_topk_prob"):
        k.flag("expert_weights_norm", True)
    k.u32("rope.dimension_count", rope)
    log = h.rope().get("mscale_all_dim")
    if log:
        k.f32("rope.scaling.yarn_log_multiplier", 0.1 * log)


@family("MiniMaxM2ForCausalLM", arch="minimax-m2", rules={
    **PLAIN,
    "model.layers.{b}.block_sparse_moe.gate.weight": "blk.{b}.ffn_gate_inp.weight",
    "model.layers.{b}.block_sparse_moe.e_score_correction_bias": "blk.{b}.exp_probs_b.bias",
    "model.layers.{b}.block_sparse_moe.experts.{e}.w1.weight": "blk.{b}.ffn_gate_exps.weight",
    "model.layers.{b}.block_sparse_moe.experts.{e}.w2.weight": "blk.{b}.ffn_down_exps.weight",
    "model.layers.{b}.block_sparse_moe.experts.{e}.w3.weight": "blk.{b}.ffn_up_exps.weight",
})  # fmt: skip
def minimax_m2(h: Hyper, k: Keys) -> None:
    common(h, k)
    k.u32("expert_feed_forward_length", h.integer("intermediate_size"))
    k.u32("rope.dimension_count", h.integer("rotary_dim"))


@family("HunYuanMoEV1ForCausalLM", arch="hunyuan-moe", rules={
    **PLAIN,
    **ROUTED,
    **SHARED,
    "model.layers.{b}.mlp.gate.wg.weight": "blk.{b}.ffn_gate_inp.weight",
    "model.layers.{b}.self_attn.query_layernorm.weight": "blk.{b}.attn_q_norm.weight",
    "model.layers.{b}.self_attn.key_layernorm.weight": "blk.{b}.attn_k_norm.weight",
})  # fmt: skip
def hunyuan_moe(h: Hyper, k: Keys) -> None:
    """Counts are given a layer each; a file holds one for all."""
    common(h, k)
    k.u32("expert_shared_feed_forward_length", h.integer("intermediate_size"))
    for name, key in (
        ("moe_intermediate_size", "expert_feed_forward_length"),
        ("moe_topk", "expert_used_count"),
        ("num_shared_expert", "expert_shared_count"),
    ):
        value = h.get(name)
        values = set(value) if isinstance(value, list) else {value}
        if len(values) != 1 or not isinstance(next(iter(values)), int):
            raise ConvertError(
                f"{h.label}: {name}: found {value!r:.80}, wanted one number for all layers"
            )
        k.u32(key, values.pop())


@family("HYV3ForCausalLM", arch="hy_v3", rules={
    **PLAIN,
    **ROUTED,
    **SHARED,
    "model.layers.{b}.mlp.router.gate.weight": "blk.{b}.ffn_gate_inp.weight",
    "model.layers.{b}.mlp.expert_bias": "blk.{b}.exp_probs_b",
    "model.layers.{b}.mlp.gate.e_score_correction_bias": "blk.{b}.exp_probs_b",
})  # fmt: skip
def hy_v3(h: Hyper, k: Keys) -> None:
    common(h, k)
    width = h.integer("moe_intermediate_size")
    k.u32("expert_feed_forward_length", width)
    k.u32("expert_shared_feed_forward_length", width * h.integer("num_shared_experts"))
    k.flag("expert_weights_norm", h.flag("route_norm"))
    k.f32("expert_weights_scale", h.number("router_scaling_factor"))
    k.u32("expert_gating_func", SIGMOID)


@family("ExaoneMoeForCausalLM", arch="exaone-moe",
        rules={**PLAIN, **ROUTED, **SHARED, "model.layers.{b}.mlp.e_score_correction_bias":
               "blk.{b}.exp_probs_b.bias"})  # fmt: skip
def exaone_moe(h: Hyper, k: Keys) -> None:
    common(h, k)
    k.u32("vocab_size", h.integer("vocab_size"))
    windows(h, k, pattern=True)
    width, shared = h.integer("moe_intermediate_size"), h.integer("num_shared_experts", default=1)
    k.u32("expert_feed_forward_length", width)
    k.u32("expert_shared_count", shared)
    k.u32("expert_shared_feed_forward_length", width * shared)
    k.f32("expert_weights_scale", h.number("routed_scaling_factor"))
    k.flag("expert_weights_norm", h.flag("norm_topk_prob"))
    k.u32("leading_dense_block_count", h.integer("first_k_dense_replace"))
    k.u32("nextn_predict_layers", h.integer("num_nextn_predict_layers", default=0))
    if h.rope()["rope_type"] == "default":
        k.text("rope.scaling.type", "none")


@family("Cohere2MoeForCausalLM", arch="cohere2moe",
        rules={**PLAIN, **ROUTED, **SHARED})  # fmt: skip
def cohere2_moe(h: Hyper, k: Keys) -> None:
    common(h, k)
    k.found.pop(f"{k.arch}.feed_forward_length", None)  # of dense layers, which this has none of
    k.f32("logit_scale", h.number("logit_scale"))
    windows(h, k, pattern=True)
    k.u32("vocab_size", h.integer("vocab_size"))
    k.u32("expert_feed_forward_length", h.integer("intermediate_size"))
    kinds = h.strings("mlp_layer_types", h.layers) or ["sparse"] * h.layers
    k.u32("leading_dense_block_count", kinds.index("sparse") if "sparse" in kinds else h.layers)
    k.flag("expert_weights_norm", h.flag("norm_topk_prob"))
    k.u32("rope.dimension_count", partial_rotation(h))
    k.text("rope.scaling.type", "none")


def _dbrx_experts(x: np.ndarray, h: Hyper) -> np.ndarray:
    count = int(h.get("ffn_config")["moe_num_experts"])
    return x.reshape(count, -1, x.shape[-1])


def _dbrx_down(x: np.ndarray, h: Hyper) -> np.ndarray:
    return _dbrx_experts(x, h).transpose(0, 2, 1)


@family("DbrxForCausalLM", arch="dbrx", rules={
    "transformer.wte.weight": "token_embd.weight",
    "transformer.norm_f.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "transformer.blocks.{b}.norm_attn_norm.norm_1.weight": "blk.{b}.attn_norm.weight",
    "transformer.blocks.{b}.norm_attn_norm.norm_2.weight": "blk.{b}.attn_output_norm.weight",
    "transformer.blocks.{b}.norm_attn_norm.attn.Wqkv.weight": "blk.{b}.attn_qkv.weight",
    "transformer.blocks.{b}.norm_attn_norm.attn.out_proj.weight": "blk.{b}.attn_output.weight",
    "transformer.blocks.{b}.ffn.router.layer.weight": "blk.{b}.ffn_gate_inp.weight",
    "transformer.blocks.{b}.ffn.experts.mlp.w1": Rule(
        ("blk.{b}.ffn_gate_exps.weight",), _dbrx_experts
    ),
    "transformer.blocks.{b}.ffn.experts.mlp.v1": Rule(
        ("blk.{b}.ffn_up_exps.weight",), _dbrx_experts
    ),
    "transformer.blocks.{b}.ffn.experts.mlp.w2": Rule(
        ("blk.{b}.ffn_down_exps.weight",), _dbrx_down
    ),
})  # fmt: skip
def dbrx(h: Hyper, k: Keys) -> None:
    attention = Hyper(h.get("attn_config", default={}), f"{h.label}: attn_config")
    feed = Hyper(h.get("ffn_config", default={}), f"{h.label}: ffn_config")
    k.u32("block_count", h.layers)
    k.u32("context_length", h.integer("max_seq_len"))
    k.u32("embedding_length", h.hidden)
    k.u32("feed_forward_length", feed.integer("ffn_hidden_size"))
    k.u32("attention.head_count", h.heads)
    k.u32("attention.head_count_kv", attention.integer("kv_n_heads"))
    k.f32("rope.freq_base", attention.number("rope_theta"))
    if attention.get("clip_qkv") is not None:
        k.f32("attention.clamp_kqv", attention.number("clip_qkv"))
    k.u32("expert_count", feed.integer("moe_num_experts"))
    k.u32("expert_used_count", feed.integer("moe_top_k"))
    k.f32("attention.layer_norm_epsilon", 1e-5)
