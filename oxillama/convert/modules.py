"""The modules that sentence-transformers puts behind a model: how an embedder makes one vector of
many, and linear layers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from oxillama.convert.family import Hyper, Keys
from oxillama.convert.safetensors import read_safetensors
from oxillama.errors import ConvertError


def pooling(h: Hyper, k: Keys) -> None:
    """How an embedder makes one vector of many: of modules.json, and of its classifier."""
    kinds = {"mean": 1, "cls": 2, "lasttoken": 3}
    if h.folder is not None:
        place = next((path for kind, path in h.folder.modules() if kind == "Pooling"), None)
        if place is not None:
            said = h.folder.json(f"{place}/config.json", required=True)
            flags = {"mean_tokens": 1, "cls_token": 2, "lasttoken": 3}
            on = [name for name in said if name.startswith("pooling_mode_") and said[name] is True]
            found = [flags.get(name.removeprefix("pooling_mode_")) for name in on]
            if not on:
                found = [kinds.get(str(said.get("pooling_mode")))]
            if len(found) != 1 or found[0] is None:
                raise ConvertError(
                    f"{h.folder.path}/{place}/config.json: pooling: found "
                    f"{on or said.get('pooling_mode')!r}, wanted one of {', '.join(kinds)}"
                )
            k.u32("pooling_type", found[0])
    mode = h.get("classifier_pooling")
    if mode in kinds:
        k.u32("classifier.pooling_type", kinds[mode])


# what changes a vector behind the model, of which a file has linear layers alone, if any
_DENSE = "Dense"
_CHANGING = frozenset(
    (_DENSE, "LayerNorm", "CNN", "LSTM", "WeightedLayerPooling", "WordWeights", "SpladePooling")
    + ("SparseAutoEncoder", "Asym", "Router")
)


def check_modules(h: Hyper) -> None:
    """ConvertError for a module behind the model that was not read for the file."""
    if h.folder is None:
        return
    for kind, place in h.folder.modules():
        if kind in _CHANGING and f"modules.json: {kind}" not in h.read:
            raise ConvertError(
                f"{h.folder.path}/modules.json: found a module {kind} in {place or '.'}, wanted "
                "Transformer, Pooling and Normalize alone: the file has no place for another"
            )


def dense_modules(h: Hyper, names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The tensors of linear layers; names: what each is in a file, by the folder of its module."""
    found = {}
    folder = h.folder
    h.read.add(f"modules.json: {_DENSE}")
    for kind, place in folder.modules() if folder is not None else []:
        assert folder is not None
        if kind != _DENSE:
            continue
        path = folder.path / place
        said = folder.json(f"{place}/config.json", required=True)
        tensors = read_safetensors(path / "model.safetensors")
        if (
            place not in names
            or sorted(tensors) != ["linear.weight"]
            or not str(said.get("activation_function", "Identity")).endswith("Identity")
        ):
            raise ConvertError(
                f"{path}: found {sorted(tensors)} and {said.get('activation_function')}, wanted "
                f"linear.weight alone in one of {', '.join(names)}"
            )
        weight = tensors["linear.weight"].floats()
        if list(weight.shape) != [said.get("out_features"), said.get("in_features")]:
            raise ConvertError(
                f"{path}: linear.weight: shape {list(weight.shape)} is not what config.json says"
            )
        found[f"{names[place]}.weight"] = weight
    return found
