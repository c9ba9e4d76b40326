"""Models with low-rank adapters among their tensors, which tokens switch: Granite Switch."""

from __future__ import annotations

import numpy as np

from oxillama.convert.families.dense import HEADS, LAYER, granite_keys
from oxillama.convert.family import Change, Hyper, Keys, Rule, family
from oxillama.convert.shapes import halves_2d, paired_keys, paired_queries
from oxillama.errors import ConvertError


def _layers(h: Hyper) -> int:
    """The layers with tensors: the folder counts what its switch keeps of tokens among them, one
    layer for SingleSwitch (IBM's granite-switch 0.0.8 to 0.1.0) and two for MultiSwitch (0.1.1).
    """
    return h.layers - (2 if _latest(h) else 1)


def _latest(h: Hyper) -> bool:
    """Whether the last of several adapters is in force (MultiSwitch), and not their mean."""
    kind = h.get("switch_type", default="single" if h.get("ms_code_m") is None else "multi")
    if kind not in ("single", "multi"):
        raise ConvertError(
            f"{h.label}: switch_type: found {kind!r:.80}, wanted 'single' or 'multi'"
        )
    return kind == "multi"


def _qkv(x: np.ndarray, h: Hyper) -> np.ndarray:
    """Rows of queries, keys and values, the first two paired."""
    q, k = h.heads * h.head_dim, h.kv_heads * h.head_dim
    return np.concatenate([paired_queries(x[:q], h), paired_keys(x[q : q + k], h), x[q + k :]])


def _stack(change: Change | None = None) -> Change:
    """Factors (adapters, 1, rows, columns) as a stack behind one of zeros, the rows of each
    rearranged by `change`.
    """

    def stacked(x: np.ndarray, h: Hyper) -> np.ndarray:
        each = x.reshape(x.shape[0], *x.shape[2:])
        if change is not None:
            each = np.stack([change(one, h) for one in each])
        return np.concatenate([np.zeros_like(each[:1]), each])

    return stacked


def _factors(module: str, *names: str, **changes: Change) -> dict[str, str | Rule]:
    """The factors of the matrices that a module holds as one; changes: of the rows of some."""
    rules: dict[str, str | Rule] = {}
    for number, name in enumerate(names):
        slot = f"_slices.{number}" if len(names) > 1 else ""
        for part, change in (("A", None), ("B", changes.get(name))):
            target = f"blk.{{b}}.{name}.lora_{part.lower()}"
            rules[f"{module}.lora_{part}{slot}"] = Rule((target,), _stack(change))
    return rules


_ATTENTION, _NETWORK = "model.layers.{b}.self_attn.", "model.layers.{b}.shared_mlp."


@family(
    "GraniteSwitchForCausalLM",
    arch="graniteswitch",
    prefix_setting=True,
    held=_layers,
    dropped=(
        *("model.adapter_token_ids", "model.switch.codebook"),
        *("model.switch.control_to_substitute_lut", "model.switch.adapter_token_ids"),
    ),
    rules={
        **HEADS,
        **{name: to for name, to in LAYER.items() if "layernorm" in name},
        _ATTENTION + "qkv_proj.base_layer.weight": Rule(("blk.{b}.attn_qkv.weight",), _qkv),
        _ATTENTION + "o_proj.base_layer.weight": "blk.{b}.attn_output.weight",
        _NETWORK + "input_linear.base_layer.weight": Rule(
            ("blk.{b}.ffn_gate.weight", "blk.{b}.ffn_up.weight"), halves_2d
        ),
        _NETWORK + "output_linear.base_layer.weight": "blk.{b}.ffn_down.weight",
        **_factors(
            _ATTENTION + "qkv_proj",
            *("attn_q", "attn_k", "attn_v"),
            attn_q=paired_queries,
            attn_k=paired_keys,
        ),
        **_factors(_ATTENTION + "o_proj", "attn_output"),
        **_factors(_NETWORK + "input_linear", "ffn_gate", "ffn_up"),
        **_factors(_NETWORK + "output_linear", "ffn_down"),
    },
)
def graniteswitch(h: Hyper, k: Keys) -> None:
    """The gain of a softmax over tokens belongs to SingleSwitch, MultiSwitch does not use it. A
    token more than adapters is the one that switches back, the first.
    """
    h.must_be("hidden_act", "silu")
    h.must_be("position_embedding_type", "nope", "rope")
    h.must_be("num_local_experts", 0)
    h.must_be("dual_stream", False)
    h.must_be("hiding_groups", {})
    count, latest = h.integer("num_adapters"), _latest(h)
    granite_keys(h.but("num_experts_per_tok", num_hidden_layers=_layers(h)), k)
    k.u32("expert_count", 0)
    k.u32("expert_used_count", 0)
    k.u32("expert_shared_feed_forward_length", h.integer("shared_intermediate_size"))
    if h.get("position_embedding_type") == "nope":
        k.flag("rope.scaling.finetuned", False)
    k.u32("adapters.count", count)
    k.u32("adapters.lora_rank", h.integer("max_lora_rank"))
    for name, key in (("", "activate"), ("substitute_", "substitute")):
        ids = h.get(f"adapter_{name}token_ids")
        if not isinstance(ids, list) or len(ids) not in (count, count + latest) or not count:
            raise ConvertError(
                f"{h.label}: adapter_{name}token_ids: found {ids!r:.80}, wanted a token for each "
                f"of {count} adapters"
            )
        k.integers(f"adapters.token_ids_{key}", ids)
    if not latest:
        k.f32("adapters.router_gain", h.number("control_token_gain", default=15.0))
