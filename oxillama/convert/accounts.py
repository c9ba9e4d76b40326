"""Checks that what a converter does not read of config.json means what its file does.

`Hyper.read` holds the keys that a conversion asked for. Of all others, those that change what some
model computes are in `NEUTRAL` with the values that change nothing; a family says the other values
that its files mean by their architecture alone (`Family.meant`). Configurations hold many more
keys, of training and of other programs, and those are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from oxillama.convert.family import Family, Hyper, Keys
from oxillama.errors import ConvertError

NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("hidden_act", "hidden_activation", "activation_function", "mamba_hidden_act"),
        ("silu", "swish"),
    ),
    # scores and logits
    **dict.fromkeys(
        ("attn_logit_softcapping", "final_logit_softcapping", "router_logit_softcapping")
        + ("moe_router_logit_softcapping", "swiglu_limit"),
        (0,),
    ),
    "clip_qkv": (),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "attn_temperature_tuning": (False, 0),
    # which tokens see which, and where they are
    "alibi": (False,),
    "is_causal": (True,),
    "use_bidirectional_attention": (False,),
    "add_cross_attention": (False,),
    "use_sliding_window": (False,),
    # scales
    **dict.fromkeys(
        ("routed_scaling_factor", "router_scaling_factor", "moe_routed_scaling_factor")
        + ("logit_scale",),
        (1,),
    ),
    # which layers have experts, and how those are chosen
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([],),
    "num_expert_group": (0, 1),
    # recurrent layers
    "time_step_limit": ([0, math.inf], [0, {"__float__": "Infinity"}]),
}
_WHOLE, _NEAR = ("full_attention", "attention"), ("sliding_attention", "chunked_attention")


def check_config(h: Hyper, family: Family, keys: Keys, tensors: Collection[str]) -> None:
    """ConvertError for a key that changes what the model computes and that neither the file's keys
    nor its tensors (their names) say.
    """
    apart = {"layer_types", "rope_theta", *h.read}
    if keys.found.get(f"{keys.arch}.attention.causal") == (False, "bool"):
        apart |= {"is_causal", "use_bidirectional_attention"}  # an encoder
    for name, wanted in {**NEUTRAL, **family.meant}.items():
        if name not in apart:
            h.must_be(name, *wanted)
    _check_kinds(h, family)
    _check_rotation(h, family, keys, tensors)


def _check_kinds(h: Hyper, family: Family) -> None:
    """The kinds of layers, where the file does not list them: every so many are global."""
    if "layer_types" in h.read:
        return
    kinds, period = h.strings("layer_types", h.layers), family.meant.get("layer_types", (1, 0))
    if kinds is None or not period:
        return
    every, first = period
    for layer, kind in enumerate(kinds[: h.layers]):
        whole = layer % every == first
        if kind in (_NEAR if whole else _WHOLE):
            raise ConvertError(
                f"{h.label}: layer_types: found {kind!r} in layer {layer}, wanted "
                + f"{(_WHOLE if whole else _NEAR)[0]!r}"
                + f": the layers of {family.arch} have no other order"
            )


def _check_rotation(h: Hyper, family: Family, keys: Keys, tensors: Collection[str]) -> None:
    """What a rotation's base and scaling are, which some files have no place for."""
    if "rope_theta" in family.meant:  # nothing rotates, whatever the configuration says
        return

    def said(name: str) -> Any:
        return keys.found.get(f"{keys.arch}.rope.{name}", (None, ""))[0]

    def refuse(name: str, found: Any, wanted: str) -> ConvertError:
        return ConvertError(
            f"{h.label}: rope_parameters: {name}: found {found!r:.80}, wanted {wanted}: a file of "
            f"{family.arch} has no place for it"
        )

    rope = h.rope()
    kind, theta, share = (
        rope.get(name) for name in ("rope_type", "rope_theta", "partial_rotary_factor")
    )
    factor = rope.get("factor", 1)
    scaling = said("scaling.type"), said("scaling.factor")
    if kind in ("linear", "yarn") and factor != 1 and scaling != (kind, float(np.float32(factor))):
        raise refuse("rope_type", kind, "'default'")
    for scaled, name in (("llama3", "rope_freqs"), ("longrope", "rope_factors_long")):
        if kind == scaled and f"{name}.weight" not in tensors:
            raise refuse("rope_type", kind, "'default'")
    if kind == "proportional" and share not in (None, 1) and "rope_freqs.weight" not in tensors:
        raise refuse("rope_type", kind, "'default'")
    base = said("freq_base") or 10000.0
    if isinstance(theta, (int, float)) and kind == "default" and base != float(np.float32(theta)):
        raise refuse("rope_theta", theta, f"{base:g}")
    turned = said("dimension_count") is not None or "rope_freqs.weight" in tensors
    if share not in (None, 1) and not turned:
        raise refuse("partial_rotary_factor", share, "1")
    nested = h.get("rope_parameters", default={})
    near = nested.get("sliding_attention") if isinstance(nested, dict) else None
    if isinstance(near, dict) and near.get("rope_type", "default") != "default":
        raise refuse("sliding_attention: rope_type", near["rope_type"], "'default'")
