"""Mixtures with latent attention whose residuals, or layers, are of more than one kind: Hy4,
GLM 5.3 Flash, Kimi K3, dots3-note, DeepSeek V4.
"""

from __future__ import annotations

import math

import numpy as np

from oxillama.convert.families.dense import PLAIN
from oxillama.convert.families.experts import deepseek2, glm_tokens
from oxillama.convert.families.routed import INDEXED, KIMI, kimi_linear, latent_keys
from oxillama.convert.family import Change, Family, Hyper, Keys, Mtp, Rule, family
from oxillama.convert.keys import SIGMOID, SQRT_SOFTPLUS, common
from oxillama.convert.mtp_layers import MTP, NEXTN, appended
from oxillama.convert.shapes import halves, latent_keys_values, negative_exponential
from oxillama.errors import ConvertError

_LAYER = "model.layers.{b}."
_ATTENTION = _LAYER + "self_attn."
_WEIGHTS = ("fn", "base", "scale")  # of the streams of a residual


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
    # transformers 5 saves every gate under the attention's name for one
    _LAYER + "mlp.linear_gate.weight": "blk.{b}.ffn_gate.weight",
    _LAYER + "mlp.shared_experts.linear_gate.weight": "blk.{b}.ffn_gate_shexp.weight",
    # published, and as transformers 5 saves them
    **{f"{_LAYER}{name}.hc_{part}": f"blk.{{b}}.hc_{ours}_{part}.weight"
       for theirs, ours in (("attn", "attn"), ("mlp", "ffn")) for part in _WEIGHTS
       for name in (f"hc_{theirs}_layer.hc_pre", f"hc_pre.hc_{theirs}_layer")},
    **{f"model.{inside}hc_head.hc_head_{part}": f"output_hc_{part}.weight"
       for inside in ("", "hc_pre.") for part in _WEIGHTS},
})  # fmt: skip
def hunyuan4(h: Hyper, k: Keys) -> None:
    """Hy4 (Tencent 2026): a residual of several streams; an indexer in some of its models."""
    one_group = h.get("n_group") == h.get("topk_group") == 1
    groups = ("n_group", "topk_group") if one_group else ()
    deepseek2(h.but(*groups, first_k_dense_replace=_dense_layers(h)), k)
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
}, mtp=MTP)  # fmt: skip
def glm5_next(h: Hyper, k: Keys) -> None:
    """GLM 5.3 Flash (Zhipu AI 2026): delta attention, latent attention without positions; keys are
    chosen in pools.
    """
    h.must_be("mhc", True)
    h.must_be("mla_use_nope", True)
    h.must_be("qk_rope_head_dim", 0)
    linear = Hyper(h.get("linear_attn_config", default={}), f"{h.label}: linear_attn_config")
    linear.must_be("num_heads", h.heads)
    common(h.but("head_dim"), k)
    kinds = h.strings("layer_types", h.layers)
    if kinds is None:
        raise ConvertError(f"{h.label}: layer_types is missing, wanted the kind of each layer")
    k.integers("attention.head_count_kv", [
        *(int(kind != "linear_attention") for kind in kinds), *[1] * h.further
    ])  # fmt: skip
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
            k.floats(f"swiglu_clamp_{kind}", [h.number("swiglu_limit")] * h.blocks)


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
            norm, row = (held[name].floats().reshape(-1) for name in names)
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
    if h.layer is None or not (h.layer >= h.layers or _near(h)[h.layer]):
        return h
    own = {name.removeprefix("swa_"): value
           for name, value in h.config.items() if name.startswith("swa_")}  # fmt: skip
    return h.but(**own)


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


def _embedding_apart(name: str, h: Hyper) -> tuple[str, ...]:
    """The layer that predicts further tokens is behind the others, but for its embedding."""
    if name == "model.mtp.embed_tokens.weight":
        return (f"model.layers.{h.layers}.embed_tokens.weight",)
    return appended(name, h)


@family("Dots3NoteForCausalLM", "Dots3NoteForConditionalGeneration", "Dots3NoteTextForCausalLM",
        arch="dots3note", special=_turn, mtp=Mtp(_embedding_apart, NEXTN, None, True), rules={
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
    their own. A layer that predicts further tokens is a windowed one; the configuration does not
    count it.
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
    deepseek2(h.but("head_dim"), k)
    near, turned = _near(h), h.integer("qk_rope_head_dim")
    own = h.integer("swa_num_attention_heads"), h.heads
    heads = [own[0] if one else own[1] for one in near]
    k.integers("attention.head_count", heads + [own[0]] * h.further)
    k.u32("attention.sliding_window", h.integer("sliding_window_size"))
    k.flags("attention.sliding_window_pattern", near)
    latent = h.integer("swa_kv_lora_rank")
    k.u32("attention.kv_lora_rank_swa", latent)
    k.u32("attention.key_length_swa", latent + turned)
    k.u32("attention.value_length_swa", latent)
    k.u32("attention.key_length_mla_swa", h.integer("swa_qk_nope_head_dim") + turned)
    k.u32("attention.value_length_mla_swa", h.integer("swa_v_head_dim"))
    _indexer(h, k, [not one for one in near])


# ---- DeepSeek V4 ---------------------------------------------------------------------------------

# Its folders have names of their own, which transformers keeps; names in it are others.
_V4, _V4_HF = "layers.{b}.", "layers.{b}.self_attn."
_V4_RULES: dict[str, str | Rule] = {
    "embed.weight": "token_embd.weight",
    "embed_tokens.weight": "token_embd.weight",
    "head.weight": "output.weight",
    "lm_head.weight": "output.weight",
    "norm.weight": "output_norm.weight",
    **{f"hc_head_{part}": f"output_hc_{part}.weight" for part in _WEIGHTS},
    **{f"hc_head.hc_{part}": f"output_hc_{part}.weight" for part in _WEIGHTS},
    **{f"{_V4}hc_{branch}_{part}": f"blk.{{b}}.hc_{branch}_{part}.weight"
       for branch in ("attn", "ffn") for part in _WEIGHTS},
    **{f"{_V4}{branch}_hc.{part}": f"blk.{{b}}.hc_{branch}_{part}.weight"
       for branch in ("attn", "ffn") for part in _WEIGHTS},
    **{_V4 + theirs: f"blk.{{b}}.{ours}.weight" for theirs, ours in (
        ("attn_norm.weight", "attn_norm"),
        ("input_layernorm.weight", "attn_norm"),
        ("ffn_norm.weight", "ffn_norm"),
        ("post_attention_layernorm.weight", "ffn_norm"),
        ("attn.attn_sink", "attn_sinks"),
        ("attn.wq_a.weight", "attn_q_a"),
        ("attn.q_norm.weight", "attn_q_a_norm"),
        ("attn.wq_b.weight", "attn_q_b"),
        ("attn.wkv.weight", "attn_kv"),
        ("attn.kv_norm.weight", "attn_kv_a_norm"),
        ("attn.norm.weight", "attn_kv_a_norm"),  # as transformers writes it
        ("attn.wo_a.weight", "attn_output_a"),
        ("attn.wo_b.weight", "attn_output_b"),
        ("attn.compressor.wkv.weight", "attn_compressor_kv"),
        ("attn.compressor.wgate.weight", "attn_compressor_gate"),
        ("attn.compressor.ape", "attn_compressor_ape"),
        ("attn.compressor.norm.weight", "attn_compressor_norm"),
        ("attn.indexer.wq_b.weight", "indexer.attn_q_b"),
        ("attn.indexer.weights_proj.weight", "indexer.proj"),
        ("attn.indexer.compressor.wkv.weight", "indexer_compressor_kv"),
        ("attn.indexer.compressor.wgate.weight", "indexer_compressor_gate"),
        ("attn.indexer.compressor.ape", "indexer_compressor_ape"),
        ("attn.indexer.compressor.norm.weight", "indexer_compressor_norm"),
        ("ffn.gate.weight", "ffn_gate_inp"),
        ("mlp.gate.weight", "ffn_gate_inp"),
        ("ffn.shared_experts.w1.weight", "ffn_gate_shexp"),
        ("ffn.shared_experts.w2.weight", "ffn_down_shexp"),
        ("ffn.shared_experts.w3.weight", "ffn_up_shexp"),
        ("mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp"),
        ("mlp.shared_experts.down_proj.weight", "ffn_down_shexp"),
        ("mlp.shared_experts.up_proj.weight", "ffn_up_shexp"),
        ("ffn.experts.{e}.w1.weight", "ffn_gate_exps"),
        ("ffn.experts.{e}.w2.weight", "ffn_down_exps"),
        ("ffn.experts.{e}.w3.weight", "ffn_up_exps"),
        ("mlp.experts.down_proj", "ffn_down_exps"),
    )},
    **{_V4_HF + theirs: f"blk.{{b}}.{ours}.weight" for theirs, ours in (
        ("sinks", "attn_sinks"),
        ("q_a_proj.weight", "attn_q_a"),
        ("q_a_norm.weight", "attn_q_a_norm"),
        ("q_b_proj.weight", "attn_q_b"),
        ("kv_proj.weight", "attn_kv"),
        ("kv_norm.weight", "attn_kv_a_norm"),
        ("o_a_proj.weight", "attn_output_a"),
        ("o_b_proj.weight", "attn_output_b"),
        ("compressor.indexer.q_b_proj.weight", "indexer.attn_q_b"),
        ("compressor.indexer.scorer.weights_proj.weight", "indexer.proj"),
        *((f"compressor.{inner}{part}", f"{name}_compressor_{short}")
          for inner, name in (("", "attn"), ("indexer.", "indexer"))
          for part, short in (("kv_proj.weight", "kv"), ("gate_proj.weight", "gate"),
                              ("position_bias", "ape"), ("kv_norm.weight", "norm"))),
    )},
    _V4 + "ffn.gate.bias": "blk.{b}.exp_probs_b.bias",
    _V4 + "ffn.gate.bias_vl": "blk.{b}.exp_probs_b_vl.bias",
    _V4 + "mlp.gate.e_score_correction_bias": "blk.{b}.exp_probs_b.bias",
    **{_V4 + name: Rule(("blk.{b}.ffn_gate_tid2eid.weight",), integers=True)
       for name in ("ffn.gate.tid2eid", "mlp.gate.tid2eid")},
    _V4 + "mlp.experts.gate_up_proj": Rule(
        ("blk.{b}.ffn_gate_exps.weight", "blk.{b}.ffn_up_exps.weight"), halves
    ),
}  # fmt: skip
_V4_RATIOS = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}


def _v4_ratios(h: Hyper) -> list[int]:
    """Tokens of a block in each layer."""
    kinds = h.strings("layer_types", h.layers)
    if kinds is None:
        found = h.get("compress_ratios")
        if not isinstance(found, list) or len(found) < h.layers:
            raise ConvertError(
                f"{h.label}: compress_ratios: found {found!r:.80}, wanted one for each of "
                f"{h.layers} layers"
            )
        return found[: h.layers]
    unknown = next((kind for kind in kinds if kind not in _V4_RATIOS), None)
    if unknown is not None:
        raise ConvertError(
            f"{h.label}: layer_types: found {unknown!r}, wanted {', '.join(_V4_RATIOS)}"
        )
    rates = h.get("compress_rates", default={})
    for kind, ratio in _V4_RATIOS.items():
        if kind in kinds and rates.get(kind, ratio) != ratio:
            raise ConvertError(
                f"{h.label}: compress_rates: found {rates[kind]!r} for {kind}, wanted {ratio}"
            )
    return [_V4_RATIOS[kind] for kind in kinds]


def _v4_hashed(h: Hyper) -> int:
    """How many of the first layers choose experts by token."""
    kinds = h.strings("mlp_layer_types", h.layers)
    if kinds is None:
        return min(h.layers, h.integer("num_hash_layers"))
    count = kinds.count("hash_moe")
    if kinds != ["hash_moe"] * count + ["moe"] * (h.layers - count):
        raise ConvertError(
            f"{h.label}: mlp_layer_types: found {kinds!r:.80}, wanted hash_moe first, then moe"
        )
    return count


def _v4_rotation(h: Hyper) -> tuple[Hyper, float]:
    """The configuration with one rotation, that of layers with blocks but for its base, which is
    that of the others; and the base of layers with blocks.
    """
    rope = h.get("rope_parameters", "rope_scaling", default={})
    main, compress = rope.get("main", {}), rope.get("compress", rope)
    Hyper(main, f"{h.label}: rope_parameters: main").must_be("rope_type", "default")
    base = main.get("rope_theta", h.number("rope_theta", default=10000.0))
    scaled = compress.get("rope_theta") if "compress" in rope else None
    kept = {**compress, "rope_theta": base}
    if kept.get("attention_factor") == 1.0:
        del kept["attention_factor"]
    one = h.but("rope_scaling", rope_parameters=kept)
    return one, h.number("compress_rope_theta", default=160000.0) if scaled is None else scaled


def _v4_rotated(h: Hyper) -> int:
    """Floats of a head that are rotated."""
    turned = h.integer("qk_rope_head_dim", default=None)
    if turned is not None:
        return turned
    return int(h.head_dim * h.number("partial_rotary_factor", default=64 / 512))


def _v4(h: Hyper) -> Family:
    """The family of a configuration: layers that choose experts by token may hold a bias for the
    choice, which nothing reads.
    """
    names = ("ffn.gate.bias", "mlp.gate.e_score_correction_bias")
    unread = (f"layers.{layer}.{name}" for layer in range(_v4_hashed(h)) for name in names)
    return Family("deepseek4", _V4_RULES, deepseek4, prefixes=("model.",), dropped=(*unread,))


@family("DeepseekV4ForCausalLM", arch="deepseek4", rules=_V4_RULES, variant=_v4)
def deepseek4(h: Hyper, k: Keys) -> None:
    """DeepSeek V4 (DeepSeek-AI 2026): keys of blocks of tokens beside a window."""
    h.must_be("hidden_act", "silu")
    h.must_be("norm_topk_prob", True)
    h.must_be("scoring_func", "sqrtsoftplus")
    h.must_be("attention_bias", False)
    h.must_be("num_key_value_heads", 1)
    one, base = _v4_rotation(h)
    common(one, k)
    k.u32("attention.head_count_kv", 1)
    k.u32("rope.dimension_count", _v4_rotated(h))
    k.u32("attention.q_lora_rank", h.integer("q_lora_rank"))
    k.u32("attention.sliding_window", h.integer("sliding_window"))
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    k.u32("expert_shared_count", h.integer("n_shared_experts"))
    k.u32("expert_gating_func", SQRT_SOFTPLUS)
    k.f32("expert_weights_scale", h.number("routed_scaling_factor"))
    k.flag("expert_weights_norm", True)
    for kind in ("exp", "shexp"):
        k.floats(f"swiglu_clamp_{kind}", [h.number("swiglu_limit")] * h.layers)
    _indexer(h, k, None)
    k.u32("attention.output_group_count", h.integer("o_groups"))
    k.u32("attention.output_lora_rank", h.integer("o_lora_rank"))
    k.integers("attention.compress_ratios", _v4_ratios(h))
    k.f32("attention.compress_rope_freq_base", base)
    _streams(h, k)
    k.u32("hyper_connection.sinkhorn_iterations", h.integer("hc_sinkhorn_iters"))
    k.u32("hash_layer_count", _v4_hashed(h))
    k.u32("embedding_length_out", h.hidden * h.integer("hc_mult"))
