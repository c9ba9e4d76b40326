"""Attention with state-space layers or short convolutions: Granite 4, Bamba, Falcon H1, Nemotron H,
LFM2 with experts, Qwen 3.5, PLaMo 2, MiniMax Text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxillama.convert.families.dense import EXPERTS_W, LLAMA, PLAIN, granite_keys, llama_keys
from oxillama.convert.families.experts import (
    GRANITE_EXPERTS,
    granite_shared,
)
from oxillama.convert.families.recurrent import DELTA, DELTA_MTP, LFM2, delta_keys, mixer2
from oxillama.convert.families.single import PLAMO_LAYER
from oxillama.convert.family import Change, Family, Hyper, Keys, Mtp, Rule, family
from oxillama.convert.keys import SIGMOID, common, epsilons, partial_rotation
from oxillama.convert.mtp_layers import NEXTN
from oxillama.convert.shapes import (
    negative_exponential,
    paired,
    paired_keys,
    paired_queries,
    squeezed,
)
from oxillama.errors import ConvertError

_UNBOUNDED = 1 << 20  # the context of a model without positions, for want of a limit
ATTENTION, RECURRENT = ("attention", "full_attention"), ("mamba", "linear_attention")


def _attention_layers(h: Hyper) -> list[int]:
    """The layers with attention: listed by kind, by number, or every so many."""
    kinds = h.strings("layer_types", h.layers)
    if kinds is not None:
        unknown = set(kinds) - {*ATTENTION, *RECURRENT}
        if unknown:
            raise ConvertError(
                f"{h.label}: layer_types: found {sorted(unknown)}, wanted {ATTENTION}"
            )
        return [layer for layer, kind in enumerate(kinds) if kind in ATTENTION]
    listed = h.get("attn_layer_indices")
    if listed:
        return [int(layer) for layer in listed]
    period, offset = h.integer("attn_layer_period"), h.integer("attn_layer_offset")
    return [layer for layer in range(h.layers) if layer % period == offset]


def _mamba2_keys(h: Hyper, k: Keys) -> None:
    heads, size = (h.integer(f"mamba_{name}") for name in ("n_heads", "d_head"))
    inner = h.integer("mamba_expand", default=2) * h.hidden
    if heads * size != inner:
        raise ConvertError(
            f"{h.label}: mamba_n_heads: found {heads} of {size}, wanted {inner} numbers in all"
        )
    k.u32("ssm.conv_kernel", h.integer("mamba_d_conv"))
    k.u32("ssm.state_size", h.integer("mamba_d_state"))
    k.u32("ssm.group_count", h.integer("mamba_n_groups"))
    k.u32("ssm.inner_size", inner)
    k.u32("ssm.time_step_rank", heads)


def _granite4_rules(hyper: Hyper) -> dict:
    experts = bool(hyper.get("num_local_experts"))
    return {
        **LLAMA,
        **mixer2("model.layers.{b}.mamba."),
        **GRANITE_EXPERTS,
        **granite_shared("_shexp" if experts else ""),
    }


def _granite4_plain(h: Hyper, k: Keys) -> None:
    """What a Granite of its older kind says too."""
    h.must_be("hidden_act", "silu")
    h.must_be("position_embedding_type", "nope", "rope")
    granite_keys(h, k)
    _granite4_more(h, k)


def _granite4_more(h: Hyper, k: Keys) -> None:
    if h.get("shared_intermediate_size"):
        k.u32("expert_shared_feed_forward_length", h.integer("shared_intermediate_size"))
    for name in ("num_local_experts", "num_experts_per_tok"):
        if h.get(name) == 0:
            k.u32("expert_count" if name == "num_local_experts" else "expert_used_count", 0)


def _granite4(h: Hyper) -> Family:
    """The family of a configuration: with no recurrent layer it is granite or granitemoe."""
    if len(_attention_layers(h)) < h.layers:
        return Family("granitehybrid", _granite4_rules(h), granitehybrid, prefix_setting=False)
    arch = "granitemoe" if h.get("num_experts_per_tok") else "granite"
    return Family(arch, _granite4_rules(h), granitehybrid)


@family("GraniteMoeHybridForCausalLM", arch="granitehybrid", rules=LLAMA, variant=_granite4,
        others=("granite", "granitemoe"))  # fmt: skip
def granitehybrid(h: Hyper, k: Keys) -> None:
    """Granite 4: Mamba 2 with attention every few layers or everywhere, mostly without positions:
    where nothing is said nothing rotates.
    """
    _granite4_plain(h, k)
    _hybrid(h, k, turned=h.get("position_embedding_type") == "rope")


def _hybrid(h: Hyper, k: Keys, *, turned: bool) -> None:
    attention = _attention_layers(h)
    _mamba2_keys(h, k)
    k.integers("attention.head_count_kv", [
        h.kv_heads if layer in attention else 0 for layer in range(h.layers)
    ])  # fmt: skip
    k.flag("rope.scaling.finetuned", turned)
    if not turned:
        k.u32("context_length", _UNBOUNDED)


def _turned(h: Hyper) -> int:
    """Floats of a head that Bamba rotates: half of it where nothing is said, as in transformers."""
    if h.get("attn_rotary_emb") is not None:
        return h.integer("attn_rotary_emb")
    return int(h.rope().get("partial_rotary_factor", 0.5) * h.head_dim)


def _paired_part(x: np.ndarray, h: Hyper, heads: int) -> np.ndarray:
    """Rows of heads of which a part is rotated: that part paired, the rest as it is."""
    rows, turned = x.reshape(heads, -1, *x.shape[1:]), _turned(h)
    part = paired(rows[:, :turned].reshape(-1, *x.shape[1:]), heads)
    part = part.reshape(heads, turned, *x.shape[1:])
    return np.concatenate([part, rows[:, turned:]], axis=1).reshape(x.shape)


@family("BambaForCausalLM", arch="granitehybrid", rules={
    **LLAMA,
    "model.layers.{b}.self_attn.q_proj.{w}":
        Rule(("blk.{b}.attn_q.{w}",), lambda x, h: _paired_part(x, h, h.heads)),
    "model.layers.{b}.self_attn.k_proj.{w}":
        Rule(("blk.{b}.attn_k.{w}",), lambda x, h: _paired_part(x, h, h.kv_heads)),
    **mixer2("model.layers.{b}.mamba."),
    "model.final_layernorm.weight": "output_norm.weight",
    "model.layers.{b}.pre_ff_layernorm.weight": "blk.{b}.ffn_norm.weight",
    **{
        f"model.layers.{{b}}.feed_forward.{part}_proj.weight": f"blk.{{b}}.ffn_{part}.weight"
        for part in ("gate", "up", "down")
    },
})  # fmt: skip
def bamba(h: Hyper, k: Keys) -> None:
    """Mamba 2 with attention every few layers, which rotates (IBM and others 2024)."""
    h.must_be("hidden_act", "silu")
    llama_keys(h, k)
    _hybrid(h, k, turned=True)
    k.u32("rope.dimension_count", _turned(h))


def _times(*factors: str) -> Change:
    """Multiplied by configuration values, one after the other (computes)."""

    def change(x: np.ndarray, h: Hyper) -> np.ndarray:
        for factor in factors:
            x = x * np.float32(_factor(h, factor))
        return x

    return change


def _factor(h: Hyper, name: str) -> float:
    name, _, at = name.partition(":")
    value = h.get(name)
    if value is None:
        return 1.0
    if at:
        value = value[int(at)] if isinstance(value, Sequence) and len(value) > int(at) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConvertError(f"{h.label}: {name}: found {value!r:.80}, wanted a number")
    return float(value)


def _h1_in(x: np.ndarray, h: Hyper) -> np.ndarray:
    """Rows of gate, input, B, C and time step, each with a factor of its own."""
    inner = h.integer("mamba_d_ssm")
    state = h.integer("mamba_n_groups") * h.integer("mamba_d_state")
    x = x * np.float32(_factor(h, "ssm_in_multiplier"))
    ends = np.cumsum([inner, inner, state, state])
    parts = np.split(x, ends)
    for at, part in enumerate(parts):
        part *= np.float32(_factor(h, f"ssm_multipliers:{at}"))
    return x


def _h1(name: str, to: str, *factors: str) -> dict[str, str | Rule]:
    return {name: Rule((to,), _times(*factors), values=True)}


_H1 = "model.layers.{b}."


@family("FalconH1ForCausalLM", arch="falcon-h1", rules={
    **mixer2(_H1 + "mamba."),
    _H1 + "mamba.in_proj.weight": Rule(("blk.{b}.ssm_in.weight",), _h1_in, values=True),
    **_h1(_H1 + "mamba.out_proj.weight", "blk.{b}.ssm_out.weight", "ssm_out_multiplier"),
    **_h1("model.embed_tokens.weight", "token_embd.weight", "embedding_multiplier"),
    **_h1("lm_head.weight", "output.weight", "lm_head_multiplier"),
    "model.final_layernorm.weight": "output_norm.weight",
    _H1 + "input_layernorm.weight": "blk.{b}.attn_norm.weight",
    _H1 + "pre_ff_layernorm.weight": "blk.{b}.ffn_norm",
    **_h1(_H1 + "feed_forward.gate_proj.weight", "blk.{b}.ffn_gate.weight", "mlp_multipliers:0"),
    _H1 + "feed_forward.up_proj.weight": "blk.{b}.ffn_up.weight",
    **_h1(_H1 + "feed_forward.down_proj.weight", "blk.{b}.ffn_down.weight", "mlp_multipliers:1"),
    **_h1(_H1 + "self_attn.q_proj.weight", "blk.{b}.attn_q.weight", "attention_in_multiplier"),
    **_h1(_H1 + "self_attn.k_proj.weight", "blk.{b}.attn_k.weight",
          "key_multiplier", "attention_in_multiplier"),
    **_h1(_H1 + "self_attn.v_proj.weight", "blk.{b}.attn_v.weight", "attention_in_multiplier"),
    **_h1(_H1 + "self_attn.o_proj.weight", "blk.{b}.attn_output.weight",
          "attention_out_multiplier"),
})  # fmt: skip
def falcon_h1(h: Hyper, k: Keys) -> None:
    """Attention and Mamba 2 side by side in each layer (TII 2025). Its factors are multiplied into
    the matrices.
    """
    h.must_be("hidden_act", "silu")
    for name in ("attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias"):
        h.must_be(name, False)
    if h.flag("mamba_rms_norm") and h.flag("mamba_norm_before_gate", default=True):
        raise ConvertError(
            f"{h.label}: mamba_norm_before_gate: found True, wanted False: a file of falcon-h1 "
            "norms behind the gate"
        )
    inner, size = h.integer("mamba_d_ssm"), h.integer("mamba_d_head")
    k.u32("context_length", h.integer("max_position_embeddings", default=0))
    k.u32("embedding_length", h.hidden)
    k.u32("feed_forward_length", h.integer("intermediate_size"))
    k.u32("attention.head_count", h.heads)
    k.u32("block_count", h.layers)
    k.u32("ssm.conv_kernel", h.integer("mamba_d_conv"))
    k.u32("ssm.inner_size", inner)
    k.u32("ssm.state_size", h.integer("mamba_d_state"))
    k.u32("ssm.time_step_rank", inner // size)
    k.u32("ssm.group_count", h.integer("mamba_n_groups"))
    epsilons(h, k)
    k.u32("vocab_size", h.integer("vocab_size"))
    k.u32("attention.head_count_kv", h.kv_heads)
    k.u32("attention.key_length", h.head_dim)
    k.u32("attention.value_length", h.head_dim)
    k.f32("rope.freq_base", h.rope().get("rope_theta", 100000.0))


# ---- Nemotron H ----------------------------------------------------------------------------------

_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def _nemotron_kinds(h: Hyper) -> list[str]:
    """What each layer is: mamba, attention, mlp or moe."""
    pattern = h.get("hybrid_override_pattern", "layers_block_type")
    named = {"linear_attention": "mamba", "full_attention": "attention", "E": "moe"}
    kinds = [_LETTERS.get(one, named.get(one, one)) for one in pattern or []]
    if len(kinds) != h.layers or not set(kinds) <= set(_LETTERS.values()):
        raise ConvertError(
            f"{h.label}: hybrid_override_pattern: found {pattern!r:.80}, wanted a kind for each of "
            f"{h.layers} layers"
        )
    return kinds


_MIXER = "backbone.layers.{b}.mixer."
NEMOTRON_H: dict[str, str | Rule] = {
    **mixer2(_MIXER),
    "backbone.embeddings.weight": "token_embd.weight",
    "backbone.norm_f.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "backbone.layers.{b}.norm.weight": "blk.{b}.attn_norm.weight",
    _MIXER + "q_proj.{w}": Rule(("blk.{b}.attn_q.{w}",), paired_queries),
    _MIXER + "k_proj.{w}": Rule(("blk.{b}.attn_k.{w}",), paired_keys),
    _MIXER + "v_proj.{w}": "blk.{b}.attn_v.{w}",
    _MIXER + "o_proj.{w}": "blk.{b}.attn_output.{w}",
    _MIXER + "up_proj.{w}": "blk.{b}.ffn_up.{w}",
    _MIXER + "down_proj.{w}": "blk.{b}.ffn_down.{w}",
    _MIXER + "gate.weight": "blk.{b}.ffn_gate_inp.weight",
    _MIXER + "gate.e_score_correction_bias": "blk.{b}.exp_probs_b.bias",
    _MIXER + "experts.{e}.up_proj.weight": "blk.{b}.ffn_up_exps.weight",
    _MIXER + "experts.{e}.down_proj.weight": "blk.{b}.ffn_down_exps.weight",
    _MIXER + "shared_experts.up_proj.weight": "blk.{b}.ffn_up_shexp.weight",
    _MIXER + "shared_experts.down_proj.weight": "blk.{b}.ffn_down_shexp.weight",
    _MIXER + "fc1_latent_proj.weight": "blk.{b}.ffn_latent_down.weight",
    _MIXER + "fc2_latent_proj.weight": "blk.{b}.ffn_latent_up.weight",
}


def _two_parts(name: str, h: Hyper) -> tuple[str, ...]:
    """The layer that predicts further tokens is attention, then experts, each under its own
    number.
    """
    for part, norm in (("mtp.layers.0.", "norm."), ("mtp.layers.1.", "second_norm.")):
        if name.startswith(part):
            rest = name.removeprefix(part)
            rest = norm + rest.removeprefix("norm.") if rest.startswith("norm.") else rest
            return (f"backbone.layers.{h.layers}.{rest}",)
    return ()


_NEMOTRON_MTP = Mtp(_two_parts, {
    **{name.replace("model.", "backbone."): to for name, to in NEXTN.items()},
    "backbone.layers.{b}.second_norm.weight": "blk.{b}.post_attention_norm.weight",
    "backbone.layers.{b}.final_layernorm.weight": "blk.{b}.nextn.shared_head_norm.weight",
})  # fmt: skip


# no positions; the least time step is that of the published models, too small to count
_MEANT: dict[str, tuple] = {"rope_theta": (), "time_step_min": (0.001,)}


def _with_experts(h: Hyper) -> Family | None:
    if h.get("num_experts_per_tok") is None or "moe" not in _nemotron_kinds(h):
        return None
    h.must_be("num_nextn_predict_layers", 0, 1)
    return Family("nemotron_h_moe", NEMOTRON_H, nemotron_h_moe, meant=_MEANT, mtp=_NEMOTRON_MTP)


def _nemotron_keys(h: Hyper, k: Keys, width: int, kind: str) -> None:
    h.must_be("mlp_hidden_act", "relu2")
    kinds = _nemotron_kinds(h)
    size = h.integer("head_dim", "attention_head_dim")
    heads = h.integer("mamba_num_heads")
    k.u32("block_count", h.blocks)
    k.u32("context_length", _UNBOUNDED)
    k.u32("embedding_length", h.hidden)
    k.integers("feed_forward_length", [
        *(width if one == kind else 0 for one in kinds), *[width] * h.further
    ])  # fmt: skip
    k.u32("attention.head_count", h.heads)
    k.integers("attention.head_count_kv", [
        *(h.kv_heads if one == "attention" else 0 for one in kinds), *[h.kv_heads] * h.further
    ])  # fmt: skip
    epsilons(h, k)
    k.u32("vocab_size", h.integer("vocab_size"))
    k.u32("rope.dimension_count", size)
    k.u32("ssm.conv_kernel", h.integer("conv_kernel"))
    k.u32("ssm.state_size", h.integer("ssm_state_size"))
    k.u32("ssm.group_count", h.integer("n_groups"))
    k.u32("ssm.inner_size", heads * h.integer("mamba_head_dim"))
    k.u32("ssm.time_step_rank", heads)
    k.flag("rope.scaling.finetuned", False)
    k.u32("attention.key_length", size)
    k.u32("attention.value_length", size)


@family("NemotronHForCausalLM", "NemotronH_Nano_VL_V2", arch="nemotron_h", rules=NEMOTRON_H,
        variant=_with_experts, meant=_MEANT, others=("nemotron_h_moe",))  # fmt: skip
def nemotron_h(h: Hyper, k: Keys) -> None:
    """Each layer is one of Mamba 2, attention without positions, or a feed-forward with squared
    ReLU (NVIDIA 2025).
    """
    h.must_be("num_nextn_predict_layers", 0)
    _nemotron_keys(h, k, h.integer("intermediate_size"), "mlp")


def nemotron_h_moe(h: Hyper, k: Keys) -> None:
    """Nemotron 3: experts in place of the feed-forward, on request in a narrower space."""
    _nemotron_keys(h, k, h.integer("moe_intermediate_size"), "moe")
    k.u32("expert_count", h.integer("n_routed_experts"))
    k.u32("expert_used_count", h.integer("num_experts_per_tok"))
    k.u32("expert_group_count", h.integer("n_group"))
    if h.get("topk_group") is not None:
        k.u32("expert_group_used_count", h.integer("topk_group"))
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    k.u32("expert_shared_feed_forward_length", h.integer("moe_shared_expert_intermediate_size"))
    k.u32("expert_shared_count", h.integer("n_shared_experts"))
    k.flag("expert_weights_norm", h.flag("norm_topk_prob"))
    k.f32("expert_weights_scale", h.number("routed_scaling_factor"))
    if h.get("moe_latent_size") is not None:
        k.u32("moe_latent_size", h.integer("moe_latent_size"))


# ---- LFM2 with experts, Qwen 3.5 -----------------------------------------------------------------


@family("Lfm2MoeForCausalLM", arch="lfm2moe", rules={
    **LFM2,
    "model.layers.{b}.feed_forward.gate.weight": "blk.{b}.ffn_gate_inp.weight",
    "model.layers.{b}.feed_forward.expert_bias": "blk.{b}.exp_probs_b.bias",
    **{
        f"model.layers.{{b}}.feed_forward.experts.{{e}}.{theirs}.weight":
            f"blk.{{b}}.ffn_{ours}_exps.weight"
        for theirs, ours in (("w1", "gate"), ("w2", "down"), ("w3", "up"))
    },
})  # fmt: skip
def lfm2moe(h: Hyper, k: Keys) -> None:
    h.must_be("conv_bias", False)
    h.must_be("norm_topk_prob", True)
    h.must_be("routed_scaling_factor", 1, 1.0)
    common(h, k)
    kinds = h.strings("layer_types", h.layers) or []
    k.integers("attention.head_count_kv", [
        h.kv_heads if kind == "full_attention" else 0 for kind in kinds
    ])  # fmt: skip
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
    k.u32("leading_dense_block_count", h.integer("num_dense_layers"))
    k.u32("expert_gating_func", SIGMOID)
    k.u32("vocab_size", h.integer("vocab_size"))
    k.u32("shortconv.l_cache", h.integer("conv_L_cache"))


def _tiled(x: np.ndarray, h: Hyper, axis: int, size: int, skip: int = 0) -> np.ndarray:
    """Value heads, in the folder the group of one key head after the other's, in turn: the first of
    each group, the second of each group, ... `skip` rows before them stay.
    """
    keys, values = h.integer("linear_num_key_heads"), h.integer("linear_num_value_heads")
    x = np.moveaxis(x, axis, 0)
    fixed, moved = x[:skip], x[skip:]
    rest = moved.shape[1:]
    turned = moved.reshape(keys, values // keys, size, *rest).swapaxes(0, 1).reshape(moved.shape)
    return np.moveaxis(np.concatenate([fixed, turned]), 0, axis)


def _value_rows(x: np.ndarray, h: Hyper) -> np.ndarray:
    return _tiled(x, h, 0, h.integer("linear_value_head_dim"))


def _value_columns(x: np.ndarray, h: Hyper) -> np.ndarray:
    return _tiled(x, h, 1, h.integer("linear_value_head_dim"))


def _after_keys(x: np.ndarray, h: Hyper) -> np.ndarray:
    skip = 2 * h.integer("linear_num_key_heads") * h.integer("linear_key_head_dim")
    return _tiled(x, h, 0, h.integer("linear_value_head_dim"), skip)


def _by_head(x: np.ndarray, h: Hyper) -> np.ndarray:
    return _tiled(x, h, 0, 1)


QWEN35: dict[str, str | Rule] = {
    **DELTA,
    "model.layers.{b}.linear_attn.A_log": Rule(
        ("blk.{b}.ssm_a",), lambda x, h: _by_head(negative_exponential(x, h), h), values=True
    ),
    "model.layers.{b}.linear_attn.dt_bias": Rule(("blk.{b}.ssm_dt.bias",), _by_head),
    "model.layers.{b}.linear_attn.conv1d.weight": Rule(
        ("blk.{b}.ssm_conv1d.weight",), lambda x, h: _after_keys(squeezed(x, h), h)
    ),
    "model.layers.{b}.linear_attn.in_proj_qkv.weight": Rule(
        ("blk.{b}.attn_qkv.weight",), _after_keys
    ),
    "model.layers.{b}.linear_attn.in_proj_z.weight": Rule(
        ("blk.{b}.attn_gate.weight",), _value_rows
    ),
    "model.layers.{b}.linear_attn.in_proj_a.weight": Rule(("blk.{b}.ssm_alpha.weight",), _by_head),
    "model.layers.{b}.linear_attn.in_proj_b.weight": Rule(("blk.{b}.ssm_beta.weight",), _by_head),
    "model.layers.{b}.linear_attn.out_proj.weight": Rule(
        ("blk.{b}.ssm_out.weight",), _value_columns
    ),
}


def _qwen35(h: Hyper, k: Keys) -> None:
    common(h, k)
    delta_keys(h, k)
    if "mrope_section" not in h.rope():
        k.integers("rope.dimension_sections", [11, 11, 10, 0])


@family("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration",
        "MiniCPMV4_6ForConditionalGeneration", arch="qwen35", rules=QWEN35,
        mtp=DELTA_MTP)  # fmt: skip
def qwen35(h: Hyper, k: Keys) -> None:
    """The text part of Qwen 3.5: a gated delta rule, full attention every few layers."""
    _qwen35(h, k)


@family("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration", arch="qwen35moe",
        rules=QWEN35, mtp=DELTA_MTP)  # fmt: skip
def qwen35moe(h: Hyper, k: Keys) -> None:
    """Qwen 3.5 with experts."""
    _qwen35(h, k)


# ---- PLaMo 2, MiniMax Text -----------------------------------------------------------------------

_PLAMO = "model.layers.layers.{b}."


@family("Plamo2ForCausalLM", "PLaMo2ForCausalLM", arch="plamo2", vocabulary="plamo", rules={
    **PLAMO_LAYER,
    _PLAMO + "mixer.q_weight": "blk.{b}.attn_q_norm.weight",
    _PLAMO + "mixer.k_weight": "blk.{b}.attn_k_norm.weight",
    _PLAMO + "mixer.in_proj.weight": "blk.{b}.ssm_in.weight",
    _PLAMO + "mixer.conv1d.weight": Rule(("blk.{b}.ssm_conv1d.weight",), squeezed),
    _PLAMO + "mixer.bcdt_proj.weight": "blk.{b}.ssm_x.weight",
    _PLAMO + "mixer.dt_proj.weight": "blk.{b}.ssm_dt.weight",
    _PLAMO + "mixer.dt_bias": "blk.{b}.ssm_dt.bias",
    _PLAMO + "mixer.A_log": Rule(("blk.{b}.ssm_a",), negative_exponential, values=True),
    _PLAMO + "mixer.D": "blk.{b}.ssm_d",
    _PLAMO + "mixer.dt_norm_weight": "blk.{b}.ssm_dt_norm",
    _PLAMO + "mixer.B_norm_weight": "blk.{b}.ssm_b_norm",
    _PLAMO + "mixer.C_norm_weight": "blk.{b}.ssm_c_norm",
    _PLAMO + "mixer.out_proj.weight": "blk.{b}.ssm_out.weight",
})  # fmt: skip
def plamo2(h: Hyper, k: Keys) -> None:
    """PLaMo 2 (Preferred Networks 2025): one layer of every so many is attention."""
    h.must_be("mamba_enabled", True)
    step, size = h.integer("mamba_step", default=2), h.integer("hidden_size_per_head", default=128)
    attention = [
        layer == h.layers - 1 if h.layers <= step // 2 else layer % step == step // 2
        for layer in range(h.layers)
    ]
    heads = h.integer("mamba_num_heads", default=64)
    k.u32("vocab_size", h.integer("vocab_size"))
    k.integers("attention.head_count_kv", [h.kv_heads if one else 0 for one in attention])
    k.integers("attention.head_count", [h.heads if one else 0 for one in attention])
    k.u32("context_length", h.integer("max_position_embeddings", default=2048))
    k.u32("embedding_length", h.hidden)
    k.u32("attention.key_length", size)
    k.u32("attention.value_length", size)
    k.u32("block_count", h.layers)
    k.f32("attention.layer_norm_rms_epsilon", h.number("rms_norm_eps", default=1e-6))
    k.f32("rope.freq_base", h.rope().get("rope_theta", 10000.0))
    k.u32("ssm.state_size", h.integer("mamba_d_state", default=64))
    k.u32("ssm.conv_kernel", h.integer("mamba_d_conv", default=4))
    k.u32("ssm.time_step_rank", heads)
    k.u32("ssm.inner_size", heads * size)
    k.u32("ssm.group_count", 0)
    k.u32("feed_forward_length", h.integer("intermediate_size"))


_TEXT = "model.layers.{b}."


def _unused_tokens(h: Hyper, k: Keys) -> None:
    """Numbers behind the vocabulary whose embeddings are zero are never to be drawn."""
    if h.folder is None:
        return
    model = h.folder.json("tokenizer.json").get("model")
    count = len(model["vocab"]) if isinstance(model, dict) and "vocab" in model else None
    rows = h.folder.tensors.get("model.embed_tokens.weight")
    if count is None or rows is None:
        return
    empty = np.flatnonzero(~rows.data[count:].any(axis=1)) + count
    if len(empty):
        k.found["tokenizer.ggml.suppress_tokens"] = [int(one) for one in empty], "array[int32]"


MINIMAX: dict[str, str | Rule] = {
    **PLAIN,
    **EXPERTS_W,
    _TEXT + "self_attn.qkv_proj.weight": "blk.{b}.attn_qkv.weight",
    _TEXT + "self_attn.out_proj.weight": "blk.{b}.attn_output.weight",
    _TEXT + "self_attn.output_gate.weight": "blk.{b}.attn_gate.weight",
    _TEXT + "self_attn.norm.weight": "blk.{b}.attn_norm_2.weight",
}


@family("MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM", arch="minimax-01", rules=MINIMAX)
def minimax_text(h: Hyper, k: Keys) -> None:
    """MiniMax-Text-01 and M1 (MiniMax 2025): every eighth layer is attention, the others keep a
    state; residuals come from the norms.
    """
    h.must_be("hidden_act", "silu")
    h.must_be("attn_type_list", [int((layer + 1) % 8 == 0) for layer in range(h.layers)])
    kinds = ("full_attention", "linear_attention", "mlp")
    shares = {h.number(f"layernorm_{kind}_alpha") for kind in kinds}
    for kind in kinds:
        h.must_be(f"layernorm_{kind}_beta", 1, 1.0)
    if len(shares) != 1:
        raise ConvertError(f"{h.label}: layernorm_*_alpha: found {shares}, wanted one for all")
    common(h, k)
    _unused_tokens(h, k)
    k.f32("residual_scale", shares.pop())
    k.u32("rope.dimension_count", h.integer("rotary_dim"))


@family("MiniMaxForCausalLM", arch="minimax-01", rules=MINIMAX, dropped=tuple(
    f"{_TEXT}self_attn.{name}"
    for name in ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
))  # fmt: skip
def minimax_saved(h: Hyper, k: Keys) -> None:
    """The same in the words of transformers 5, which turns heads whole."""
    kinds = h.strings("layer_types", h.layers)
    if kinds is None:
        raise ConvertError(f"{h.label}: layer_types is missing, wanted the kind of each layer")
    words = {"full_attention": "full_attn", "linear_attention": "linear_attn", "mlp": "mlp"}
    said = {
        f"layernorm_{ours}_{part}": h.number(f"{theirs}_{part}_factor")
        for ours, theirs in words.items()
        for part in ("alpha", "beta")
    }
    pattern = [int(kind == "full_attention") for kind in kinds]
    turned = h.integer("rotary_dim", default=partial_rotation(h))
    minimax_text(h.but(**said, attn_type_list=pattern, rotary_dim=turned), k)
