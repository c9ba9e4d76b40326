"""Checks of a file before it is written: its layers, head and vocabulary, and whether it can be
loaded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from oxillama.convert.family import Hyper, Keys
from oxillama.convert.folder import ModelFolder
from oxillama.convert.tensor_plan import Planned, as_bits
from oxillama.convert.tokens import KeyValues
from oxillama.errors import ConvertError, ModelError, TokenizerError, listed
from oxillama.gguf import GgufReader, TensorInfo
from oxillama.gguf.types import type_by_name
from oxillama.gguf.values import Cursor, encode_value, read_kind, read_value
from oxillama.model.builder import recorders
from oxillama.model.record import record
from oxillama.tokenizer import TokenizerBridge

_LAYER = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.")


def check_layers(folder: ModelFolder, layers: int, planned: Sequence[Planned]) -> None:
    """Refuse a folder that holds no tensor of one of the layers that its configuration counts."""
    found = {int(match[1]) for one in planned if (match := _LAYER.match(one.name))}
    absent = [str(layer) for layer in range(layers) if layer not in found]
    if absent:
        which = f"layer{'s' * (len(absent) > 1)} {listed(absent, 4)}"
        raise ConvertError(
            f"{folder.path}: found no tensors of {which}, wanted those of the "
            f"{layers} layers that config.json counts"
        )


def check_head(folder: ModelFolder, hyper: Hyper, planned: Sequence[Planned], keys: Keys) -> None:
    """Refuse a model without a head whose configuration says that it is not the embedding, which a
    file without a head would mean. Embedders, which modules.json describes, need none.
    """
    tied = [hyper.get("tie_word_embeddings"), folder.json("config.json").get("tie_word_embeddings")]
    names = {one.name for one in planned}
    if (
        False in tied
        and True not in tied
        and "token_embd.weight" in names
        and not any(name.startswith(("output.", "cls.")) for name in names)
        and f"{keys.arch}.pooling_type" not in keys.found
        and keys.found.get(f"{keys.arch}.attention.causal") != (False, "bool")
    ):
        raise ConvertError(
            f"{folder.path}: lm_head.weight: found no such tensor, wanted it where config.json "
            "says false under tie_word_embeddings (or modules.json, of an embedder)"
        )


def check_vocabulary_size(hyper: Hyper, planned: Sequence[Planned]) -> None:
    """Refuse a configuration that counts tokens without a row of the embedding, before a file's
    list of tokens is made that long.
    """
    size = hyper.integer("vocab_size", default=0)
    for one in planned:
        rows = one.shape[0] if one.shape else 0
        if one.name == "token_embd.weight" and rows < size:
            raise ConvertError(
                f"{hyper.label}: vocab_size: found {size}, wanted at most the {rows} rows of the "
                "embedding"
            )


class PlannedFile:
    """The file to be written, with as much of a `GgufReader` as recording a model needs."""

    def __init__(self, arch: str, keys: KeyValues, planned: Sequence[Planned]) -> None:
        self.metadata: dict[str, Any] = {"general.architecture": arch}
        for key, (value, kind) in keys.items():
            stored = Cursor(memoryview(encode_value(value, kind, key)[1]), "the new file")
            self.metadata[key] = read_value(stored, read_kind(stored, key), key)
        self.tensors = {
            one.name: TensorInfo(
                one.name, one.shape, type_by_name(one.type_name).id, one.type_name, 0, 0
            )
            for one in planned
        }
        self._planned = {one.name: one for one in planned}

    def data(self, name: str) -> np.ndarray:
        """The bytes of a tensor."""
        return as_bits(self._planned[name].make()).reshape(-1).view(np.uint8)


def check_vocabulary(folder: ModelFolder, arch: str, vocabulary: KeyValues) -> None:
    """Refuse a folder whose file's vocabulary could not be loaded. Files of architectures that
    other programs run are not checked.
    """
    if arch not in recorders() or "tokenizer.ggml.model" not in vocabulary:
        return
    try:
        # what is a warning there is one again when the file is loaded
        TokenizerBridge.from_metadata(
            PlannedFile(arch, vocabulary, ()).metadata, note=lambda text: None
        )
    except TokenizerError as error:
        raise ConvertError(
            f"{folder.path}: its file's vocabulary could not be loaded: {error}"
        ) from error


def check_loads(
    folder: ModelFolder, arch: str, keys: KeyValues, planned: Sequence[Planned]
) -> None:
    """Refuse a folder whose file could not be loaded: of a tensor that is missing or of another
    shape than its configuration says. Only norms and the like are read for this. Files of
    architectures that other programs run are not checked.
    """
    if arch not in recorders():
        return
    try:
        record(cast(GgufReader, PlannedFile(arch, keys, planned)))
    except ModelError as error:
        raise ConvertError(f"{folder.path}: its file could not be loaded: {error}") from error
