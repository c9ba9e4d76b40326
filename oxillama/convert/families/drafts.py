"""DFlash drafts: a few layers of Qwen 3 over a target's rows, without a vocabulary of their own."""

from __future__ import annotations

from pathlib import Path

from oxillama.convert.families.dense import PLAIN, bare
from oxillama.convert.family import Hyper, Keys, family
from oxillama.convert.keys import common, partial_rotation, windows
from oxillama.errors import ConvertError

_OWN = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    # DFlash 2
    "layers.{b}.attention_conv.base_kernel": "blk.{b}.attn_conv_base",
    "layers.{b}.attention_conv.kernel_projection.weight": "blk.{b}.attn_conv_proj.weight",
    "layers.{b}.mlp_conv.base_kernel": "blk.{b}.ffn_conv_base",
    "layers.{b}.mlp_conv.kernel_projection.weight": "blk.{b}.ffn_conv_proj.weight",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.predecessor_codebook.weight": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "candidate_selector.successor_codebook.weight": "selector_successor.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
}
_SELECTOR = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


@family("DFlashDraftModel", "DFlash2DraftModel", arch="dflash",
        rules=bare({**PLAIN, **{f"model.{name}": to for name, to in _OWN.items()}}),
        meant={"is_causal": (True, False), "use_sliding_window": (True, False),
               "final_logit_softcapping": ()})  # fmt: skip
def dflash(h: Hyper, k: Keys) -> None:
    """What a block is, and the layers of the target whose outputs the draft reads: the file says
    the layers that read them.
    """
    h.must_be("rope_is_neox_style", True)
    h.must_be("has_embed_tokens", True)
    if h.folder is not None and Path(h.folder.path, "mask_embedding.pt").exists():
        raise ConvertError(f"{h.label}: found mask_embedding.pt, wanted the mask among the tokens")
    own = h.get("dflash_config", default={})
    if not isinstance(own, dict):
        raise ConvertError(f"{h.label}: dflash_config: found {own!r:.80}, wanted an object")
    d = h.but(**own)
    common(d, k)
    if h.rope().get("partial_rotary_factor") is not None:
        k.u32("rope.dimension_count", partial_rotation(h))
    k.u32("block_size", d.integer("block_size", default=16))
    k.found["tokenizer.ggml.mask_token_id"] = d.integer("mask_token_id"), "uint32"
    layers = d.get("target_layer_ids")
    if not isinstance(layers, list) or not all(type(one) is int and one >= 0 for one in layers):
        raise ConvertError(f"{h.label}: target_layer_ids: found {layers!r:.80}, wanted layers")
    k.integers("target_layers", [one + 1 for one in layers])
    if h.get("architectures") == ["DFlash2DraftModel"]:
        for name in _SELECTOR:
            k.u32(name, d.integer(name))
    for name, key in (
        ("attention_value_scale", "attention.value_scale"),
        ("output_multiplier", "logit_scale"),
        ("final_logit_softcapping", "final_logit_softcapping"),
        ("input_embedding_scale", "embedding_scale"),
    ):
        if d.get(name) is not None:
            k.f32(key, d.number(name))
    _sight(d, k)


def _sight(d: Hyper, k: Keys) -> None:
    """Windows, and which layers are causal within a block: by default those with one."""
    d.must_be("use_swa", False)
    kinds = d.strings("layer_types", d.layers) or ["full_attention"] * d.layers
    near = [kind == "sliding_attention" for kind in kinds]
    if any(near):
        if not d.flag("use_sliding_window"):
            raise ConvertError(
                f"{d.label}: use_sliding_window: found false or none beside windowed layers, "
                "wanted true"
            )
        windows(d, k, pattern=True)
    said = d.get("is_causal", "causal")
    if said is not None or all(near) or not any(near):
        k.flag("attention.causal", near[0] if said is None else d.flag("is_causal", default=said))
    else:
        k.flags("attention.causal_pattern", near)
