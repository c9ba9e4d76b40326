"""Converts a file from any format to any other: `quantize_file` plans a format for every tensor,
then streams the tensors through the codecs.

`_plan` decides (recipe, overrides, importances). `_converted` turns one tensor's bytes into another
format, some rows at a time, so that only these and one buffer of floats are in memory.
`Conversion` describes what was done, or with `dry_run` would be. The new file gets its name only
when it is complete (`GgufWriter`): an error, a full disk or Ctrl-C leaves nothing.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from oxillama._core.codecs import first_beyond, unpack_rows
from oxillama._core.threads import worker_count
from oxillama.arguments import check_progress
from oxillama.errors import ConfigError, QuantError
from oxillama.gguf import GgufReader, GgufWriter, TensorInfo, architecture, is_among
from oxillama.quant.contexts import tensor_contexts
from oxillama.quant.imatrix import checked, read_imatrix
from oxillama.quant.recipes import TensorContext, choose, is_kept, recipe_name, recipe_named
from oxillama.quant.rows import format_named, formats, quantize

# of the block layouts, as general.quantization_version tells other programs
QUANTIZATION_VERSION = 2
_SLAB = 1 << 20  # numbers unpacked at a time: 4 MB, which the caches keep until they are packed
_LARGEST = float(np.finfo(np.float32).max)
_FLOATS = {"F32", "F16", "BF16"}
# of so few bits that llama.cpp refuses them without importances
_COARSE = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS")
# each number is rounded to the nearest: importances change nothing
_WEIGHTLESS = ("F32", "F16", "BF16", "Q8_0", "Q8_1", "Q8_K")


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """What happens to one tensor: its format and size before and after, and why it is so."""

    name: str
    shape: tuple[int, ...]
    source: str
    target: str
    bytes_before: int
    bytes_after: int
    # "recipe", "override", "kept", or "fallback": its rows do not fill the blocks of the wanted
    # format (`recipes.FALLBACKS`)
    reason: str
    importance: bool  # whether the importance matrix is used


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a conversion did, or a dry run would do."""

    recipe: str  # its name in `RECIPES`
    tensors: tuple[TensorPlan, ...]
    path: Path | None  # the file written, None after a dry run
    weighed: bool = False  # whether an importance matrix was given

    @property
    def bytes_before(self) -> int:
        """Bytes of all tensors in the source file."""
        return sum(plan.bytes_before for plan in self.tensors)

    @property
    def bytes_after(self) -> int:
        """Bytes of all tensors in the new file."""
        return sum(plan.bytes_after for plan in self.tensors)

    @property
    def bits(self) -> float:
        """Bits per number in the new file."""
        return 8 * self.bytes_after / max(1, sum(int(np.prod(plan.shape)) for plan in self.tensors))

    def __str__(self) -> str:
        """A line per tensor, then the sums."""
        rows = [
            (
                plan.name,
                "x".join(map(str, plan.shape)),
                f"{plan.source} -> {plan.target}",
                f"{plan.bytes_after:,}",
                plan.reason,
            )
            for plan in self.tensors
        ]
        widths = [max(map(len, column)) for column in zip(*rows)]
        name, shape, change, size, _ = widths or (0,) * 5
        lines = [
            f"{row[0]:{name}}  {row[1]:>{shape}}  {row[2]:{change}}  {row[3]:>{size}}  {row[4]}"
            for row in rows
        ]
        mebi = 1 << 20
        total = (
            f"{self.bytes_before / mebi:,.2f} MiB -> {self.bytes_after / mebi:,.2f} MiB, "
            f"{self.bits:.2f} bits per number"
        )
        return "\n".join(
            (
                *lines,
                *self.notes,
                f"{self.recipe}: {total}" + ("" if self.path is None else f", in {self.path}"),
            )
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know and might not expect, a sentence each."""
        found = []
        changed = [plan for plan in self.tensors if plan.target != plan.source]
        again = [plan.source for plan in changed if not {plan.source, plan.target} & _FLOATS]
        if again:
            kinds = ", ".join(sorted(set(again)))
            found.append(
                f"{len(again)} tensors are quantised a second time (from {kinds}): the errors of "
                "both add up"
            )
        short = [plan for plan in self.tensors if plan.reason == "fallback"]
        if short:
            kinds = ", ".join(sorted({plan.target for plan in short}))
            found.append(
                f"{len(short)} tensors have rows that fill no blocks of the recipe's format: "
                f"{kinds} instead"
            )
        if self.weighed:
            able = [plan for plan in changed if plan.target not in _WEIGHTLESS]
            found.append(
                f"importances for {sum(plan.importance for plan in able)} of the {len(able)} "
                "tensors that they could help"
            )
        else:
            coarse = sorted({plan.target for plan in changed if plan.target in _COARSE})
            if coarse:
                found.append(
                    f"{', '.join(coarse)} without importances, which llama.cpp would refuse "
                    "(`oxillama imatrix` collects them)"
                )
        return tuple(found)


def quantize_file(
    src: Any,
    dst: str | os.PathLike[str] | None,
    recipe: str,
    *,
    overrides: Mapping[str, str] | None = None,
    imatrix: str
    | os.PathLike[str]
    | Sequence[str | os.PathLike[str]]
    | Mapping[str, np.ndarray]
    | None = None,
    pure: bool = False,
    num_threads: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    dry_run: bool = False,
) -> Conversion:
    """Write `src` (a path, or any other source of GgufReader) to `dst` in the formats of `recipe`;
    returns what was done to each tensor. Norms, vectors and other small tensors are not changed.

    - `src`: may be a split set; `dst` is one file.
    - `recipe`: a name in any case, or the number of a file type ("15"). `COPY` changes only what an
      override names.
    - `imatrix`: a file, several files whose tokens are counted together, or the result of
      `read_imatrix`.
    - `overrides`: regular expression to format. The first that is found in a tensor's name decides;
      its format must fit the rows.
    - `pure`: use the recipe's base format everywhere.
    - `progress(done, total, name)`: called after each tensor, with bytes of `src`.
    - `dry_run`: plan and check everything except the values of tensors, and write nothing (`dst`
      may be None).

    QuantError for a request that cannot be honoured: an unknown recipe or format, a pattern or an
    importance that matches no tensor, rows that do not fit, values that are not finite, a `dst`
    that is one of the inputs. ModelError for keys that are not sizes, GgufError for a `dst` where
    no file can be written.
    """
    check_progress(progress, "(done, total, name)")
    recipe = recipe_name(recipe)
    if pure and recipe_named(recipe).base is None:
        raise QuantError(
            f"pure: found with the recipe {recipe}, which has no base format, wanted one that has"
        )
    threads = worker_count(0 if num_threads is None else num_threads)
    if dst is None and not dry_run:
        raise ConfigError("dst: None, wanted a path (only a dry run writes nothing)")
    files: list[str | os.PathLike[str]] = []
    if isinstance(imatrix, (str, os.PathLike)):
        files = [imatrix]
    elif imatrix is not None and not isinstance(imatrix, Mapping):
        several = isinstance(imatrix, Iterable) and not isinstance(imatrix, bytes)
        files = list(imatrix) if several else [cast(str, imatrix)]
        for each in files:
            if not isinstance(each, (str, os.PathLike)):
                raise QuantError(
                    f"imatrix: found {each!r:.80}, wanted a file, several files, or importances"
                )
        if not files:
            raise QuantError("imatrix: found no files, wanted one or more, or None")
    if files:
        if dst is not None and is_among(dst, files):
            raise QuantError(f"{dst}: is the importance matrix, wanted another file")
        importances = read_imatrix(*files)
    else:
        importances = dict(cast(Mapping, imatrix) if imatrix else {})
    with GgufReader(src) as reader:
        kind = reader.metadata.get("general.type")
        if isinstance(kind, str) and kind == "imatrix":
            raise QuantError("general.type: found 'imatrix', wanted the file of a model")
        if dst is not None and is_among(dst, reader.paths):
            raise QuantError(f"{dst}: is the source itself, wanted another file")
        plans = _plan(
            reader, recipe, overrides or {}, importances if imatrix is not None else None, pure
        )
        if dst is not None:
            writer = GgufWriter(dst, architecture(reader.metadata), alignment=reader.alignment)
            names = None if imatrix is None else [Path(each).name for each in files]
            _copy_keys(reader, writer, recipe, names, sum(plan.importance for plan in plans))
            for plan in plans:
                writer.declare(plan.name, plan.target, plan.shape)
            if not dry_run:
                with writer:
                    _write(reader, writer, plans, importances, threads, progress)
    written = None if dry_run or dst is None else Path(dst)
    return Conversion(recipe, plans, written, imatrix is not None)


def _write(
    reader: GgufReader,
    writer: GgufWriter,
    plans: tuple[TensorPlan, ...],
    importances: Mapping[str, np.ndarray],
    threads: int,
    progress: Callable[[int, int, str], None] | None,
) -> None:
    """Write the bytes of every declared tensor."""
    done, total = 0, sum(plan.bytes_before for plan in plans)
    buffer = np.empty(_SLAB, np.float32)
    for plan in plans:
        weights = importances.get(plan.name) if plan.importance else None
        stored = reader.data(plan.name)
        writer.write_pieces(plan.name, _converted(stored, plan, weights, buffer, threads))
        done += plan.bytes_before
        if progress is not None:
            progress(done, total, plan.name)
    reader.check()


def _plan(
    reader: GgufReader,
    recipe: str,
    overrides: Mapping[str, str],
    importances: Mapping[str, np.ndarray] | None,
    pure: bool,
) -> tuple[TensorPlan, ...]:
    patterns = _patterns(overrides)
    met: set[str] = set()
    plans = []
    for info, context in tensor_contexts(reader, importances is not None):
        target, reason = _target(info, recipe, patterns, context, pure, met)
        weighed = (
            importances is not None
            and info.name in importances
            and target not in (*_WEIGHTLESS, info.type_name)
        )
        if weighed and importances is not None:
            _matrices(importances[info.name], info)
        rows, columns = int(np.prod(info.shape[:-1])), info.shape[-1] if info.shape else 1
        after = (
            info.nbytes
            if target == info.type_name
            else rows * format_named(target).row_bytes(columns)
        )
        plans.append(
            TensorPlan(
                info.name, info.shape, info.type_name, target, info.nbytes, after, reason, weighed
            )
        )
    _check_met(reader, patterns, met)
    if importances is not None and not any(
        info.name in importances for info in reader.tensors.values()
    ):
        raise QuantError(
            f"imatrix: none of its {len(importances)} tensors is in the file: it was made for "
            "another model"
        )
    return tuple(plans)


def _target(
    info: TensorInfo,
    recipe: str,
    patterns: list[tuple[str, re.Pattern[str], str]],
    context: TensorContext,
    pure: bool,
    met: set[str],
) -> tuple[str, str]:
    """The format of one tensor, and why."""
    chosen = recipe_named(recipe)
    if info.type_name not in formats():
        return info.type_name, "kept"
    for pattern, regex, target in patterns if _is_matrix(info) else ():
        if regex.search(info.name):
            met.add(pattern)
            if info.shape[-1] % format_named(target).columns:
                wanted = (
                    f"override {pattern!r} to {target} needs a multiple of "
                    f"{format_named(target).columns}"
                )
                raise QuantError(f"{info.name}: rows of {info.shape[-1]} columns, {wanted}")
            return target, "override"
    if chosen.base == "F32":
        return "F32", "recipe"
    if chosen.base is None or is_kept(info.name, info.shape, context.arch):
        return info.type_name, "kept"
    target = choose(info.name, info.shape[-1], chosen, context, pure=pure)
    wanted = choose(info.name, 0, chosen, context, pure=pure)  # 0 columns fill any block
    return target, "recipe" if target == wanted else "fallback"


def _patterns(overrides: Mapping[str, str]) -> list[tuple[str, re.Pattern[str], str]]:
    compiled = []
    for pattern, target in overrides.items():
        if not pattern:
            raise QuantError(
                f"override {pattern!r} to {target}: an empty pattern, wanted a regular expression "
                "('.' matches every name)"
            )
        try:
            compiled.append((pattern, re.compile(pattern), format_named(target).name))
        except re.error as error:
            raise QuantError(
                f"override {pattern!r}: is not a regular expression: {error}"
            ) from None
        except QuantError as error:
            raise QuantError(f"override {pattern!r}: {error}") from None
    return compiled


def _check_met(
    reader: GgufReader, patterns: list[tuple[str, re.Pattern[str], str]], met: set[str]
) -> None:
    """Raise QuantError for the first pattern that decided nothing, saying why."""
    for index, (pattern, regex, _) in enumerate(patterns):
        if pattern in met:
            continue
        named = [info for info in reader.tensors.values() if regex.search(info.name)]
        able = [info for info in named if _is_matrix(info)]
        if not named:
            raise QuantError(f"override {pattern!r}: matches no tensor's name")
        name = (able or named)[0].name
        earlier = [one for one, before, _ in patterns[:index] if before.search(name)]
        why = (
            f"is decided by {earlier[0]!r} before it"
            if able
            else "never changes (one axis, or integers)"
        )
        raise QuantError(
            f"override {pattern!r}: matches no tensor that it can change: {name} {why}"
        )


def _is_matrix(info: TensorInfo) -> bool:
    """Whether a tensor's format can be chosen: integers and doubles are no weights, and vectors
    stay as they are.
    """
    return len(info.shape) >= 2 and info.type_name in formats()


def _matrices(values: np.ndarray, info: TensorInfo) -> np.ndarray:
    """A tensor's importances as (matrices, columns); raises QuantError where they do not fit it."""
    columns, matrices = info.shape[-1], int(np.prod(info.shape[:-2]))
    try:
        flat = checked(np.asarray(values, np.float32), f"imatrix: {info.name}")
    except (TypeError, ValueError):
        raise QuantError(f"imatrix: {info.name}: no array of numbers, wanted one") from None
    if flat.size not in (columns, columns * matrices):
        raise QuantError(
            f"{info.name}: imatrix has {flat.size} values, wanted {columns} or {columns} for each "
            f"of {matrices} matrices"
        )
    return flat.reshape(-1, columns)


def _converted(
    stored: np.ndarray,
    plan: TensorPlan,
    weights: np.ndarray | None,
    buffer: np.ndarray,
    num_threads: int,
) -> Iterator[np.ndarray]:
    """One tensor's bytes in its new format, slab by slab; `buffer` holds a slab of floats; a single
    row may be larger.
    """
    if plan.source == plan.target:
        _check_finite(stored, plan, buffer, num_threads)
        yield stored
        return
    columns = plan.shape[-1] if plan.shape else 1
    before, after = format_named(plan.source), format_named(plan.target)
    rows = stored.reshape(-1, before.row_bytes(columns))
    per_matrix = plan.shape[-2] if len(plan.shape) > 1 else 1
    importances = None if weights is None else np.asarray(weights, np.float32).reshape(-1, columns)
    shared = importances is None or len(importances) == 1
    span = len(rows) if shared else per_matrix  # rows with the same importances
    step = max(1, buffer.size // columns)
    buffer = buffer[: step * columns] if columns <= buffer.size else np.empty(columns, np.float32)
    for start in range(0, len(rows), span):
        importance = (
            None if importances is None else importances[0 if shared else start // per_matrix]
        )
        for first in range(start, start + span, step):
            slab = slice(first, min(first + step, start + span))
            numbers = buffer[: (slab.stop - first) * columns].reshape(-1, columns)
            unpack_rows(rows[slab], before.name, numbers, num_threads)
            try:
                made = quantize(numbers, after.name, importance, num_threads=num_threads)
            except QuantError as error:
                raise QuantError(f"{plan.name}: from row {first} on: {error}") from None
            yield made


def _check_finite(
    stored: np.ndarray, plan: TensorPlan, buffer: np.ndarray, num_threads: int
) -> None:
    """QuantError for a NaN or an infinity in a tensor that is kept. A number alone may be infinite:
    a limit that nothing is beyond.
    """
    columns = plan.shape[-1] if plan.shape else 1
    if plan.source not in formats() or int(np.prod(plan.shape)) <= 1:
        return
    kind = format_named(plan.source)
    rows = stored.reshape(-1, kind.row_bytes(columns))
    step = max(1, buffer.size // columns)
    held = buffer if columns <= buffer.size else np.empty(columns, np.float32)
    for first in range(0, len(rows), step):
        slab = rows[first : first + step]
        numbers = held[: len(slab) * columns].reshape(-1, columns)
        unpack_rows(slab, kind.name, numbers, num_threads)
        bad = first_beyond(numbers, _LARGEST)
        if bad is not None:
            raise QuantError(
                f"{plan.name}: row {first + bad[0]}, column {bad[1]} is {numbers[bad]:g}, wanted a "
                "finite number"
            )


def _copy_keys(
    reader: GgufReader, writer: GgufWriter, recipe: str, imatrix: list[str] | None, entries: int
) -> None:
    """All keys but those of the container, then what this conversion changes. imatrix: the names of
    its files, None without importances.
    """
    file_type = recipe_named(recipe).file_type
    changed: dict[str, tuple[int | str, str]] = {
        "general.quantization_version": (QUANTIZATION_VERSION, "uint32")
    }
    if file_type is not None:
        changed["general.file_type"] = (file_type, "uint32")
    if imatrix is not None:
        changed["quantize.imatrix.entries_count"] = (entries, "int32")
        if imatrix:
            changed["quantize.imatrix.file"] = (", ".join(imatrix), "string")
    # a copy's tensors were still made with the importances that its keys name
    gone = ("split.",) if recipe == "COPY" and imatrix is None else ("split.", "quantize.imatrix.")
    for key, value in reader.metadata.items():
        if (
            key not in changed
            and key not in ("general.architecture", "general.alignment")
            and not key.startswith(gone)
        ):
            writer.add(key, value, reader.kv_types[key])
    for key, (value, kind) in changed.items():
        writer.add(key, value, kind)
