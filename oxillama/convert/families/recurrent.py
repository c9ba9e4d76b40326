"""State-space and hybrid models: Mamba, Jamba, LFM2, Qwen3-Next."""

from __future__ import annotations

import math

import numpy as np

from oxillama.convert.families.dense import HEADS, LAYER, bare
from oxillama.convert.families.experts import ROUTED, SHARED, SHARED_GATE
from oxillama.convert.family import Hyper, Keys, Mtp, Rule, family
from oxillama.convert.keys import common, partial_rotation
from oxillama.convert.modules import dense_modules, pooling
from oxillama.convert.mtp_layers import NEXTN_PLUS_ONE, apart
from oxillama.convert.shapes import delta_projections, negative_exponential, plus_one, squeezed

_UNBOUNDED = 1 << 20  # a recurrent model's context, for want of a limit


def _mixer(prefix: str) -> dict[str, str | Rule]:
    return {
        f"{prefix}A_log": Rule(("blk.{b}.ssm_a",), negative_exponential, values=True),
        f"{prefix}D": "blk.{b}.ssm_d",
        f"{prefix}conv1d.weight": Rule(("blk.{b}.ssm_conv1d.weight",), squeezed),
        f"{prefix}conv1d.bias": "blk.{b}.ssm_conv1d.bias",
        f"{prefix}in_proj.{{w}}": "blk.{b}.ssm_in.{w}",
        f"{prefix}x_proj.weight": "blk.{b}.ssm_x.weight",
        f"{prefix}dt_proj.{{w}}": "blk.{b}.ssm_dt.{w}",
        f"{prefix}dt_layernorm.weight": "blk.{b}.ssm_dt_norm.weight",
        f"{prefix}b_layernorm.weight": "blk.{b}.ssm_b_norm.weight",
        f"{prefix}c_layernorm.weight": "blk.{b}.ssm_c_norm.weight",
        f"{prefix}out_proj.{{w}}": "blk.{b}.ssm_out.{w}",
    }


BACKBONE: dict[str, str | Rule] = {
    "backbone.embeddings.weight": "token_embd.weight",
    "backbone.embedding.weight": "token_embd.weight",
    "backbone.norm_f.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "backbone.layers.{b}.norm.weight": "blk.{b}.attn_norm.weight",
}


def _recurrent(h: Hyper, k: Keys) -> None:
    k.u32("context_length", _UNBOUNDED)
    k.u32("embedding_length", h.hidden)
    k.u32("feed_forward_length", 0)
    k.u32("attention.head_count", 0)
    k.u32("block_count", h.integer("num_hidden_layers", "n_layer"))
    k.u32("ssm.conv_kernel", h.integer("conv_kernel", "d_conv", default=4))


# the second epsilon of FalconMamba is that of its published models: too small to count
@family("MambaForCausalLM", "MambaLMHeadModel", "FalconMambaForCausalLM", arch="mamba",
        meant={"mixer_rms_eps": (1e-6, 1e-5)},
        rules={**BACKBONE, **_mixer("backbone.layers.{b}.mixer.")})  # fmt: skip
def mamba(h: Hyper, k: Keys) -> None:
    """Mamba (Gu and Dao 2023); FalconMamba norms dt, B and C."""
    inner = h.integer("intermediate_size", "d_inner", default=2 * h.hidden)
    rank = h.get("time_step_rank", "dt_rank", default=math.ceil(h.hidden / 16))
    _recurrent(h, k)
    k.u32("ssm.inner_size", inner)
    k.u32("ssm.state_size", h.integer("state_size", "d_state", default=16))
    k.u32("ssm.time_step_rank", math.ceil(h.hidden / 16) if rank == "auto" else int(rank))
    k.f32(
        "attention.layer_norm_rms_epsilon",
        h.number("layer_norm_epsilon", "rms_norm_eps", default=1e-5),
    )
    k.flag("ssm.dt_b_c_rms", h.get("model_type") == "falcon_mamba")


def _column(x: np.ndarray, h: Hyper) -> np.ndarray:
    return x.reshape(-1, 1)


def _negative_column(x: np.ndarray, h: Hyper) -> np.ndarray:
    return negative_exponential(x, h).reshape(-1, 1)


def _grouped(x: np.ndarray, h: Hyper) -> np.ndarray:
    return x.reshape(h.integer("n_groups", "ngroups", "mamba_n_groups", default=1), -1)


def mixer2(prefix: str) -> dict[str, str | Rule]:
    """A Mamba 2 layer's tensors: one decay a head, norms in groups."""
    return {
        **_mixer(prefix),
        f"{prefix}A_log": Rule(("blk.{b}.ssm_a",), _negative_column, values=True),
        f"{prefix}D": Rule(("blk.{b}.ssm_d",), _column),
        f"{prefix}dt_bias": "blk.{b}.ssm_dt.bias",
        f"{prefix}norm.weight": Rule(("blk.{b}.ssm_norm.weight",), _grouped),
    }


@family("Mamba2ForCausalLM", arch="mamba2",
        rules={**BACKBONE, **mixer2("backbone.layers.{b}.mixer.")})  # fmt: skip
def mamba2(h: Hyper, k: Keys) -> None:
    """Mamba 2 (Dao and Gu 2024)."""
    inner = h.integer(
        "intermediate_size", "d_inner", default=h.integer("expand", default=2) * h.hidden
    )
    _recurrent(h, k)
    k.u32("ssm.inner_size", inner)
    k.u32("ssm.state_size", h.integer("state_size", "d_state", default=128))
    k.u32("ssm.time_step_rank", inner // h.integer("head_dim", "headdim", default=64))
    k.u32("ssm.group_count", h.integer("n_groups", "ngroups", default=1))
    k.f32(
        "attention.layer_norm_rms_epsilon",
        h.number("layer_norm_epsilon", "rms_norm_eps", default=1e-5),
    )


@family("JambaForCausalLM", arch="jamba", meant={"rope_theta": ()}, rules={
    **HEADS,
    **LAYER,
    **_mixer("model.layers.{b}.mamba."),
    "model.final_layernorm.weight": "output_norm.weight",
    "model.layers.{b}.pre_ff_layernorm.weight": "blk.{b}.ffn_norm.weight",
    "model.layers.{b}.feed_forward.router.weight": "blk.{b}.ffn_gate_inp.weight",
    **{
        f"model.layers.{{b}}.feed_forward.{part}_proj.weight": f"blk.{{b}}.ffn_{part}.weight"
        for part in ("gate", "up", "down")
    },
    **{
        f"model.layers.{{b}}.feed_forward.experts.{{e}}.{part}_proj.weight":
            f"blk.{{b}}.ffn_{part}_exps.weight"
        for part in ("gate", "up", "down")
    },
})  # fmt: skip
def jamba(h: Hyper, k: Keys) -> None:
    """Jamba (Lieber et al. 2024): attention every few layers; the others have no key heads."""
    h.must_be("hidden_act", "silu")
    period, offset = h.integer("attn_layer_period"), h.integer("attn_layer_offset")
    k.u32("block_count", h.layers)
    k.u32("context_length", h.integer("max_position_embeddings"))
    k.u32("embedding_length", h.hidden)
    k.u32("feed_forward_length", h.integer("intermediate_size"))
    k.u32("attention.head_count", h.heads)
    k.integers("attention.head_count_kv", [
        h.kv_heads if i % period == offset else 0 for i in range(h.layers)
    ])  # fmt: skip
    k.u32("ssm.conv_kernel", h.integer("mamba_d_conv", default=4))
    k.u32("ssm.inner_size", h.integer("mamba_expand", default=2) * h.hidden)
    k.u32("ssm.state_size", h.integer("mamba_d_state", default=16))
    rank = h.get("mamba_dt_rank", default="auto")
    k.u32("ssm.time_step_rank", math.ceil(h.hidden / 16) if rank == "auto" else int(rank))
    k.f32("attention.layer_norm_rms_epsilon", h.number("rms_norm_eps"))
    experts = h.integer("num_experts")
    k.u32("expert_count", experts)
    # a dense one, which counts one expert, may ask for more
    k.u32("expert_used_count", min(experts, h.integer("num_experts_per_tok")))


LFM2: dict[str, str | Rule] = {
    **HEADS,
    **LAYER,
    "model.embedding_norm.weight": "token_embd_norm.weight",
    "model.layers.{b}.operator_norm.weight": "blk.{b}.attn_norm.weight",
    "model.layers.{b}.ffn_norm.weight": "blk.{b}.ffn_norm.weight",
    "model.layers.{b}.conv.conv.weight": Rule(("blk.{b}.shortconv.conv.weight",), squeezed),
    "model.layers.{b}.conv.in_proj.weight": "blk.{b}.shortconv.in_proj.weight",
    "model.layers.{b}.conv.out_proj.weight": "blk.{b}.shortconv.out_proj.weight",
    "model.layers.{b}.self_attn.out_proj.weight": "blk.{b}.attn_output.weight",
    "model.layers.{b}.self_attn.q_layernorm.weight": "blk.{b}.attn_q_norm.weight",
    "model.layers.{b}.self_attn.k_layernorm.weight": "blk.{b}.attn_k_norm.weight",
    "model.layers.{b}.feed_forward.w1.weight": "blk.{b}.ffn_gate.weight",
    "model.layers.{b}.feed_forward.w2.weight": "blk.{b}.ffn_down.weight",
    "model.layers.{b}.feed_forward.w3.weight": "blk.{b}.ffn_up.weight",
}


@family("Lfm2ForCausalLM", "LFM2ForCausalLM", arch="lfm2", rules=LFM2)
def lfm2(h: Hyper, k: Keys) -> None:
    """Short convolutions between attention layers; the convolutions have no key heads."""
    h.must_be("conv_bias", False)
    common(h, k)
    kinds = h.strings("layer_types", h.layers) or []
    k.integers("attention.head_count_kv", [
        h.kv_heads if kind == "full_attention" else 0 for kind in kinds
    ])  # fmt: skip
    k.u32("feed_forward_length", _lfm2_width(h))
    k.u32("vocab_size", h.integer("vocab_size"))
    k.u32("shortconv.l_cache", h.integer("conv_L_cache"))


@family(
    "Lfm2AudioForConditionalGeneration",
    arch="lfm2",
    rules={name.replace("model.", "lfm.", 1): to for name, to in LFM2.items()},
)
def lfm2_audio(h: Hyper, k: Keys) -> None:
    """The language model of LFM2-Audio, beside what it hears and speaks with."""
    lfm2(h, k)


def _lfm2_dense(h: Hyper) -> dict[str, np.ndarray]:
    return dense_modules(h, {"1_Dense": "dense_2"})


@family("Lfm2Model", arch="lfm2", rules=bare(LFM2), extra=_lfm2_dense)
def lfm2_embedder(h: Hyper, k: Keys) -> None:
    """LFM2-ColBERT: a linear layer over each row, and no head."""
    lfm2(h, k)
    for weight in _lfm2_dense(h).values():
        k.u32("embedding_length_out", weight.shape[0])
    pooling(h, k)


@family("Lfm2BidirectionalModel", arch="lfm2", rules=bare(LFM2), extra=_lfm2_dense)
def lfm2_both_ways(h: Hyper, k: Keys) -> None:
    """LFM2.5-Embedding: rows see the whole text."""
    lfm2_embedder(h, k)
    k.flag("attention.causal", False)


def _lfm2_width(h: Hyper) -> int:
    """The width that the layer really has: two thirds, scaled, and rounded up where asked."""
    width = h.integer("intermediate_size", "block_ff_dim")
    if not h.flag("block_auto_adjust_ff_dim"):
        return width
    width = int(h.number("block_ffn_dim_multiplier", default=1.0) * int(2 * width / 3))
    step = h.integer("block_multiple_of", default=256)
    return -(-width // step) * step


_DELTA = "model.layers.{b}.linear_attn."


DELTA: dict[str, str | Rule] = {
    **{
        name: Rule((to,), plus_one, values=True) if isinstance(to, str) and "norm" in name else to
        for name, to in {**HEADS, **LAYER}.items()
    },
    **ROUTED,
    **SHARED,
    **SHARED_GATE,
    "model.layers.{b}.post_attention_layernorm.{w}": Rule(
        ("blk.{b}.post_attention_norm.{w}",), plus_one, values=True
    ),
    _DELTA + "A_log": Rule(("blk.{b}.ssm_a",), negative_exponential, values=True),
    _DELTA + "dt_bias": "blk.{b}.ssm_dt.bias",
    _DELTA + "conv1d.weight": Rule(("blk.{b}.ssm_conv1d.weight",), squeezed),
    _DELTA + "in_proj_ba.weight": "blk.{b}.ssm_ba.weight",
    _DELTA + "in_proj_qkvz.weight": Rule(
        ("blk.{b}.attn_qkv.weight", "blk.{b}.attn_gate.weight"), delta_projections
    ),
    _DELTA + "norm.weight": "blk.{b}.ssm_norm.weight",
    _DELTA + "out_proj.weight": "blk.{b}.ssm_out.weight",
}


# Qwen3-Next does not count them, Qwen 3.5 does
DELTA_MTP = Mtp(apart, NEXTN_PLUS_ONE, "mtp_num_hidden_layers", uncounted=True)


@family("Qwen3NextForCausalLM", arch="qwen3next", rules=DELTA, mtp=DELTA_MTP,
        meant={"norm_topk_prob": (True,)})  # fmt: skip
def qwen3next(h: Hyper, k: Keys) -> None:
    """Gated delta rule layers (Yang et al. 2024) with full attention every few."""
    common(h, k)
    delta_keys(h, k)


def delta_keys(h: Hyper, k: Keys) -> None:
    """What the layers of a gated delta rule and their experts need."""
    if h.get("moe_intermediate_size") is not None:
        k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size"))
        k.u32("expert_shared_feed_forward_length", h.integer("shared_expert_intermediate_size"))
    values = h.integer("linear_num_value_heads")
    k.u32("ssm.conv_kernel", h.integer("linear_conv_kernel_dim"))
    k.u32("ssm.state_size", h.integer("linear_key_head_dim"))
    k.u32("ssm.group_count", h.integer("linear_num_key_heads"))
    k.u32("ssm.time_step_rank", values)
    k.u32("ssm.inner_size", h.integer("linear_value_head_dim") * values)
    kinds = h.strings("layer_types", h.layers)
    interval = h.integer("full_attention_interval", default=4)
    if kinds is None:
        kinds = ["full_attention" if (i + 1) % interval == 0 else "" for i in range(h.layers)]
    full = ("full_attention", "indexed_attention")
    recurrent = [kind not in full for kind in kinds]
    k.flags("attention.recurrent_layers", recurrent + [False] * h.further)
    k.u32("full_attention_interval", interval)
    k.u32("rope.dimension_count", partial_rotation(h))
