"""From a Hugging Face folder to the GGUF file of its encoder of images or audio: `convert_encoder`.

The tensors are those of the vision or audio tower and of the projector. Which of them stay floats
is llama.cpp's rule for such files: vectors, positions, and the convolutions of patches or frames,
which are halves in a file of halves and float32 in every other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from oxillama.convert import encoders  # noqa: F401  (registers them)
from oxillama.convert.checks import PlannedFile
from oxillama.convert.encoder import ENCODERS, LAYERS, Encoder, ImageHyper, MediaHyper
from oxillama.convert.family import Keys
from oxillama.convert.folder import ModelFolder
from oxillama.convert.general import FILE_TYPES, size_label
from oxillama.convert.planned import FLOATS, Planned, TypeOf, filled, single
from oxillama.convert.safetensors import check_finite
from oxillama.convert.tokens import KeyValues
from oxillama.convert.write import Converted, Progress, read_from, save
from oxillama.errors import ConvertError, ModelError
from oxillama.gguf import GgufReader
from oxillama.model.media_encoder import Medium, record_encoder
from oxillama.quant import quantize
from oxillama.quant.convert import QUANTIZATION_VERSION

TYPES = ("AUTO", *FLOATS, "Q8_0")
_BLOCK = 32  # numbers of a block of Q8_0


def convertible_encoders() -> dict[str, str]:
    """Every class of transformers whose encoder of images or audio can be converted, with its
    `clip.projector_type`.
    """
    return {name: one.projector for name, one in sorted(ENCODERS.items())}


def encoder_medium(path: str | os.PathLike[str]) -> Medium | None:
    """What the encoder of a folder's class encodes, if it can be converted and config.json
    describes it. Weights are not looked at.
    """
    folder = ModelFolder(path)
    names = folder.config.get("architectures")
    encoder = ENCODERS.get(names[0]) if isinstance(names, list) and names else None
    if encoder is None or not isinstance(folder.config.get(encoder.hyper.part), dict):
        return None
    return medium_of(encoder)


def medium_of(encoder: Encoder) -> Medium:
    """What an encoder encodes."""
    return "vision" if issubclass(encoder.hyper, ImageHyper) else "audio"


def has_encoder(path: str | os.PathLike[str]) -> bool:
    """Whether a folder has an encoder of images or audio that can be converted."""
    return encoder_medium(path) is not None


def convert_encoder(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    type: str = "auto",
    *,
    name: str | None = None,
    progress: Progress | None = None,
) -> Converted:
    """Write the GGUF file (mmproj) of the encoder of a Hugging Face model folder.

    type: auto (each matrix in the folder's own data type), F32, F16, BF16 or Q8_0. name:
    `general.name` (default: the folder's). progress is called with the number of tensors done, the
    total, and the current one. ConvertError, naming the cause, if the folder has no encoder of
    images or audio, or one that cannot be converted; then no file is left behind.
    """
    wanted = type.upper()
    if wanted not in TYPES:
        raise ConvertError(f"type: found {type!r}, wanted auto, F32, F16, BF16 or Q8_0")
    folder = ModelFolder(source)
    encoder, hyper = encoder_of(folder)
    folder.check_complete()
    left_out: list[str] = []
    keys = Keys("clip")
    with read_from(hyper):
        encoder.family.keys(hyper, keys)
        planned = list(_plan(folder, encoder, hyper, wanted, left_out))
    if not planned:
        raise ConvertError(
            f"{folder.path}: found no tensors of an encoder, wanted those of "
            f"{' and '.join(encoder.parts)}"
        )
    kinds = [one.type_name for one in planned if len(one.shape) > 1]
    most = wanted if wanted != "AUTO" else max(FLOATS, key=kinds.count)
    whole: KeyValues = {
        "general.type": ("mmproj", "string"),
        "general.name": (name or folder.path.resolve().name, "string"),
        "general.size_label": (size_label(planned), "string"),
        "general.file_type": ({**FILE_TYPES, "Q8_0": 7}[most], "uint32"),
        "general.quantization_version": (QUANTIZATION_VERSION, "uint32"),
        **keys.found,
    }
    try:
        record_encoder(cast(GgufReader, PlannedFile("clip", whole, planned)), medium_of(encoder))
    except ModelError as error:
        raise ConvertError(f"{folder.path}: its file could not be loaded: {error}") from error
    save(Path(target), "clip", whole, planned, progress)
    size = Path(target).stat().st_size
    kind = encoder.projector
    return Converted(Path(target), kind, len(planned), size, tuple(sorted(left_out)))


def encoder_of(folder: ModelFolder) -> tuple[Encoder, MediaHyper]:
    """The family of a folder's encoder, and the values that it reads; ConvertError for a
    folder without one.
    """
    label, found = f"{folder.path}/config.json", folder.architecture
    if found not in ENCODERS:
        near = get_close_matches(found, ENCODERS, n=3)
        raise ConvertError(
            f"{label}: architectures: found {found!r:.80}, "
            + (f"the nearest known are {', '.join(near)}" if near else "wanted a known class")
            + f" of the {len(ENCODERS)} whose encoders can be converted (`oxillama convert "
            "--list --mmproj`)"
        )
    encoder = ENCODERS[found]
    part = encoder.hyper.part
    if not isinstance(folder.config.get(part), dict):
        raise ConvertError(f"{label}: {part} is missing, wanted that of an encoder")
    hyper = encoder.hyper(folder, encoder.defaults)
    variant = encoder.variant(hyper)
    if variant is not None:
        encoder, hyper = variant, variant.hyper(folder, variant.defaults)
    return encoder, hyper


def _plan(
    folder: ModelFolder, encoder: Encoder, hyper: MediaHyper, wanted: str, left_out: list[str]
) -> Iterator[Planned]:
    """Every tensor of the new file, in the order of the folder's."""
    made: dict[str, str] = {}
    layers, type_of = encoder.layers(hyper), _types(encoder)
    counted = max(layers, hyper.integer(*LAYERS, default=0))
    for original, tensor in folder.tensors.items():
        name = original.removeprefix("model.")
        if not name.startswith(encoder.parts) or name.startswith(encoder.unused):
            left_out.append(original)
            continue
        found = encoder.family.rule_of(encoder.renamed(hyper, name))
        if found is None:
            raise ConvertError(
                f"{folder.path}: {original} {list(tensor.data.shape)}: {encoder.projector} has no "
                "place for it"
            )
        rule, at = found
        layer = -1 if at.get("b") is None else int(at["b"])
        if layer >= counted:
            raise ConvertError(
                f"{folder.path}: {original}: found tensors of layer {layer}, wanted those of the "
                f"{counted} layers that config.json counts"
            )
        if layer >= layers:
            left_out.append(original)
            continue
        if tensor.dtype not in (*FLOATS, "F64"):
            raise ConvertError(
                f"{folder.path}: {original}: dtype {tensor.dtype}, wanted {', '.join(FLOATS)}"
            )
        targets = tuple(filled(to, at) for to in rule.targets)
        for target in targets:
            if target in made:
                raise ConvertError(
                    f"{folder.path}: {original} and {made[target]} are both {target}"
                )
            made[target] = original
        for one in single(original, tensor, rule, targets, hyper, wanted, _before_blocks(type_of)):
            kind = type_of(one.name, one.shape, tensor.dtype, wanted)
            yield _quantised(one) if kind == "Q8_0" else one
    for target, vector in encoder.extra(hyper).items():
        yield Planned(target, vector.shape, "F32", partial(np.array, vector))


def _before_blocks(type_of: TypeOf) -> TypeOf:
    """The float type of what blocks of Q8_0 are made of."""

    def floats(name: str, shape: tuple[int, ...], dtype: str, wanted: str) -> str:
        kind = type_of(name, shape, dtype, wanted)
        return "F32" if kind == "Q8_0" else kind

    return floats


def _quantised(one: Planned) -> Planned:
    """A float32 tensor of the new file in blocks of Q8_0."""

    def make() -> np.ndarray:
        numbers = one.make()
        check_finite(one.name, numbers, "F32")
        return quantize(numbers, "Q8_0")

    return replace(one, type_name="Q8_0", make=make)


def _types(encoder: Encoder) -> TypeOf:
    def type_of(name: str, shape: tuple[int, ...], dtype: str, wanted: str) -> str:
        kind = wanted if wanted != "AUTO" else dtype if dtype in FLOATS else "F32"
        if len(shape) <= 1 or name.endswith(encoder.kept):
            return "F32"
        if name.startswith(encoder.halves):
            return "F16" if kind == "F16" else "F32"
        if not name.endswith(".weight") or name.endswith("position_embd.weight"):
            return "F32"
        return "F16" if kind == "Q8_0" and shape[-1] % _BLOCK else kind

    return type_of
