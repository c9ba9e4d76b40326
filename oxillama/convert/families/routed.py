"""Mixtures of experts of one lab each: DeepSeek V1, V3.2 and GLM 5, Ling, Arctic, SmallThinker,
MiMo V2, Step 3.5, Kimi Linear, Grok, GroveMoE, Maple.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oxillama.convert.families.dense import EXPERTS_W, LLAMA, PLAIN
from oxillama.convert.families.experts import DEEPSEEK, ROUTED, SHARED, deepseek2, glm_tokens
from oxillama.convert.family import Family, Hyper, Keys, Mtp, Rule, family
from oxillama.convert.keys import (
    SIGMOID,
    SOFTMAX,
    common,
    no_further_layers,
    partial_rotation,
    windows,
)
from oxillama.convert.mtp_layers import MTP, NEXTN, NEXTN_PLUS_ONE, apart, appended
from oxillama.convert.quantised import Quantised
from oxillama.convert.shapes import (
    latent_keys_values,
    negative_exponential,
    paired,
    plus_one,
)
from oxillama.errors import ConvertError


@family("DeepseekForCausalLM", arch="deepseek", rules={**LLAMA, **ROUTED, **SHARED})
def deepseek(h: Hyper, k: Keys) -> None:
    """DeepSeekMoE (Dai et al. 2024): routed experts and shared ones."""
    common(h, k)
    k.u32("rope.dimension_count", h.head_dim)
    k.text("rope.scaling.type", "none")
    k.u32("leading_dense_block_count", h.integer("first_k_dense_replace"))
    k.u32("vocab_size", h.integer("vocab_size"))
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    k.f32("expert_weights_scale", 1.0)
    k.u32("expert_shared_count", h.integer("n_shared_experts"))


def _bailing_qkv(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All q, all k, all v; q and k paired."""
    q, k = h.heads * h.head_dim, h.kv_heads * h.head_dim
    return paired(x[:q], h.heads), paired(x[q : q + k], h.kv_heads), x[q + k :]


def _unit_columns(x: np.ndarray, h: Hyper) -> np.ndarray:
    """The head with columns of length one, where the configuration says so (computes)."""
    if not h.flag("norm_head"):
        return x
    return x / (np.linalg.norm(x, axis=0, keepdims=True) + np.float32(1e-7))


BAILING: dict[str, str | Rule] = {
    **ROUTED,
    **SHARED,
    **{name: to for name, to in PLAIN.items() if "self_attn" not in name},
    "model.word_embeddings.weight": "token_embd.weight",
    "model.layers.{b}.attention.dense.{w}": "blk.{b}.attn_output.{w}",
}


@family("BailingMoeForCausalLM", arch="bailingmoe", rules={
    **BAILING,
    "lm_head.weight": Rule(("output.weight",), _unit_columns, values=True),
    "model.layers.{b}.attention.query_key_value.weight": Rule(
        ("blk.{b}.attn_q.weight", "blk.{b}.attn_k.weight", "blk.{b}.attn_v.weight"), _bailing_qkv
    ),
})  # fmt: skip
def bailingmoe(h: Hyper, k: Keys) -> None:
    """Ling (Ling Team 2025)."""
    common(h, k)
    k.u32("rope.dimension_count", h.head_dim)
    _bailing(h, k, 1.0)


def _bailing(h: Hyper, k: Keys, scale: float) -> None:
    k.u32("leading_dense_block_count", h.integer("first_k_dense_replace"))
    k.u32("vocab_size", h.integer("vocab_size"))
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    k.f32("expert_weights_scale", scale)
    k.u32("expert_shared_count", h.integer("num_shared_experts"))
    k.flag("expert_weights_norm", h.flag("norm_topk_prob"))


# a norm behind the layers that predict further tokens, where it is called so
_LAST_NORM: dict[str, str | Rule] = {
    "model.layers.{b}.final_layernorm.weight": "blk.{b}.layer_output_norm.weight",
}


@family("BailingMoeV2ForCausalLM", arch="bailingmoe2", rules={
    **BAILING,
    "model.layers.{b}.attention.query_key_value.{w}": "blk.{b}.attn_qkv.{w}",
    "model.layers.{b}.attention.query_layernorm.weight": "blk.{b}.attn_q_norm.weight",
    "model.layers.{b}.attention.key_layernorm.weight": "blk.{b}.attn_k_norm.weight",
    "model.layers.{b}.mlp.gate.expert_bias": "blk.{b}.exp_probs_b.bias",
}, mtp=Mtp(appended, {**NEXTN, **_LAST_NORM}))  # fmt: skip
def bailingmoe2(h: Hyper, k: Keys) -> None:
    """Ling 2: sigmoid scores in groups; half of a head turns unless the configuration says else."""
    common(h, k)
    share = h.rope().get("partial_rotary_factor", 0.5)
    k.u32("rope.dimension_count", int(h.head_dim * share))
    _bailing(h, k, h.number("routed_scaling_factor"))
    no_further_layers(h, k)
    width = h.integer("moe_intermediate_size") * h.integer("num_shared_experts")
    k.u32(
        "expert_shared_feed_forward_length",
        h.integer("moe_shared_expert_intermediate_size", default=width),
    )


@family("ArcticForCausalLM", arch="arctic", rules={
    **LLAMA,
    **EXPERTS_W,
    "model.layers.{b}.residual_layernorm.weight": "blk.{b}.ffn_norm.weight",
    "model.layers.{b}.post_attention_layernorm.weight": "blk.{b}.ffn_norm_exps.weight",
    "model.layers.{b}.residual_mlp.w1.weight": "blk.{b}.ffn_gate.weight",
    "model.layers.{b}.residual_mlp.w2.weight": "blk.{b}.ffn_down.weight",
    "model.layers.{b}.residual_mlp.w3.weight": "blk.{b}.ffn_up.weight",
})  # fmt: skip
def arctic(h: Hyper, k: Keys) -> None:
    """Arctic (Snowflake 2024): a dense network with parallel experts."""
    common(h, k)
    k.u32("vocab_size", h.integer("vocab_size"))
    k.u32("rope.dimension_count", h.hidden // h.heads)


@family("SmallThinkerForCausalLM", arch="smallthinker", meant={
    "hidden_act": ("relu", "silu"),  # which its code does not read
}, rules={
    **PLAIN,
    "model.layers.{b}.block_sparse_moe.primary_router.weight": "blk.{b}.ffn_gate_inp.weight",
    **{
        f"model.layers.{{b}}.block_sparse_moe.experts.{{e}}.{part}.weight":
            f"blk.{{b}}.ffn_{part}_exps.weight"
        for part in ("gate", "up", "down")
    },
})  # fmt: skip
def smallthinker(h: Hyper, k: Keys) -> None:
    """SmallThinker (Song et al. 2025): the router reads what attention reads."""
    common(h, k)
    width = h.integer("moe_ffn_hidden_size")
    k.u32("expert_count", h.integer("moe_num_primary_experts"))
    k.u32("expert_used_count", h.integer("moe_num_active_primary_experts"))
    k.u32("expert_feed_forward_length", width)
    k.u32("feed_forward_length", width)
    softmax = h.flag("moe_primary_router_apply_softmax")
    k.u32("expert_gating_func", SOFTMAX if softmax else SIGMOID)
    if any(h.get("sliding_window_layout", default=[])) and h.get("sliding_window_size"):
        k.u32("attention.sliding_window", h.integer("sliding_window_size"))


def _not_by_ranks(h: Hyper) -> None:
    """ConvertError for q, k and v in one matrix of 8 bits: MiMo V2.5 is published with the rows and
    the scales of each of 4 or 8 devices together, so that rows are not all q, all k, all v.
    """
    if h.folder is None:
        return
    for name, tensor in h.folder.tensors.items():
        if name.endswith(".self_attn.qkv_proj.weight") and isinstance(tensor, Quantised):
            raise ConvertError(
                f"{h.folder.path}: {name}: found quantised, its rows in the order of devices, "
                "wanted floats"
            )


def _mimo_windows(h: Hyper) -> list[int]:
    """Which layers have a window, 1 or 0; transformers 5 says their kinds."""
    pattern, kinds = h.get("hybrid_layer_pattern"), h.strings("layer_types", h.layers)
    if kinds is None:
        if not isinstance(pattern, list) or len(pattern) != h.layers or set(pattern) - {0, 1}:
            raise ConvertError(
                f"{h.label}: hybrid_layer_pattern: found {pattern!r:.80}, wanted 0 or 1 for each "
                "layer"
            )
        return pattern
    made = [int(kind == "sliding_attention") for kind in kinds]
    unknown = set(kinds) - {"sliding_attention", "full_attention"}
    if unknown or pattern not in (None, made):
        raise ConvertError(
            f"{h.label}: layer_types: found {unknown or kinds!r:.80}, wanted full_attention or "
            f"sliding_attention{'' if unknown else ' as hybrid_layer_pattern has them'}"
        )
    near, whole = (h.rope(f"{kind}_attention") for kind in ("sliding", "full"))
    share = "partial_rotary_factor"
    Hyper(near, f"{h.label}: rope_parameters: sliding_attention").must_be(share, whole.get(share))
    return made


@family("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM", arch="mimo2", rules={
    **PLAIN,
    **ROUTED,
    "model.layers.{b}.self_attn.qkv_proj.weight": "blk.{b}.attn_qkv.weight",
    "model.layers.{b}.self_attn.attention_sink_bias": "blk.{b}.attn_sinks.weight",
}, mtp=Mtp(apart, {
    **NEXTN, **_LAST_NORM, "model.layers.{b}.pre_mlp_layernorm.weight": "blk.{b}.ffn_norm.weight",
}, counted=None, uncounted=True))  # fmt: skip
def mimo2(h: Hyper, k: Keys) -> None:
    """MiMo V2 (Xiaomi 2025): windowed layers have heads and a base of their own, and so have those
    that predict further tokens, which the configuration does not count.
    """
    _not_by_ranks(h)
    h.must_be("topk_method", "noaux_tc")
    h.must_be("scoring_func", "sigmoid")
    h.must_be("norm_topk_prob", True)
    for name in ("head_dim", "num_attention_heads", "v_head_dim"):
        h.must_be(f"swa_{name}", h.get(name))
    common(h, k)
    k.u32("expert_gating_func", SIGMOID)
    pattern = [*_mimo_windows(h), *[1] * h.further]
    # transformers 5 does not say their number: they are twice as many
    heads = h.kv_heads, h.integer("swa_num_key_value_heads", default=2 * h.kv_heads)
    k.integers("attention.head_count_kv", [heads[one] for one in pattern])
    k.u32("attention.sliding_window", h.integer("sliding_window"))
    k.integers("attention.sliding_window_pattern", pattern)
    k.u32("attention.value_length", h.integer("v_head_dim"))
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    k.u32("rope.dimension_count", partial_rotation(h))
    eps = h.number("layernorm_epsilon", "rms_norm_eps", default=1e-5)
    k.f32("attention.layer_norm_rms_epsilon", eps)
    if h.get("swa_rope_theta") is not None:
        k.f32("rope.freq_base_swa", h.number("swa_rope_theta"))
    if h.get("attention_value_scale") is not None:
        k.f32("attention.value_scale", h.number("attention_value_scale"))


STEP: dict[str, str | Rule] = {
    **PLAIN,
    **{
        name.replace("{w}", "weight"): Rule((to.replace("{w}", "weight"),), plus_one, values=True)
        for name, to in PLAIN.items()
        if isinstance(to, str) and "norm" in name
    },
    "model.layers.{b}.self_attn.g_proj.weight": "blk.{b}.attn_gate.weight",
    "model.layers.{b}.moe.gate.weight": "blk.{b}.ffn_gate_inp.weight",
    "model.layers.{b}.moe.router_bias": "blk.{b}.exp_probs_b.bias",
    **{
        f"model.layers.{{b}}.moe.{part}_proj.weight": f"blk.{{b}}.ffn_{part}_exps.weight"
        for part in ("gate", "up", "down")
    },
    **{
        f"model.layers.{{b}}.share_expert.{part}_proj.weight": f"blk.{{b}}.ffn_{part}_shexp.weight"
        for part in ("gate", "up", "down")
    },
}


def _clamps(h: Hyper, k: Keys, name: str, key: str) -> None:
    """Limits of gates by layer, 0 for none."""
    values = h.get(name)
    if values is None:
        return
    made = [0.0 if one is None else float(one) for one in values][: h.blocks]
    k.floats(key, made + [0.0] * (h.blocks - len(made)))


_STEP_MTP = Mtp(appended, {
    **NEXTN_PLUS_ONE,
    **{f"model.layers.{{b}}.{inside}shared_head.{theirs}.weight":
           NEXTN_PLUS_ONE[f"model.layers.{{b}}.shared_head.{ours}.weight"]
       for inside in ("", "transformer.")
       for theirs, ours in (("norm", "norm"), ("output", "head"))},
})  # fmt: skip


@family("Step3p5ForCausalLM", arch="step35", rules=STEP, mtp=_STEP_MTP)
def step35(h: Hyper, k: Keys) -> None:
    """Step 3.5 Flash (StepFun 2026). Its configuration says the kinds of the layers that predict
    further tokens too.
    """
    theta = h.get("rope_theta")
    if isinstance(theta, list):  # by layer: a global one, then windowed ones
        common(h.but(rope_theta=theta[0], rope_local_base_freq=theta[1]), k)
    else:
        common(h, k)
    kinds = h.strings("layer_types", h.layers, h.blocks) or []
    kinds = kinds + ["full_attention"] * (h.blocks - len(kinds))
    shares = h.get("partial_rotary_factors", default=[])[: h.blocks]
    shares = shares + [0.5] * (h.blocks - max(h.layers, len(shares)))
    windowed = [kind == "sliding_attention" for kind in kinds]
    if shares != [1.0 if one else 0.5 for one in windowed]:
        raise ConvertError(
            f"{h.label}: partial_rotary_factors: found {shares!r:.80}, wanted 1 in windowed "
            "layers, 0.5 in others"
        )
    other = Hyper(
        h.get("attention_other_setting", default={}), f"{h.label}: attention_other_setting"
    )
    heads = h.heads, other.integer("num_attention_heads", default=h.heads)
    groups = h.integer("num_attention_groups")
    kv = groups, other.integer("num_attention_groups", default=groups)
    k.integers("attention.head_count", [heads[one] for one in windowed])
    k.integers("attention.head_count_kv", [kv[one] for one in windowed])
    k.u32("attention.sliding_window", h.integer("sliding_window"))
    k.flags("attention.sliding_window_pattern", windowed)
    k.u32("attention.value_length", h.head_dim)
    k.u32("expert_count", h.integer("moe_num_experts"))
    k.u32("expert_used_count", h.integer("moe_top_k"))
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    k.u32("expert_shared_feed_forward_length", h.integer("share_expert_dim"))
    if h.get("moe_router_scaling_factor") is not None:
        k.f32("expert_weights_scale", h.number("moe_router_scaling_factor"))
    if h.get("norm_expert_weight") is not None:
        k.flag("expert_weights_norm", h.flag("norm_expert_weight"))
    listed = [int(one) for one in str(h.get("moe_layers_enum", default="")).split(",") if one]
    k.u32("leading_dense_block_count", min(listed, default=0))
    k.u32("moe_every_n_layers", h.integer("moe_every_n_layer", default=1))
    k.f32("attention.layer_norm_rms_epsilon", h.number("rms_norm_eps", default=1e-5))
    _clamps(h, k, "swiglu_limits", "swiglu_clamp_exp")
    _clamps(h, k, "swiglu_limits_shared", "swiglu_clamp_shexp")


@family("Step3p7ForConditionalGeneration", arch="step35", rules=STEP, mtp=_STEP_MTP)
def step37(h: Hyper, k: Keys) -> None:
    """The text part of Step 3.7 Flash (StepFun 2026): that of Step 3.5 Flash, published in its
    words; transformers 5 saves others.
    """
    if h.get("num_attention_groups") is not None:
        step35(h, k)
        return
    h.must_be("query_pre_attn_scalar", h.head_dim)
    kinds = h.strings("layer_types", h.layers) or []
    kinds = kinds + (h.strings("mtp_layer_types", h.further) or [])
    sparse = [at for at, kind in enumerate(h.strings("mlp_layer_types", h.layers) or [])
              if kind == "sparse"]  # fmt: skip
    if sparse != list(range(min(sparse, default=0), h.layers)):
        raise ConvertError(f"{h.label}: mlp_layer_types: wanted dense layers first, and no others")
    shares = {kind: h.rope(kind).get("partial_rotary_factor", 1.0) for kind in set(kinds)}
    heads = h.integer("num_sliding_attention_heads", default=h.heads)
    said = {
        "attention_other_setting": {"num_attention_heads": heads},
        "moe_layers_enum": ",".join(map(str, sparse)),
        "moe_num_experts": h.integer("n_routed_experts"),
        "moe_top_k": h.integer("num_experts_per_tok"),
        "norm_expert_weight": True,
        "num_attention_groups": h.kv_heads,
        "partial_rotary_factors": [shares[kind] for kind in kinds],
    }
    step35(h.but(**said, layer_types=kinds), k)
    k.u32("rope.dimension_count", h.head_dim)


def _convolution(x: np.ndarray, h: Hyper) -> np.ndarray:
    """(channels, taps) or (channels, 1, taps) as (1, channels, 1, taps)."""
    return x.reshape(1, x.shape[0], 1, x.shape[-1])


_KDA = "model.layers.{b}.self_attn."
_MOE = "model.layers.{b}.block_sparse_moe."


def latent_keys(h: Hyper, k: Keys) -> None:
    """The sizes of latent attention among other layers."""
    turned, latent = h.integer("qk_rope_head_dim"), h.integer("kv_lora_rank")
    if h.get("q_lora_rank") is not None:
        k.u32("attention.q_lora_rank", h.integer("q_lora_rank"))
    k.u32("attention.kv_lora_rank", latent)
    k.u32("rope.dimension_count", turned)
    k.u32("attention.key_length", latent + turned)
    k.u32("attention.key_length_mla", h.integer("qk_nope_head_dim") + turned)
    k.u32("attention.value_length_mla", h.integer("v_head_dim"))


KIMI: dict[str, str | Rule] = {
    **PLAIN,
    **EXPERTS_W,
    **{
        f"{_MOE}shared_experts.{part}_proj.weight": f"blk.{{b}}.ffn_{part}_shexp.weight"
        for part in ("gate", "up", "down")
    },
    _MOE + "gate.e_score_correction_bias": "blk.{b}.exp_probs_b.bias",
    **{f"{_KDA}{part}_conv1d.weight": Rule((f"blk.{{b}}.ssm_conv1d_{part}.weight",), _convolution)
       for part in "qkv"},
    _KDA + "A_log": Rule(("blk.{b}.ssm_a",), negative_exponential, values=True),
    _KDA + "dt_bias": "blk.{b}.ssm_dt.bias",
    _KDA + "o_norm.weight": "blk.{b}.ssm_norm.weight",
    _KDA + "b_proj.weight": "blk.{b}.ssm_beta.weight",
    **{f"{_KDA}{part}_proj.weight": f"blk.{{b}}.ssm_{part}.weight"
       for part in ("f_a", "f_b", "g_a", "g_b")},
    _KDA + "q_a_proj.weight": "blk.{b}.attn_q_a.weight",
    _KDA + "q_a_layernorm.weight": "blk.{b}.attn_q_a_norm.weight",
    _KDA + "q_b_proj.weight": "blk.{b}.attn_q_b.weight",
    _KDA + "kv_a_proj_with_mqa.weight": "blk.{b}.attn_kv_a_mqa.weight",
    _KDA + "kv_a_layernorm.weight": "blk.{b}.attn_kv_a_norm.weight",
    _KDA + "kv_b_proj.weight": Rule(
        ("blk.{b}.attn_k_b.weight", "blk.{b}.attn_v_b.weight"), latent_keys_values
    ),
}  # fmt: skip


@family("KimiLinearForCausalLM", "KimiLinearModel", arch="kimi-linear", rules=KIMI)
def kimi_linear(h: Hyper, k: Keys) -> None:
    """Kimi Linear (Moonshot AI 2025): delta attention, and latent attention every few layers,
    numbered from 1.
    """
    common(h, k)
    linear = Hyper(h.get("linear_attn_config", default={}), f"{h.label}: linear_attn_config")
    full = linear.get("full_attn_layers", default=[])
    k.u32("vocab_size", h.integer("vocab_size"))
    k.integers("attention.head_count_kv", [int(i + 1 in full) for i in range(h.layers)])
    k.u32("ssm.conv_kernel", linear.integer("short_conv_kernel_size"))
    k.u32("kda.head_dim", linear.integer("head_dim"))
    latent_keys(h, k)
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    k.u32("expert_shared_count", h.integer("num_shared_experts"))
    k.u32("leading_dense_block_count", h.integer("first_k_dense_replace"))
    k.f32("expert_weights_scale", h.number("routed_scaling_factor"))


_INDEX = "model.layers.{b}.self_attn.indexer."
INDEXED: dict[str, str | Rule] = {
    **DEEPSEEK,
    _INDEX + "k_norm.{w}": "blk.{b}.indexer.k_norm.{w}",
    _INDEX + "weights_proj.weight": "blk.{b}.indexer.proj.weight",
    _INDEX + "wk.weight": "blk.{b}.indexer.attn_k.weight",
    _INDEX + "wq_b.weight": "blk.{b}.indexer.attn_q_b.weight",
}


@family("DeepseekV32ForCausalLM", arch="deepseek32", rules=INDEXED, mtp=MTP)
def deepseek32(h: Hyper, k: Keys) -> None:
    """DeepSeek V3.2 (DeepSeek-AI 2025): an index chooses the keys that a row sees."""
    deepseek2(h, k)
    k.u32("attention.indexer.head_count", h.integer("index_n_heads"))
    k.u32("attention.indexer.key_length", h.integer("index_head_dim"))
    k.u32("attention.indexer.top_k", h.integer("index_topk"))
    no_further_layers(h, k)


@family("GlmMoeDsaForCausalLM", arch="glm-dsa", rules=INDEXED, special=glm_tokens, mtp=MTP)
def glm_dsa(h: Hyper, k: Keys) -> None:
    """GLM 5 (Zhipu AI 2026): the same, and some layers share the choice of the one before."""
    deepseek32(h, k)
    share = h.rope().get("partial_rotary_factor", 1.0)
    k.u32("rope.dimension_count", int(h.integer("qk_rope_head_dim") * share))
    kinds = h.strings("indexer_types", h.layers, h.blocks)
    if kinds is not None:
        k.flags("attention.indexer.types", [one == "full" for one in kinds])


@family("GrokForCausalLM", "Grok1ForCausalLM", arch="grok", meant={
    "hidden_act": ("gelu", "silu"),  # which its code does not read
}, rules={
    **PLAIN,
    **EXPERTS_W,
    "model.layers.{b}.pre_attn_norm.weight": "blk.{b}.attn_norm.weight",
    "model.layers.{b}.post_attn_norm.weight": "blk.{b}.attn_output_norm.weight",
    "model.layers.{b}.pre_moe_norm.weight": "blk.{b}.ffn_norm.weight",
    "model.layers.{b}.post_moe_norm.weight": "blk.{b}.post_ffw_norm.weight",
})  # fmt: skip
def grok(h: Hyper, k: Keys) -> None:
    """Grok 2 (xAI 2025): a dense network parallel to the experts; scales and caps."""
    common(h, k)
    k.f32("attn_logit_softcapping", h.number("attn_logit_softcapping", default=30.0))
    k.f32("router_logit_softcapping", h.number("router_logit_softcapping", default=30.0))
    if h.get("final_logit_softcapping"):
        k.f32("final_logit_softcapping", h.number("final_logit_softcapping"))
    if h.get("moe_intermediate_size") is not None:
        k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    # its folders call the YaRN that they have by the context that it starts from
    h.must_be("rope_type", "yarn", "original", "default")
    if h.get("rope_type") in ("yarn", "original"):
        k.text("rope.scaling.type", "yarn")
        k.f32("rope.scaling.factor", h.number("scaling_factor"))
        k.u32("rope.scaling.original_context_length", h.integer("original_max_position_embeddings"))
        for name, key in (
            ("extrapolation_factor", "yarn_ext_factor"),
            ("attn_factor", "yarn_attn_factor"),
            ("beta_fast", "yarn_beta_fast"),
            ("beta_slow", "yarn_beta_slow"),
        ):
            k.f32(f"rope.scaling.{key}", h.number(name))
    if h.get("attn_temperature_len"):
        k.u32("attention.temperature_length", h.integer("attn_temperature_len"))
    k.f32("attention.output_scale", h.number("attn_output_multiplier", default=h.head_dim**-0.5))
    k.f32("embedding_scale", h.number("embedding_multiplier_scale"))
    k.f32("logit_scale", h.number("output_multiplier_scale"))


_GROUP = 2  # experts of a group, and the scale of its own expert, which no configuration says
_GROUP_SCALE = 0.05


@family("GroveMoeForCausalLM", "modeling_grove_moe.GroveMoeForCausalLM", arch="grovemoe", rules={
    **PLAIN,
    **ROUTED,
    **{
        f"model.layers.{{b}}.mlp.chunk_experts.{{e}}.{part}_proj.weight":
            f"blk.{{b}}.ffn_{part}_chexps.weight"
        for part in ("gate", "up", "down")
    },
}, dropped=("model.layers.{b}.mlp.expert_bias",))  # fmt: skip
def grovemoe(h: Hyper, k: Keys) -> None:
    """GroveMoE (Wu et al. 2025); the published code does not read its experts' bias."""
    h.must_be("norm_topk_prob", True)
    common(h, k)
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    k.u32("expert_chunk_feed_forward_length", h.integer("head_dim", default=None) or 128)
    k.u32("experts_per_group", _GROUP)
    k.f32("expert_group_scale", _GROUP_SCALE)


@family("MapleForCausalLM", arch="maple", rules={**PLAIN, **ROUTED})
def maple(h: Hyper, k: Keys) -> None:
    """Maple (2026): windowed layers rotate, global ones do not; gates are clamped at 7."""
    h.must_be("hidden_act", "silu")
    h.must_be("num_shared_experts", 0)
    h.must_be("norm_topk_prob", True)
    if not h.flag("nope_on_global_attention"):
        raise ConvertError(f"{h.label}: nope_on_global_attention: wanted true for maple")
    common(h, k)
    k.u32("vocab_size", h.integer("vocab_size"))
    k.u32("rope.dimension_count", partial_rotation(h))
    windows(h, k, pattern=True)
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    k.floats("swiglu_clamp_exp", [7.0] * h.layers)


_LING = "model.layers.{b}.attention."


def _is_latent(h: Hyper, layer: int) -> bool:
    """Whether a layer is latent attention: the last of each group, and those after the last."""
    group = h.integer("layer_group_size")
    return (layer + 1) % group == 0 or layer >= h.layers // group * group


_LING_MTP = Mtp(appended, {
    **{name: to for name, to in NEXTN.items() if "norm" in name and "shared" not in name},
    "model.layers.{b}.eh_proj.weight": "blk.{b}.nextn.eh_proj.weight",
    **_LAST_NORM,
    _LING + "g_proj.weight": "blk.{b}.attn_gate.weight",
})  # fmt: skip


def _plain_exponential(x: np.ndarray, h: Hyper) -> np.ndarray:
    return -negative_exponential(x, h).reshape(-1, 1)


LING3: dict[str, str | Rule] = {
    **BAILING,
    "model.layers.{b}.mlp.gate.expert_bias": "blk.{b}.exp_probs_b.bias",
    **{f"{_LING}{part}_proj.weight": f"blk.{{b}}.attn_{part}.weight" for part in "qkv"},
    **{f"{_LING}{part}_conv1d.weight": Rule((f"blk.{{b}}.ssm_conv1d_{part}.weight",), _convolution)
       for part in "qkv"},
    _LING + "A_log": Rule(("blk.{b}.ssm_a",), _plain_exponential, values=True),
    _LING + "dt_bias": "blk.{b}.ssm_dt.bias",
    _LING + "f_proj.weight": "blk.{b}.ssm_f_a.weight",
    _LING + "b_proj.weight": "blk.{b}.ssm_beta.weight",
    _LING + "o_norm.weight": "blk.{b}.ssm_norm.weight",
    _LING + "o_proj.weight": "blk.{b}.attn_output.weight",
    _LING + "q_a_proj.weight": "blk.{b}.attn_q_a.weight",
    _LING + "q_a_layernorm.weight": "blk.{b}.attn_q_a_norm.weight",
    _LING + "q_b_proj.weight": "blk.{b}.attn_q_b.weight",
    _LING + "kv_a_proj_with_mqa.weight": "blk.{b}.attn_kv_a_mqa.weight",
    _LING + "kv_a_layernorm.weight": "blk.{b}.attn_kv_a_norm.weight",
    _LING + "kv_b_proj.weight": Rule(
        ("blk.{b}.attn_k_b.weight", "blk.{b}.attn_v_b.weight"), latent_keys_values
    ),
}  # fmt: skip


def _ling3(h: Hyper, keys: Callable[[Hyper, Keys], None] | None = None) -> Family:
    """The family of a configuration: the gate's name follows from the kind of its layer."""
    gates = {
        f"model.layers.{layer}.attention.g_proj.weight":
            f"blk.{layer}.{'attn_gate' if _is_latent(h, layer) else 'ssm_g_a'}.weight"
        for layer in range(h.layers)
    }  # fmt: skip
    return Family("bailingmoe3", {**LING3, **gates}, keys or bailingmoe3, mtp=_LING_MTP)


@family("BailingMoeV3ForCausalLM", "BailingMoeV3VLForConditionalGeneration", arch="bailingmoe3",
        rules=LING3, variant=_ling3)  # fmt: skip
def bailingmoe3(h: Hyper, k: Keys) -> None:
    """Ling 3 (Inclusion AI 2026): delta attention, and gated latent attention every few layers."""
    for name, value in (
        ("no_kda_lora", True), ("kda_safe_gate", True),
        ("gated_attention_proj_granularity_type", "head_wise"),
    ):  # fmt: skip
        if h.get(name) != value:
            raise ConvertError(f"{h.label}: {name}: found {h.get(name)!r}, wanted {value!r}")
    common(h, k)
    k.integers("attention.head_count_kv", [int(_is_latent(h, i)) for i in range(h.blocks)])
    k.u32("vocab_size", h.integer("vocab_size"))
    k.u32("ssm.conv_kernel", h.integer("short_conv_kernel_size"))
    k.u32("kda.head_dim", h.integer("head_dim"))
    k.flag("kda.safe_gate", True)
    k.f32("kda.gate_lower_bound", h.number("kda_lower_bound"))
    latent_keys(h, k)
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    k.u32("expert_shared_feed_forward_length", h.integer("moe_shared_expert_intermediate_size"))
    k.u32("expert_shared_count", h.integer("num_shared_experts", default=1))
    k.u32("leading_dense_block_count", h.integer("first_k_dense_replace"))
    k.f32("expert_weights_scale", h.number("routed_scaling_factor"))
    k.flag("expert_weights_norm", h.flag("norm_topk_prob"))
    _clamps(h, k, "expert_swiglu_limit_list", "swiglu_clamp_exp")
    _clamps(h, k, "share_expert_swiglu_limit_list", "swiglu_clamp_shexp")
    sections = h.get("mrope_section")
    if "VL" in str(h.get("architectures")):
        turned = h.integer("qk_rope_head_dim")
        if not isinstance(sections, list) or 2 * sum(sections[:3]) != turned:
            raise ConvertError(
                f"{h.label}: mrope_section: found {sections!r:.80}, wanted three parts of "
                f"{turned // 2} pairs"
            )
        k.integers("rope.dimension_sections", [*sections[:3], 0])


def _saved_ling3(h: Hyper) -> Family:
    return _ling3(h, bailing_hybrid)


@family("BailingHybridForCausalLM", arch="bailingmoe3", rules=LING3, variant=_saved_ling3)
def bailing_hybrid(h: Hyper, k: Keys) -> None:
    """Ling 3 in the words of transformers 5."""
    kinds = [_is_latent(h, layer) for layer in range(h.layers)]
    h.must_be("layer_types", [f"{'full' if one else 'linear'}_attention" for one in kinds])
    h.must_be("attention_bias", False)
    width, shared = h.integer("moe_intermediate_size"), h.integer("num_shared_experts", default=1)
    bailingmoe3(
        h.but(
            no_kda_lora=True,
            gated_attention_proj_granularity_type="head_wise",
            moe_shared_expert_intermediate_size=width * shared,
            n_group=h.integer("num_expert_group"),
            norm_topk_prob=h.flag("moe_renormalize", default=True),
            score_function="sigmoid",
        ),
        k,
    )
