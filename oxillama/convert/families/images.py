"""The text parts of models of text and images: Chameleon, CogVLM, DeepSeek OCR, HunyuanOCR,
MiniMax M3, Muse Glimmer, PaddleOCR, GLM-4V, and models that wrap a language model of any class:
Idefics 3, InternVL, Janus, LFM2-VL, LightOnOCR, LLaVA (OneVision, Next-Video, ViP), SmolVLM,
VideoLLaMA 3; and audio: Audio Flamingo 3, GLM-ASR, MERaLiON 2, Qwen2-Audio,
Qwen3-ASR, Voxtral.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oxillama.convert.families.dense import LLAMA, PLAIN, glm4, llama_keys
from oxillama.convert.families.experts import ROUTED, SHARED
from oxillama.convert.family import FAMILIES, Family, Hyper, Keys, Rule, family
from oxillama.convert.keys import common, no_further_layers, windows
from oxillama.convert.mtp_layers import MTP
from oxillama.convert.shapes import paired_keys, paired_queries, plus_one
from oxillama.errors import ConvertError


def _paired_each(x: np.ndarray, h: Hyper) -> np.ndarray:
    """A norm of each head, (heads, dim), for a rotation of neighbours."""
    return x.reshape(len(x), 2, -1).swapaxes(1, 2).reshape(x.shape)


@family("ChameleonForConditionalGeneration", "ChameleonForCausalLM", arch="chameleon", rules={
    **LLAMA,
    **{
        f"model.layers.{{b}}.self_attn.{part}_norm.{{w}}":
            Rule((f"blk.{{b}}.attn_{part}_norm.{{w}}",), _paired_each)
        for part in "qk"
    },
})  # fmt: skip
def chameleon(h: Hyper, k: Keys) -> None:
    """Chameleon (Meta 2024); the coder of images is left out."""
    h.must_be("hidden_act", "silu")
    common(h, k)
    k.flag("swin_norm", h.flag("swin_norm"))


_ATTENTION, _NETWORK = "model.layers.{b}.self_attn.", "model.layers.{b}.mlp."


@family("CogVLMForCausalLM", arch="cogvlm", rules={
    **PLAIN,
    **{
        f"{_ATTENTION}{kind}_expert_{theirs}.weight": f"blk.{{b}}.{prefix}{ours}.weight"
        for kind, prefix in (("language", ""), ("vision", "vis_"))
        for theirs, ours in (("query_key_value", "attn_qkv"), ("dense", "attn_output"))
    },
    **{f"{_NETWORK}language_mlp.{part}_proj.weight": f"blk.{{b}}.ffn_{part}.weight"
       for part in ("gate", "up", "down")},
    **{f"{_NETWORK}vision_mlp.{part}_proj.weight": f"blk.{{b}}.vis_{part}.weight"
       for part in ("gate", "up", "down")},
})  # fmt: skip
def cogvlm(h: Hyper, k: Keys) -> None:
    """CogVLM (Wang et al. 2023): rows of images have matrices of their own."""
    h.must_be("hidden_act", "silu")
    llama_keys(h, k)


@family("DeepseekOCRForCausalLM", "DeepseekOCR2ForCausalLM", "UnlimitedOCRForCausalLM",
        arch="deepseek2-ocr", rules={**PLAIN, **ROUTED, **SHARED})  # fmt: skip
def deepseek_ocr(h: Hyper, k: Keys) -> None:
    """DeepSeek-OCR (Wei et al. 2025): DeepSeek's experts under plain attention."""
    h.must_be("use_mla", False)
    common(h if h.get("rms_norm_eps") is not None else h.but(rms_norm_eps=1e-6), k)
    k.u32("leading_dense_block_count", h.integer("first_k_dense_replace", default=0))
    k.u32("vocab_size", h.integer("vocab_size"))
    if h.get("q_lora_rank") is not None:
        k.u32("attention.q_lora_rank", h.integer("q_lora_rank"))
    k.u32("expert_feed_forward_length", h.integer("moe_intermediate_size", "intermediate_size"))
    k.u32("expert_shared_count", h.integer("n_shared_experts", default=0))
    if h.get("routed_scaling_factor") is not None:
        k.f32("expert_weights_scale", h.number("routed_scaling_factor"))
    if h.flag("norm_topk_prob"):
        k.flag("expert_weights_norm", True)
    k.u32("rope.dimension_count", h.integer("qk_rope_head_dim"))
    if h.get("sliding_window_size", "sliding_window"):
        k.u32("attention.sliding_window", h.integer("sliding_window_size", "sliding_window"))
    k.found["tokenizer.chat_template"] = (
        "{% for m in messages %}{{m['content']}}{% endfor %}",
        "string",
    )


@family("HunYuanVLForConditionalGeneration", arch="hunyuan_vl", rules={
    **PLAIN,
    "model.layers.{b}.self_attn.query_layernorm.weight": "blk.{b}.attn_q_norm.weight",
    "model.layers.{b}.self_attn.key_layernorm.weight": "blk.{b}.attn_k_norm.weight",
}, special=lambda h, ids: _ends(h))  # fmt: skip
def hunyuan_vl(h: Hyper, k: Keys) -> None:
    """HunyuanOCR (Tencent 2025): four positions for each token, which turn parts of a head."""
    h.must_be("hidden_act", "silu")
    rope = Hyper(h.rope(), f"{h.label}: rope_parameters")
    sections = rope.get("xdrope_section", "mrope_section")
    if sections is None or rope.get("rope_type") not in ("xdrope", "dynamic"):
        raise ConvertError(
            f"{h.label}: rope_parameters: found {rope.config!r:.120}, wanted xdrope with sections"
        )
    common(h, k)
    for name in ("expert_count", "expert_used_count"):  # a count of 1 stands in dense folders
        k.found.pop(f"{k.arch}.{name}", None)
    k.f32("rope.freq_base", rope.number("rope_theta"))
    k.f32("rope.scaling.alpha", rope.number("alpha"))
    k.text("rope.scaling.type", "none")
    k.f32("rope.scaling.factor", rope.number("factor", default=1.0))
    k.u32("rope.scaling.original_context_length", h.integer("max_position_embeddings"))
    k.integers("rope.dimension_sections", sections)


def _ends(h: Hyper) -> dict[str, int]:
    """What ends a text, and where several tokens end a turn, the first of those."""
    found: dict[str, int] = {}
    if h.get("eod_token_id") is not None:
        found["eos"] = h.integer("eod_token_id")
    ends = h.folder.json("generation_config.json").get("eos_token_id") if h.folder else None
    if isinstance(ends, list) and len(ends) > 1:
        found["eot"] = ends[0]
    return found


@family("PaddleOCRVLForConditionalGeneration", arch="paddleocr", rules=PLAIN, prefix_setting=True)
def paddleocr(h: Hyper, k: Keys) -> None:
    """PaddleOCR-VL (Cui et al. 2025): ERNIE 4.5."""
    h.must_be("hidden_act", "silu")
    common(h, k)


def _norms_one_added(rules: dict[str, str | Rule], end: str) -> dict[str, str | Rule]:
    """The rules, with one added to the weights whose names end so."""
    return {
        name: Rule((to,), plus_one, values=True)
        if isinstance(to, str) and name.endswith(end)
        else to
        for name, to in rules.items()
    }


def _query_gains(h: Hyper) -> dict[str, np.ndarray]:
    """Queries and keys are normed without weights, then queries have a factor."""
    gain = np.full(h.head_dim, h.number("qk_scale_factor"), np.float32)
    found = {}
    for layer in range(h.layers):
        found[f"blk.{layer}.attn_q_norm.weight"] = gain
        found[f"blk.{layer}.attn_k_norm.weight"] = np.ones_like(gain)
    return found


@family("MuseGlimmerForConditionalGeneration", arch="muse-glimmer", extra=_query_gains, rules={
    **PLAIN,
    **_norms_one_added({
        "model.layers.{b}.input_layernorm.weight": "blk.{b}.attn_norm.weight",
        "model.layers.{b}.post_attention_layernorm.weight": "blk.{b}.post_attention_norm.weight",
        "model.layers.{b}.pre_feedforward_layernorm.weight": "blk.{b}.ffn_norm.weight",
        "model.layers.{b}.post_feedforward_layernorm.weight": "blk.{b}.post_ffw_norm.weight",
    }, "layernorm.weight"),
    "model.layers.{b}.self_attn.q_proj.weight": Rule(("blk.{b}.attn_q.weight",), paired_queries),
    "model.layers.{b}.self_attn.k_proj.weight": Rule(("blk.{b}.attn_k.weight",), paired_keys),
    "model.layers.{b}.self_attn.gate_proj.weight": "blk.{b}.attn_gate.weight",
}, special=lambda h, ids: {"eot": ids["<|eot|>"]} if "<|eot|>" in ids else {})  # fmt: skip
def muse_glimmer(h: Hyper, k: Keys) -> None:
    """Muse Glimmer (Meta 2026)."""
    common(h, k)
    k.f32("final_logit_softcapping", h.number("final_logit_softcapping"))
    k.f32("logit_scale", h.number("output_multiplier"))
    windows(h, k, pattern=True)


def _saved_m3(h: Hyper) -> Hyper:
    """The published words for those of transformers 5."""
    width = h.integer("intermediate_size")
    shared = h.integer("shared_intermediate_size")
    if shared % width:
        raise ConvertError(
            f"{h.label}: shared_intermediate_size: found {shared}, wanted a multiple of {width}"
        )
    h.strings("layer_types", h.layers)
    kinds = h.strings("mlp_layer_types", h.layers) or []
    return h.but(
        moe_layer_freq=[int(kind == "sparse") for kind in kinds],
        n_shared_experts=shared // width,
        scoring_func="sigmoid",
        sparse_attention_config={
            "sparse_num_index_heads": h.integer("index_n_heads"),
            "sparse_index_dim": h.integer("index_head_dim"),
            "sparse_topk_blocks": h.integer("index_topk_blocks"),
            "sparse_block_size": h.integer("index_block_size"),
            "sparse_local_block": h.integer("index_local_blocks"),
        },
    )


_MOE = "model.layers.{b}.block_sparse_moe."


@family("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration",
        "MiniMaxM3VLForConditionalGeneration", arch="minimax-m3", meant={
            "hidden_act": ("silu", "swigluoai"), "swiglu_alpha": (1.702,), "swiglu_limit": (7,),
        }, rules=_norms_one_added({
            **{name.replace("{w}", "weight"): str(to).replace("{w}", "weight")
               for name, to in PLAIN.items()},
            _MOE + "gate.weight": "blk.{b}.ffn_gate_inp.weight",
            _MOE + "e_score_correction_bias": "blk.{b}.exp_probs_b.bias",
            **{f"{_MOE}experts.{{e}}.{theirs}.weight": f"blk.{{b}}.ffn_{ours}_exps.weight"
               for theirs, ours in (("w1", "gate"), ("w2", "down"), ("w3", "up"))},
            **{f"{_MOE}shared_experts.{part}_proj.weight": f"blk.{{b}}.ffn_{part}_shexp.weight"
               for part in ("gate", "up", "down")},
            **{f"model.layers.{{b}}.self_attn.index_{part}_{kind}.weight":
                   f"blk.{{b}}.indexer.{part}_{kind}.weight"
               for part in "qk" for kind in ("proj", "norm")},
        }, "norm.weight"))  # fmt: skip
def minimax_m3(h: Hyper, k: Keys) -> None:
    """MiniMax-M3 (2026), whose later layers see the blocks that an index chooses."""
    if h.get("sparse_attention_config") is None and h.get("index_topk_blocks") is not None:
        h = _saved_m3(h)
    common(h, k)
    k.u32("expert_feed_forward_length", h.integer("intermediate_size"))
    k.u32("rope.dimension_count", h.integer("rotary_dim"))
    k.u32("expert_shared_count", h.integer("n_shared_experts"))
    k.f32("expert_weights_scale", h.number("routed_scaling_factor"))
    k.flag("expert_weights_norm", True)
    said = h.get("sparse_attention_config", default={})
    sparse = Hyper(said, f"{h.label}: sparse_attention_config")
    for name, key in (
        ("sparse_num_index_heads", "head_count"),
        ("sparse_index_dim", "key_length"),
        ("sparse_topk_blocks", "top_k"),
        ("sparse_block_size", "block_size"),
        ("sparse_local_block", "local_blocks"),
    ):
        k.u32(f"attention.indexer.{key}", sparse.integer(name))
    kinds = h.get("moe_layer_freq")
    if not isinstance(kinds, list) or len(kinds) < h.layers or set(kinds) - {0, 1}:
        raise ConvertError(
            f"{h.label}: moe_layer_freq: found {kinds!r:.80}, wanted 0 or 1 for each layer"
        )
    k.u32("leading_dense_block_count", (kinds + [1]).index(1))


# the class of a language model in a wrapper, by its `model_type`
_WRAPPED = {
    "gemma2": "Gemma2ForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


def _wrapped(h: Hyper) -> Family:
    kind = h.get("model_type")
    if kind not in _WRAPPED:
        raise ConvertError(
            f"{h.label}: text_config: model_type: found {kind!r:.80}, wanted one of "
            f"{', '.join(_WRAPPED)}"
        )
    made = FAMILIES[_WRAPPED[kind]]
    return made.variant(h) or made


@family("Idefics3ForConditionalGeneration", "InternVLForConditionalGeneration",
        "AudioFlamingo3ForConditionalGeneration", "GlmAsrForConditionalGeneration", "GlmasrModel",
        "JanusForConditionalGeneration", "Lfm2VlForConditionalGeneration",
        "LightOnOcrForConditionalGeneration", "LightOnOCRForConditionalGeneration",
        "LlavaForConditionalGeneration", "LlavaNextForConditionalGeneration",
        "LlavaNextVideoForConditionalGeneration", "LlavaOnevisionForConditionalGeneration",
        "MERaLiON2ForConditionalGeneration", "Qwen2AudioForConditionalGeneration",
        "Qwen3ASRForConditionalGeneration",
        "SmolVLMForConditionalGeneration", "VideoLlama3ForConditionalGeneration",
        "VipLlavaForConditionalGeneration", "VoxtralForConditionalGeneration", arch="llama",
        rules={}, variant=_wrapped,
        others=("gemma2", "granite", "granitehybrid", "lfm2", "lfm2moe", "phi3", "qwen2", "qwen3",
                "qwen3moe"))  # fmt: skip
def wrapper(h: Hyper, k: Keys) -> None:
    """A language model beside an encoder of images or audio: the family is its own."""


def _granite_speech(h: Hyper) -> Family:
    return replace(_wrapped(h), beside=("encoder.", "model.encoder."), patterns=[])


@family("GraniteSpeechForConditionalGeneration", arch="granite", rules={},
        variant=_granite_speech, others=("granitehybrid", "granitemoe"))  # fmt: skip
def granite_speech(h: Hyper, k: Keys) -> None:
    """The language model of Granite Speech, whose encoder has the name of others' parts of text."""


def _rotated(x: np.ndarray, h: Hyper, heads: int) -> np.ndarray:
    """Rows of heads whose rotation turns neighbours, reordered for one that turns halves: the
    rotated part of each head.
    """
    rows = x.reshape(heads, -1, *x.shape[1:])
    turned = int(h.rope().get("partial_rotary_factor", 0.5) * rows.shape[1])
    parts = (rows[:, :turned:2], rows[:, 1:turned:2], rows[:, turned:])
    return np.concatenate(parts, axis=1).reshape(x.shape)


@family("Glm4vForConditionalGeneration", "GlmOcrForConditionalGeneration", arch="glm4", rules={
    **FAMILIES["Glm4ForCausalLM"].rules,
    "model.layers.{b}.self_attn.q_proj.{w}":
        Rule(("blk.{b}.attn_q.{w}",), lambda x, h: _rotated(x, h, h.heads)),
    "model.layers.{b}.self_attn.k_proj.{w}":
        Rule(("blk.{b}.attn_k.{w}",), lambda x, h: _rotated(x, h, h.kv_heads)),
}, special=FAMILIES["Glm4ForCausalLM"].special, mtp=MTP)  # fmt: skip
def glm4v(h: Hyper, k: Keys) -> None:
    """GLM-4.1V and GLM-OCR: each of three positions turns its part of the pairs."""
    if "mrope_section" not in h.rope():
        raise ConvertError(f"{h.label}: rope_parameters: mrope_section is missing, wanted it")
    glm4(h, k)
    no_further_layers(h, k)


@family("Glm4vMoeForConditionalGeneration", arch="glm4moe",
        rules=FAMILIES["Glm4MoeForCausalLM"].rules,
        special=FAMILIES["Glm4MoeForCausalLM"].special, mtp=MTP)  # fmt: skip
def glm4v_moe(h: Hyper, k: Keys) -> None:
    """GLM-4.5V."""
    FAMILIES["Glm4MoeForCausalLM"].keys(h, k)


def _glm46v(h: Hyper) -> Family:
    kinds = {"glm4v_text": "Glm4v", "glm4v_moe_text": "Glm4vMoe"}
    kind = h.get("model_type")
    if kind not in kinds:
        raise ConvertError(
            f"{h.label}: text_config: model_type: found {kind!r:.80}, wanted one of "
            f"{', '.join(kinds)}"
        )
    return FAMILIES[f"{kinds[kind]}ForConditionalGeneration"]


@family("Glm46VForConditionalGeneration", arch="glm4moe", rules={}, variant=_glm46v,
        others=("glm4",))  # fmt: skip
def glm46v(h: Hyper, k: Keys) -> None:
    """GLM-4.6V is GLM-4.5V, and its Flash is GLM-4.1V."""


def _granite_vision(h: Hyper) -> Family:
    """The family of the language model, whose layers read features of an image."""
    kind = h.get("model_type")
    names = {"granite": "Granite", "granite4_vision_text": "Granite"}
    names["granitemoehybrid"] = "GraniteMoeHybrid"
    if kind not in names:
        raise ConvertError(
            f"{h.label}: text_config: model_type: found {kind!r:.80}, wanted one of "
            f"{', '.join(names)}"
        )
    made = FAMILIES[f"{names[kind]}ForCausalLM"]
    made = made.variant(h) or made
    wanted = FAMILIES["GraniteForCausalLM"].arch
    if made.arch != wanted:
        raise ConvertError(
            f"{h.label}: text_config: found a model of {made.arch}, wanted one of {wanted}, whose "
            "files say which layers read an image"
        )

    def keys(h: Hyper, k: Keys) -> None:
        made.keys(h, k)
        k.integers("deepstack_mapping", _reading_layers(h))

    return replace(made, keys=keys, patterns=[])


def _reading_layers(h: Hyper) -> list[int]:
    """Which projector's features each layer reads, -1 for none: those of the first one are the
    image's own rows. The encoder's file has them in the order of those layers.
    """
    pairs = h.get("deepstack_layer_map", default=[])
    if not isinstance(pairs, list) or any(not isinstance(one, list) or len(one) != 2
                                          for one in pairs):  # fmt: skip
        raise ConvertError(
            f"{h.label}: deepstack_layer_map: found {pairs!r:.80}, wanted pairs of layers"
        )
    targets = [*(one[1] for one in pairs), *h.get("spatial_target_layers", default=[])]
    if any(isinstance(one, bool) or one not in range(-h.layers, h.layers) for one in targets):
        raise ConvertError(
            f"{h.label}: deepstack_layer_map, spatial_target_layers: found {targets!r:.80}, wanted "
            f"-{h.layers} to {h.layers - 1}"
        )
    order = sorted(one % h.layers for one in targets)
    if len(set(order)) < len(order):
        raise ConvertError(
            f"{h.label}: deepstack_layer_map, spatial_target_layers: found {targets!r:.80}, wanted "
            "a layer for each projector"
        )
    found = [-1] * h.layers
    for number, layer in enumerate(order[1:], 1):
        found[layer] = number
    return found


@family("Granite4VisionForConditionalGeneration", arch="granite", rules={},
        variant=_granite_vision)  # fmt: skip
def granite4_vision(h: Hyper, k: Keys) -> None:
    """Granite Vision 4 (IBM 2026)."""
