"""RWKV 6 and 7, alone and in place of the attention of Qwen 2.

Their shares of the row before are stacked into one tensor a layer, and their products of low rank
lie transposed in some folders.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxillama.convert.families.dense import HEADS, LAYER
from oxillama.convert.family import Hyper, Keys, Rule, family

_UNBOUNDED = 1 << 20  # a recurrent model's context, for want of a limit
_FINCH, _GOOSE = "wkvrg", "rwkvag"  # the order of the shares in a file


def _turned(x: np.ndarray, h: Hyper) -> np.ndarray:
    """(in, out) as (out, in), of each of several matrices too."""
    return x.swapaxes(-1, -2)


def _flat(x: np.ndarray, h: Hyper) -> np.ndarray:
    return x.reshape(-1)


def _row(x: np.ndarray, h: Hyper) -> np.ndarray:
    return x.reshape(1, 1, -1)


def _shares(name: str, letters: str) -> dict[str, str | Rule]:
    """Vectors that become one tensor (letters, 1, 1, hidden); `{x}` in name stands for a letter."""
    target = ("blk.{b}.time_mix_lerp_fused.weight",)
    return {
        name.replace("{x}", letter): Rule(target, _row, part=part)
        for part, letter in enumerate(letters)
    }


def _begin(h: Hyper, k: Keys, *, head: int, width: int) -> None:
    k.u32("context_length", _UNBOUNDED)
    k.u32("embedding_length", h.hidden)
    k.u32("block_count", h.layers)
    k.u32("wkv.head_size", head)
    k.u32("feed_forward_length", width)
    k.u32("attention.head_count", 0)


def _rescaled(x: np.ndarray, h: Hyper) -> np.ndarray:
    """Divided by two for every so many layers before it, as the rows that it is added to are."""
    every = h.integer("rescale_every", default=0)
    return x / np.float32(2 ** ((h.layer or 0) // every)) if every else x


_SIX = "rwkv.blocks.{b}.attention."


def _finch(prefix: str) -> dict[str, str | Rule]:
    """What both kinds of RWKV 6 call alike."""
    return {
        prefix + "time_maa_x": Rule(("blk.{b}.time_mix_lerp_x.weight",), _flat),
        prefix + "time_decay": Rule(("blk.{b}.time_mix_decay.weight",), _flat),
        prefix + "time_decay_w1": Rule(("blk.{b}.time_mix_decay_w1.weight",), _turned),
        prefix + "time_decay_w2": Rule(("blk.{b}.time_mix_decay_w2.weight",), _turned),
    }


@family("Rwkv6ForCausalLM", arch="rwkv6", vocabulary="rwkv", rules={
    "rwkv.embeddings.weight": "token_embd.weight",
    "rwkv.blocks.{b}.pre_ln.{w}": "token_embd_norm.{w}",
    "rwkv.ln_out.{w}": "output_norm.{w}",
    "head.weight": "output.weight",
    "rwkv.blocks.{b}.ln1.{w}": "blk.{b}.attn_norm.{w}",
    "rwkv.blocks.{b}.ln2.{w}": "blk.{b}.attn_norm_2.{w}",
    **_finch(_SIX),
    **_shares(_SIX + "time_maa_{x}", _FINCH),
    _SIX + "time_maa_w1": Rule(("blk.{b}.time_mix_w1.weight",), _turned),
    _SIX + "time_maa_w2": Rule(("blk.{b}.time_mix_w2.weight",), _turned),
    _SIX + "time_faaaa": "blk.{b}.time_mix_first.weight",
    _SIX + "ln_x.{w}": "blk.{b}.time_mix_ln.{w}",
    **{
        f"{_SIX}{part}.weight": f"blk.{{b}}.time_mix_{part}.weight"
        for part in ("receptance", "key", "value", "gate")
    },
    _SIX + "output.weight": Rule(("blk.{b}.time_mix_output.weight",), _rescaled, values=True),
    **{
        f"rwkv.blocks.{{b}}.feed_forward.time_maa_{part}":
            Rule((f"blk.{{b}}.channel_mix_lerp_{part}.weight",), _flat)
        for part in "kr"
    },
    "rwkv.blocks.{b}.feed_forward.key.weight": "blk.{b}.channel_mix_key.weight",
    "rwkv.blocks.{b}.feed_forward.receptance.weight": "blk.{b}.channel_mix_receptance.weight",
    "rwkv.blocks.{b}.feed_forward.value.weight":
        Rule(("blk.{b}.channel_mix_value.weight",), _rescaled, values=True),
})  # fmt: skip
def rwkv6(h: Hyper, k: Keys) -> None:
    """Finch (Peng et al. 2024); its ranks are not in its configuration."""
    width = h.integer("intermediate_size", default=int(h.hidden * 3.5) // 32 * 32)
    _begin(h, k, head=h.integer("head_size"), width=width)
    k.f32("attention.layer_norm_epsilon", h.number("layer_norm_epsilon"))
    k.u32("rescale_every_n_layers", h.integer("rescale_every"))
    k.u32("time_mix_extra_dim", 64 if h.hidden == 4096 else 32)
    k.u32("time_decay_extra_dim", 128 if h.hidden == 4096 else 64)


_ORDER = [3, 1, 2, 0, 4]  # of w, k, v, r and g among r, k, v, w and g


def _reordered(x: np.ndarray, h: Hyper) -> np.ndarray:
    """(in, 5 * rank), transposed and in the order of other files."""
    parts = x.T.reshape(5, -1, len(x))
    return parts[_ORDER].reshape(-1, len(x))


def _reordered_back(x: np.ndarray, h: Hyper) -> np.ndarray:
    return x.swapaxes(1, 2)[_ORDER]


_QWEN = "model.layers.{b}.self_attn."


def _in_qwen() -> dict[str, str | Rule]:
    return {
        **HEADS,
        **{name: to for name, to in LAYER.items() if "self_attn" not in name},
    }


_UNTURNED: dict[str, tuple] = {"rope_theta": ()}  # Qwen's, which nothing reads


@family("RWKV6Qwen2ForCausalLM", arch="rwkv6qwen2", meant=_UNTURNED, rules={
    **_in_qwen(),
    **_finch(_QWEN),
    **_shares(_QWEN + "time_maa_{x}", _FINCH),
    _QWEN + "time_maa_w1": Rule(("blk.{b}.time_mix_w1.weight",), _reordered),
    _QWEN + "time_maa_w2": Rule(("blk.{b}.time_mix_w2.weight",), _reordered_back),
    _QWEN + "q_proj.{w}": "blk.{b}.time_mix_receptance.{w}",
    _QWEN + "k_proj.{w}": "blk.{b}.time_mix_key.{w}",
    _QWEN + "v_proj.{w}": "blk.{b}.time_mix_value.{w}",
    _QWEN + "o_proj.{w}": "blk.{b}.time_mix_output.{w}",
    _QWEN + "gate.{w}": "blk.{b}.time_mix_gate.{w}",
})  # fmt: skip
def rwkv6qwen2(h: Hyper, k: Keys) -> None:
    """QRWKV (Recursal 2024): Finch with the keys and values of grouped attention."""
    _begin(h, k, head=h.hidden // h.heads, width=h.integer("intermediate_size"))
    wide = h.hidden >= 4096
    k.f32("attention.layer_norm_rms_epsilon", h.number("rms_norm_eps"))
    k.u32("time_mix_extra_dim", h.integer("lora_rank_tokenshift", default=64 if wide else 32))
    k.u32("time_decay_extra_dim", h.integer("lora_rank_decay", default=128 if wide else 64))
    k.u32("token_shift_count", 1)
    k.u32("attention.head_count_kv", h.integer("num_key_value_heads"))


def _goose(prefix: str, *, turned: bool) -> dict[str, str | Rule]:
    """The vectors and products of low rank of a Goose; `v` of the first layer has nothing to mix
    with: its file has `a` twice.
    """
    change = _turned if turned else None
    low = (
        {f"{name}{i}": f"{name}{i}" for name in "wavg" for i in (0, 1, 2)}
        if turned
        else {
            **{f"{name}_lora.lora.0.weight": f"{name}1" for name in "wavg"},
            **{f"{name}_lora.lora.2.weight": f"{name}2" for name in "wavg"},
            **{f"{name}_lora.lora.2.bias": f"{name}0" for name in "wavg"},
        }
    )
    rules: dict[str, str | Rule] = {}
    first = prefix.replace("{b}", "0")
    for theirs, ours in low.items():
        how = _flat if ours.endswith("0") else change
        if ours[0] == "a":
            twice = tuple(f"blk.0.time_mix_{name}{ours[1]}.weight" for name in "av")
            rules[first + theirs] = Rule(twice, _doubled_turned if how is _turned else
                                         _doubled_flat if how is _flat else _doubled)  # fmt: skip
        rules[prefix + theirs] = Rule((f"blk.{{b}}.time_mix_{ours}.weight",), how)
    for name in ("k_k", "k_a", "r_k"):
        rules[prefix + name] = Rule((f"blk.{{b}}.time_mix_{name}.weight",), _flat)
    return {**rules, **_shares(prefix + "x_{x}", _GOOSE)}


def _doubled(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, np.ndarray]:
    return x, x


def _doubled_flat(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, np.ndarray]:
    return x.reshape(-1), x.reshape(-1)


def _doubled_turned(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, np.ndarray]:
    return x.T, x.T


def _unmixed(prefix: str) -> tuple[str, ...]:
    """What some folders hold of the first layer's `v`."""
    first = prefix.replace("{b}", "0") + "v"
    return (
        *(f"{first}{i}" for i in (0, 1, 2)),
        *(f"{first}_lora.lora.{end}" for end in ("0.weight", "2.weight", "2.bias")),
    )


def _rank(h: Hyper, names: Sequence[str], power: float, factor: float) -> int:
    """A rank that follows from the width where the configuration leaves it open."""
    return h.integer(*names, default=max(1, round(h.hidden**power * factor / 32)) * 32)


_SEVEN = "model.layers.{b}.attn."


@family("Rwkv7ForCausalLM", "RWKV7ForCausalLM", arch="rwkv7", vocabulary="rwkv", meant={
    "hidden_act": ("sqrelu", "silu"),  # of rows that no code reads it for
}, rules={
    "model.embeddings.weight": "token_embd.weight",
    "model.layers.{b}.pre_norm.{w}": "token_embd_norm.{w}",
    "model.norm.{w}": "output_norm.{w}",
    "lm_head.weight": "output.weight",
    "model.layers.{b}.attn_norm.{w}": "blk.{b}.attn_norm.{w}",
    "model.layers.{b}.ffn_norm.{w}": "blk.{b}.attn_norm_2.{w}",
    **_goose(_SEVEN, turned=False),
    _SEVEN + "g_norm.{w}": "blk.{b}.time_mix_ln.{w}",
    **{
        f"{_SEVEN}{theirs}_proj.weight": f"blk.{{b}}.time_mix_{ours}.weight"
        for theirs, ours in (("r", "receptance"), ("k", "key"), ("v", "value"), ("o", "output"))
    },
    "model.layers.{b}.ffn.x_k": Rule(("blk.{b}.channel_mix_lerp_k.weight",), _flat),
    "model.layers.{b}.ffn.key.weight": "blk.{b}.channel_mix_key.weight",
    "model.layers.{b}.ffn.value.weight": "blk.{b}.channel_mix_value.weight",
}, dropped=_unmixed(_SEVEN))  # fmt: skip
def rwkv7(h: Hyper, k: Keys) -> None:
    """Goose (Peng et al. 2025), in the names of flash-linear-attention."""
    width = h.integer("intermediate_size", default=4 * h.hidden)
    _begin(h, k, head=h.integer("head_size", "head_dim"), width=width)
    k.f32("attention.layer_norm_epsilon", h.number("layer_norm_epsilon", "norm_eps"))
    for key, names, power, factor in (
        ("decay", ("lora_rank_decay", "decay_low_rank_dim"), 0.5, 1.8),
        ("iclr", ("lora_rank_iclr", "a_low_rank_dim"), 0.5, 1.8),
        ("value_residual_mix", ("lora_rank_value_residual_mix", "v_low_rank_dim"), 0.5, 1.3),
        ("gate", ("lora_rank_gate", "gate_low_rank_dim"), 0.8, 0.6),
    ):
        k.u32(f"attention.{key}_lora_rank", _rank(h, names, power, factor))


_MIXER = "model.layers.{b}.self_attn.time_mixer."


@family("RwkvHybridForCausalLM", arch="arwkv7", meant=_UNTURNED, rules={
    **_in_qwen(),
    **_goose(_MIXER, turned=True),
    _MIXER + "ln_x.{w}": "blk.{b}.time_mix_ln.{w}",
    **{
        f"{_MIXER}{part}.{{w}}": f"blk.{{b}}.time_mix_{part}.{{w}}"
        for part in ("receptance", "key", "value", "output")
    },
}, dropped=_unmixed(_MIXER))  # fmt: skip
def arwkv7(h: Hyper, k: Keys) -> None:
    """ARWKV (Yueyu et al. 2025): Goose in a Qwen 2, some with a gate."""
    h.must_be("wkv_version", 7)
    _begin(h, k, head=h.integer("head_size"), width=h.integer("intermediate_size"))
    k.f32("attention.layer_norm_rms_epsilon", h.number("rms_norm_eps"))
    for key, rank in (("decay", 64), ("iclr", 64), ("value_residual_mix", 32)):
        k.u32(f"attention.{key}_lora_rank", rank)
    k.u32("attention.gate_lora_rank", 128 if h.flag("wkv_has_gate") else 0)
    k.u32("token_shift_count", 1)
