"""Dense decoders with separate q, k and v: Llama and what is named alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from oxillama.convert.family import Family, Hyper, Keys, Rule, family
from oxillama.convert.keys import (
    common,
    epsilons,
    llama3_factors,
    longrope,
    no_window,
    partial_rotation,
    stretched_base,
    unusual_rotation,
    windows,
)
from oxillama.convert.modules import pooling
from oxillama.convert.shapes import (
    groups_apart,
    packed_qkv,
    paired,
    paired_keys,
    paired_queries,
    plus_one,
)
from oxillama.errors import ConvertError

# Names that transformers gives most decoders.
HEADS: dict[str, str | Rule] = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.{w}": "output_norm.{w}",
    "lm_head.{w}": "output.{w}",
}
LAYER: dict[str, str | Rule] = {
    "model.layers.{b}.input_layernorm.{w}": "blk.{b}.attn_norm.{w}",
    "model.layers.{b}.post_attention_layernorm.{w}": "blk.{b}.ffn_norm.{w}",
    "model.layers.{b}.self_attn.q_proj.{w}": "blk.{b}.attn_q.{w}",
    "model.layers.{b}.self_attn.k_proj.{w}": "blk.{b}.attn_k.{w}",
    "model.layers.{b}.self_attn.v_proj.{w}": "blk.{b}.attn_v.{w}",
    "model.layers.{b}.self_attn.o_proj.{w}": "blk.{b}.attn_output.{w}",
    "model.layers.{b}.self_attn.q_norm.{w}": "blk.{b}.attn_q_norm.{w}",
    "model.layers.{b}.self_attn.k_norm.{w}": "blk.{b}.attn_k_norm.{w}",
    "model.layers.{b}.mlp.gate_proj.{w}": "blk.{b}.ffn_gate.{w}",
    "model.layers.{b}.mlp.up_proj.{w}": "blk.{b}.ffn_up.{w}",
    "model.layers.{b}.mlp.down_proj.{w}": "blk.{b}.ffn_down.{w}",
}
PLAIN: dict[str, str | Rule] = {**HEADS, **LAYER}


def bare(rules: Mapping[str, str | Rule]) -> dict[str, str | Rule]:
    """The rules, and the same for folders without a head, whose names have no `model.`."""
    return {**rules, **{name.removeprefix("model."): to for name, to in rules.items()}}


# Files of these families hold q and k for a rotation of neighbours.
PAIRED: dict[str, str | Rule] = {
    "model.layers.{b}.self_attn.q_proj.{w}": Rule(("blk.{b}.attn_q.{w}",), paired_queries),
    "model.layers.{b}.self_attn.k_proj.{w}": Rule(("blk.{b}.attn_k.{w}",), paired_keys),
}
LLAMA: dict[str, str | Rule] = {**PLAIN, **PAIRED}
BUFFERS = (
    "model.layers.{b}.self_attn.rotary_emb.inv_freq",
    "model.rotary_emb.inv_freq",
)


def llama_keys(h: Hyper, k: Keys) -> None:
    """The size of the vocabulary and the rotated dimensions stand in Llama's files."""
    common(h, k)
    k.u32("vocab_size", h.integer("vocab_size"))
    k.u32("rope.dimension_count", h.head_dim)


EXPERTS_W: dict[str, str | Rule] = {
    "model.layers.{b}.block_sparse_moe.gate.weight": "blk.{b}.ffn_gate_inp.weight",
    "model.layers.{b}.block_sparse_moe.experts.{e}.w1.weight": "blk.{b}.ffn_gate_exps.weight",
    "model.layers.{b}.block_sparse_moe.experts.{e}.w2.weight": "blk.{b}.ffn_down_exps.weight",
    "model.layers.{b}.block_sparse_moe.experts.{e}.w3.weight": "blk.{b}.ffn_up_exps.weight",
}


@family(
    "LlamaForCausalLM",
    "LLaMAForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "LlamaModel",
    "MistralModel",
    arch="llama",
    rules={**bare(LLAMA), **EXPERTS_W},
    extra=llama3_factors,
    dropped=BUFFERS,
    prefix_setting=True,
)
def llama(h: Hyper, k: Keys) -> None:
    """Llama, Mistral (no window: a file of this name has no place for one) and Mixtral."""
    h.must_be("hidden_act", "silu")
    no_window(h, "llama")
    llama_keys(h, k)
    pooling(h, k)


@family("LlamaBidirectionalModel", arch="llama-embed", rules=bare(LLAMA), extra=llama3_factors,
        dropped=BUFFERS, prefix_setting=True)  # fmt: skip
def llama_embed(h: Hyper, k: Keys) -> None:
    """NVIDIA's text embedders (Babakhin et al. 2025): Llama without a head, attention in both
    directions, which the architecture itself says; the folder may.
    """
    h.must_be("hidden_act", "silu")
    h.must_be("is_causal", False)
    llama_keys(h, k)
    if h.get("is_causal") is not None:
        k.flag("attention.causal", False)


@family(
    "InternLM3ForCausalLM",
    arch="llama",
    rules=LLAMA,
    prefix_setting=True,
    special=lambda h, ids: {"eos": ids["<|im_end|>"]} if "<|im_end|>" in ids else {},
)
def internlm3(h: Hyper, k: Keys) -> None:
    """A Llama with biases on request. Dynamic NTK belongs to contexts beyond the trained one."""
    h.must_be("hidden_act", "silu")
    llama_keys(h, k)


@family("SmolLM3ForCausalLM", arch="smollm3", rules=LLAMA, extra=llama3_factors,
        prefix_setting=True)  # fmt: skip
def smollm3(h: Hyper, k: Keys) -> None:
    """Every fourth layer has no rotation; the file does not say so."""
    h.must_be("no_rope_layer_interval", 4)
    h.must_be("no_rope_layers", [int(layer % 4 != 3) for layer in range(h.layers)])
    h.must_be("use_sliding_window", False)
    llama_keys(h, k)


@family("ArceeForCausalLM", arch="arcee", rules=LLAMA, extra=llama3_factors, prefix_setting=True)
def arcee(h: Hyper, k: Keys) -> None:
    h.must_be("hidden_act", "relu2")
    llama_keys(h, k)
    pooling(h, k)


@family("BaichuanForCausalLM", "BaiChuanForCausalLM", arch="baichuan", dropped=BUFFERS, rules={
    **PLAIN,
    "model.layers.{b}.self_attn.W_pack.weight": Rule(
        ("blk.{b}.attn_q.weight", "blk.{b}.attn_k.weight", "blk.{b}.attn_v.weight"), packed_qkv
    ),
})  # fmt: skip
def baichuan(h: Hyper, k: Keys) -> None:
    """Models of 40 layers have ALiBi in place of the rotation; the file does not say so."""
    h.must_be("hidden_act", "silu")
    common(h, k)
    k.text("tensor_data_layout", "Meta AI original pth")
    k.u32("rope.dimension_count", h.hidden // h.heads)


APERTUS: dict[str, str | Rule] = {
    **PLAIN,
    "model.layers.{b}.attention_layernorm.weight": "blk.{b}.attn_norm.weight",
    "model.layers.{b}.feedforward_layernorm.weight": "blk.{b}.ffn_norm.weight",
}


@family("ApertusForCausalLM", arch="apertus", rules=APERTUS, extra=llama3_factors,
        prefix_setting=True, gathered={
            f"model.layers.{{b}}.mlp.act_fn.{name}": f"xielu.{name}"
            for name in ("alpha_n", "alpha_p", "beta", "eps")
        })  # fmt: skip
def apertus(h: Hyper, k: Keys) -> None:
    """xIELU (Huang and Schlag 2024): four numbers a layer, as they were trained (before
    softplus).
    """
    h.must_be("hidden_act", "xielu")
    h.must_be("attention_bias", False)
    llama_keys(h, k)


@family("SeedOssForCausalLM", arch="seed_oss", rules={
    **PLAIN, "model.layers.{b}.post_attention_layernorm.{w}": "blk.{b}.post_attention_norm.{w}",
})  # fmt: skip
def seed_oss(h: Hyper, k: Keys) -> None:
    h.must_be("hidden_act", "silu")
    common(h, k)


@family("Ernie4_5_ForCausalLM", "Ernie4_5ForCausalLM", arch="ernie4_5", rules=PLAIN,
        prefix_setting=True)  # fmt: skip
def ernie4_5(h: Hyper, k: Keys) -> None:
    h.must_be("hidden_act", "silu")
    common(h, k)


@family("HunYuanDenseV1ForCausalLM", arch="hunyuan-dense", rules={
    **PLAIN,
    "model.layers.{b}.self_attn.query_layernorm.weight": "blk.{b}.attn_q_norm.weight",
    "model.layers.{b}.self_attn.key_layernorm.weight": "blk.{b}.attn_k_norm.weight",
}, special=lambda h, ids: (
    {"eos": h.integer("eod_token_id")} if h.get("eod_token_id") is not None else {}
))  # fmt: skip
def hunyuan_dense(h: Hyper, k: Keys) -> None:
    h.must_be("hidden_act", "silu")
    common(h, k)
    for name in ("expert_count", "expert_used_count"):  # a count of 1 stands in dense folders
        k.found.pop(f"{k.arch}.{name}", None)
    stretched_base(h, k, default=50)


@family("Jais2ForCausalLM", arch="jais2", rules=PLAIN)
def jais2(h: Hyper, k: Keys) -> None:
    h.must_be("hidden_act", "relu2")
    common(h, k)
    k.u32("rope.dimension_count", h.head_dim)


@family("NemotronForCausalLM", arch="nemotron", special=lambda h, ids: {"padding": 0, "unknown": 1},
        rules={
            **{
                name.replace("{w}", "weight"): Rule(
                    (to.replace("{w}", "weight"),), plus_one, values=True
                )
                for name, to in PLAIN.items() if name.endswith("norm.{w}") and isinstance(to, str)
            },
            **PLAIN,
        })  # fmt: skip
def nemotron(h: Hyper, k: Keys) -> None:
    """Layer norms that add one, squared ReLU (Parmar et al. 2024)."""
    h.must_be("hidden_act", "relu2")
    common(h, k)
    k.u32("vocab_size", h.integer("vocab_size"))
    k.f32("attention.layer_norm_epsilon", h.number("layer_norm_eps", "norm_epsilon", "norm_eps"))
    rope = h.rope()
    Hyper(rope, f"{h.label}: rope_parameters").must_be("rope_type", "default", "linear")
    k.u32("rope.dimension_count", int(rope.get("partial_rotary_factor", 0.5) * h.head_dim))
    turned = rope.get("factor") if rope["rope_type"] == "linear" else None
    factor = h.get("factor", default=turned)
    k.text("rope.scaling.type", "none" if factor is None else "linear")
    if factor is not None:
        k.f32("rope.scaling.factor", factor)


def granite_keys(h: Hyper, k: Keys) -> None:
    llama_keys(h, k)
    for name, key in (
        ("attention_multiplier", "attention.scale"),
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("logits_scaling", "logit_scale"),
    ):
        if h.get(name) is not None:
            k.f32(key, h.number(name))


@family("GraniteForCausalLM", arch="granite", rules=LLAMA, prefix_setting=True)
def granite(h: Hyper, k: Keys) -> None:
    h.must_be("hidden_act", "silu")
    granite_keys(h, k)


@family(
    "GraniteSWAForCausalLM",
    arch="granite_swa",
    prefix_setting=True,
    rules={**LLAMA, "model.layers.{b}.self_attn.sinks": "blk.{b}.attn_sinks.weight"},
)
def granite_swa(h: Hyper, k: Keys) -> None:
    """Windowed layers, some of them without a rotation."""
    h.must_be("hidden_act", "silu")
    granite_keys(h, k)
    bases = h.get("layer_rope_theta", default=[])
    if not isinstance(bases, list) or any(
        one not in (0, h.rope().get("rope_theta")) for one in bases
    ):
        raise ConvertError(
            f"{h.label}: layer_rope_theta: found {bases!r:.80}, wanted rope_theta or 0 for each of "
            f"{h.layers} layers"
        )
    if 0 in bases:
        k.flags("attention.rope_pattern", [one != 0 for one in bases[: h.layers]])
    windows(h, k, pattern=True)


@family("MiniCPMForCausalLM", arch="minicpm", rules=LLAMA, dropped=BUFFERS, extra=longrope)
def minicpm(h: Hyper, k: Keys) -> None:
    """Scales of Hu et al. 2024 (MiniCPM), section 3: embeddings, residuals by depth, logits."""
    common(h, k)
    k.f32("embedding_scale", h.number("scale_emb"))
    k.f32("residual_scale", h.number("scale_depth") / math.sqrt(h.layers))
    k.f32("logit_scale", h.hidden / h.number("dim_model_base"))


MINICPM3: dict[str, str | Rule] = {
    **{name: to for name, to in PLAIN.items() if "q_proj" not in name},
    "model.layers.{b}.self_attn.q_a_proj.{w}": "blk.{b}.attn_q_a.{w}",
    "model.layers.{b}.self_attn.q_a_layernorm.{w}": "blk.{b}.attn_q_a_norm.{w}",
    "model.layers.{b}.self_attn.q_b_proj.{w}": "blk.{b}.attn_q_b.{w}",
    "model.layers.{b}.self_attn.kv_a_proj_with_mqa.{w}": "blk.{b}.attn_kv_a_mqa.{w}",
    "model.layers.{b}.self_attn.kv_a_layernorm.{w}": "blk.{b}.attn_kv_a_norm.{w}",
    "model.layers.{b}.self_attn.kv_b_proj.{w}": "blk.{b}.attn_kv_b.{w}",
}


@family("MiniCPM3ForCausalLM", arch="minicpm3", rules=MINICPM3, extra=longrope)
def minicpm3(h: Hyper, k: Keys) -> None:
    """Latent attention with all heads kept; scales 12, 1.4 and 256 belong to the name."""
    for name, value in (("scale_emb", 12), ("scale_depth", 1.4), ("dim_model_base", 256)):
        h.must_be(name, value)
    rope = h.integer("qk_rope_head_dim")
    k.u32("context_length", h.integer("max_position_embeddings"))
    k.u32("embedding_length", h.hidden)
    k.u32("block_count", h.layers)
    k.u32("feed_forward_length", h.integer("intermediate_size"))
    k.u32("attention.head_count", h.heads)
    k.u32("attention.head_count_kv", h.kv_heads)
    epsilons(h, k)
    k.u32("vocab_size", h.integer("vocab_size"))
    if h.get("q_lora_rank") is not None:
        k.u32("attention.q_lora_rank", h.integer("q_lora_rank"))
    k.u32("attention.kv_lora_rank", h.integer("kv_lora_rank"))
    k.u32("attention.key_length", h.integer("qk_nope_head_dim") + rope)
    k.u32("rope.dimension_count", rope)


def _qwen(h: Hyper, k: Keys) -> None:
    h.must_be("hidden_act", "silu")
    h.must_be("use_sliding_window", False)
    common(h, k)


@family("Qwen2ForCausalLM", "Qwen2Model", "DotsOCRForCausalLM", arch="qwen2", rules=bare(PLAIN))
def qwen2(h: Hyper, k: Keys) -> None:
    _qwen(h, k)
    pooling(h, k)


def _is_reranker(h: Hyper) -> bool:
    """Whether a Qwen 3 judges documents with yes or no: its class or its name say so."""
    if "SequenceClassification" in str(h.get("architectures")):
        return True
    names = [str(h.get("_name_or_path", default=""))]
    if h.folder is not None:
        names.append(h.folder.path.resolve().name)
    return any(one in name.lower() for name in names
               for one in ("qwen3-reranker", "qwen3-vl-reranker"))  # fmt: skip


def _judging_rows(x: np.ndarray, h: Hyper) -> np.ndarray:
    """The head's rows of the words yes and no."""
    vocabulary: Any = {}
    if h.folder is not None:
        model = h.folder.json("tokenizer.json", required=True).get("model")
        vocabulary = model.get("vocab") if isinstance(model, dict) else {}
    rows = [vocabulary.get(word) for word in ("yes", "no")]
    if not all(isinstance(row, int) and 0 <= row < len(x) for row in rows):
        raise ConvertError(f"{h.label}: a reranker without tokens for yes and no: {rows}")
    return x[np.array(rows, np.int64)]


def _head_and_judge(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, np.ndarray]:
    return x, _judging_rows(x, h)


def _reranker(h: Hyper) -> Family | None:
    if not _is_reranker(h):
        return None
    rules = dict(PLAIN)
    if h.flag("tie_word_embeddings"):
        targets = ("token_embd.weight", "cls.output.weight")
        rules["model.embed_tokens.weight"] = Rule(targets, _head_and_judge)
    else:
        rules.pop("lm_head.{w}")
        rules["lm_head.weight"] = Rule(("cls.output.weight",), _judging_rows)
    return Family("qwen3", rules, _qwen3_reranker)


@family("Qwen3ForCausalLM", "Qwen3Model", "StepVLForConditionalGeneration", arch="qwen3",
        rules=bare(PLAIN), variant=_reranker)  # fmt: skip
def qwen3(h: Hyper, k: Keys) -> None:
    _qwen(h, k)
    pooling(h, k)


# How Qwen publishes that its rerankers are asked.
_QWEN3_JUDGE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "
    "answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def _qwen3_reranker(h: Hyper, k: Keys) -> None:
    _qwen(h, k)
    k.u32("pooling_type", 4)
    k.texts("classifier.output_labels", ["yes", "no"])
    k.found["tokenizer.chat_templates"] = ["rerank"], "array[string]"
    k.found["tokenizer.chat_template.rerank"] = _QWEN3_JUDGE, "string"


def deepstack(h: Hyper, k: Keys) -> None:
    """How many layers take features from deeper in the image encoder."""
    k.u32(
        "n_deepstack_layers",
        len((h.get("vision_config") or {}).get("deepstack_visual_indexes", [])),
    )


@family("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration",
        "Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration",
        "Qwen2_5OmniThinkerForConditionalGeneration", arch="qwen2vl", rules=PLAIN)  # fmt: skip
def qwen2vl(h: Hyper, k: Keys) -> None:
    """The text part."""
    _qwen(h, k)


@family("Qwen3VLForConditionalGeneration", arch="qwen3vl", rules=PLAIN)
def qwen3vl(h: Hyper, k: Keys) -> None:
    """The text part; the layers that take features from deeper in the encoder are counted."""
    _qwen(h, k)
    deepstack(h, k)


# Norms after attention and feed-forward, none before.
NORMS_AFTER: dict[str, str | Rule] = {
    **{name: to for name, to in PLAIN.items() if "input_layernorm" not in name},
    "model.layers.{b}.post_attention_layernorm.{w}": "blk.{b}.post_attention_norm.{w}",
    "model.layers.{b}.post_feedforward_layernorm.{w}": "blk.{b}.post_ffw_norm.{w}",
}


@family(
    "Exaone4ForCausalLM",
    "Exaone4_5_ForConditionalGeneration",
    arch="exaone4",
    rules=NORMS_AFTER,
    extra=llama3_factors,
)
def exaone4(h: Hyper, k: Keys) -> None:
    """Windowed layers turn, global ones do not where there are both (LG AI Research 2025)."""
    h.must_be("hidden_act", "silu")
    common(h, k)
    k.u32("vocab_size", h.integer("vocab_size"))
    if h.get("sliding_window") is None:
        return
    windows(h, k, pattern=False)
    kinds, period = h.strings("layer_types", h.layers), h.get("sliding_window_pattern")
    if kinds is not None:
        windowed = [one == "sliding_attention" for one in kinds]
    elif isinstance(period, str) and period:
        windowed = [period[i % len(period)] == "L" for i in range(h.layers)]
    elif isinstance(period, int) and period > 0:
        windowed = [(i + 1) % period != 0 for i in range(h.layers)]
    else:
        raise ConvertError(
            f"{h.label}: sliding_window_pattern: found {period!r}, wanted which layers have a "
            "window"
        )
    k.flags("attention.sliding_window_pattern", windowed)


@family("Olmo2ForCausalLM", "Olmo3ForCausalLM", arch="olmo2", rules=NORMS_AFTER)
def olmo2(h: Hyper, k: Keys) -> None:
    h.must_be("hidden_act", "silu")
    common(h, k)
    if h.get("sliding_window") is not None:
        windows(h, k, pattern=True)


@family("OlmoForCausalLM", arch="olmo", rules=LLAMA)
def olmo(h: Hyper, k: Keys) -> None:
    """Norms without weights, of a fixed epsilon."""
    common(h, k)
    k.f32("attention.layer_norm_epsilon", 1e-5)
    if h.get("clip_qkv") is not None:
        k.f32("attention.clamp_kqv", h.number("clip_qkv"))


@family("Glm4ForCausalLM", arch="glm4", rules={
    **PLAIN,
    "model.layers.{b}.mlp.gate_up_proj.{w}": "blk.{b}.ffn_up.{w}",
    "model.layers.{b}.post_mlp_layernorm.{w}": "blk.{b}.post_ffw_norm.{w}",
    "model.layers.{b}.post_self_attn_layernorm.{w}": "blk.{b}.post_attention_norm.{w}",
}, special=lambda h, ids: {
    key: ids[text]
    for key, text in (("eos", "<|endoftext|>"), ("eot", "<|user|>"), ("unknown", "<|endoftext|>"),
                      ("bos", "<|endoftext|>"))
    if text in ids
})  # fmt: skip
def glm4(h: Hyper, k: Keys) -> None:
    h.must_be("hidden_act", "silu")
    common(h, k)
    k.u32("rope.dimension_count", partial_rotation(h))


@family("GlmForCausalLM", arch="chatglm", rules={
    **PLAIN, "model.layers.{b}.mlp.gate_up_proj.{w}": "blk.{b}.ffn_up.{w}",
}, special=lambda h, ids: {
    "add_bos": False,
    **{
        key: ids[text]
        for key, text in (
            ("eos?", "<|endoftext|>"), ("eot?", "<|user|>"), ("unknown?", "<|endoftext|>"),
        )
        if text in ids
    },
})  # fmt: skip
def glm(h: Hyper, k: Keys) -> None:
    """GLM 4 as transformers names it. Its base is 10000, times rope_ratio where there is one."""
    h.must_be("hidden_act", "silu")
    base = 10000.0 * h.number("rope_ratio", default=1.0)
    if h.rope().get("rope_theta", base) != base or h.rope()["rope_type"] != "default":
        raise ConvertError(
            f"{h.label}: rope_parameters: a chatglm file has the base {base:g} alone"
        )
    k.u32("context_length", h.integer("seq_length", default=h.hidden))
    k.u32("embedding_length", h.hidden)
    k.u32("feed_forward_length", h.integer("ffn_hidden_size", "intermediate_size"))
    k.u32("block_count", h.layers)
    k.u32("attention.head_count", h.heads)
    k.u32("attention.head_count_kv", h.kv_heads)
    k.f32("attention.layer_norm_rms_epsilon", h.number("rms_norm_eps", default=1e-5))
    width = h.integer("attention_dim", default=h.hidden // h.heads)
    k.u32("rope.dimension_count", int(width * h.rope().get("partial_rotary_factor", 0.5)))
    k.f32("rope.freq_base", base)


@family("StableLmForCausalLM", "StableLMEpochForCausalLM", arch="stablelm", rules={
    **PLAIN,
    "model.layers.{b}.self_attn.q_layernorm.norms.{e}.weight": "blk.{b}.attn_q_norm.weight",
    "model.layers.{b}.self_attn.k_layernorm.norms.{e}.weight": "blk.{b}.attn_k_norm.weight",
})  # fmt: skip
def stablelm(h: Hyper, k: Keys) -> None:
    h.must_be("hidden_act", "silu")
    k.u32("context_length", h.integer("max_position_embeddings"))
    k.u32("embedding_length", h.hidden)
    k.u32("block_count", h.layers)
    k.u32("feed_forward_length", h.integer("intermediate_size"))
    k.u32("rope.dimension_count", partial_rotation(h))
    k.u32("attention.head_count", h.heads)
    k.u32("attention.head_count_kv", h.kv_heads)
    k.flag("use_parallel_residual", h.flag("use_parallel_residual", default=True))
    k.f32("attention.layer_norm_epsilon", h.number("layer_norm_eps", "norm_eps"))
    unusual_rotation(h, k)


@family("CohereForCausalLM", arch="command-r", rules=PLAIN)
def command_r(h: Hyper, k: Keys) -> None:
    """Norms over each head's queries are 2-D in the folder, (heads, dim), and stay so."""
    common(h, k)
    k.f32("logit_scale", h.number("logit_scale"))
    k.text("rope.scaling.type", "none")


@family("Cohere2ForCausalLM", arch="cohere2", rules=PLAIN, meant={
    "layer_types": (4, 3), "sliding_window_pattern": (4,),
})  # fmt: skip
def cohere2(h: Hyper, k: Keys) -> None:
    """Three windowed layers with rotation, one without either; the file does not say so."""
    common(h, k)
    k.f32("logit_scale", h.number("logit_scale"))
    windows(h, k, pattern=False)
    k.u32("vocab_size", h.integer("vocab_size"))
    k.u32("rope.dimension_count", partial_rotation(h))
    k.text("rope.scaling.type", "none")


@family("Starcoder2ForCausalLM", arch="starcoder2", rules={
    **PLAIN,
    "model.layers.{b}.mlp.c_fc.{w}": "blk.{b}.ffn_up.{w}",
    "model.layers.{b}.mlp.c_proj.{w}": "blk.{b}.ffn_down.{w}",
})  # fmt: skip
def starcoder2(h: Hyper, k: Keys) -> None:
    h.must_be("hidden_act", "gelu_pytorch_tanh")
    no_window(h, "starcoder2")
    common(h, k)


INTERNLM2: dict[str, str | Rule] = {
    "model.tok_embeddings.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "output.weight": "output.weight",
    "model.layers.{b}.attention.wo.{w}": "blk.{b}.attn_output.{w}",
    "model.layers.{b}.attention_norm.weight": "blk.{b}.attn_norm.weight",
    "model.layers.{b}.ffn_norm.weight": "blk.{b}.ffn_norm.weight",
    "model.layers.{b}.feed_forward.w1.weight": "blk.{b}.ffn_gate.weight",
    "model.layers.{b}.feed_forward.w2.weight": "blk.{b}.ffn_down.weight",
    "model.layers.{b}.feed_forward.w3.weight": "blk.{b}.ffn_up.weight",
}


def _internlm2_qkv(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, ...]:
    q, k, v = groups_apart(x, h)
    return paired(q, h.heads), paired(k, h.kv_heads), v


@family("InternLM2ForCausalLM", arch="internlm2", add_space_prefix=True, rules={
    **INTERNLM2,
    "model.layers.{b}.attention.wqkv.{w}": Rule(
        ("blk.{b}.attn_q.{w}", "blk.{b}.attn_k.{w}", "blk.{b}.attn_v.{w}"), _internlm2_qkv
    ),
})  # fmt: skip
def internlm2(h: Hyper, k: Keys) -> None:
    h.must_be("hidden_act", "silu")
    common(h, k)
