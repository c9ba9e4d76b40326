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

from oxillama.arguments import check_progress, is_one_of
from oxillama.convert import encoders  # noqa: F401  (registers them)
from oxillama.convert.checks import PlannedFile
from oxillama.convert.encoder import ENCODERS, LAYERS, Encoder, MediaHyper
from oxillama.convert.family import FAMILIES, Keys
from oxillama.convert.folder import ModelFolder
from oxillama.convert.general import FILE_TYPES, size_label
from oxillama.convert.safetensors import check_finite
from oxillama.convert.tensor_plan import FLOATS, Planned, TypeOf, filled, single
from oxillama.convert.tokens import KeyValues
from oxillama.convert.write import Converted, Progress, read_from, save
from oxillama.errors import ConvertError, ModelError
from oxillama.gguf import GgufReader
from oxillama.model.media_encoder import Medium, record_encoder
from oxillama.quant import quantize
from oxillama.quant.file import QUANTIZATION_VERSION

TYPES = ("AUTO", *FLOATS, "Q8_0")
_BLOCK = 32  # numbers of a block of Q8_0


def convertible_encoders() -> dict[str, tuple[str, ...]]:
    """Every class of transformers whose encoders of images or audio can be converted, with their
    `clip.projector_type`.
    """
    return {
        name: tuple(dict.fromkeys(one.projector for one in held.values()))
        for name, held in sorted(ENCODERS.items())
    }


def encoded_media(path: str | os.PathLike[str]) -> tuple[Medium, ...]:
    """What the encoders of a folder's class encode, as far as they can be converted and config.json
    describes them. Weights are not looked at.
    """
    folder = ModelFolder(path)
    names = folder.config.get("architectures")
    held = ENCODERS.get(names[0], {}) if isinstance(names, list) and names else {}
    return tuple(
        medium
        for medium, encoder in held.items()
        if isinstance(folder.whole.get(encoder.hyper.part), dict)
    )


def has_encoder(path: str | os.PathLike[str]) -> bool:
    """Whether a folder has an encoder of images or audio that can be converted."""
    return bool(encoded_media(path))


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
    check_progress(progress, "(done, total, name)")
    wanted = type.upper() if isinstance(type, str) else type
    if not is_one_of(wanted, TYPES):
        raise ConvertError(f"type: found {type!r:.50}, wanted auto, F32, F16, BF16 or Q8_0")
    folder = ModelFolder(source)
    found = encoders_of(folder)
    folder.check_complete()
    parts = [encoder for encoder, _ in found.values()]
    left_out = [
        name
        for name in folder.tensors
        if not any(_is_part(_plain(name), encoder) for encoder in parts)
    ]
    planned: list[Planned] = []
    described: KeyValues = {}
    for medium, (encoder, hyper) in found.items():
        keys = Keys("clip")
        with read_from(hyper):
            encoder.family.keys(hyper, keys)
        if len(found) > 1:
            _apart(keys, medium)
        described |= keys.found
        made = list(_plan(folder, encoder, hyper, wanted, left_out))
        if not made:
            raise ConvertError(
                f"{folder.path}: found no tensors of an encoder, wanted those of "
                f"{' and '.join(encoder.parts)}"
            )
        planned += made
    _join_kinds(described)
    kinds = [one.type_name for one in planned if len(one.shape) > 1]
    most = wanted if wanted != "AUTO" else max(FLOATS, key=kinds.count)
    whole: KeyValues = {
        "general.type": ("mmproj", "string"),
        "general.name": (name or folder.path.resolve().name, "string"),
        "general.size_label": (size_label(planned), "string"),
        "general.file_type": ({**FILE_TYPES, "Q8_0": 7}[most], "uint32"),
        "general.quantization_version": (QUANTIZATION_VERSION, "uint32"),
        **described,
    }
    for medium in found:
        try:
            record_encoder(cast(GgufReader, PlannedFile("clip", whole, planned)), medium)
        except ModelError as error:
            raise ConvertError(f"{folder.path}: its file could not be loaded: {error}") from error
    save(Path(target), "clip", whole, planned, folder, progress)
    size = Path(target).stat().st_size
    kind = " and ".join(dict.fromkeys(encoder.projector for encoder in parts))
    return Converted(Path(target), kind, len(planned), size, tuple(sorted(left_out)))


def _apart(keys: Keys, medium: Medium) -> None:
    """Say the kind of an encoder for its medium alone."""
    kind = keys.found.pop("clip.projector_type", None)
    if kind is not None:
        keys.found[f"clip.{medium}.projector_type"] = kind


def _join_kinds(keys: KeyValues) -> None:
    """Say one kind of encoders of both media once, as files of Qwen2.5-Omni do."""
    names = [f"clip.{medium}.projector_type" for medium in ("vision", "audio")]
    if names[0] in keys and keys[names[0]] == keys.get(names[1]):
        keys["clip.projector_type"] = keys.pop(names[0])
        del keys[names[1]]


def encoders_of(folder: ModelFolder) -> dict[Medium, tuple[Encoder, MediaHyper]]:
    """By medium, the family of each encoder of a folder, and the values that it reads; ConvertError
    for a folder without one.
    """
    label, named = f"{folder.path}/config.json", folder.architecture
    if named not in ENCODERS:
        # a class whose language model is known is not misspelled
        near = [] if named in FAMILIES else get_close_matches(named, ENCODERS, n=3)
        raise ConvertError(
            f"{label}: architectures: found {named!r:.80}, "
            + (f"the nearest known are {', '.join(near)}" if near else "wanted a known class")
            + f" of the {len(ENCODERS)} whose encoders can be converted (`oxillama convert "
            "--list --mmproj`)"
        )
    found: dict[Medium, tuple[Encoder, MediaHyper]] = {}
    for medium, encoder in ENCODERS[named].items():
        if isinstance(folder.whole.get(encoder.hyper.part), dict):
            hyper = encoder.hyper(folder, encoder.defaults)
            variant = encoder.variant(hyper)
            if variant is not None:
                encoder, hyper = variant, variant.hyper(folder, variant.defaults)
            found[medium] = encoder, hyper
    if not found:
        parts = " or ".join(one.hyper.part for one in ENCODERS[named].values())
        raise ConvertError(f"{label}: {parts} is missing, wanted that of an encoder")
    return found


def _plain(original: str) -> str:
    """A folder's name of a tensor without what some classes have before all names."""
    return original.removeprefix("thinker.").removeprefix("model.")


def _is_part(name: str, encoder: Encoder) -> bool:
    """Whether a tensor is one of an encoder and its projector."""
    return name.startswith(encoder.parts) and not name.startswith(encoder.unused)


def _plan(
    folder: ModelFolder, encoder: Encoder, hyper: MediaHyper, wanted: str, left_out: list[str]
) -> Iterator[Planned]:
    """Every tensor of the new file that an encoder has, in the order of the folder's."""
    made: dict[str, str] = {}
    layers, type_of = encoder.layers(hyper), _types(encoder)
    counted = max(layers, hyper.integer(*LAYERS, default=0))
    for original, tensor in folder.tensors.items():
        name = _plain(original)
        if not _is_part(name, encoder) or name.endswith(encoder.folded):
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
    with read_from(hyper):
        extra = encoder.extra(hyper)
    for target, vector in extra.items():
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
