"""From a Hugging Face folder to a GGUF file: `convert_folder`.

Every tensor of the folder goes somewhere by its family's rules, or the conversion is refused with
its name. Matrices keep the folder's numbers (or become one float type); vectors, norms and the few
matrices that kernels take as floats are float32, as in the files of llama.cpp's converter. Any
other format is made by quantising that file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import numpy as np

from oxillama.arguments import check_progress
from oxillama.convert import families  # noqa: F401  (registers them)
from oxillama.convert.accounts import check_config
from oxillama.convert.checks import (
    check_head,
    check_layers,
    check_loads,
    check_vocabulary,
    check_vocabulary_size,
)
from oxillama.convert.encoder import ENCODERS
from oxillama.convert.family import FAMILIES, Family, Hyper, Keys, Rule, compiled
from oxillama.convert.folder import ModelFolder
from oxillama.convert.general import general_keys
from oxillama.convert.modules import check_modules
from oxillama.convert.mtp_layers import (
    HEADS,
    Asked,
    Further,
    check_beyond,
    check_further,
    further_of,
    layer_of,
)
from oxillama.convert.quantised import method_of, mxfp4_bytes
from oxillama.convert.safetensors import StoredTensor, Tensor, check_finite, check_unchanged
from oxillama.convert.tensor_plan import (
    EXACT,
    FLOATS,
    INTEGERS,
    Planned,
    as_bits,
    filled,
    join,
    single,
    stack,
    type_of_tensor,
)
from oxillama.convert.tokens import KeyValues
from oxillama.convert.vocabulary import vocabulary_keys
from oxillama.durable import Scratch
from oxillama.errors import ConvertError
from oxillama.gguf import GgufWriter
from oxillama.gguf.writer import checked_target, unwritable
from oxillama.quant import quantize_file
from oxillama.quant.recipes import recipe_name

# tensors of encoders of images and sound, which go into files of their own
_OTHER_PARTS = re.compile(
    r"(thinker\.|model\.)?(visual|vision|vision_tower|vision_model|vision_adapter|vision_projection|vit|"
    r"vqmodel|sam_model|qwen2_model|siglip2|mlp1|layerwise_projectors|spatial_projectors|projector|mlp_AR|linear_proj|multi_modal_projector|patch_merge_mlp|"
    r"audio_tower|embed_vision|vision_embedder|embed_audio|connector|generation_(embeddings|aligner|head)|patch_merger|pre_mm_projector_norm|mm_projector|"
    r"vision_encoder|audio_encoder|aligner|merger|talker|token2wav|code2wav|vit_large_projector|mtp_layers|mtp|"
    r"conformer|audio_adapter|audio_embedding|depthformer|depth_linear|depth_embeddings|"
    r"sound_encoder|sound_projection|speech_encoder|ln_speech|speech_audio_adapter)\.|"
    r"(model\.)?(image_newline|view_seperator|codebook_offsets|audio_loss_weights)\Z|"  # spelled so
    r".*\.parametrizations\.weight\.\d+\.lora_[AB]\Z"  # adapters, files of their own too
)

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Converted:
    """What a conversion wrote."""

    path: Path
    architecture: str
    tensors: int
    bytes: int
    left_out: tuple[str, ...]  # tensors of other parts of the model (images, sound, prediction)
    tokens_left_out: tuple[str, ...] = ()  # number and text of those that the model has no row for
    mtp_layers: int = 0  # that predict further tokens, in the file
    # those of `left_out` that are of such layers
    mtp_left_out: tuple[str, ...] = ()
    mtp_absent: int = 0  # such layers that config.json counts and the folder does not hold

    def __str__(self) -> str:
        other = ""
        for count, what in (
            (self.mtp_layers, "to predict further tokens"),
            (self.mtp_absent, "to predict further tokens not found in the folder"),
        ):
            if count:
                other += f", {count} layer{'s' * (count > 1)} {what}"
        for count, what in (
            (len(self.mtp_left_out), "that predict further tokens"),
            (len(self.left_out) - len(self.mtp_left_out), "of other parts"),
        ):
            if count:
                other += f", {count} tensors {what} left out"
        if self.tokens_left_out:
            other += f", tokens beyond the vocabulary left out: {', '.join(self.tokens_left_out)}"
        return (
            f"{self.path}: {self.architecture}, {self.tensors} tensors, "
            f"{self.bytes / 1e6:,.1f} MB{other}"
        )


def convertible() -> dict[str, tuple[str, ...]]:
    """Every class of transformers that can be converted, with its GGUF architecture, and those that
    some of its configurations are.
    """
    return {name: (one.arch, *one.others) for name, one in sorted(FAMILIES.items())}


def convert_folder(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    type: str = "auto",
    *,
    name: str | None = None,
    mtp: Asked = None,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> Converted:
    """Write the GGUF file of a Hugging Face model folder.

    type: auto (each matrix in the folder's own data type, a quantised one in a type that holds the
    same numbers or else in the float type that its configuration names), F32, F16, BF16, or a
    recipe of `quantize_file` such as Q4_K_M. name: `general.name` (default: the folder's). mtp: the
    layers that predict further tokens (multi-token prediction): None keeps them where llama.cpp's
    converter does, True keeps them or raises, False leaves them out, "only" writes a file of them
    and of what they share with the model (embedding, last norm, head), without the rest. progress
    is called with the number of tensors done, the total, and the current one. ConvertError, naming
    the cause, if the folder cannot be converted; then no file is left behind.
    """
    check_progress(progress, "(done, total, name)")
    if not isinstance(type, str):
        raise ConvertError(f"type: found {type!r:.50}, wanted auto, F32, F16, BF16 or a recipe")
    folder = ModelFolder(source)
    wanted = type.upper()
    if wanted in (*FLOATS, "AUTO"):
        return _write(folder, Path(target), wanted, name, mtp, progress)
    # before hours of work, not after them
    recipe_name(type)
    checked_target(target)
    try:
        scratch = Scratch(target)
    except OSError as error:
        raise unwritable(target, error) from error
    with scratch:
        whole = _write(folder, Path(scratch.path) / "whole.gguf", EXACT, name, mtp, progress)
        report = quantize_file(whole.path, target, type, num_threads=num_threads, progress=progress)
    return replace(whole, path=Path(target), bytes=report.bytes_after)


def _family(folder: ModelFolder, hyper: Hyper) -> Family:
    if folder.architecture not in FAMILIES and folder.architecture in ENCODERS:
        named = hyper.get("text_model_id")
        raise ConvertError(
            f"{hyper.label}: architectures: found {folder.architecture!r:.80}, an encoder alone "
            "(`--mmproj` writes its file), wanted the folder of its language model"
            + (f", {named!r:.80}" if named else "")
        )
    if folder.architecture not in FAMILIES:
        near = get_close_matches(folder.architecture, FAMILIES, n=3)
        raise ConvertError(
            f"{hyper.label}: architectures: found {folder.architecture!r:.80}, "
            + (f"the nearest known are {', '.join(near)}" if near else "wanted a known class")
            + f"; `oxillama convert --list` gives all {len(FAMILIES)}"
        )
    family = FAMILIES[folder.architecture]
    with read_from(hyper):
        family = family.variant(hyper) or family
    if method_of(folder.config, hyper.label) == "mxfp4" and not family.packed:
        raise ConvertError(
            f"{hyper.label}: quantization_config: found 'mxfp4', which {family.arch} is not "
            "published in, wanted another method or float weights"
        )
    return family


def _write(
    folder: ModelFolder,
    target: Path,
    wanted: str,
    name: str | None,
    mtp: Asked,
    progress: Progress | None,
) -> Converted:
    hyper = Hyper(folder.config, f"{folder.path}/config.json", folder)
    family = _family(folder, hyper)
    folder.check_complete()
    beyond: list[str] = []
    keys = Keys(family.arch)
    with read_from(hyper):
        named = {original: family.plain(original) for original in folder.tensors}
        further = further_of(named, family, hyper, str(folder.path), mtp)
        hyper.further = further.count
        family.keys(hyper, keys)
        if further.count:
            keys.u32("nextn_predict_layers", further.count)
    alone = mtp == "only"
    plan = _Plan(folder, family, hyper, wanted, further, alone=alone)
    planned = list(plan.planned(keys))
    check_further({one.name: one.shape for one in planned}, hyper, str(folder.path))
    general = general_keys(folder, planned, wanted, name)
    check_vocabulary_size(hyper, planned)
    vocabulary = vocabulary_keys(folder, family, hyper, beyond)
    check_vocabulary(folder, family.arch, vocabulary)
    check_config(hyper, family, keys, {one.name for one in planned})
    check_modules(hyper)
    check_head(folder, hyper, planned, keys)
    if not alone:
        check_layers(folder, family.held(hyper), planned)
        check_loads(folder, family.arch, {**general, **keys.found}, planned)
    save(target, family.arch, {**general, **keys.found, **vocabulary}, planned, folder, progress)
    return Converted(
        target,
        family.arch,
        len(planned),
        target.stat().st_size,
        tuple(sorted(plan.left_out)),
        tuple(beyond),
        further.count,
        tuple(sorted(one for one in set(plan.left_out) if one in further.places)),
        further.absent,
    )


def save(
    target: Path,
    arch: str,
    keys: KeyValues,
    planned: Sequence[Planned],
    folder: ModelFolder,
    progress: Progress | None,
) -> None:
    """Write the file, a tensor at a time; ConvertError if the folder's files change meanwhile."""
    with GgufWriter(target, arch) as writer:
        for key, (value, kind) in keys.items():
            writer.add(key, value, kind)
        for one in planned:
            writer.declare(one.name, one.type_name, one.shape)
        for done, one in enumerate(planned):
            if progress is not None:
                progress(done, len(planned), one.name)
            if one.pieces is None:
                writer.write(one.name, as_bits(next(_checked(one, iter([one.make()])))))
            else:
                writer.write_pieces(one.name, map(as_bits, _checked(one, one.pieces())))
        check_unchanged(folder.stored.values())
        writer.finish()


@contextmanager
def read_from(hyper: Hyper) -> Iterator[None]:
    """What a configuration of the wrong shape makes fail, as an error that names the file."""
    try:
        with np.errstate(divide="raise", invalid="raise", over="raise"):
            yield
    except ConvertError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConvertError(
            f"{hyper.label}: its values do not fit together: {type(error).__name__}: {error}"
        ) from error


def _checked(one: Planned, pieces: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """The pieces of a tensor, whose floats must be finite."""
    done = 0
    for piece in pieces:
        check_finite(one.name, piece, one.type_name, done)
        done += piece.size
        yield piece


# ---- tensors -------------------------------------------------------------------------------------


class _Plan:
    """Where every tensor of a folder goes: what is alone in its place, what is stacked there, and
    what is left out.
    """

    def __init__(
        self,
        folder: ModelFolder,
        family: Family,
        hyper: Hyper,
        wanted: str,
        further: Further,
        *,
        alone: bool,
    ) -> None:
        """alone: take the layers that predict further tokens, and what they share with the
        model.
        """
        self._folder, self._family, self._hyper, self._wanted = folder, family, hyper, wanted
        self._further, self._alone = further, alone
        self._gathered, self._packed = _Gathered(folder, family), _Packed(folder, family)
        self._dropped = Family(family.arch, dict.fromkeys(family.dropped, ""), family.keys)
        self._order: list[str] = []  # of the places, by their first target
        self._singles: dict[str, list[Planned]] = {}
        self._stacks: dict[str, dict[int, Tensor]] = {}
        self._joined: set[str] = set()  # those of the stacks whose rows follow one another
        self._made: dict[str, str] = {}  # which tensor each target is made of
        self._beyond: dict[int, list[str]] = {}  # what is left out of layers beyond, by layer
        self.left_out: list[str] = []
        for original, tensor in folder.tensors.items():
            self._take(original, tensor)
        check_beyond(self._beyond, hyper, str(folder.path))

    def planned(self, keys: Keys) -> Iterator[Planned]:
        """Every tensor of the new file, in the order of the folder's; numbers that a file holds as
        keys are added to those.
        """
        folder, hyper = self._folder, self._hyper
        for target in self._order:
            if target in self._singles:
                yield from self._singles[target]
            else:
                put = join if target in self._joined else stack
                yield put(folder, target, self._stacks[target], self._wanted)
        yield from self._packed.planned()
        with read_from(hyper):
            extra = self._family.extra(hyper)
        for target, array in extra.items():
            kind = type_of_tensor(target, array.shape, "F32", self._wanted)
            make = partial(StoredTensor("F32", array).as_type, kind)
            yield Planned(target, array.shape, kind, make)
        self._gathered.write(hyper.layers, keys)

    def _take(self, original: str, tensor: Tensor) -> None:
        """Find the places of a tensor: one by its family's rules, or those of a layer that predicts
        further tokens.
        """
        behind = self._further.places.get(original)
        plain = self._family.plain(original)
        if behind is None:
            if _OTHER_PARTS.match(original) or original.startswith(self._family.beside):
                self.left_out.append(original)
            else:
                self._place(original, tensor, plain, self._family, shared=True)
            return
        if not behind:
            number = layer_of(plain)
            self._leave_out(original, number if number is not None else -1)
        for name in behind:
            self._place(original, tensor, name, self._further.family or self._family, shared=False)

    def _leave_out(self, original: str, layer: int) -> None:
        """Leave out a tensor of a layer; -1 for one of no layer."""
        self.left_out.append(original)
        if layer >= self._hyper.layers:
            self._beyond.setdefault(layer, []).append(original)

    def _place(
        self, original: str, tensor: Tensor, name: str, holder: Family, *, shared: bool
    ) -> None:
        """Put a tensor where a family's rules have it; shared: it is no tensor of a layer that
        predicts further tokens.
        """
        family = self._family
        if self._gathered.takes(original, name, tensor) or self._packed.takes(
            original, name, tensor
        ):
            return
        if self._dropped.rule_of(name) is not None:
            if "SequenceClassification" in self._folder.architecture and "pooler" in name:
                self.left_out.append(original)  # a classifier's, and files have no place for it
            return
        tied = name == "lm_head.weight" and self._hyper.flag("tie_word_embeddings", default=False)
        if tied and _is_embedding(tensor, self._folder, family):
            return
        found = holder.rule_of(name)
        if found is None:
            raise ConvertError(
                f"{self._folder.path}: {original} {list(tensor.shape)}: {family.arch} has no place "
                "for it"
            )
        rule, at = found
        layer, expert = at.get("b"), at.get("e", rule.part)
        if layer is not None and int(layer) >= self._hyper.blocks:
            self._leave_out(original, int(layer))
            return
        self._check_type(original, tensor, rule)
        targets = tuple(filled(to, at) for to in rule.targets)
        if self._alone and shared and targets[0] not in HEADS:
            self.left_out.append(original)
        elif expert is not None:
            self._put_in_stack(original, tensor, targets[0], int(expert), joined=rule.joined)
        else:
            inside = self._hyper if layer is None else self._hyper.at(int(layer))
            self._put_alone(original, tensor, rule, targets, inside)

    def _check_type(self, original: str, tensor: Tensor, rule: Rule) -> None:
        kinds = INTEGERS if rule.integers else FLOATS
        if tensor.dtype not in kinds and (rule.integers or tensor.dtype != "F64"):
            raise ConvertError(
                f"{self._folder.path}: {original}: dtype {tensor.dtype}, wanted {', '.join(kinds)}"
            )

    def _put_in_stack(
        self, original: str, tensor: Tensor, target: str, number: int, *, joined: bool
    ) -> None:
        if target not in self._stacks:
            self._order.append(target)
        if joined:
            self._joined.add(target)
        held = self._stacks.setdefault(target, {}).setdefault(number, tensor)
        if held is not tensor:
            raise ConvertError(f"{self._folder.path}: {original}: a second one of its number")

    def _put_alone(
        self,
        original: str,
        tensor: Tensor,
        rule: Rule,
        targets: tuple[str, ...],
        hyper: Hyper,
    ) -> None:
        for target in targets:
            if target in self._made:
                raise ConvertError(
                    f"{self._folder.path}: {original} and {self._made[target]} are both {target}"
                )
            self._made[target] = original
        self._order.append(targets[0])
        self._singles[targets[0]] = single(original, tensor, rule, targets, hyper, self._wanted)


def _is_embedding(head: Tensor, folder: ModelFolder, family: Family) -> bool:
    """Whether a head that is said to be the embedding is: transformers does not tie two tensors of
    different numbers, whatever a configuration says, and writes such folders (Qwen 3 VL with
    experts: tied by the configuration of its text part, not by that of the whole).
    """
    for name, tensor in folder.tensors.items():
        found = family.rule_of(family.plain(name))
        if found and "token_embd.weight" in [filled(to, found[1]) for to in found[0].targets]:
            return tensor.dtype == head.dtype and np.array_equal(tensor.data, head.data)
    return False


class _Gathered:
    """Tensors of one number (a layer), that a file holds as a key."""

    def __init__(self, folder: ModelFolder, family: Family) -> None:
        self.folder = folder
        self.patterns = [(compiled(name), key) for name, key in family.gathered.items()]
        self.found: dict[str, dict[int | None, float]] = {
            key: {} for key in family.gathered.values()
        }

    def takes(self, original: str, name: str, tensor: Tensor) -> bool:
        for pattern, key in self.patterns:
            if match := pattern.match(name):
                if np.prod(tensor.shape) != 1 or tensor.dtype not in (*FLOATS, "F64"):
                    raise ConvertError(
                        f"{self.folder.path}: {original}: found {tensor.dtype} of shape "
                        f"{list(tensor.shape)}, wanted one number"
                    )
                layer = match.groupdict().get("b")
                number = float(tensor.floats().reshape(-1)[0])
                if not np.isfinite(number):
                    raise ConvertError(
                        f"{self.folder.path}: {original}: found {number}, wanted a finite number"
                    )
                self.found[key][None if layer is None else int(layer)] = number
                return True
        return False

    def write(self, layers: int, keys: Keys) -> None:
        for key, values in self.found.items():
            if set(values) == {None}:
                keys.found[key] = values[None], "float32"
                continue
            if set(values) != set(range(layers)):
                raise ConvertError(
                    f"{self.folder.path}: {key}: values of layers {list(values)[:8]}, "
                    f"wanted all {layers}"
                )
            keys.found[key] = [values[layer] for layer in range(layers)], "array[float32]"


class _Packed:
    """MXFP4 matrices of gpt-oss's experts: NAME_blocks (experts, rows, blocks, 16 bytes) and
    NAME_scales (experts, rows, blocks).
    """

    def __init__(self, folder: ModelFolder, family: Family) -> None:
        self.folder = folder
        self.patterns = [(compiled(name), targets) for name, targets in family.packed.items()]
        self.found: dict[tuple[str, ...], dict[str, Tensor]] = {}
        self.names: dict[tuple[str, ...], str] = {}  # in the folder, of the scales

    def takes(self, original: str, name: str, tensor: Tensor) -> bool:
        part = next((one for one in ("_blocks", "_scales") if name.endswith(one)), None)
        if part is None:
            return False
        for pattern, targets in self.patterns:
            if match := pattern.match(name.removesuffix(part)):
                if tensor.dtype != "U8":
                    raise ConvertError(
                        f"{self.folder.path}: {original}: dtype {tensor.dtype}, wanted U8"
                    )
                names = tuple(filled(to, match.groupdict()) for to in targets)
                self.found.setdefault(names, {})[part] = tensor
                if part == "_scales":
                    self.names[names] = original
                return True
        return False

    def planned(self) -> Iterator[Planned]:
        for targets, parts in self.found.items():
            blocks, scales = parts.get("_blocks"), parts.get("_scales")
            if (
                blocks is None
                or scales is None
                or blocks.data.ndim != 4
                or blocks.shape != (*scales.shape, 16)
                or blocks.shape[1] % len(targets)
            ):
                shapes = {name: list(one.shape) for name, one in parts.items()}
                raise ConvertError(
                    f"{self.folder.path}: {targets[0]}: MXFP4 parts {shapes}, wanted _blocks of "
                    "(experts, rows, blocks, 16) and _scales of (experts, rows, blocks)"
                )
            name = f"{self.folder.path}: {self.names[targets]}"
            for number, target in enumerate(targets):
                held = (
                    blocks.data[:, number :: len(targets)],
                    scales.data[:, number :: len(targets)],
                )
                experts, rows, count = held[1].shape
                make = partial(mxfp4_bytes, *held, name)
                yield Planned(target, (experts, rows, 32 * count), "MXFP4", make)


# ---- keys of every file --------------------------------------------------------------------------
