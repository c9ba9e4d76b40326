"""From a Hugging Face folder to a GGUF file: `convert_folder`.

Every tensor of the folder goes somewhere by its family's rules, or the conversion is refused with
its name. Matrices keep the folder's numbers (or become one float type); vectors, norms and the few
matrices that kernels take as floats are float32, as in the files of llama.cpp's converter. Any
other format is made by quantising that file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np

from oxillama.convert import families  # noqa: F401  (registers them)
from oxillama.convert.accounts import check_config
from oxillama.convert.family import FAMILIES, Family, Hyper, Keys, Rule, compiled
from oxillama.convert.folder import ModelFolder
from oxillama.convert.further import (
    HEADS,
    Asked,
    Further,
    check_beyond,
    check_further,
    further_of,
    layer_of,
)
from oxillama.convert.quantised import Quantised, method_of, mxfp4_bytes
from oxillama.convert.safetensors import StoredTensor, Tensor, check_finite
from oxillama.convert.vocabulary import KeyValues, vocabulary_keys
from oxillama.errors import ConvertError, ModelError, listed
from oxillama.gguf import GgufReader, GgufWriter, TensorInfo
from oxillama.gguf.types import type_by_name
from oxillama.gguf.values import Cursor, encode_value, read_kind, read_value
from oxillama.model.builder import recorders
from oxillama.model.record import record
from oxillama.quant import quantize_file
from oxillama.quant.convert import QUANTIZATION_VERSION

FLOATS = ("F32", "F16", "BF16")
EXACT = "EXACT"  # as AUTO, but dequantised weights are not rounded
INTEGERS = ("I64", "I32")
FILE_TYPES = {"F32": 0, "F16": 1, "BF16": 32, "MXFP4": 38, "Q8_0": 7, "Q4_0": 2}
# matrices that are float32 in every file
_KEPT = re.compile(
    r"(_norm(_\d)?\.weight|ffn_gate_inp(_shexp)?\.weight|position_embd\.weight|token_types\.weight|"
    r"(ssm|ple)_conv1d(_[qkv])?\.weight|shortconv\.conv\.weight|altup_(correct|predict)_coef\.weight|"
    r"time_mix_(first|lerp_fused|(decay_)?w[12])\.weight|indexer\.([qk]_)?proj\.weight|"
    r"(hc_(attn|ffn)|output_hc)_fn\.weight|indexer_compressor_(ape|gate)\.weight|"
    r"attn_compressor_ape\.weight)\Z"
)
# tensors of encoders of images and sound, which go into files of their own
_OTHER_PARTS = re.compile(
    r"(model\.)?(visual|vision|vision_tower|vision_model|vision_adapter|vision_projection|vit|"
    r"vqmodel|sam_model|projector|mlp_AR|linear_proj|multi_modal_projector|patch_merge_mlp|"
    r"audio_tower|embed_vision|embed_audio|connector|generation_(embeddings|aligner|head)|patch_merger|pre_mm_projector_norm|mm_projector|"
    r"vision_encoder|audio_encoder|aligner|mtp_layers|mtp)\.|"
    r"(model\.)?(image_newline|view_seperator)\Z|"  # spelled so
    r".*\.parametrizations\.weight\.\d+\.lora_[AB]\Z"  # adapters, files of their own too
)
_LAYER = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.")
_PREFIXES = (
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("language_model.", ""),
)

# what generation_config.json says of sampling: our name, its type, theirs
_SAMPLING = (
    ("temp", "float32", ("temperature",)),
    ("top_k", "int32", ("top_k",)),
    ("top_p", "float32", ("top_p",)),
    ("min_p", "float32", ("min_p",)),
    ("xtc_probability", "float32", ("xtc_probability",)),
    ("xtc_threshold", "float32", ("xtc_threshold",)),
    ("penalty_last_n", "int32", ("penalty_last_n",)),
    ("penalty_repeat", "float32", ("penalty_repeat", "repetition_penalty")),
    ("mirostat", "int32", ("mirostat",)),
    ("mirostat_tau", "float32", ("mirostat_tau",)),
    ("mirostat_eta", "float32", ("mirostat_eta",)),
)

Progress = Callable[[int, int, str], None]
# the type of a new tensor, by its name, its shape, the folder's type and what was asked for
TypeOf = Callable[[str, tuple[int, ...], str, str], str]


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


@dataclass(frozen=True, slots=True)
class Planned:
    """One tensor of the new file: where its numbers come from, by shape and type."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    make: Callable[[], np.ndarray]  # the bytes, as an array of the type's numbers
    # the same in pieces, for what need not fit into memory
    pieces: Callable[[], Iterator[np.ndarray]] | None = None


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
    folder = ModelFolder(source)
    wanted = type.upper()
    if wanted in (*FLOATS, "AUTO"):
        return _write(folder, Path(target), wanted, name, mtp, progress)
    with TemporaryDirectory(dir=Path(target).resolve().parent, prefix=".convert-") as place:
        whole = _write(folder, Path(place) / "whole.gguf", EXACT, name, mtp, progress)
        report = quantize_file(whole.path, target, type, num_threads=num_threads, progress=progress)
    return replace(whole, path=Path(target), bytes=report.bytes_after)


def _family(folder: ModelFolder, hyper: Hyper) -> Family:
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
    left_out: list[str] = []
    beyond: list[str] = []
    keys = Keys(family.arch)
    with read_from(hyper):
        named = {original: _plain(original, family) for original in folder.tensors}
        further = further_of(named, family, hyper, str(folder.path), mtp)
        hyper.further = further.count
        family.keys(hyper, keys)
        if further.count:
            keys.u32("nextn_predict_layers", further.count)
    alone = mtp == "only"
    planned = list(_plan(folder, family, hyper, wanted, left_out, keys, further, alone))
    check_further({one.name: one.shape for one in planned}, hyper, str(folder.path))
    general = _general(folder, hyper, planned, wanted, name)
    _check_vocabulary_size(hyper, planned)
    vocabulary = vocabulary_keys(folder, family, hyper, beyond)
    check_config(hyper, family, keys, {one.name for one in planned})
    _check_head(folder, hyper, planned, keys)
    if not alone:
        _check_layers(folder, hyper, planned)
        _check_loads(folder, family.arch, {**general, **keys.found}, planned)
    save(target, family.arch, {**general, **keys.found, **vocabulary}, planned, progress)
    return Converted(
        target,
        family.arch,
        len(planned),
        target.stat().st_size,
        tuple(sorted(left_out)),
        tuple(beyond),
        further.count,
        tuple(sorted(one for one in set(left_out) if one in further.places)),
        further.absent,
    )


def save(
    target: Path,
    arch: str,
    keys: KeyValues,
    planned: Sequence[Planned],
    progress: Progress | None,
) -> None:
    """Write the file, a tensor at a time."""
    with GgufWriter(target, arch) as writer:
        for key, (value, kind) in keys.items():
            writer.add(key, value, kind)
        for one in planned:
            writer.declare(one.name, one.type_name, one.shape)
        for done, one in enumerate(planned):
            if progress is not None:
                progress(done, len(planned), one.name)
            if one.pieces is None:
                writer.write(one.name, _as_bits(next(_checked(one, iter([one.make()])))))
            else:
                writer.write_pieces(one.name, map(_as_bits, _checked(one, one.pieces())))
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


def _bits(one: Planned) -> np.ndarray:
    return _as_bits(one.make())


def _as_bits(made: np.ndarray) -> np.ndarray:
    """Numbers as a writer takes them; numpy has no bfloat16."""
    made = np.ascontiguousarray(made)
    return made.view(np.uint8) if made.dtype == np.uint16 else made


# ---- tensors -------------------------------------------------------------------------------------


def _plan(
    folder: ModelFolder,
    family: Family,
    hyper: Hyper,
    wanted: str,
    left_out: list[str],
    keys: Keys,
    further: Further,
    alone: bool,
) -> Iterator[Planned]:
    """Every tensor of the new file, in the order of the folder's; alone: the layers that predict
    further tokens, and what they share with the model.
    """
    gathered = _Gathered(folder, family)
    packed = _Packed(folder, family)
    stacks: dict[str, dict[int, Tensor]] = {}
    joined: set[str] = set()
    order: list[str] = []
    made: dict[str, str] = {}
    singles: dict[str, list[Planned]] = {}
    beyond: dict[int, list[str]] = {}  # tensors that are left out by layer
    dropped = Family(family.arch, dict.fromkeys(family.dropped, ""), family.keys)
    for original, tensor in folder.tensors.items():
        behind = further.places.get(original)
        if behind is None and _OTHER_PARTS.match(original) or behind == ():
            left_out.append(original)
            number = layer_of(_plain(original, family)) if behind == () else None
            if number is not None and number >= hyper.layers:
                beyond.setdefault(number, []).append(original)
            continue
        holder = family if behind is None else further.family or family
        for name in (_plain(original, family),) if behind is None else behind:
            if gathered.takes(original, name, tensor) or packed.takes(original, name, tensor):
                continue
            if dropped.rule_of(name) is not None:
                if "SequenceClassification" in folder.architecture and "pooler" in name:
                    left_out.append(original)  # a classifier's, and files have no place for it
                continue
            tied = name == "lm_head.weight" and hyper.flag("tie_word_embeddings", default=False)
            if tied and _is_embedding(tensor, folder, family):
                continue
            found = holder.rule_of(name)
            if found is None:
                raise ConvertError(
                    f"{folder.path}: {original} {list(tensor.shape)}: {family.arch} has no place "
                    "for it"
                )
            rule, at = found
            layer, expert = at.get("b"), at.get("e", rule.part)
            if layer is not None and int(layer) >= hyper.blocks:
                left_out.append(original)
                beyond.setdefault(int(layer), []).append(original)
                continue
            kinds = INTEGERS if rule.integers else FLOATS
            if tensor.dtype not in kinds and (rule.integers or tensor.dtype != "F64"):
                raise ConvertError(
                    f"{folder.path}: {original}: dtype {tensor.dtype}, wanted {', '.join(kinds)}"
                )
            targets = tuple(filled(to, at) for to in rule.targets)
            if alone and behind is None and targets[0] not in HEADS:
                left_out.append(original)
                continue
            if expert is not None:
                if targets[0] not in stacks:
                    order.append(targets[0])
                if rule.joined:
                    joined.add(targets[0])
                held = stacks.setdefault(targets[0], {}).setdefault(int(expert), tensor)
                if held is not tensor:
                    raise ConvertError(f"{folder.path}: {original}: a second one of its number")
                continue
            for target in targets:
                if target in made:
                    raise ConvertError(
                        f"{folder.path}: {original} and {made[target]} are both {target}"
                    )
                made[target] = original
            order.append(targets[0])
            inside = hyper if layer is None else hyper.at(int(layer))
            singles[targets[0]] = single(original, tensor, rule, targets, inside, wanted)
    check_beyond(beyond, hyper, str(folder.path))
    for target in order:
        if target in singles:
            yield from singles[target]
        else:
            put = _join if target in joined else _stack
            yield put(folder, target, stacks[target], wanted)
    yield from packed.planned()
    with read_from(hyper):
        extra = family.extra(hyper)
    for target, array in extra.items():
        kind = _type_of(target, array.shape, "F32", wanted)
        make = lambda array=array, kind=kind: StoredTensor("F32", array).as_type(kind)  # noqa: E731
        yield Planned(target, array.shape, kind, make)
    gathered.write(hyper.layers, keys)


def _check_layers(folder: ModelFolder, hyper: Hyper, planned: Sequence[Planned]) -> None:
    """Refuse a folder that holds no tensor of a layer that its configuration counts."""
    found = {int(match[1]) for one in planned if (match := _LAYER.match(one.name))}
    absent = [str(layer) for layer in range(hyper.layers) if layer not in found]
    if absent:
        which = f"layer{'s' * (len(absent) > 1)} {listed(absent, 4)}"
        raise ConvertError(
            f"{folder.path}: found no tensors of {which}, wanted those of the "
            f"{hyper.layers} layers that config.json counts"
        )


def _check_head(folder: ModelFolder, hyper: Hyper, planned: Sequence[Planned], keys: Keys) -> None:
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


def _check_vocabulary_size(hyper: Hyper, planned: Sequence[Planned]) -> None:
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
        return _bits(self._planned[name]).reshape(-1).view(np.uint8)


def _check_loads(
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


def _plain(name: str, family: Family) -> str:
    """A folder's name of a tensor as the family's rules have it."""
    for prefix, plain in _PREFIXES:
        name = plain + name.removeprefix(prefix) if name.startswith(prefix) else name
    return family.plain(name)


def _is_embedding(head: Tensor, folder: ModelFolder, family: Family) -> bool:
    """Whether a head that is said to be the embedding is: transformers does not tie two tensors of
    different numbers, whatever a configuration says, and writes such folders (Qwen 3 VL with
    experts: tied by the configuration of its text part, not by that of the whole).
    """
    for name, tensor in folder.tensors.items():
        found = family.rule_of(_plain(name, family))
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
            for number, target in enumerate(targets):
                held = (
                    blocks.data[:, number :: len(targets)],
                    scales.data[:, number :: len(targets)],
                )
                experts, rows, count = held[1].shape
                make = lambda held=held: mxfp4_bytes(*held)  # noqa: E731
                yield Planned(target, (experts, rows, 32 * count), "MXFP4", make)


def filled(target: str, places: Mapping[str, str | None]) -> str:
    for place, value in places.items():
        if value is not None:
            target = target.replace(f"{{{place}}}", value)
    return target


def _changed(
    original: str, data: np.ndarray, rule: Rule, targets: tuple[str, ...], hyper: Hyper
) -> tuple[np.ndarray, ...]:
    """A tensor's numbers as its rule rearranges them, one array for each target."""
    try:
        shaped = data if rule.change is None else rule.change(data, hyper)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ConvertError(
            f"{original}: shape {list(data.shape)} is not what config.json says: {error}"
        ) from None
    shaped = shaped if isinstance(shaped, tuple) else (shaped,)
    if len(shaped) != len(targets):
        raise ConvertError(f"{original}: {len(shaped)} parts for {len(targets)} tensors")
    return shaped


def single(
    original: str,
    tensor: Tensor,
    rule: Rule,
    targets: tuple[str, ...],
    hyper: Hyper,
    wanted: str,
    type_of: TypeOf | None = None,
) -> list[Planned]:
    """One tensor of the folder as the tensors that it becomes; type_of: as `_type_of`."""
    if isinstance(tensor, Quantised) and not rule.values and type_of is None:
        return _dequantised(original, tensor, rule, targets, hyper, wanted)
    dtype = "F32" if rule.values else tensor.dtype

    def parts() -> tuple[np.ndarray, ...]:
        data = tensor.floats() if rule.values else tensor.data
        return _changed(original, data, rule, targets, hyper)

    planned = []
    for number, (target, part) in enumerate(zip(targets, parts(), strict=True)):
        kind = "I32" if rule.integers else (type_of or _type_of)(target, part.shape, dtype, wanted)

        def make(number: int = number, kind: str = kind) -> np.ndarray:
            return StoredTensor(dtype, parts()[number]).as_type(kind)

        planned.append(Planned(target, part.shape, kind, make))
    return planned


def _dequantised(
    original: str,
    tensor: Quantised,
    rule: Rule,
    targets: tuple[str, ...],
    hyper: Hyper,
    wanted: str,
) -> list[Planned]:
    """The targets of a quantised weight: one matrix of a stack at a time where its rule rearranges
    each by itself, some rows at a time where it rearranges none.
    """

    def changed(data: np.ndarray) -> tuple[np.ndarray, ...]:
        return _changed(original, data, rule, targets, hyper)

    # shapes are told by numbers that take no memory
    shapes = [one.shape for one in changed(np.broadcast_to(np.float32(0), tensor.shape))]
    count = 1
    if len(tensor.shape) == 3:
        each = [
            one.shape for one in changed(np.broadcast_to(np.float32(0), (1, *tensor.shape[1:])))
        ]
        if [(tensor.shape[0], *one[1:]) for one in each] == shapes:
            count = tensor.shape[0]
    rows = tensor.rows // count
    inside = tensor.shape if count == 1 else (1, *tensor.shape[1:])
    planned = []
    for number, (target, shape) in enumerate(zip(targets, shapes, strict=True)):
        kind = _type_of(target, shape, tensor.dtype, wanted, tensor)
        order = None
        if kind not in FLOATS and rule.change is not None:
            order = _row_order(changed, number, inside)
            if order is None:
                kind = _type_of(target, shape, tensor.dtype, wanted, tensor, keep=False)

        def pieces(
            number: int = number, kind: str = kind, order: np.ndarray | None = order
        ) -> Iterator[np.ndarray]:
            for at in range(0, tensor.rows, rows):
                if kind not in FLOATS:
                    held = tensor.repacked(kind, at, at + rows)
                    yield held if order is None else held[order]
                elif rule.change is None:
                    yield from tensor.pieces(kind, at, at + rows)
                else:
                    yield changed(tensor.matrix(kind, at, at + rows).reshape(inside))[number]

        planned.append(_in_pieces(target, shape, kind, pieces))
    return planned


def _row_order(
    changed: Callable[[np.ndarray], tuple[np.ndarray, ...]], number: int, shape: tuple[int, ...]
) -> np.ndarray | None:
    """Which row each row of a rearranged part was, None where columns are rearranged too."""
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    column = changed(np.broadcast_to(np.arange(columns, dtype=np.int32), shape))[number]
    if column.shape[-1] != columns or (column != np.arange(columns)).any():
        return None
    row = np.broadcast_to(np.arange(rows, dtype=np.int32).reshape(*shape[:-1], 1), shape)
    return changed(row)[number][..., 0].reshape(-1)


def _in_pieces(
    target: str,
    shape: tuple[int, ...],
    kind: str,
    pieces: Callable[[], Iterator[np.ndarray]],
) -> Planned:
    """A tensor that is written piece by piece."""

    def make() -> np.ndarray:
        return np.concatenate([np.ascontiguousarray(one).reshape(-1) for one in pieces()])

    return Planned(target, shape, kind, make, pieces)


def _stack(folder: ModelFolder, target: str, experts: dict[int, Tensor], wanted: str) -> Planned:
    shapes = {one.shape for one in experts.values()}
    dtypes = {one.dtype for one in experts.values()}
    if sorted(experts) != list(range(len(experts))) or len(shapes) != 1 or len(dtypes) != 1:
        raise ConvertError(
            f"{folder.path}: {target}: experts {sorted(experts)[:8]} of shapes "
            f"{sorted(shapes)[:2]}, wanted all of them, of one shape and type"
        )
    shape = (len(experts), *shapes.pop())
    ordered = [experts[at] for at in sorted(experts)]
    kind = _type_of(target, shape, dtypes.pop(), wanted, *ordered)

    return _in_pieces(target, shape, kind, lambda: _one_by_one(ordered, kind))


def _one_by_one(tensors: Sequence[Tensor], kind: str) -> Iterator[np.ndarray]:
    """The numbers of several tensors, quantised ones some rows at a time."""
    for one in tensors:
        if not isinstance(one, Quantised):
            yield one.as_type(kind)
        elif kind not in FLOATS:
            yield one.repacked(kind, 0, one.rows)
        else:
            yield from one.pieces(kind)


def _join(folder: ModelFolder, target: str, parts: dict[int, Tensor], wanted: str) -> Planned:
    ordered = [parts[at] for at in sorted(parts)]
    columns = {one.shape[1:] for one in ordered}
    dtypes = {one.dtype for one in ordered}
    if sorted(parts) != list(range(len(parts))) or len(columns) != 1 or len(dtypes) != 1:
        raise ConvertError(
            f"{folder.path}: {target}: parts {sorted(parts)[:8]} of rows of {sorted(columns)[:2]}, "
            "wanted all of them, of one width and type"
        )
    shape = (sum(one.shape[0] for one in ordered), *columns.pop())
    kind = _type_of(target, shape, dtypes.pop(), wanted, *ordered, keep=False)

    return _in_pieces(target, shape, kind, lambda: _one_by_one(ordered, kind))


def _type_of(
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    wanted: str,
    *sources: Tensor,
    keep: bool = True,
) -> str:
    """The type of a new tensor. Quantised sources whose numbers a GGUF type holds get it, unless a
    float type is asked for; experts in MXFP4 also then. keep: False where that cannot be.
    """
    if len(shape) <= 1 or not name.endswith(".weight") or _KEPT.search(name):
        return "F32"
    quantised = [one for one in sources if isinstance(one, Quantised)]
    if keep and quantised and len(quantised) == len(sources):
        packed = "_exps." in name and all(one.mxfp4 is not None for one in quantised)
        if packed or wanted not in FLOATS:
            kept = {one.kept() for one in quantised}
            found = kept.pop()
            if found is not None and not kept:
                return found
    if wanted == EXACT and quantised:
        return "F32"
    if wanted not in ("AUTO", EXACT):
        return wanted
    return dtype if dtype in FLOATS else "F32"


# ---- keys of every file --------------------------------------------------------------------------


def _general(
    folder: ModelFolder, hyper: Hyper, planned: list[Planned], wanted: str, name: str | None
) -> KeyValues:
    keys: KeyValues = {
        "general.type": ("model", "string"),
        "general.name": (name or folder.path.resolve().name, "string"),
        "general.size_label": (size_label(planned), "string"),
        "general.quantization_version": (QUANTIZATION_VERSION, "uint32"),
    }
    kinds = [one.type_name for one in planned if len(one.shape) > 1]
    most = wanted if wanted in FLOATS else max(FILE_TYPES, key=kinds.count)
    if "MXFP4" in kinds:
        most = "MXFP4"
    keys["general.file_type"] = FILE_TYPES[most], "uint32"
    sampling = folder.json("generation_config.json")
    for ours, kind, names in _SAMPLING:
        said = Hyper(sampling, f"{folder.path / 'generation_config.json'}")
        value = said.number(*names, default=None)
        if value is not None and kind == "int32":
            if value != int(value) or abs(value) >= 1 << 31:
                raise ConvertError(
                    f"{said.label}: {names[0]}: found {said.get(*names)!r:.80}, wanted an integer "
                    "of 32 bits"
                )
            value = int(value)
        if value is not None:
            keys[f"general.sampling.{ours}"] = value, kind
    return keys


def size_label(planned: list[Planned]) -> str:
    """The number of weights in a word, as the GGUF naming convention has it: 1.2B, 8x7B."""
    total = sum(int(np.prod(one.shape)) for one in planned)
    stacked = [one for one in planned if "_exps." in one.name and len(one.shape) == 3]
    if not stacked:
        return _rounded(total)
    count = stacked[0].shape[0]
    routed = sum(int(np.prod(one.shape)) for one in stacked)
    return f"{count}x{_rounded(total - routed + routed // count)}"


def _rounded(count: int) -> str:
    exponent = next((power for power in (12, 9, 6) if count > 10**power), 3)
    value = count / 10**exponent
    digits = max(2 - len(str(round(value)).lstrip("0")), 0)
    return f"{value:.{digits}f}{ {12: 'T', 9: 'B', 6: 'M', 3: 'K'}[exponent] }"
