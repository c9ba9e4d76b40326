"""Hyper-parameters that many families share, from config.json to GGUF keys.

Names and meanings of the keys: the GGUF specification (docs/gguf.md of ggml).
"""

from __future__ import annotations

import math

import numpy as np

from oxillama.convert.family import LOCAL_BASES, Hyper, Keys
from oxillama.errors import ConvertError

SOFTMAX, SIGMOID, SQRT_SOFTPLUS = 1, 2, 4  # expert_gating_func


def sizes(h: Hyper, k: Keys) -> None:
    """Layers, context, widths and heads."""
    k.u32("block_count", h.blocks)
    k.u32(
        "context_length",
        h.integer(
            *("max_position_embeddings", "n_ctx", "n_positions", "max_seq_len", "seq_length"),
            *("max_length", "max_sequence_length", "model_max_length"),
        ),
    )
    k.u32("embedding_length", h.hidden)
    width = h.integer(
        *("prefix_dense_intermediate_size", "dense_intermediate_size", "intermediate_size"),
        *("n_inner", "ffn_hidden_size"),
        default=None,
    )
    if width is not None:
        k.u32("feed_forward_length", width)
    k.u32("attention.head_count", h.heads)
    k.u32("attention.head_count_kv", h.kv_heads)


def epsilons(h: Hyper, k: Keys) -> None:
    """What norms add under their roots."""
    rms = h.number("rms_norm_eps", default=None)
    if rms is None and h.get("norm_eps") is not None:
        rms = h.number("norm_eps")
    if rms is not None:
        k.f32("attention.layer_norm_rms_epsilon", rms)
    layer = h.number("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", default=None)
    if layer is not None:
        k.f32("attention.layer_norm_epsilon", layer)


def rotation(h: Hyper, k: Keys) -> None:
    """Base and scaling of the rotation; of windowed layers too where they have their own."""
    rope = h.rope()
    kind = rope["rope_type"]
    if "mrope_section" in rope:
        sections = list(rope["mrope_section"])
        k.integers("rope.dimension_sections", sections + [0] * (4 - len(sections)))
    if kind in ("linear", "yarn"):
        k.text("rope.scaling.type", kind)
        k.f32("rope.scaling.factor", _number(h, rope, "factor"))
        if kind == "yarn":
            _yarn(h, k, rope)
    elif kind in ("longrope", "su"):
        k.text("rope.scaling.type", "longrope")
    elif kind not in ("default", "llama3", "dynamic", "xdrope", "mrope", "proportional"):
        raise ConvertError(
            f"{h.label}: rope_type: found {kind!r:.80}, wanted one that GGUF files know"
        )
    if "rope_theta" in rope:
        k.f32("rope.freq_base", _number(h, rope, "rope_theta"))
    if any(isinstance(v, dict) for v in (h.get("rope_parameters") or {}).values()):
        local = h.rope("sliding_attention")
        if "rope_theta" in local:
            k.f32("rope.freq_base_swa", _number(h, local, "rope_theta"))
    elif h.get(*LOCAL_BASES) is not None:
        k.f32("rope.freq_base_swa", h.number(*LOCAL_BASES))


def unusual_rotation(h: Hyper, k: Keys) -> None:
    """Base and scaling of the rotation, of families whose files say them where they are not the
    usual ones: 10000, and none.
    """
    made = Keys(k.arch)
    rotation(h, made)
    base = f"{k.arch}.rope.freq_base"
    if made.found.get(base) == (10000.0, "float32"):
        del made.found[base]
    k.found.update(made.found)


def _number(h: Hyper, rope: dict, name: str) -> float:
    return Hyper(rope, f"{h.label}: rope_parameters").number(name)


def _yarn(h: Hyper, k: Keys, rope: dict) -> None:
    original = rope.get("original_max_position_embeddings")
    if original is None:
        raise ConvertError(f"{h.label}: rope_parameters: yarn without its original context")
    k.u32("rope.scaling.original_context_length", int(original))
    whole = _magnitude(h, rope)
    if whole is not None:
        rope = {**rope, "attn_factor": whole / yarn_magnitude(_number(h, rope, "factor"))}
    for name, key in (
        ("extrapolation_factor", "ext_factor"),
        ("attn_factor", "attn_factor"),
        ("beta_fast", "beta_fast"),
        ("beta_slow", "beta_slow"),
    ):
        if rope.get(name) is not None:
            k.f32(f"rope.scaling.yarn_{key}", _number(h, rope, name))
    if not Hyper(rope, f"{h.label}: rope_parameters").flag("truncate", default=True):
        k.flag("rope.scaling.yarn_truncate", False)


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """What YaRN multiplies queries and keys by (Peng et al. 2023, section 3.4)."""
    return 1.0 + 0.1 * scale * math.log(factor) if factor > 1.0 else 1.0


def _magnitude(h: Hyper, rope: dict) -> float | None:
    """The magnitude that a configuration gives as a whole, or as two scales; None where it is the
    usual one. That of files is multiplied by it.
    """
    factor, usual = _number(h, rope, "factor"), yarn_magnitude(_number(h, rope, "factor"))
    if rope.get("attention_factor") is not None:
        found = _number(h, rope, "attention_factor")
    elif rope.get("mscale") and rope.get("mscale_all_dim"):
        scales = (_number(h, rope, name) for name in ("mscale", "mscale_all_dim"))
        over, under = (yarn_magnitude(factor, scale) for scale in scales)
        found = over / under
    else:
        return None
    return None if abs(found - usual) <= 1e-6 * usual else found


def log_multiplier(h: Hyper, k: Keys, *, times: float, over: float | None = None) -> None:
    """YaRN's magnitude by its logarithm (`mscale_all_dim`), of families that apply it themselves:
    times it in the file. The other scale must be `over`, or else the same.
    """
    rope = h.rope()
    log = rope.get("mscale_all_dim")
    if not log:
        return
    wanted = log if over is None else over
    said = Hyper(rope, f"{h.label}: rope_parameters")
    said.must_be("mscale", wanted)
    if rope.get("attention_factor") is not None:  # it would rule over both
        factor = _number(h, rope, "factor")
        said.must_be(
            "attention_factor", yarn_magnitude(factor, wanted) / yarn_magnitude(factor, log)
        )
    k.found.pop(f"{k.arch}.rope.scaling.yarn_attn_factor", None)
    k.f32("rope.scaling.yarn_log_multiplier", times * _number(h, rope, "mscale_all_dim"))


def experts(h: Hyper, k: Keys) -> None:
    """Experts, those used, groups and the function of their scores."""
    count = h.integer("num_local_experts", "num_experts", "n_routed_experts", default=None)
    if count:
        k.u32("expert_count", count)
        used = h.get("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts")
        if isinstance(used, int):
            k.u32("expert_used_count", used)
    if h.get("n_group") is not None:
        k.u32("expert_group_count", h.integer("n_group"))
    if h.get("topk_group") is not None:
        k.u32("expert_group_used_count", h.integer("topk_group"))
    scoring = h.get(
        "score_function",
        "scoring_func",
        "score_func",
        "moe_router_activation",
        "moe_router_activation_func",
        "expert_selection_fn",
    )
    if scoring is not None:
        known = {"softmax": SOFTMAX, "sigmoid": SIGMOID, "sqrtsoftplus": SQRT_SOFTPLUS}
        if scoring not in known:
            raise ConvertError(
                f"{h.label}: scoring_func: found {scoring!r:.80}, wanted {' or '.join(known)}"
            )
        k.u32("expert_gating_func", known[scoring])


def common(h: Hyper, k: Keys) -> None:
    """Everything that a plain decoder's file says."""
    sizes(h, k)
    rotation(h, k)
    epsilons(h, k)
    experts(h, k)
    if h.get("head_dim") is not None:
        k.u32("attention.key_length", h.integer("head_dim"))
        k.u32("attention.value_length", h.integer("head_dim"))


def no_further_layers(h: Hyper, k: Keys) -> None:
    """Of layers that predict further tokens, which the converter counts where there are any: a
    count of 0 in the folder stands in the file too.
    """
    if h.get("num_nextn_predict_layers") == 0:
        k.u32("nextn_predict_layers", 0)


def windows(h: Hyper, k: Keys, *, pattern: bool) -> None:
    """The sliding window, and (pattern) which layers have it."""
    k.u32("attention.sliding_window", h.integer("sliding_window"))
    if pattern:
        kinds = h.strings("layer_types", h.layers, h.blocks) or []
        k.flags("attention.sliding_window_pattern", [one == "sliding_attention" for one in kinds])


def partial_rotation(h: Hyper) -> int:
    """Dimensions of a head that are rotated."""
    share = h.rope().get("partial_rotary_factor", h.get("rotary_pct", default=1.0))
    return int(share * h.head_dim)


def llama3_factors(h: Hyper) -> dict[str, np.ndarray]:
    """`rope_freqs.weight`: what each frequency is divided by (Llama 3.1's scaling), where asked."""
    rope = h.rope()
    if rope["rope_type"] != "llama3":
        return {}
    one = np.float32(1)
    factor, low = (np.float32(_number(h, rope, name)) for name in ("factor", "low_freq_factor"))
    high = np.float32(_number(h, rope, "high_freq_factor"))
    context = np.float32(_number(h, rope, "original_max_position_embeddings"))
    half = np.arange(0, h.head_dim, 2, dtype=np.float32) / np.float32(h.head_dim)
    frequencies = one / np.float32(_number(h, rope, "rope_theta")) ** half
    wavelengths = np.float32(2 * math.pi) * (one / frequencies)  # rounded as other files are
    smooth = (context * (one / wavelengths) - low) / (high - low)
    between = one / ((one - smooth) / factor + smooth)
    factors = np.where(
        wavelengths < context / high, one, np.where(wavelengths > context / low, factor, between)
    )
    return {"rope_freqs.weight": factors.astype(np.float32)}


def longrope(h: Hyper) -> dict[str, np.ndarray]:
    """The factors of LongRoPE (Ding et al. 2024) for short and long sequences, where asked."""
    rope = h.rope()
    if rope["rope_type"] not in ("longrope", "su"):
        return {}
    found = {}
    for name in ("long", "short"):
        factors = np.asarray(rope.get(f"{name}_factor"), np.float32)
        if factors.shape != (partial_rotation(h) // 2,) or not np.isfinite(factors).all():
            raise ConvertError(
                f"{h.label}: rope_parameters: {name}_factor has shape {factors.shape}, "
                f"wanted {partial_rotation(h) // 2} numbers"
            )
        found[f"rope_factors_{name}.weight"] = factors
    return found


def no_window(h: Hyper, arch: str) -> None:
    """ConvertError for a window within the context: files of these families have no place for
    it.
    """
    window = h.integer("sliding_window", default=None)
    if window is not None and window < h.integer("max_position_embeddings"):
        raise ConvertError(
            f"{h.label}: sliding_window: found {window}, a file of {arch} has no window"
        )


def stretched_base(h: Hyper, k: Keys, *, default: float) -> None:
    """HunYuan's dynamic NTK: the base of a context 256 Ki long, base * alpha ** (d / (d - 2))."""
    rope = h.rope()
    if rope["rope_type"] not in ("dynamic", "xdrope"):
        return
    if rope["rope_type"] == "dynamic" and rope.get("alpha") is None:
        raise ConvertError(
            f"{h.label}: rope_parameters: alpha: is missing, wanted what the base grows by (a file "
            "has no base that grows with the text)"
        )
    base, size = rope.get("rope_theta", 10000.0), h.head_dim
    k.f32("rope.freq_base", base * rope.get("alpha", default) ** (size / (size - 2)))
    k.text("rope.scaling.type", "none")
    k.f32("rope.scaling.factor", 1)
    if rope["rope_type"] == "dynamic":
        k.u32("rope.scaling.original_context_length", 1 << 18)
        k.u32("context_length", 1 << 18)
