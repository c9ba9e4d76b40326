"""Dense decoders of one lab each, near Llama: EXAONE, DeciLM, OpenELM, BitNet, PLM, PLaMo, Talkie
and others.
"""

from __future__ import annotations

import numpy as np

from oxillama.convert.families.dense import HEADS, LAYER, LLAMA, PLAIN, llama_keys
from oxillama.convert.family import Change, Family, Hyper, Keys, Rule, family
from oxillama.convert.keys import common, llama3_factors, partial_rotation, windows
from oxillama.convert.shapes import halves_2d, paired, transposed
from oxillama.errors import ConvertError

# what older folders hold of a rotation, which follows from its base
_BUFFERS = (
    "model.layers.{b}.self_attn.rotary_emb.inv_freq",
    "model.layers.layers.{b}.self_attn.rotary_emb.inv_freq",
    "transformer.h.{b}.attn.rotary_emb.inv_freq",
    "transformer.h.{b}.attn.attention.rotary_emb.inv_freq",
    "transformer.h.{b}.attn.attention.rotary.inv_freq",
    "transformer.h.{b}.attn.bias",
    "transformer.h.{b}.attn.masked_bias",
)


def _size(h: Hyper) -> int:
    """Floats of a head, of hidden and heads alone."""
    return h.hidden // h.heads


@family("XverseForCausalLM", arch="xverse", rules=LLAMA, dropped=_BUFFERS)
def xverse(h: Hyper, k: Keys) -> None:
    """XVERSE (Shenzhen Yuanxiang 2023): a Llama."""
    if h.kv_heads != h.heads:
        raise ConvertError(
            f"{h.label}: num_key_value_heads: found {h.kv_heads}, wanted {h.heads} for xverse"
        )
    common(h, k)
    k.text("tensor_data_layout", "Meta AI original pth")
    k.u32("rope.dimension_count", _size(h))


@family("OrionForCausalLM", arch="orion", rules=PLAIN, dropped=_BUFFERS)
def orion(h: Hyper, k: Keys) -> None:
    """Orion (Chen et al. 2024): layer norms, whose epsilon has the other kind's name."""
    k.text("tensor_data_layout", "Meta AI original pth")
    context = ("max_sequence_length", "max_position_embeddings", "model_max_length")
    k.u32("context_length", h.integer(*context))
    k.u32("embedding_length", h.hidden)
    k.u32("block_count", h.layers)
    k.u32("feed_forward_length", h.integer("intermediate_size"))
    k.u32("attention.head_count", h.heads)
    k.u32("attention.head_count_kv", h.kv_heads)
    k.f32("attention.layer_norm_epsilon", h.number("rms_norm_eps"))


@family("MaincoderForCausalLM", arch="maincoder", rules=PLAIN)
def maincoder(h: Hyper, k: Keys) -> None:
    common(h, k)
    if h.get("head_dim") is not None:
        k.u32("rope.dimension_count", h.head_dim)


@family("NanbeigeForCausalLM", arch="nanbeige", rules=LLAMA, extra=llama3_factors,
        prefix_setting=True)  # fmt: skip
def nanbeige(h: Hyper, k: Keys) -> None:
    """A Llama whose layers run several times."""
    llama_keys(h, k)
    k.u32("num_loops", max(1, h.integer("num_loops", default=1)))
    k.flag("skip_loop_final_norm", h.flag("skip_loop_final_norm"))


@family("PanguEmbeddedForCausalLM", arch="pangu-embedded", rules=PLAIN, prefix_setting=True)
def pangu_embedded(h: Hyper, k: Keys) -> None:
    common(h, k)
    k.u32("vocab_size", h.integer("vocab_size"))
    k.u32("rope.dimension_count", h.head_dim)
    k.u32("attention.key_length", h.head_dim)
    k.u32("attention.value_length", h.head_dim)


_EXAONE = "transformer.h.{b}."


@family("ExaoneForCausalLM", arch="exaone", extra=llama3_factors, dropped=_BUFFERS, rules={
    "transformer.wte.weight": "token_embd.weight",
    "transformer.ln_f.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    _EXAONE + "ln_1.weight": "blk.{b}.attn_norm.weight",
    _EXAONE + "ln_2.weight": "blk.{b}.ffn_norm.weight",
    **{f"{_EXAONE}attn.attention.{part}_proj.weight": f"blk.{{b}}.attn_{part}.weight"
       for part in "qkv"},
    _EXAONE + "attn.attention.out_proj.weight": "blk.{b}.attn_output.weight",
    _EXAONE + "mlp.c_fc_0.weight": "blk.{b}.ffn_gate.weight",
    _EXAONE + "mlp.c_fc_1.weight": "blk.{b}.ffn_up.weight",
    _EXAONE + "mlp.c_proj.weight": "blk.{b}.ffn_down.weight",
})  # fmt: skip
def exaone(h: Hyper, k: Keys) -> None:
    """EXAONE 3 (LG AI Research 2024)."""
    h.must_be("activation_function", "silu")
    common(h, k)
    k.u32("rope.dimension_count", partial_rotation(h))


@family("CodeShellForCausalLM", arch="codeshell", dropped=_BUFFERS, meant={
    "activation_function": ("gelu_pytorch_tanh", "gelu_new"),
}, rules={
    "transformer.wte.weight": "token_embd.weight",
    "transformer.ln_f.{w}": "output_norm.{w}",
    "lm_head.weight": "output.weight",
    "transformer.h.{b}.ln_1.{w}": "blk.{b}.attn_norm.{w}",
    "transformer.h.{b}.ln_2.{w}": "blk.{b}.ffn_norm.{w}",
    "transformer.h.{b}.attn.c_attn.{w}": "blk.{b}.attn_qkv.{w}",
    "transformer.h.{b}.attn.c_proj.{w}": "blk.{b}.attn_output.{w}",
    "transformer.h.{b}.mlp.c_fc.{w}": "blk.{b}.ffn_up.{w}",
    "transformer.h.{b}.mlp.c_proj.{w}": "blk.{b}.ffn_down.{w}",
})  # fmt: skip
def codeshell(h: Hyper, k: Keys) -> None:
    """CodeShell (Xie et al. 2024): GPT-2's layers, rotated, with groups of query heads."""
    k.u32("context_length", h.integer("n_positions"))
    k.u32("embedding_length", h.hidden)
    k.u32("feed_forward_length", 4 * h.hidden)
    k.u32("block_count", h.layers)
    k.u32("attention.head_count", h.heads)
    k.u32("attention.head_count_kv", h.integer("num_query_groups"))
    k.f32("attention.layer_norm_epsilon", h.number("layer_norm_epsilon"))
    k.f32("rope.freq_base", 10000.0)
    k.text("rope.scaling.type", "linear")
    k.f32("rope.scaling.factor", 1.0)


_JAIS_BUFFERS = (*_BUFFERS, "transformer.relative_pe.slopes")


def _embedding_scaled(x: np.ndarray, h: Hyper) -> np.ndarray:
    return x * np.float32(h.number("mup_embeddings_scale", "embeddings_scale"))


def _width_scaled(x: np.ndarray, h: Hyper) -> np.ndarray:
    if h.get("mup_output_alpha") is None:
        return x * np.float32(h.number("width_scale"))
    return x * np.float32(h.number("mup_output_alpha") * h.number("mup_width_scale"))


@family("JAISLMHeadModel", arch="jais", dropped=_JAIS_BUFFERS, rules={
    "transformer.wte.weight": Rule(("token_embd.weight",), _embedding_scaled, values=True),
    "transformer.ln_f.{w}": "output_norm.{w}",
    "lm_head.weight": Rule(("output.weight",), _width_scaled, values=True),
    "transformer.h.{b}.ln_1.{w}": "blk.{b}.attn_norm.{w}",
    "transformer.h.{b}.ln_2.{w}": "blk.{b}.ffn_norm.{w}",
    **{
        f"transformer.h.{{b}}.{theirs}.{{w}}": Rule((f"blk.{{b}}.{ours}.{{w}}",), transposed)
        for theirs, ours in (
            ("attn.c_attn", "attn_qkv"), ("attn.c_proj", "attn_output"),
            ("mlp.c_fc", "ffn_up"), ("mlp.c_fc2", "ffn_gate"), ("mlp.c_proj", "ffn_down"),
        )
    },
})  # fmt: skip
def jais(h: Hyper, k: Keys) -> None:
    """Jais (Sengupta et al. 2023): ALiBi, a gate, and scales of muP that are multiplied in."""
    h.must_be("activation_function", "swiglu")
    h.must_be("position_embedding_type", "alibi")
    k.u32("block_count", h.layers)
    k.u32("context_length", h.integer("n_positions"))
    k.u32("embedding_length", h.hidden)
    k.u32("feed_forward_length", h.integer("n_inner"))
    k.u32("attention.head_count", h.heads)
    k.f32("attention.layer_norm_epsilon", h.number("layer_norm_epsilon"))
    k.f32("attention.max_alibi_bias", 8.0)


def _refact_width(h: Hyper) -> int:
    return -(-int(8 * h.hidden / 3) // 256) * 256


@family("GPTRefactForCausalLM", arch="refact", dropped=_BUFFERS, rules={
    "transformer.wte.weight": "token_embd.weight",
    "transformer.ln_f.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "transformer.h.{b}.ln_1.weight": "blk.{b}.attn_norm.weight",
    "transformer.h.{b}.ln_2.weight": "blk.{b}.ffn_norm.weight",
    "transformer.h.{b}.attn.q.weight": "blk.{b}.attn_q.weight",
    "transformer.h.{b}.attn.kv.weight": Rule(
        ("blk.{b}.attn_k.weight", "blk.{b}.attn_v.weight"), halves_2d
    ),
    "transformer.h.{b}.attn.c_proj.weight": "blk.{b}.attn_output.weight",
    "transformer.h.{b}.mlp.gate_up_proj.weight": Rule(
        ("blk.{b}.ffn_gate.weight", "blk.{b}.ffn_up.weight"), halves_2d
    ),
    "transformer.h.{b}.mlp.c_proj.weight": "blk.{b}.ffn_down.weight",
}, special=lambda h, ids: {"prefix": 1, "suffix": 3, "middle": 2})  # fmt: skip
def refact(h: Hyper, k: Keys) -> None:
    """Refact (Small Magellanic Cloud AI 2023): ALiBi, one key head that all query heads share."""
    k.u32("context_length", h.integer("n_positions"))
    k.u32("embedding_length", h.hidden)
    k.u32("feed_forward_length", _refact_width(h))
    k.u32("block_count", h.layers)
    k.u32("attention.head_count", h.heads)
    k.u32("attention.head_count_kv", 1)
    k.f32("attention.layer_norm_rms_epsilon", h.number("layer_norm_epsilon"))


_GROUPS = 5  # of PLaMo's key heads, which its configuration does not say


def _plamo_queries(x: np.ndarray, h: Hyper) -> np.ndarray:
    """Rows of (head of a group, group, dim) as (group, head of it, dim)."""
    parts = x.reshape(h.heads // _GROUPS, _GROUPS, -1, x.shape[-1])
    return parts.swapaxes(0, 1).reshape(x.shape)


def _plamo_output(x: np.ndarray, h: Hyper) -> np.ndarray:
    parts = x.reshape(len(x), h.heads // _GROUPS, _GROUPS, -1)
    return parts.swapaxes(1, 2).reshape(x.shape)


_PLAMO = "model.layers.layers.{b}."


@family("PlamoForCausalLM", arch="plamo", dropped=_BUFFERS, rules={
    **HEADS,
    _PLAMO + "norm.weight": "blk.{b}.attn_norm.weight",
    _PLAMO + "self_attn.q_proj.weight": Rule(("blk.{b}.attn_q.weight",), _plamo_queries),
    _PLAMO + "self_attn.k_proj.weight": "blk.{b}.attn_k.weight",
    _PLAMO + "self_attn.v_proj.weight": "blk.{b}.attn_v.weight",
    _PLAMO + "self_attn.o_proj.weight": Rule(("blk.{b}.attn_output.weight",), _plamo_output),
    **{f"{_PLAMO}mlp.{part}_proj.weight": f"blk.{{b}}.ffn_{part}.weight"
       for part in ("gate", "up", "down")},
})  # fmt: skip
def plamo(h: Hyper, k: Keys) -> None:
    """PLaMo (Preferred Networks 2023): trained on 4096 tokens; query heads of a group lie apart."""
    k.u32("context_length", 4096)
    k.u32("embedding_length", h.hidden)
    k.u32("feed_forward_length", h.integer("intermediate_size"))
    k.u32("block_count", h.layers)
    k.u32("attention.head_count", h.heads)
    k.u32("attention.head_count_kv", _GROUPS)
    k.f32("attention.layer_norm_rms_epsilon", h.number("rms_norm_eps"))


_LATENT = "model.layers.{b}.self_attn."


@family("PLMForCausalLM", arch="plm", meant={"hidden_act": ("relu2",)}, rules={
    **{name: to for name, to in PLAIN.items()
       if not any(part in name for part in ("k_proj", "v_proj", "gate_proj"))},
    _LATENT + "kv_a_proj_with_mqa.{w}": "blk.{b}.attn_kv_a_mqa.{w}",
    _LATENT + "kv_a_layernorm.{w}": "blk.{b}.attn_kv_a_norm.{w}",
    _LATENT + "kv_b_proj.{w}": "blk.{b}.attn_kv_b.{w}",
})  # fmt: skip
def plm(h: Hyper, k: Keys) -> None:
    """PLM (Deng et al. 2025): latent attention with all heads kept, a squared ReLU."""
    h.must_be("q_lora_rank", None)
    common(h, k)
    turned = h.integer("qk_rope_head_dim")
    k.u32("vocab_size", h.integer("vocab_size"))
    k.u32("attention.kv_lora_rank", h.integer("kv_lora_rank"))
    k.u32("attention.key_length", h.integer("qk_nope_head_dim") + turned)
    k.u32("attention.value_length", h.integer("v_head_dim"))
    k.u32("rope.dimension_count", turned)


def _ternary(x: np.ndarray, h: Hyper) -> np.ndarray:
    """-1, 0 and 1 times the mean magnitude (Ma et al. 2024, section 2); computes."""
    mean = max(np.float32(np.abs(x).mean(dtype=np.float64)), np.float32(1e-5))
    near = np.float32(1) / mean
    return np.clip(np.round(x * near), -1, 1) / near


def _ternary_rules() -> dict[str, str | Rule]:
    made: dict[str, str | Rule] = dict(PLAIN)
    for name, to in LAYER.items():
        if "_proj" in name and isinstance(to, str):
            made[name.replace("{w}", "weight")] = Rule(
                (to.replace("{w}", "weight"),), _ternary, values=True
            )
    return made


@family("BitnetForCausalLM", "BitNetForCausalLM", arch="bitnet", rules={
    **_ternary_rules(),
    **{f"model.layers.{{b}}.self_attn.{name}.weight": "blk.{b}.attn_sub_norm.weight"
       for name in ("inner_attn_ln", "attn_sub_norm")},
    **{f"model.layers.{{b}}.mlp.{name}.weight": "blk.{b}.ffn_sub_norm.weight"
       for name in ("ffn_layernorm", "ffn_sub_norm")},
})  # fmt: skip
def bitnet(h: Hyper, k: Keys) -> None:
    """BitNet b1.58: matrices are rounded to three values as its training does."""
    common(h, k)
    k.text("rope.scaling.type", "linear")
    k.f32("rope.scaling.factor", 1.0)


def _numbers(h: Hyper, name: str) -> list[float]:
    """A list of numbers, one for each layer."""
    values = h.get(name)
    if (
        not isinstance(values, list)
        or len(values) != h.layers
        or not all(isinstance(one, (int, float)) for one in values)
    ):
        raise ConvertError(
            f"{h.label}: {name}: found {values!r:.80}, wanted {h.layers} numbers, one a layer"
        )
    return values


def _openelm_widths(h: Hyper) -> list[int]:
    """The width of each layer, a multiple of the divisor of at least 0.9 of what is wanted."""
    divisor, made = h.integer("ffn_dim_divisor"), []
    for factor in _numbers(h, "ffn_multipliers"):
        wanted = factor * h.hidden
        near = max(divisor, int(wanted + divisor / 2) // divisor * divisor)
        made.append(near + divisor if near < 0.9 * wanted else near)
    return made


_ELM = "transformer.layers.{b}."


@family("OpenELMForCausalLM", arch="openelm", rules={
    "transformer.token_embeddings.weight": "token_embd.weight",
    "transformer.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    _ELM + "attn_norm.weight": "blk.{b}.attn_norm.weight",
    _ELM + "ffn_norm.weight": "blk.{b}.ffn_norm.weight",
    _ELM + "attn.qkv_proj.weight": "blk.{b}.attn_qkv.weight",
    _ELM + "attn.q_norm.weight": "blk.{b}.attn_q_norm.weight",
    _ELM + "attn.k_norm.weight": "blk.{b}.attn_k_norm.weight",
    _ELM + "attn.out_proj.weight": "blk.{b}.attn_output.weight",
    _ELM + "ffn.proj_1.weight": Rule(
        ("blk.{b}.ffn_gate.weight", "blk.{b}.ffn_up.weight"), halves_2d
    ),
    _ELM + "ffn.proj_2.weight": "blk.{b}.ffn_down.weight",
})  # fmt: skip
def openelm(h: Hyper, k: Keys) -> None:
    """OpenELM (Mehta et al. 2024): heads and widths of their own in each layer."""
    k.u32("block_count", h.layers)
    k.u32("context_length", h.integer("max_context_length"))
    k.u32("embedding_length", h.hidden)
    k.integers("feed_forward_length", _openelm_widths(h))
    k.integers("attention.head_count", [int(one) for one in _numbers(h, "num_query_heads")])
    k.integers("attention.head_count_kv", [int(one) for one in _numbers(h, "num_kv_heads")])
    k.f32("rope.freq_base", h.number("rope_freq_constant"))
    k.f32("attention.layer_norm_rms_epsilon", 1e-6)
    k.u32("rope.dimension_count", h.integer("head_dim"))
    k.u32("attention.key_length", h.integer("head_dim"))
    k.u32("attention.value_length", h.integer("head_dim"))


def _paired_rows(x: np.ndarray, h: Hyper) -> np.ndarray:
    """Rows of as many heads as there are: layers differ in their number."""
    return paired(x, len(x) // h.head_dim)


@family("DeciLMForCausalLM", arch="deci", extra=llama3_factors, dropped=_BUFFERS, rules={
    **PLAIN,
    "model.layers.{b}.self_attn.q_proj.{w}": Rule(("blk.{b}.attn_q.{w}",), _paired_rows),
    "model.layers.{b}.self_attn.k_proj.{w}": Rule(("blk.{b}.attn_k.{w}",), _paired_rows),
    # what stands in the place of attention in some layers
    "model.layers.{b}.self_attn.linear_attn.weight": "blk.{b}.attn_output.weight",
})  # fmt: skip
def deci(h: Hyper, k: Keys) -> None:
    """DeciLM and Llama-Nemotron (Bercovich et al. 2024, Puzzle): a Llama whose layers have fewer
    key heads, one product in place of attention, no attention, or another feed-forward width.
    """
    if h.get("block_configs") is None:
        common(h, k)
        k.integers(
            "attention.head_count_kv",
            [int(one) for one in _numbers(h, "num_key_value_heads_per_layer")],
        )
    else:
        _blocks(h, k)
    k.u32("vocab_size", h.integer("vocab_size"))
    k.u32("rope.dimension_count", h.head_dim)


def _blocks(h: Hyper, k: Keys) -> None:
    heads, kv, widths = [], [], []
    for layer, block in enumerate(h.get("block_configs")):
        label = f"{h.label}: block_configs[{layer}]"
        if not isinstance(block, dict):
            raise ConvertError(f"{label}: found {block!r:.60}, wanted an object")
        attention = Hyper(block.get("attention") or {}, f"{label}.attention")
        group = attention.integer("n_heads_in_group", default=0)
        heads.append(h.heads if group or attention.flag("replace_with_linear") else 0)
        kv.append(h.heads // group if group else 0)
        factor = Hyper(block.get("ffn") or {}, f"{label}.ffn").number("ffn_mult", default=0.0)
        widths.append(-(-int(2 * factor * h.hidden / 3) // 256) * 256)
    if len(heads) != h.layers:
        raise ConvertError(f"{h.label}: block_configs: {len(heads)} of them, wanted {h.layers}")
    theta = h.rope().get("rope_theta")
    if theta is not None:
        k.f32("rope.freq_base", theta)
    k.integers("attention.head_count_kv", kv)
    k.integers("attention.head_count", heads)
    k.integers("feed_forward_length", widths)
    k.u32("block_count", h.layers)
    k.u32("context_length", h.integer("max_position_embeddings"))
    k.u32("embedding_length", h.hidden)
    k.f32("attention.layer_norm_rms_epsilon", h.number("rms_norm_eps"))
    k.u32("attention.key_length", _size(h))
    k.u32("attention.value_length", _size(h))


_QWEN = "transformer.h.{b}."


def _qwen_tokens(h: Hyper, ids: dict[str, int]) -> dict[str, int]:
    text = "<|endoftext|>"
    return {f"{name}?": ids[text] for name in ("bos", "eos", "unknown") if text in ids}


@family("QWenLMHeadModel", arch="qwen", vocabulary="qwen", dropped=_BUFFERS, special=_qwen_tokens,
        rules={
    "transformer.wte.weight": "token_embd.weight",
    "transformer.ln_f.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    _QWEN + "ln_1.weight": "blk.{b}.attn_norm.weight",
    _QWEN + "ln_2.weight": "blk.{b}.ffn_norm.weight",
    _QWEN + "attn.c_attn.{w}": "blk.{b}.attn_qkv.{w}",
    _QWEN + "attn.c_proj.{w}": "blk.{b}.attn_output.{w}",
    _QWEN + "mlp.w1.weight": "blk.{b}.ffn_up.weight",
    _QWEN + "mlp.w2.weight": "blk.{b}.ffn_gate.weight",
    _QWEN + "mlp.c_proj.weight": "blk.{b}.ffn_down.weight",
})  # fmt: skip
def qwen(h: Hyper, k: Keys) -> None:
    """Qwen (Bai et al. 2023): every head has a key of its own."""
    common(h, k)
    k.found.pop("qwen.attention.head_count_kv")


@family("Spark2_5ForCausalLM", arch="spark2_5", rules={
    **PLAIN,
    "model.layers.{b}.self_attn.q_k_v_proj.weight": "blk.{b}.attn_qkv.weight",
    "model.layers.{b}.self_attn.g_proj.weight": "blk.{b}.attn_gate.weight",
})  # fmt: skip
def spark(h: Hyper, k: Keys) -> None:
    """Spark 2.5 (iFlytek 2026): windowed layers have a rotation of their own, heads a gate."""
    h.must_be("hidden_act", "gelu")
    h.must_be("gate_attn_act_mode", "sigmoid")
    h.must_be("headwise_attn_output_gate", True)
    common(h, k)
    k.u32("vocab_size", h.integer("vocab_size"))
    windows(h, k, pattern=True)
    for kind, key in (("full_attention", ""), ("sliding_attention", "_swa")):
        share = h.rope(kind).get("partial_rotary_factor", 1.0)
        k.u32(f"rope.dimension_count{key}", int(h.head_dim * share))


def _turned_back(x: np.ndarray, h: Hyper) -> np.ndarray:
    """Rows of heads whose rotation goes the other way: the second half changes its sign."""
    parts = x.reshape(-1, 2, h.head_dim // 2, x.shape[-1]) * np.array([1, -1], np.float32).reshape(
        2, 1, 1
    )
    return parts.reshape(x.shape)


_TALKIE = "model.blocks.{b}."


@family("TalkieForCausalLM", arch="talkie", gathered={"lm_head_gain.w_g": "talkie.logit_scale"},
        rules={
            "model.embed.weight": "token_embd.weight",
            "lm_head": "output.weight",
            "lm_head.weight": "output.weight",
            _TALKIE + "attn.attn_query.weight":
                Rule(("blk.{b}.attn_q.weight",), _turned_back, values=True),
            _TALKIE + "attn.attn_key.weight":
                Rule(("blk.{b}.attn_k.weight",), _turned_back, values=True),
            _TALKIE + "attn.attn_value.weight": "blk.{b}.attn_v.weight",
            _TALKIE + "attn.attn_resid.weight": "blk.{b}.attn_output.weight",
            _TALKIE + "attn.head_gain.head_g":
                Rule(("blk.{b}.attn_q_norm.weight",), lambda x, h: x.reshape(-1, 1)),
            _TALKIE + "attn_gain.a_g": "blk.{b}.attn_output.scale",
            _TALKIE + "mlp_gain.a_g": "blk.{b}.ffn_down.scale",
            _TALKIE + "embed_skip.a_g": "blk.{b}.layer_output_scale.weight",
            **{
                f"{_TALKIE}mlp.mlp_{theirs}.weight": f"blk.{{b}}.ffn_{ours}.weight"
                for theirs, ours in (("gate", "gate"), ("linear", "up"), ("resid", "down"))
            },
        })  # fmt: skip
def talkie(h: Hyper, k: Keys) -> None:
    """Talkie (2026): norms without weights, whose epsilon is that of a float."""
    common(h, k)
    k.f32("attention.layer_norm_rms_epsilon", float(np.finfo(np.float32).eps))


def _hrm_stacks(h: Hyper) -> Family:
    """The family of a configuration: the layers of the high stack follow those of the low one."""
    each = _hrm_layers(h)
    rules: dict[str, str | Rule] = {
        "model.embed_tokens.weight": "token_embd.weight",
        "lm_head.weight": "output.weight",
        "model.z_L_init": "hrm.z_l_init",
    }
    for first, stack in ((0, "L"), (each, "H")):
        for layer in range(each):
            theirs, ours = f"model.{stack}_module.layers.{layer}.", f"blk.{first + layer}."
            rules[theirs + "attn.gqkv_proj.weight"] = Rule(
                tuple(f"{ours}attn_{part}.weight" for part in ("gate", "q", "k", "v")), _quarters
            )
            rules[theirs + "mlp.gate_up_proj.weight"] = Rule(
                (f"{ours}ffn_gate.weight", f"{ours}ffn_up.weight"), halves_2d
            )
            rules[theirs + "mlp.down_proj.weight"] = f"{ours}ffn_down.weight"
            for name in ("attn", "self_attn"):
                rules[f"{theirs}{name}.o_proj.weight"] = f"{ours}attn_output.weight"
    return Family("hrm_text", rules, hrm_text, held=lambda h: 2 * _hrm_layers(h))


def _hrm_layers(h: Hyper) -> int:
    return h.integer("num_layers_per_stack", "num_hidden_layers")


def _quarters(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, ...]:
    return tuple(np.split(x, 4))


@family("HrmTextForCausalLM", arch="hrm_text", rules={}, variant=_hrm_stacks)
def hrm_text(h: Hyper, k: Keys) -> None:
    """HRM-Text (Wang et al. 2025): two stacks of layers that run several times; the file's count of
    layers is that of their runs.
    """
    h.must_be("hidden_act", "silu")
    each, high, low = _hrm_layers(h), h.integer("H_cycles"), h.integer("L_cycles")
    common(h.but(num_hidden_layers=each * high * (low + 1)), k)
    k.u32("rope.dimension_count", h.head_dim)
    k.f32("embedding_scale", h.number("embedding_scale"))
    k.u32("hrm.layers_per_stack", each)
    k.u32("hrm.h_cycles", high)
    k.u32("hrm.l_cycles", low)
    k.flag("hrm.prefix_lm", h.flag("prefix_lm"))


PLAMO_NORMS = {"pre_mixer": 1.0, "post_mixer": 1 / 5, "pre_mlp": 1.0, "post_mlp": 1 / 5**1.5}


def _more(by: float) -> Change:
    """A norm's weight whose layer adds this much (computes)."""
    return lambda x, h: x + np.float32(by)


PLAMO_LAYER: dict[str, str | Rule] = {
    "model.embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "model.norm.weight": Rule(("output_norm.weight",), _more(1.0), values=True),
    **{
        f"{_PLAMO}{theirs}_norm.weight":
            Rule((f"blk.{{b}}.{ours}",), _more(PLAMO_NORMS[theirs]), values=True)
        for theirs, ours in (
            # names without a suffix are those of other files
            ("pre_mixer", "attn_norm.weight"), ("post_mixer", "post_attention_norm"),
            ("pre_mlp", "ffn_norm.weight"), ("post_mlp", "post_ffw_norm"),
        )
    },
    _PLAMO + "mixer.qkv_proj.weight": "blk.{b}.attn_qkv.weight",
    _PLAMO + "mixer.o_proj.weight": "blk.{b}.attn_output.weight",
    _PLAMO + "mlp.gate_up_proj.weight": "blk.{b}.ffn_up.weight",
    _PLAMO + "mlp.down_proj.weight": "blk.{b}.ffn_down.weight",
}  # fmt: skip


@family("Plamo3ForCausalLM", "PLaMo3ForCausalLM", arch="plamo3", vocabulary="plamo",
        rules={
    **PLAMO_LAYER,
    **{f"{_PLAMO}mixer.{part}_norm.weight":
           Rule((f"blk.{{b}}.attn_{part}_norm.weight",), _more(1.0), values=True) for part in "qk"},
})  # fmt: skip
def plamo3(h: Hyper, k: Keys) -> None:
    """PLaMo 3 (Preferred Networks 2025)."""
    stretched = h.number("rope_scaling_factor", default=1.0)
    rope = h.rope()
    if stretched != 1 and rope["rope_type"] == "default":
        rope |= {
            "rope_type": "yarn", "factor": stretched, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": h.integer("initial_context_length"),
        }  # fmt: skip
    common(h.but(rope_parameters=rope), k)
    k.u32("vocab_size", h.integer("vocab_size"))
    window = h.integer("window_size", "sliding_window", default=None)
    if window is not None:
        k.u32("attention.sliding_window", window)
        pattern = h.get("sliding_window_pattern")
        if isinstance(pattern, list):
            k.flags("attention.sliding_window_pattern", pattern)
        else:
            k.u32("attention.sliding_window_pattern", h.integer("sliding_window_pattern"))
