"""Mixtures with latent attention whose residuals, or layers, are of more than one kind: Hy4,
GLM 5.3 Flash, Kimi K3, dots3-note.
"""

from __future__ import annotations

import math

import numpy as np

from oxillama.convert.families.dense import PLAIN
from oxillama.convert.families.experts import deepseek2, glm_tokens
from oxillama.convert.families.routed import INDEXED, KIMI, kimi_linear, latent_keys
from oxillama.convert.family import Change, Family, Hyper, Keys, Rule, family, floats
from oxillama.convert.keys import SIGMOID, common
from oxillama.convert.shapes import halves, latent_keys_values, negative_exponential
from oxillama.errors import ConvertError

_LAYER = "model.layers.{b}."
_ATTENTION = _LAYER + "self_attn."
_WEIGHTS = ("fn", "base", "scale")  # of the streams of a residual


def _without(h: Hyper, *names: str, **more: object) -> Hyper:
    """The configuration without some keys, or with other values."""
    config = {name: value for name, value in h.config.items() if name not in names}
    return Hyper({**config, **more}, h.label, h.folder, h.layer)


def _indexer(h: Hyper, k: Keys, owners: list[bool] | None) -> None:
    k.u32("attention.indexer.head_count", h.integer("index_n_heads"))
    k.u32("attention.indexer.key_length", h.integer("index_head_dim"))
    k.u32("attention.indexer.top_k", h.integer("index_topk"))
    if owners is not None:
        k.flags("attention.indexer.types", owners)


def _owners(h: Hyper) -> list[bool] | None:
    """Which layers have an indexer of their own."""
    kinds = h.strings("indexer_types", h.layers)
    if kinds is None:
        return None
    unknown = sorted(set(kinds) - {"full", "shared"})
    if unknown or kinds[0] != "full":
        raise ConvertError(
            f"{h.label}: indexer_types: found {(unknown or kinds)[0]!r}, wanted full or shared, "
            "full first"
        )
    return [one == "full" for one in kinds]


def _streams(h: Hyper, k: Keys) -> None:
    k.u32("hyper_connection.count", h.integer("hc_mult"))
    k.f32("hyper_connection.epsilon", h.number("hc_eps"))


def _dense_layers(h: Hyper) -> int:
    """How many layers come before those with experts."""
    kinds = h.strings("mlp_layer_types", h.layers)
    said = h.integer("first_k_dense_replace", default=None)
    if kinds is None:
        return h.integer("first_k_dense_replace") if said is None else said
    first = next((at for at, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    if "dense" in kinds[first:] or said not in (None, first):
        raise ConvertError(
            f"{h.label}: mlp_layer_types: found {kinds.count('dense')} dense layers, wanted the "
            f"first {first if said is None else said} and no others"
        )
    return first


@family("HYV4ForCausalLM", arch="hy_v4", rules={
    **INDEXED,
    _LAYER + "mlp.experts.gate_up_proj": Rule(
        ("blk.{b}.ffn_gate_exps.weight", "blk.{b}.ffn_up_exps.weight"), halves
    ),
    _LAYER + "mlp.experts.down_proj": "blk.{b}.ffn_down_exps.weight",
    _ATTENTION + "learnable_sink_param": "blk.{b}.attn_sinks.weight",
    _ATTENTION + "linear_gate.weight": "blk.{b}.attn_gate.weight",
    **{f"{_LAYER}hc_{theirs}_layer.hc_pre.hc_{part}": f"blk.{{b}}.hc_{ours}_{part}.weight"
       for theirs, ours in (("attn", "attn"), ("mlp", "ffn")) for part in _WEIGHTS},
    **{f"model.hc_head.hc_head_{part}": f"output_hc_{part}.weight" for part in _WEIGHTS},
})  # fmt: skip
def hunyuan4(h: Hyper, k: Keys) -> None:
    """Hy4 (Tencent 2026): a residual of several streams; an indexer in some of its models."""
    one_group = h.get("n_group") == h.get("topk_group") == 1
    groups = ("n_group", "topk_group") if one_group else ()
    deepseek2(_without(h, *groups, first_k_dense_replace=_dense_layers(h)), k)
    k.u32("expert_gating_func", SIGMOID)
    limit = h.number("swiglu_limit", default=0.0)
    if limit > 0:
        k.floats("swiglu_clamp_exp", [limit] * h.layers)
    _streams(h, k)
    k.f32("hyper_connection.magnitude", h.number("hc_magnitude"))
    owners, kinds = _owners(h), h.strings("layer_types", h.layers) or []
    sparse = [kind in ("sparse_attention", "deepseek_sparse_attention") for kind in kinds]
    if owners is not None or any(sparse):
        _indexer(h, k, sparse if owners is None else owners)


def _rates(x: np.ndarray, h: Hyper) -> np.ndarray:
    """The decay of each head from its logarithm (computes)."""
    return negative_exponential(x.reshape(-1)[: h.heads], h)


_DELTA: dict[str, str | Rule] = {
    **KIMI,
    _ATTENTION + "A_log": Rule(("blk.{b}.ssm_a",), _rates, values=True),
}


@family("Glm5NextForConditionalGeneration", arch="glm5-next", special=glm_tokens, rules={
    **PLAIN,
    **INDEXED,
    **_DELTA,
    **{f"{_ATTENTION}indexer.index_kpool_compress_{part}":
           f"blk.{{b}}.indexer_compressor_{part}.weight" for part in ("gate", "ape")},
    **{f"{_LAYER}hc_{branch}_{part}": f"blk.{{b}}.hc_{branch}_{part}.weight"
       for branch in ("attn", "ffn") for part in _WEIGHTS},
})  # fmt: skip
def glm5_next(h: Hyper, k: Keys) -> None:
    """GLM 5.3 Flash (Zhipu AI 2026): delta attention, latent attention without positions; keys are
    chosen in pools.
    """
    h.must_be("mhc", True)
    h.must_be("mla_use_nope", True)
    h.must_be("qk_rope_head_dim", 0)
    linear = Hyper(h.get("linear_attn_config", default={}), f"{h.label}: linear_attn_config")
    linear.must_be("num_heads", h.heads)
    common(_without(h, "head_dim"), k)
    kinds = h.strings("layer_types", h.layers)
    if kinds is None:
        raise ConvertError(f"{h.label}: layer_types is missing, wanted the kind of each layer")
    k.integers("attention.head_count_kv", [int(kind != "linear_attention") for kind in kinds])
    k.u32("vocab_size", h.integer("vocab_size"))
    k.f32("attention.layer_norm_epsilon", 1e-6)
    _delta_keys(linear, k)
    latent_keys(h, k)
    k.u32("attention.value_length", h.integer("kv_lora_rank"))
    _indexer(h, k, _owners(h))
    k.u32("attention.indexer.kpool", h.integer("index_kpool"))
    k.flag(
        "attention.indexer.kpool_select_tail",
        h.flag("index_kpool_always_select_tail", default=True),
    )
    _streams(h, k)
    k.u32("hyper_connection.sinkhorn_iterations", h.integer("hc_sinkhorn_iters"))
    k.u32("leading_dense_block_count", h.integer("first_k_dense_replace"))
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    k.u32("expert_shared_count", h.integer("n_shared_experts"))
    k.f32("expert_weights_scale", h.number("routed_scaling_factor"))
    k.flag("expert_weights_norm", h.flag("norm_topk_prob"))
    if h.get("swiglu_limit") is not None:
        for kind in ("exp", "shexp"):
            k.floats(f"swiglu_clamp_{kind}", [h.number("swiglu_limit")] * h.layers)


def _delta_keys(linear: Hyper, k: Keys) -> None:
    k.u32("ssm.conv_kernel", linear.integer("short_conv_kernel_size"))
    k.u32("kda.head_dim", linear.integer("head_dim"))
    if linear.get("gate_lower_bound") is not None:
        k.f32("kda.gate_lower_bound", linear.number("gate_lower_bound"))


# what scores residuals: the product of a norm's weight and a projection to one number
_SCORES = {
    _LAYER + "self_attention_res": "blk.{b}.attn_res_score.weight",
    _LAYER + "mlp_res": "blk.{b}.ffn_res_score.weight",
    "model.output_attn_res": "output_res_score.weight",
}


def _scores(h: Hyper) -> dict[str, np.ndarray]:
    """Norm times projection, for every layer and the end."""
    if h.folder is None or not h.integer("attn_res_block_size"):
        return {}
    held = {name.removeprefix("language_model."): t for name, t in h.folder.tensors.items()}
    made = {}
    for theirs, ours in _SCORES.items():
        for layer in range(h.layers if "{b}" in theirs else 1):
            names = [f"{theirs}_{part}.weight".replace("{b}", str(layer))
                     for part in ("norm", "proj")]  # fmt: skip
            missing = next((name for name in names if name not in held), None)
            if missing is not None:
                raise ConvertError(f"{h.folder.path}: {missing}: missing")
            norm, row = (floats(held[name]).reshape(-1) for name in names)
            made[ours.replace("{b}", str(layer))] = norm * row
    return made


_MOE = _LAYER + "block_sparse_moe."
KIMI3: dict[str, str | Rule] = {
    **_DELTA,
    **{f"{_MOE}routed_expert_{theirs}.weight": f"blk.{{b}}.ffn_routed_{ours}.weight"
       for theirs, ours in (("down_proj", "down"), ("up_proj", "up"), ("norm", "norm"))},
}  # fmt: skip
_PARTS = tuple(f"{name}_{part}.weight" for name in _SCORES for part in ("norm", "proj"))


def _attends(h: Hyper) -> list[bool]:
    """Which layers are latent attention; the folder numbers them from 1."""
    full = (h.get("linear_attn_config", default={})).get("full_attn_layers", [])
    return [layer + 1 in full for layer in range(h.layers)]


def _kimi3(h: Hyper) -> Family:
    """The family of a configuration: the gate's name follows from the kind of its layer."""
    gates = {
        f"model.layers.{layer}.self_attn.g_proj.weight":
            f"blk.{layer}.{'attn_gate' if latent else 'ssm_g'}.weight"
        for layer, latent in enumerate(_attends(h))
    }  # fmt: skip
    return Family("kimi-k3", {**KIMI3, **gates}, kimi3, extra=_scores, dropped=_PARTS)


@family("KimiK3ForConditionalGeneration", arch="kimi-k3", rules=KIMI3, variant=_kimi3)
def kimi3(h: Hyper, k: Keys) -> None:
    """Kimi K3 (Moonshot AI 2026): Kimi Linear with residuals of earlier blocks and experts over
    fewer columns.
    """
    h.must_be("hidden_act", "situ")
    h.must_be("mla_use_nope", True)
    h.must_be("moe_router_activation_func", "sigmoid")
    kimi_linear(h, k)
    linear = Hyper(h.get("linear_attn_config", default={}), f"{h.label}: linear_attn_config")
    _delta_keys(linear, k)
    k.u32("attention.value_length", h.integer("kv_lora_rank"))
    k.flag("expert_weights_norm", h.flag("moe_renormalize"))
    k.u32("expert_gating_func", SIGMOID)
    if h.get("routed_expert_hidden_size") is not None:
        k.u32("expert_latent_length", h.integer("routed_expert_hidden_size"))
    k.f32("activation.situ_beta", h.number("activation_situ_beta"))
    k.f32("activation.situ_linear_beta", h.number("activation_situ_linear_beta"))
    k.u32("attn_res.block_size", h.integer("attn_res_block_size"))


# ---- dots3-note ----------------------------------------------------------------------------------


def _near(h: Hyper) -> list[bool]:
    """Which layers have a window."""
    kinds = h.strings("layer_types", h.layers)
    if kinds is None:
        raise ConvertError(f"{h.label}: layer_types is missing, wanted the kind of each layer")
    return [kind == "sliding_attention" for kind in kinds]


def _of_layer(h: Hyper) -> Hyper:
    """The configuration as a layer with a window has it, where this is one."""
    if h.layer is None or not _near(h)[h.layer]:
        return h
    own = {name.removeprefix("swa_"): value
           for name, value in h.config.items() if name.startswith("swa_")}  # fmt: skip
    return _without(h, **own)


def _latent_parts(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, np.ndarray]:
    return latent_keys_values(x, _of_layer(h))


def _rescaled(rank: str) -> Change:
    """A norm's weight times what the code multiplies its result by (computes)."""

    def change(x: np.ndarray, h: Hyper) -> np.ndarray:
        if not h.flag("apply_mla_qkv_lora_rescale"):
            return x
        return x * np.float32(math.sqrt(h.hidden / _of_layer(h).integer(rank)))

    return change


def _turn(h: Hyper, ids: dict[str, int]) -> dict[str, int]:
    """What ends a turn."""
    name = "<|endofassistant|>"
    return {"eot": ids[name]} if name in ids else {}


@family("Dots3NoteForCausalLM", "Dots3NoteForConditionalGeneration", "Dots3NoteTextForCausalLM",
        arch="dots3note", special=_turn, rules={
    **INDEXED,
    _ATTENTION + "q_a_layernorm.weight":
        Rule(("blk.{b}.attn_q_a_norm.weight",), _rescaled("q_lora_rank"), values=True),
    _ATTENTION + "kv_a_layernorm.weight":
        Rule(("blk.{b}.attn_kv_a_norm.weight",), _rescaled("kv_lora_rank"), values=True),
    _ATTENTION + "kv_b_proj.weight":
        Rule(("blk.{b}.attn_k_b.weight", "blk.{b}.attn_v_b.weight"), _latent_parts),
    _ATTENTION + "k_rope_only_layernorm.weight": "blk.{b}.attn_k_norm.weight",
    _ATTENTION + "g_proj.weight": "blk.{b}.attn_gate.weight",
})  # fmt: skip
def dots3(h: Hyper, k: Keys) -> None:
    """dots3-note (rednote-hilab 2026), the text part: heads and latents of windowed layers are
    their own.
    """
    for name, wanted in (
        ("use_dsa", True), ("normalization", "RMSNorm"), ("final_norm", "RMSNorm"),
        ("k_rope_only_layernorm", True), ("topk_method", "noaux_tc"),
        ("scoring_func", "sigmoid"), ("n_group", 1), ("topk_group", 1),
        ("use_dynamic_rsf", False), ("moe_gating_fp32", False),
        ("attention_gate_type", "headwise"), ("swa_attention_gate_type", "headwise"),
        ("swa_q_lora_rank", h.get("q_lora_rank")),
        ("swa_qk_rope_head_dim", h.get("qk_rope_head_dim")),
    ):  # fmt: skip
        h.must_be(name, wanted)
    deepseek2(_without(h, "head_dim"), k)
    near, turned = _near(h), h.integer("qk_rope_head_dim")
    own = h.integer("swa_num_attention_heads"), h.heads
    k.integers("attention.head_count", [own[0] if one else own[1] for one in near])
    k.u32("attention.sliding_window", h.integer("sliding_window_size"))
    k.flags("attention.sliding_window_pattern", near)
    latent = h.integer("swa_kv_lora_rank")
    k.u32("attention.kv_lora_rank_swa", latent)
    k.u32("attention.key_length_swa", latent + turned)
    k.u32("attention.value_length_swa", latent)
    k.u32("attention.key_length_mla_swa", h.integer("swa_qk_nope_head_dim") + turned)
    k.u32("attention.value_length_mla_swa", h.integer("swa_v_head_dim"))
    _indexer(h, k, [not one for one in near])
