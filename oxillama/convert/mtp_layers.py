"""Layers that predict further tokens (multi-token prediction; DeepSeek-AI 2024, DeepSeek-V3,
section 2.2): which tensors of a folder are theirs, and what they are called in a file.

A file holds them as the last blocks, `nextn_predict_layers` of them: an ordinary block, and what
joins a token's embedding with the state that the model ended with (`nextn.*`). Folders append them
to the model's own layers, or have names of their own for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from oxillama.convert.family import Family, Hyper, Mtp, Rule
from oxillama.convert.shapes import plus_one
from oxillama.errors import ConvertError

# True: they must be there; False: they are left out; only: a file of its own for them; None: as
# llama.cpp's converter does
Asked = bool | Literal["only"] | None

_OF_LAYER = re.compile(r"(?:model|backbone)\.layers\.(\d+)\.")
_APART = re.compile(r"(?:model\.)?mtp\.(?:layers\.(\d+)\.)?(.+)")
_SHARED = {  # what stands beside the layers in folders that hold them apart
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head.norm",
}
_NAMES = {
    "eh_proj": "eh_proj",
    "enorm": "enorm",
    "hnorm": "hnorm",
    "embed_tokens": "embed_tokens",
    "shared_head.head": "shared_head_head",
    "shared_head.norm": "shared_head_norm",
}
NEXTN: dict[str, str | Rule] = {
    f"model.layers.{{b}}.{theirs}.weight": f"blk.{{b}}.nextn.{ours}.weight"
    for theirs, ours in _NAMES.items()
}
# of a family whose norms add one to their weights
NEXTN_PLUS_ONE: dict[str, str | Rule] = {
    name: Rule((str(to),), plus_one, values=True) if "norm" in name else to
    for name, to in NEXTN.items()
}
_NEEDED = ("eh_proj", "enorm", "hnorm")  # every file has these of each such layer
_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
HEADS = ("token_embd.weight", "output_norm.weight", "output.weight")  # of a file of them alone


def appended(name: str, h: Hyper) -> tuple[str, ...]:
    """Behind the model's own layers, under their names."""
    layer = layer_of(name)
    return (name,) if layer is not None and layer >= h.layers else ()


def layer_of(name: str) -> int | None:
    """The number of a tensor's layer, None for one of no layer."""
    match = _OF_LAYER.match(name)
    return int(match[1]) if match else None


def apart(name: str, h: Hyper) -> tuple[str, ...]:
    """As `mtp.layers.0.`, with what joins the two inputs beside the layers, the first one's."""
    return _apart(name, h, 1)


def apart_for_all(name: str, h: Hyper) -> tuple[str, ...]:
    """The same; what stands beside the layers is each one's."""
    return _apart(name, h, h.integer("num_nextn_predict_layers", default=0))


def _apart(name: str, h: Hyper, shared: int) -> tuple[str, ...]:
    match = _APART.match(name)
    if match is None:
        return ()
    if match[1] is not None:
        return (f"model.layers.{h.layers + int(match[1])}.{match[2]}",)
    part, dot, rest = match[2].partition(".")
    part = _SHARED.get(part, part)
    return tuple(f"model.layers.{h.layers + at}.{part}{dot}{rest}" for at in range(shared))


MTP = Mtp(appended, NEXTN)


@dataclass(frozen=True, slots=True)
class Further:
    """The layers of one folder that predict further tokens."""

    count: int = 0  # of those that the file holds
    absent: int = 0  # of those that the configuration counts and the folder does not hold
    # tensor of the folder -> names as of layers behind the model's own; none of those left out
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    family: Family | None = None  # with the rules of these layers


def further_of(
    named: Mapping[str, str], family: Family, hyper: Hyper, label: str, asked: Asked
) -> Further:
    """named: every tensor of the folder with its name as rules have it. ConvertError where layers
    are asked for that are not there, or where only some of them are.
    """
    if asked not in (None, True, False, "only"):
        raise ConvertError(f"mtp: found {asked!r}, wanted True, False, 'only' or None")
    mtp = family.mtp
    if mtp is None:
        if asked:
            raise ConvertError(
                f"{label}: mtp: asked for layers that predict further tokens, which files of "
                f"{family.arch} do not hold"
            )
        return Further()
    places = {one: found for one, name in named.items() if (found := mtp.place(name, hyper))}
    held = {_layer(name) - hyper.layers for found in places.values() for name in found}
    counted = 0 if mtp.counted is None else hyper.integer(mtp.counted, default=0)
    count = counted if counted or not mtp.uncounted else len(held)
    left = dict.fromkeys(places, ())
    if asked is False or (mtp.asked and not asked):
        return Further(0, 0, left)
    if not held or not count:
        if asked:
            raise ConvertError(
                f"{label}: mtp: asked for layers that predict further tokens, found "
                + ("none counted" if held else "no tensors of them")
            )
        return Further(0, count, left)
    absent = sorted(set(range(count)) - held)
    if absent:
        raise ConvertError(
            f"{label}: found no tensors of layer {hyper.layers + absent[0]}, wanted those of the "
            f"{count} layers that predict further tokens"
        )
    kept = {
        one: tuple(name for name in found if _layer(name) < hyper.layers + count)
        for one, found in places.items()
    }
    whole = Family(family.arch, {**family.rules, **mtp.rules}, family.keys)
    return Further(count, 0, kept, whole)


def _layer(name: str) -> int:
    match = _OF_LAYER.match(name)
    assert match is not None  # `place` gives no other names
    return int(match[1])


def check_beyond(beyond: Mapping[int, Sequence[str]], hyper: Hyper, label: str) -> None:
    """Refuse a folder with layers behind the model's own that do not predict further tokens: its
    configuration counts too few. beyond: the tensors of each that are left out. Such layers are
    known by what joins their two inputs, or where none has that by how many are counted.
    """
    joining = [
        layer
        for layer, names in beyond.items()
        if any(f".{part}." in name for name in names for part in _NEEDED)
    ]
    counted = max(hyper.integer(name, default=0) for name in _COUNTS)
    for layer in sorted(beyond):
        if layer not in joining if joining else layer >= hyper.layers + counted:
            raise ConvertError(
                f"{label}: {beyond[layer][0]}: found tensors of layer {layer}, wanted those of the "
                f"{hyper.layers} layers that config.json counts"
            )


def check_further(planned: Mapping[str, tuple[int, ...]], hyper: Hyper, label: str) -> None:
    """Refuse layers without what joins their two inputs; planned: shapes by name."""
    for layer in range(hyper.layers, hyper.blocks):
        for part in _NEEDED:
            name = f"blk.{layer}.nextn.{part}.weight"
            wanted = (hyper.hidden, 2 * hyper.hidden) if part == "eh_proj" else (hyper.hidden,)
            found = planned.get(name)
            if found != wanted:
                shape = "none" if found is None else f"shape {list(found)}"
                raise ConvertError(
                    f"{label}: {name}: found {shape}, wanted {list(wanted)} in a layer that "
                    "predicts further tokens"
                )
