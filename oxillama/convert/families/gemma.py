"""Gemma: norms that add one until 3, per-layer inputs and shared keys after."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np

from oxillama.convert.families.dense import PLAIN, bare
from oxillama.convert.family import Hyper, Keys, Rule, family
from oxillama.convert.keys import (
    common,
    epsilons,
    rotation,
    sizes,
    unusual_rotation,
    windows,
)
from oxillama.convert.modules import dense_modules, pooling
from oxillama.convert.shapes import plus_one
from oxillama.errors import ConvertError


def _one_added(rules: dict) -> dict:
    return {
        name: Rule((to,), plus_one, values=True) if "norm" in name else to
        for name, to in rules.items()
    }


GEMMA: dict[str, str | Rule] = _one_added(PLAIN)
GEMMA2: dict[str, str | Rule] = _one_added({
    **PLAIN,
    "model.layers.{b}.post_attention_layernorm.{w}": "blk.{b}.post_attention_norm.{w}",
    "model.layers.{b}.pre_feedforward_layernorm.{w}": "blk.{b}.ffn_norm.{w}",
    "model.layers.{b}.post_feedforward_layernorm.{w}": "blk.{b}.post_ffw_norm.{w}",
})  # fmt: skip


def _gemma_keys(h: Hyper, k: Keys) -> None:
    k.u32("context_length", h.integer("max_position_embeddings"))
    k.u32("embedding_length", h.hidden)
    k.u32("block_count", h.layers)
    k.u32("feed_forward_length", h.integer("intermediate_size"))
    k.u32("attention.head_count", h.heads)
    k.u32("attention.head_count_kv", h.kv_heads)
    epsilons(h, k)
    k.u32("attention.key_length", h.integer("head_dim"))
    k.u32("attention.value_length", h.integer("head_dim"))


def _query_scale(h: Hyper, layers_27b: int) -> None:
    """No key carries the scale of queries: readers take the head size, or of the 27B model hidden
    size / heads.
    """
    wide = h.layers == layers_27b
    h.must_be("query_pre_attn_scalar", h.hidden // h.heads if wide else h.integer("head_dim"))


# "gelu" is what early folders of Gemma call the same
GELU: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("gelu_pytorch_tanh", "gelu"), "hidden_activation": ("gelu_pytorch_tanh",),
}  # fmt: skip


@family("GemmaForCausalLM", arch="gemma", rules=GEMMA, add_space_prefix=False, meant=GELU,
        special=lambda h, ids: {"eot": 107})  # fmt: skip
def gemma(h: Hyper, k: Keys) -> None:
    _gemma_keys(h, k)
    unusual_rotation(h, k)


@family("Gemma2ForCausalLM", "Gemma2Model", arch="gemma2", rules=bare(GEMMA2),
        add_space_prefix=False,
        meant={**GELU, "layer_types": (2, 1)})  # fmt: skip
def gemma2(h: Hyper, k: Keys) -> None:
    _query_scale(h, layers_27b=46)
    _gemma_keys(h, k)
    unusual_rotation(h, k)
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if name in h.config:  # null: no cap, where files that do not say it have one
            k.f32(name, h.number(name, default=0.0))
    windows(h, k, pattern=False)
    pooling(h, k)


GEMMA3 = {**GELU, "layer_types": (6, 5)}


@family("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", arch="gemma3", rules=GEMMA2,
        add_space_prefix=False, meant=GEMMA3)  # fmt: skip
def gemma3(h: Hyper, k: Keys) -> None:
    """Five windowed layers, then a global one, with separate rope bases."""
    _query_scale(h, layers_27b=62)
    h.must_be("_sliding_window_pattern", 6)
    h.must_be("sliding_window_pattern", 6)
    sizes(h, k)
    _rotation_and_heads(h, k)
    windows(h, k, pattern=False)


_DENSE = {"2_Dense": "dense_2", "3_Dense": "dense_3"}


def _dense(h: Hyper) -> dict[str, np.ndarray]:
    return dense_modules(h, _DENSE)


@family("Gemma3TextModel", arch="gemma-embedding", add_space_prefix=False, extra=_dense,
        meant=GEMMA3, rules=bare(GEMMA2))  # fmt: skip
def gemma_embedding(h: Hyper, k: Keys) -> None:
    """EmbeddingGemma: attention both ways, a mean, then linear layers."""
    h.must_be("use_bidirectional_attention", True)
    gemma3(h, k)
    for name, weight in _dense(h).items():
        k.u32(name.replace(".weight", "_feat_in"), weight.shape[1])
        k.u32(name.replace(".weight", "_feat_out"), weight.shape[0])
    pooling(h, k)


def _padded(x: np.ndarray, h: Hyper) -> np.ndarray:
    """Rows of zeros for the tokens of images and sound."""
    missing = h.integer("vocab_size") - len(x)
    return np.concatenate([x, np.zeros((missing, *x.shape[1:]), x.dtype)]) if missing > 0 else x


# Inputs of each layer, which Gemma 3n and the small Gemma 4 have.
LAYER_INPUTS: dict[str, str | Rule] = {
    "model.embed_tokens_per_layer.weight": Rule(("per_layer_token_embd.weight",), _padded),
    "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
    "model.layers.{b}.per_layer_input_gate.weight": "blk.{b}.inp_gate.weight",
    "model.layers.{b}.per_layer_projection.weight": "blk.{b}.proj.weight",
    "model.layers.{b}.post_per_layer_input_norm.weight": "blk.{b}.post_norm.weight",
}
NORMS_AROUND: dict[str, str | Rule] = {
    **PLAIN,
    "model.layers.{b}.post_attention_layernorm.weight": "blk.{b}.post_attention_norm.weight",
    "model.layers.{b}.pre_feedforward_layernorm.weight": "blk.{b}.ffn_norm.weight",
    "model.layers.{b}.post_feedforward_layernorm.weight": "blk.{b}.post_ffw_norm.weight",
}
NORMS_AROUND.pop("model.layers.{b}.post_attention_layernorm.{w}")


@family("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration", arch="gemma3n",
        add_space_prefix=False, meant={**GELU, "altup_correct_scale": (True,)}, rules={
            **NORMS_AROUND,
            **LAYER_INPUTS,
            "model.embed_tokens.weight": Rule(("token_embd.weight",), _padded),
            "model.altup_projections.{e}.weight": "altup_proj.weight",
            "model.altup_unembed_projections.{e}.weight": "altup_unembd_proj.weight",
            "model.layers.{b}.altup.correct_output_scale": "blk.{b}.altup_correct_scale.weight",
            "model.layers.{b}.altup.correction_coefs.weight": "blk.{b}.altup_correct_coef.weight",
            "model.layers.{b}.altup.prediction_coefs.weight": "blk.{b}.altup_predict_coef.weight",
            "model.layers.{b}.altup.modality_router.weight": "blk.{b}.altup_router.weight",
            "model.layers.{b}.altup.router_norm.weight": "blk.{b}.altup_router_norm.weight",
            "model.layers.{b}.laurel.linear_left.weight": "blk.{b}.laurel_l.weight",
            "model.layers.{b}.laurel.linear_right.weight": "blk.{b}.laurel_r.weight",
            "model.layers.{b}.laurel.post_laurel_norm.weight": "blk.{b}.laurel_post_norm.weight",
        })  # fmt: skip
def gemma3n(h: Hyper, k: Keys) -> None:
    """Four streams that are predicted and corrected (AltUp), a low-rank residual (LAuReL), inputs
    of each layer, sparse gates in early layers: their threshold in standard deviations.
    """
    h.must_be("hidden_activation", "gelu_pytorch_tanh")
    h.must_be("altup_num_inputs", 4)
    widths = h.get("intermediate_size")
    sizes(h.but("intermediate_size"), k)
    if isinstance(widths, list):
        k.integers("feed_forward_length", widths)
    else:
        k.u32("feed_forward_length", h.integer("intermediate_size"))
    _rotation_and_heads(h, k)
    k.u32("altup.active_idx", h.integer("altup_active_idx"))
    k.u32("altup.num_inputs", h.integer("altup_num_inputs"))
    k.u32("embedding_length_per_layer_input", h.integer("hidden_size_per_layer_input"))
    k.u32("attention.shared_kv_layers", h.integer("num_kv_shared_layers"))
    shares = h.get("activation_sparsity_pattern")
    shares = shares if isinstance(shares, list) else [shares] * h.layers
    if len(shares) != h.layers or not all(
        isinstance(one, (int, float)) and 0 <= one < 1 for one in shares
    ):
        raise ConvertError(
            f"{h.label}: activation_sparsity_pattern: found {shares!r:.80}, wanted shares from 0"
        )
    k.floats("activation_sparsity_scale", [_deviations(one) for one in shares])
    windows(h, k, pattern=True)


def _deviations(share: float) -> float:
    """The standard deviations under which this share of a normal distribution lies (float32)."""
    twice = np.float32(2) * np.float32(share) - np.float32(1)
    if twice <= -1:
        return -np.inf
    inverse = NormalDist().inv_cdf((float(twice) + 1) / 2) / np.sqrt(2)
    return float(np.float32(inverse) * np.float32(np.sqrt(2)))


def _rotation_and_heads(h: Hyper, k: Keys) -> None:
    rotation(h, k)
    epsilons(h, k)
    k.u32("attention.key_length", h.integer("head_dim", default=256))
    k.u32("attention.value_length", h.integer("head_dim", default=256))
    if h.get("final_logit_softcapping") is not None:
        k.f32("final_logit_softcapping", h.number("final_logit_softcapping"))


def _of_global_layers(h: Hyper, name: str, key: str) -> int | None:
    """A size that global layers have of their own: a key, or the layers' own entries."""
    if h.get(name) is not None:
        return h.integer(name)
    kinds = h.strings("layer_types", h.layers) or []
    listed = h.get("per_layer_config", default={})
    found = {
        listed.get(str(layer), {}).get(key)
        for layer, kind in enumerate(kinds) if kind == "full_attention"
    }  # fmt: skip
    if len(found) > 1:
        raise ConvertError(f"{h.label}: per_layer_config: {key} differs among global layers")
    return next(iter(found), None)


def _proportional(h: Hyper) -> dict[str, np.ndarray]:
    """Global layers rotate a part of each head: the frequencies of the rest are divided by a number
    so large that they do not rotate.
    """
    rope = Hyper(h.rope(), f"{h.label}: rope_parameters")
    rope.must_be("rope_type", "proportional")
    size = _of_global_layers(h, "global_head_dim", "head_dim") or h.integer("head_dim")
    turned = int(size * rope.number("partial_rotary_factor") / 2)
    return {
        "rope_freqs.weight": np.repeat(
            np.array([1, 1e30], np.float32), [turned, size // 2 - turned]
        )
    }


# Gemma 4's layers, whose norms are as they are.
GEMMA4: dict[str, str | Rule] = {
    **NORMS_AROUND,
    "model.layers.{b}.layer_scalar": "blk.{b}.layer_output_scale.weight",
}


@family("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForCausalLM",
        "Gemma4UnifiedForConditionalGeneration", arch="gemma4", extra=_proportional,
        vocabulary="gemma4", add_space_prefix=False, special=lambda h, ids: {"add_bos": True},
        # tokens of one image see one another, which prompts with images say
        meant={**GELU, "use_bidirectional_attention": (False, "vision")},
        rules={
            **GEMMA4,
            **LAYER_INPUTS,
            "model.layers.{b}.post_feedforward_layernorm_1.weight":
                "blk.{b}.post_ffw_norm_1.weight",
            "model.layers.{b}.post_feedforward_layernorm_2.weight":
                "blk.{b}.post_ffw_norm_2.weight",
            "model.layers.{b}.pre_feedforward_layernorm_2.weight":
                "blk.{b}.pre_ffw_norm_2.weight",
            "model.layers.{b}.router.proj.weight": "blk.{b}.ffn_gate_inp.weight",
            "model.layers.{b}.router.scale": "blk.{b}.ffn_gate_inp.scale",
            "model.layers.{b}.router.per_expert_scale": "blk.{b}.ffn_down_exps.scale",
            "model.layers.{b}.experts.gate_up_proj": "blk.{b}.ffn_gate_up_exps.weight",
            "model.layers.{b}.experts.down_proj": "blk.{b}.ffn_down_exps.weight",
        })  # fmt: skip
def gemma4(h: Hyper, k: Keys) -> None:
    """Dense, with per-layer inputs (E), or with experts in addition to a dense feed-forward
    network. Global layers have heads of another size and, on request, keys as values.
    """
    h.must_be("hidden_activation", "gelu_pytorch_tanh")
    h.must_be("attention_bias", False)
    common(h, k)
    if h.get("final_logit_softcapping") is not None:
        k.f32("final_logit_softcapping", h.number("final_logit_softcapping"))
    windows(h, k, pattern=True)
    shared, local = h.integer("num_kv_shared_layers", default=0), h.integer("head_dim")
    whole = _of_global_layers(h, "global_head_dim", "head_dim") or local
    k.u32("attention.shared_kv_layers", shared)
    k.u32("embedding_length_per_layer_input", h.integer("hidden_size_per_layer_input", default=0))
    k.u32("attention.key_length", whole)
    k.u32("attention.value_length", whole)
    k.u32("attention.key_length_swa", local)
    k.u32("attention.value_length_swa", local)
    if h.get("expert_intermediate_size", "moe_intermediate_size") is not None:
        k.u32(
            "expert_feed_forward_length",
            h.integer("expert_intermediate_size", "moe_intermediate_size"),
        )
    if h.flag("use_double_wide_mlp"):
        width, first = h.integer("intermediate_size"), h.layers - shared
        k.integers("feed_forward_length", [
            width if layer < first else 2 * width for layer in range(h.layers)
        ])  # fmt: skip
    heads = _of_global_layers(h, "num_global_key_value_heads", "num_key_value_heads")
    if heads is not None:
        windowed, _ = k.found[f"{k.arch}.attention.sliding_window_pattern"]
        k.integers("attention.head_count_kv", [h.kv_heads if one else heads for one in windowed])
    k.u32("rope.dimension_count", whole)
    share = h.rope("sliding_attention").get("partial_rotary_factor", 1.0)
    k.u32("rope.dimension_count_swa", int(local * share))


@family("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM", arch="gemma4-assistant",
        extra=_proportional, vocabulary="gemma4", add_space_prefix=False,
        special=lambda h, ids: {"add_bos": True},
        meant={**GELU, "use_bidirectional_attention": (False, "vision")},
        # clusters of the vocabulary: a file's output is over all of it
        dropped=("masked_embedding.centroids.weight", "masked_embedding.token_ordering"),
        rules={
            **GEMMA4,
            "pre_projection.weight": "nextn.pre_projection.weight",
            "post_projection.weight": "nextn.post_projection.weight",
        })  # fmt: skip
def gemma4_assistant(h: Hyper, k: Keys) -> None:
    """Layers of queries over a target's keys, between projections of the target's rows."""
    h.must_be("num_kv_shared_layers", 0, h.layers)
    h.must_be("hidden_size_per_layer_input", 0)
    h.must_be("enable_moe_block", False)
    h.must_be("use_double_wide_mlp", False)
    gemma4(h.but(num_kv_shared_layers=h.layers), k)
    k.u32("embedding_length_out", h.integer("backbone_hidden_size"))
    k.u32("nextn_predict_layers", h.layers)
