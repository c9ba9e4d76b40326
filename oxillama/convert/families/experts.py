"""Mixtures of experts: matrices of all experts of a layer become one tensor of three dimensions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oxillama.convert.families.dense import (
    BUFFERS,
    HEADS,
    LAYER,
    LLAMA,
    PLAIN,
    deepstack,
    granite_keys,
    granite_swa,
    llama_keys,
)
from oxillama.convert.families.older import phi3_keys
from oxillama.convert.family import Family, Hyper, Keys, Mtp, Rule, family
from oxillama.convert.keys import (
    SIGMOID,
    common,
    llama3_factors,
    log_multiplier,
    longrope,
    no_further_layers,
    no_window,
    partial_rotation,
    stretched_base,
    windows,
)
from oxillama.convert.mtp_layers import MTP, NEXTN, apart_for_all, appended
from oxillama.convert.shapes import (
    experts_transposed,
    halves,
    halves_2d,
    interleaved_gate_up,
    latent_keys_values,
)
from oxillama.errors import ConvertError

ROUTED: dict[str, str | Rule] = {
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
SHARED: dict[str, str | Rule] = {
    f"model.layers.{{b}}.mlp.{name}.{part}_proj.weight": f"blk.{{b}}.ffn_{part}_shexp.weight"
    for name in ("shared_experts", "shared_expert", "shared_mlp")
    for part in ("gate", "up", "down")
}


def glm_tokens(h: Hyper, ids: dict[str, int]) -> dict[str, int]:
    """What GLM's folders mean by their special tokens."""
    named = (
        ("bos?", "[gMASK]"),
        ("eot?", "<|user|>"),
        ("unknown?", "<|endoftext|>"),
        ("eom?", "<|observation|>"),
    )
    return {key: ids[text] for key, text in named if text in ids}


SHARED_GATE: dict[str, str | Rule] = {
    "model.layers.{b}.mlp.shared_expert_gate.weight": "blk.{b}.ffn_gate_inp_shexp.weight"
}


@family("Qwen3MoeForCausalLM", arch="qwen3moe", rules={**PLAIN, **ROUTED})
def qwen3moe(h: Hyper, k: Keys) -> None:
    h.must_be("norm_topk_prob", True)
    _every_layer_routed(h)
    common(h, k)
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))


def _rows_outermost(x: np.ndarray, h: Hyper, width: int) -> np.ndarray:
    """Experts as (experts, out, in), which some folders hold as (experts, in, out); the sizes tell.

    width: the size beside the hidden one, of all that the tensor holds.
    """
    inside, outside = (h.hidden, width) if width % 2 == 0 and x.ndim == 3 else (0, 0)
    if x.shape[1:] == (inside, outside) and inside != outside:
        return x.transpose(0, 2, 1)
    if x.shape[1:] == (outside, inside) and inside != outside:
        return x
    raise ValueError(f"{list(x.shape)}, wanted the sizes {h.hidden} and {width}, distinguishable")


def _gate_up_either_way(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, np.ndarray]:
    return halves(_rows_outermost(x, h, 2 * h.integer("moe_intermediate_size")), h)


def _down_either_way(x: np.ndarray, h: Hyper) -> np.ndarray:
    width = h.integer("moe_intermediate_size")
    flipped = _rows_outermost(x.transpose(0, 2, 1), h, width)
    return flipped.transpose(0, 2, 1)


@family("Qwen3VLMoeForConditionalGeneration", "Qwen3OmniMoeForConditionalGeneration",
        "Qwen3OmniMoeThinkerForConditionalGeneration", arch="qwen3vlmoe", rules={
    **PLAIN,
    **ROUTED,
    "model.layers.{b}.mlp.experts.gate_up_proj": Rule(
        ("blk.{b}.ffn_gate_exps.weight", "blk.{b}.ffn_up_exps.weight"), _gate_up_either_way
    ),
    "model.layers.{b}.mlp.experts.down_proj": Rule(
        ("blk.{b}.ffn_down_exps.weight",), _down_either_way
    ),
})  # fmt: skip
def qwen3vlmoe(h: Hyper, k: Keys) -> None:
    """The text part; experts lie transposed in published folders."""
    h.must_be("norm_topk_prob", True)
    _every_layer_routed(h)
    common(h, k)
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    deepstack(h, k)


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


GRANITE_EXPERTS: dict[str, str | Rule] = {
    "model.layers.{b}.block_sparse_moe.input_linear.weight": Rule(
        ("blk.{b}.ffn_gate_exps.weight", "blk.{b}.ffn_up_exps.weight"), halves
    ),
    "model.layers.{b}.block_sparse_moe.output_linear.weight": "blk.{b}.ffn_down_exps.weight",
    "model.layers.{b}.block_sparse_moe.router.layer.weight": "blk.{b}.ffn_gate_inp.weight",
}


def granite_shared(suffix: str) -> dict:
    """The network that every token passes through: shared experts (_shexp), or the whole
    feed-forward network.
    """
    return {
        "model.layers.{b}.shared_mlp.input_linear.weight": Rule(
            (f"blk.{{b}}.ffn_gate{suffix}.weight", f"blk.{{b}}.ffn_up{suffix}.weight"), halves_2d
        ),
        "model.layers.{b}.shared_mlp.output_linear.weight": f"blk.{{b}}.ffn_down{suffix}.weight",
    }


@family("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM", arch="granitemoe",
        prefix_setting=True,
        rules={**LLAMA, **GRANITE_EXPERTS, **granite_shared("_shexp")})  # fmt: skip
def granitemoe(h: Hyper, k: Keys) -> None:
    h.must_be("hidden_act", "silu")
    granite_keys(h, k)
    if h.get("shared_intermediate_size"):
        k.u32("expert_shared_feed_forward_length", h.integer("shared_intermediate_size"))


_GRANITE_MOE = "model.layers.{b}.block_sparse_moe."


# gate and up of experts are one matrix each, as in other files of this name
@family("GraniteMoeSWAForCausalLM", arch="granite_swa", prefix_setting=True, rules={
    **LLAMA,
    "model.layers.{b}.self_attn.sinks": "blk.{b}.attn_sinks.weight",
    _GRANITE_MOE + "router.weight": "blk.{b}.ffn_gate_inp.weight",
    _GRANITE_MOE + "router.layer.weight": "blk.{b}.ffn_gate_inp.weight",
    _GRANITE_MOE + "experts.gate_up_proj": "blk.{b}.ffn_gate_up_exps.weight",
    _GRANITE_MOE + "experts.down_proj": "blk.{b}.ffn_down_exps.weight",
    _GRANITE_MOE + "input_linear.weight": "blk.{b}.ffn_gate_up_exps.weight",
    _GRANITE_MOE + "output_linear.weight": "blk.{b}.ffn_down_exps.weight",
    "model.layers.{b}.shared_mlp.input_linear.weight": "blk.{b}.ffn_up_shexp.weight",
    "model.layers.{b}.shared_mlp.output_linear.weight": "blk.{b}.ffn_down_shexp.weight",
})  # fmt: skip
def granitemoe_swa(h: Hyper, k: Keys) -> None:
    """Granite with windows and experts (IBM 2026)."""
    if not h.get("num_local_experts"):
        raise ConvertError(f"{h.label}: num_local_experts: found 0, wanted experts")
    granite_swa(h, k)
    if h.get("shared_intermediate_size"):
        k.u32("expert_shared_feed_forward_length", h.integer("shared_intermediate_size"))


@family("GptOssForCausalLM", arch="gpt-oss", meant={"layer_types": (2, 1)}, packed={
    "model.layers.{b}.mlp.experts.gate_up_proj":
        ("blk.{b}.ffn_gate_exps.weight", "blk.{b}.ffn_up_exps.weight"),
    "model.layers.{b}.mlp.experts.down_proj": ("blk.{b}.ffn_down_exps.weight",),
}, rules={
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


DEEPSEEK: dict[str, str | Rule] = {
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


@family("DeepseekV2ForCausalLM", "YoutuForCausalLM", "YoutuVLForConditionalGeneration",
        arch="deepseek2", rules=DEEPSEEK, mtp=replace(MTP, asked=True))  # fmt: skip
def deepseek2(h: Hyper, k: Keys) -> None:
    """Latent attention as one key head of latent and rotated part (DeepSeek-V2, section 2.1)."""
    h.must_be("topk_method", "greedy", "noaux_tc", "group_limited_greedy")
    h.must_be("rope_interleave", True)
    common(h, k)
    rope, latent = h.integer("qk_rope_head_dim"), h.integer("kv_lora_rank")
    kinds = _leading_dense(h) if "mlp_layer_types" in h.config else h.layers
    dense = h.integer("first_k_dense_replace", default=kinds)
    width = h.integer("moe_intermediate_size", default=None)
    k.u32("attention.head_count_kv", 1)
    k.u32("leading_dense_block_count", dense)
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
    if h.get("topk_method") == "greedy" and h.get("n_group", default=1) != 1:
        # chosen among all experts, whatever groups the configuration counts
        k.u32("expert_group_count", 1)
        k.u32("expert_group_used_count", 1)
    k.u32("rope.dimension_count", rope)
    log_multiplier(h, k, times=0.1)


@family("Glm4MoeLiteForCausalLM", arch="deepseek2", rules=DEEPSEEK, special=glm_tokens, mtp=MTP)
@family("DeepseekV3ForCausalLM", "KimiVLForConditionalGeneration",
        "KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration", arch="deepseek2",
        rules=DEEPSEEK, mtp=replace(MTP, asked=True))  # fmt: skip
def deepseek3(h: Hyper, k: Keys) -> None:
    """Scores are sigmoids in these classes, though transformers saves no word of it: files that do
    not say it mean V2's softmax.
    """
    deepseek2(h, k)
    if f"{k.arch}.expert_count" in k.found and h.get("scoring_func") is None:
        k.u32("expert_gating_func", SIGMOID)


_FUSED = "model.layers.{b}.mlp.experts.gate_up_proj"
# its files hold gate and up of experts as one matrix each
MISTRAL4 = Family("mistral4", {**DEEPSEEK, _FUSED: "blk.{b}.ffn_gate_up_exps.weight"}, deepseek2)


def _mistral4(h: Hyper) -> Family | None:
    """The family of Mistral 4, whose folders are of the same class, or of one for text alone."""
    return MISTRAL4 if h.get("model_type") == "mistral4" else None


@family("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration", "Mistral4ForCausalLM",
        arch="mistral3", rules=LLAMA, extra=llama3_factors, dropped=BUFFERS, prefix_setting=True,
        variant=_mistral4, others=("mistral4",))  # fmt: skip
def mistral3(h: Hyper, k: Keys) -> None:
    """Mistral Small 3 and Ministral 3 (the text part): queries of Ministral grow with the position,
    1 + beta * log(1 + position // original context).
    """
    h.must_be("hidden_act", "silu")
    h.must_be("model_type", "mistral", "ministral3")
    no_window(h, "mistral3")
    llama_keys(h, k)
    if h.get("model_type") == "ministral3":
        rope = Hyper(h.rope(), f"{h.label}: rope_parameters")
        rope.must_be("rope_type", "yarn")
        rope.number("mscale_all_dim")  # must be there
        log_multiplier(h, k, times=1.0, over=1.0)
        k.f32("attention.temperature_scale", rope.number("llama_4_scaling_beta"))


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
    turned = partial_rotation(h)
    if h.rope().get("partial_rotary_factor") is not None:
        h.must_be("rotary_dim", turned)
    k.u32("rope.dimension_count", h.integer("rotary_dim", default=turned))


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
    stretched_base(h, k, default=1000)


@family("HYV3ForCausalLM", arch="hy_v3", rules={
    **PLAIN,
    **ROUTED,
    **SHARED,
    "model.layers.{b}.mlp.router.gate.weight": "blk.{b}.ffn_gate_inp.weight",
    "model.layers.{b}.mlp.expert_bias": "blk.{b}.exp_probs_b",
    "model.layers.{b}.mlp.gate.e_score_correction_bias": "blk.{b}.exp_probs_b",
}, mtp=Mtp(appended, {
    **NEXTN, "model.layers.{b}.final_layernorm.weight": "blk.{b}.nextn.shared_head_norm.weight",
}))  # fmt: skip
def hy_v3(h: Hyper, k: Keys) -> None:
    common(h, k)
    width = h.integer("moe_intermediate_size")
    k.u32("expert_feed_forward_length", width)
    k.u32("expert_shared_feed_forward_length", width * h.integer("num_shared_experts"))
    k.flag("expert_weights_norm", h.flag("route_norm", default=True))
    k.f32("expert_weights_scale", h.number("router_scaling_factor"))
    k.u32("expert_gating_func", SIGMOID)


@family("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM", arch="exaone-moe",
        rules={**PLAIN, **ROUTED, **SHARED, "model.layers.{b}.mlp.e_score_correction_bias":
               "blk.{b}.exp_probs_b.bias"}, mtp=Mtp(apart_for_all, NEXTN))  # fmt: skip
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
    k.u32("nextn_predict_layers", 0)  # where there are none
    if h.rope()["rope_type"] == "default":
        k.text("rope.scaling.type", "none")


@family("Cohere2MoeForCausalLM", arch="cohere2moe",
        rules={**PLAIN, **ROUTED, **SHARED}, mtp=MTP)  # fmt: skip
def cohere2_moe(h: Hyper, k: Keys) -> None:
    common(h, k)
    k.found.pop(f"{k.arch}.feed_forward_length", None)  # of dense layers, which this has none of
    if h.get("rms_norm_eps") is not None:  # its norms are such, whatever else is said
        k.found.pop(f"{k.arch}.attention.layer_norm_epsilon", None)
    k.f32("logit_scale", h.number("logit_scale"))
    windows(h, k, pattern=True)
    k.u32("vocab_size", h.integer("vocab_size"))
    width, shared = h.integer("intermediate_size"), h.integer("num_shared_experts", default=0)
    k.u32("expert_feed_forward_length", width)
    if shared:
        h.must_be("shared_expert_combination_strategy", "average")
        k.u32("expert_shared_count", shared)
        k.u32("expert_shared_feed_forward_length", width * shared)
    kinds = h.strings("mlp_layer_types", h.layers) or ["sparse"] * h.layers
    k.u32("leading_dense_block_count", kinds.index("sparse") if "sparse" in kinds else h.layers)
    # a softmax is taken over the chosen experts alone, whose weights sum to 1 in any case
    chosen = h.get("expert_selection_fn") == "softmax"
    k.flag("expert_weights_norm", chosen or h.flag("norm_topk_prob"))
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


@family("PhiMoEForCausalLM", "PhimoeForCausalLM", arch="phimoe", extra=longrope, rules={
    **PLAIN,
    "model.layers.{b}.block_sparse_moe.gate.weight": "blk.{b}.ffn_gate_inp.weight",
    "model.layers.{b}.block_sparse_moe.experts.{e}.w1.weight": "blk.{b}.ffn_gate_exps.weight",
    "model.layers.{b}.block_sparse_moe.experts.{e}.w2.weight": "blk.{b}.ffn_down_exps.weight",
    "model.layers.{b}.block_sparse_moe.experts.{e}.w3.weight": "blk.{b}.ffn_up_exps.weight",
})  # fmt: skip
def phimoe(h: Hyper, k: Keys) -> None:
    """Phi 3.5 MoE: Phi 3's rotation, layer norms, two experts (SparseMixer; Liu et al. 2023)."""
    h.must_be("num_experts_per_tok", 2)
    h.must_be("router_jitter_noise", 0.01)  # how near a second expert must be
    phi3_keys(h, k)
    rope = h.rope()
    near, far = (rope.get(f"{length}_mscale") for length in ("short", "long"))
    if near != far:
        raise ConvertError(
            f"{h.label}: rope_parameters: short_mscale: found {near} and a long_mscale of {far}, "
            "wanted two that are equal: a file has one"
        )
    if near is not None:
        # what cosines and sines are multiplied by; Phi 3 has a formula
        k.f32("rope.scaling.attn_factor", Hyper(rope, h.label).number("short_mscale"))
    k.u32("expert_used_count", h.integer("num_experts_per_tok"))
    k.u32("expert_count", h.integer("num_local_experts"))


@family("Ernie4_5_MoeForCausalLM", arch="ernie4_5-moe", prefix_setting=True, rules={
    **PLAIN,
    **ROUTED,
    **SHARED,
    "model.layers.{b}.mlp.moe_statics.e_score_correction_bias": "blk.{b}.exp_probs_b.bias",
}, dropped=tuple(
    f"model.mtp_{part}.{{b}}{rest}"
    for part, rest in (
        ("emb_norm", ".weight"), ("hidden_norm", ".weight"), ("linear_proj", ".weight"),
    )
))  # fmt: skip
def ernie4_5_moe(h: Hyper, k: Keys) -> None:
    """Routed layers from the first to the last of a range, which the file says as its beginning."""
    h.must_be("hidden_act", "silu")
    h.must_be("moe_layer_end_index", -1, h.layers - 1)
    if h.number("moe_norm_min", default=0.0) > 1e-6:
        raise ConvertError(
            f"{h.label}: moe_norm_min: found {h.number('moe_norm_min')}, wanted at most 1e-06: "
            "weights of experts are divided by their sum"
        )
    common(h, k)
    k.u32("expert_count", h.integer("moe_num_experts"))
    k.u32("expert_used_count", h.integer("moe_k"))
    k.u32("interleave_moe_layer_step", h.integer("moe_layer_interval"))
    k.u32("leading_dense_block_count", h.integer("moe_layer_start_index"))
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    shared = h.integer("moe_num_shared_experts", default=None)
    if shared is not None:
        k.u32("expert_shared_count", shared)
        if shared > 0:
            # the width that other files say, not the one that the tensors have
            k.u32("expert_shared_feed_forward_length", h.integer("intermediate_size") // h.kv_heads)


def _leading_dense(h: Hyper) -> int:
    kinds = h.strings("mlp_layer_types", h.layers) or []
    return next((layer for layer, kind in enumerate(kinds) if kind != "dense"), len(kinds))


@family("Dots1ForCausalLM", arch="dots1", rules={**PLAIN, **ROUTED, **SHARED})
def dots1(h: Hyper, k: Keys) -> None:
    h.must_be("hidden_act", "silu")
    common(h, k)
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    k.u32("leading_dense_block_count", h.integer("first_k_dense_replace"))
    k.u32("expert_shared_count", h.integer("n_shared_experts"))
    k.f32("expert_weights_scale", h.number("routed_scaling_factor"))
    k.flag("expert_weights_norm", h.flag("norm_topk_prob"))


@family("Glm4MoeForCausalLM", arch="glm4moe", rules={
    **PLAIN,
    **ROUTED,
    **SHARED,
    "model.layers.{b}.post_attention_layernorm.{w}": "blk.{b}.post_attention_norm.{w}",
}, special=glm_tokens, mtp=MTP)  # fmt: skip
def glm4_moe(h: Hyper, k: Keys) -> None:
    h.must_be("hidden_act", "silu")
    common(h, k)
    k.u32("rope.dimension_count", int(h.rope().get("partial_rotary_factor", 0.5) * h.head_dim))
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    k.u32("expert_shared_count", h.integer("n_shared_experts"))
    k.u32("leading_dense_block_count", h.integer("first_k_dense_replace"))
    k.u32("expert_gating_func", SIGMOID)
    k.f32("expert_weights_scale", h.number("routed_scaling_factor"))
    k.flag("expert_weights_norm", h.flag("norm_topk_prob", default=True))
    no_further_layers(h, k)


@family("SolarOpenForCausalLM", arch="glm4moe", rules={
    **PLAIN,
    **ROUTED,
    **SHARED,
    "model.layers.{b}.post_attention_layernorm.{w}": "blk.{b}.post_attention_norm.{w}",
}, special=lambda h, ids: _solar_tokens(ids))  # fmt: skip
def solar_open(h: Hyper, k: Keys) -> None:
    """Solar Open (Upstage 2025): GLM 4.5 whose heads rotate whole, without dense layers."""
    rope = h.rope()
    rope.setdefault("partial_rotary_factor", 1.0)
    glm4_moe(h.but(rope_parameters=rope, first_k_dense_replace=0), k)


def _solar_tokens(ids: dict[str, int]) -> dict[str, int]:
    named = (
        *(("bos?", "<|startoftext|>"), ("eos?", "<|endoftext|>")),
        *(("eot?", "<|endoftext|>"), ("unknown?", "<unk>")),
    )
    return {key: ids[text] for key, text in named if text in ids}


@family("AfmoeForCausalLM", arch="afmoe", extra=llama3_factors, prefix_setting=True, meant={
    "layer_types": (4, 3),
}, rules={
    **PLAIN,
    **ROUTED,
    **SHARED,
    "model.layers.{b}.post_attention_layernorm.{w}": "blk.{b}.post_attention_norm.{w}",
    "model.layers.{b}.pre_mlp_layernorm.weight": "blk.{b}.ffn_norm.weight",
    "model.layers.{b}.post_mlp_layernorm.weight": "blk.{b}.post_ffw_norm.weight",
    "model.layers.{b}.self_attn.gate_proj.weight": "blk.{b}.attn_gate.weight",
    "model.layers.{b}.mlp.router.gate.weight": "blk.{b}.ffn_gate_inp.weight",
    "model.layers.{b}.mlp.expert_bias": "blk.{b}.exp_probs_b.bias",
})  # fmt: skip
def afmoe(h: Hyper, k: Keys) -> None:
    """Arcee's Trinity: gated attention; three windowed layers with rotation, one without either."""
    h.must_be("hidden_act", "silu")
    h.must_be("global_attn_every_n_layers", 4)
    if not h.flag("mup_enabled"):  # files always scale the embedding
        raise ConvertError(f"{h.label}: mup_enabled: found {h.get('mup_enabled')}, wanted True")
    llama_keys(h, k)
    k.u32("expert_shared_count", h.integer("num_shared_experts", default=0))
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    k.u32("leading_dense_block_count", h.integer("num_dense_layers"))
    k.flag("expert_weights_norm", h.flag("route_norm", default=True))
    k.f32("expert_weights_scale", h.number("route_scale", default=1.0))
    if h.get("sliding_window") is not None:
        windows(h, k, pattern=False)


def _llama4_gate_up(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, np.ndarray]:
    return halves(experts_transposed(x, h), h)


_LLAMA4 = "model.layers.{b}.feed_forward."


@family("Llama4ForCausalLM", "Llama4ForConditionalGeneration", arch="llama4",
        extra=llama3_factors, meant={
            "attn_temperature_tuning": (True, 4), "attn_scale": (0.1,), "floor_scale": (8192,),
            "attention_chunk_size": (8192,),
        }, rules={
            **PLAIN,
            **{f"{_LLAMA4}{part}_proj.weight": f"blk.{{b}}.ffn_{part}.weight"
               for part in ("gate", "up", "down")},
            **{f"{_LLAMA4}shared_expert.{part}_proj.weight": f"blk.{{b}}.ffn_{part}_shexp.weight"
               for part in ("gate", "up", "down")},
            _LLAMA4 + "router.weight": "blk.{b}.ffn_gate_inp.weight",
            _LLAMA4 + "experts.gate_up_proj": Rule(
                ("blk.{b}.ffn_gate_exps.weight", "blk.{b}.ffn_up_exps.weight"), _llama4_gate_up
            ),
            _LLAMA4 + "experts.down_proj": Rule(
                ("blk.{b}.ffn_down_exps.weight",), experts_transposed
            ),
        })  # fmt: skip
def llama4(h: Hyper, k: Keys) -> None:
    """The text part: chunked attention of 8192 and, in every fourth layer, neither chunks nor
    rotation; the file does not say so.
    """
    h.must_be("hidden_act", "silu")
    # the published model of 128 experts is the one without
    h.must_be("use_qk_norm", h.get("num_local_experts") != 128)
    llama_keys(h.but(intermediate_size=h.integer("intermediate_size_mlp")), k)
    k.u32("interleave_moe_layer_step", h.integer("interleave_moe_layer_step"))
    k.u32("expert_feed_forward_length", h.integer("intermediate_size"))
    kinds = h.strings("layer_types", h.layers)
    if kinds is not None and set(kinds) == {"full_attention"}:
        k.u32("attention.sliding_window", 0)
    elif kinds is not None:
        near, whole = "chunked_attention", "full_attention"
        h.must_be("layer_types", [whole if at % 4 == 3 else near for at in range(h.layers)])


def _gate_widths(h: Hyper) -> list[str]:
    """Whether each layer's attention gate has a number a head, or one an element."""
    said = h.get("gating_types") or [h.get("gating")] * h.layers
    kinds = ["per_head" if one is True else str(one).replace("-", "_") for one in said]
    if len(kinds) != h.layers or not set(kinds) <= {"per_head", "per_element"}:
        raise ConvertError(
            f"{h.label}: gating: found {said!r:.80}, wanted per-head or per-element a layer"
        )
    return kinds


@family("LagunaForCausalLM", arch="laguna", rules={
    **PLAIN,
    **ROUTED,
    **SHARED,
    "model.layers.{b}.self_attn.g_proj.weight": "blk.{b}.attn_gate.weight",
    "model.layers.{b}.mlp.experts.e_score_correction_bias": "blk.{b}.exp_probs_b.bias",
}, special=lambda h, ids: _second_end(h))  # fmt: skip
def laguna(h: Hyper, k: Keys) -> None:
    """Gated attention, heads by layer, sigmoid scores that are normed over those chosen."""
    h.must_be("hidden_act", "silu", None)
    h.must_be("moe_apply_router_weight_on_input", False)
    h.must_be("moe_router_logit_softcapping", 0, 0.0)
    _gate_widths(h)
    common(h, k)
    k.u32("vocab_size", h.integer("vocab_size"))
    heads = h.get("num_attention_heads_per_layer") or [h.heads] * h.layers
    if len(heads) != h.layers:
        raise ConvertError(f"{h.label}: num_attention_heads_per_layer: {len(heads)} of {h.layers}")
    k.integers("attention.head_count", heads)
    if h.get("sliding_window"):
        windows(h, k, pattern=False)
        kinds = ("full_attention", "sliding_attention")
        h.must_be("layer_types", [kinds[layer % 4 != 0] for layer in range(h.layers)])
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    k.u32("expert_shared_feed_forward_length", h.integer("shared_expert_intermediate_size"))
    k.flag("expert_weights_norm", True)
    k.f32("expert_weights_scale", h.number("moe_routed_scaling_factor"))
    k.u32("expert_gating_func", SIGMOID)
    k.u32("leading_dense_block_count", _leading_dense(h))
    for kind, key in (("full_attention", ""), ("sliding_attention", "_swa")):
        if kind == "full_attention" or kind in (h.get("rope_parameters") or {}):
            share = h.rope(kind).get("partial_rotary_factor", 1.0)
            k.u32(f"rope.dimension_count{key}", int(h.head_dim * share))


def _second_end(h: Hyper) -> dict[str, int]:
    """Where several tokens end a text, the first that is no beginning ends a turn."""
    ends = h.get("eos_token_id")
    others = [one for one in ends if one != h.get("bos_token_id")] if isinstance(ends, list) else []
    return {"eot": others[0]} if others else {}
