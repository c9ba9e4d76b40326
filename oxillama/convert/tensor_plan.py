"""From tensors of a folder to those of a file: shapes, types, and what makes the numbers when they
are written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from oxillama.convert.family import Hyper, Rule
from oxillama.convert.folder import ModelFolder
from oxillama.convert.quantised import Quantised
from oxillama.convert.safetensors import StoredTensor, Tensor
from oxillama.errors import ConvertError

FLOATS = ("F32", "F16", "BF16")
EXACT = "EXACT"  # as AUTO, but dequantised weights are not rounded
INTEGERS = ("I64", "I32")
# how the names of matrices end
_MATRICES = (".weight", ".lora_a", ".lora_b")
# those that are float32 in every file
_KEPT = re.compile(
    r"(_norm(_\d)?\.weight|ffn_gate_inp(_shexp)?\.weight|position_embd\.weight|token_types\.weight|"
    r"(ssm|ple)_conv1d(_[qkv])?\.weight|shortconv\.conv\.weight|altup_(correct|predict)_coef\.weight|"
    r"time_mix_(first|lerp_fused|(decay_)?w[12])\.weight|indexer\.([qk]_)?proj\.weight|"
    r"(hc_(attn|ffn)|output_hc)_fn\.weight|indexer_compressor_(ape|gate)\.weight|"
    r"attn_compressor_ape\.weight)\Z"
)
# the type of a new tensor, by its name, its shape, the folder's type and what was asked for
TypeOf = Callable[[str, tuple[int, ...], str, str], str]


@dataclass(frozen=True, slots=True)
class Planned:
    """One tensor of the new file: where its numbers come from, by shape and type."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    make: Callable[[], np.ndarray]  # the bytes, as an array of the type's numbers
    # the same in pieces, for what need not fit into memory
    pieces: Callable[[], Iterator[np.ndarray]] | None = None


def as_bits(made: np.ndarray) -> np.ndarray:
    """Numbers as a writer takes them; numpy has no bfloat16."""
    made = np.ascontiguousarray(made)
    return made.view(np.uint8) if made.dtype == np.uint16 else made


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
    """One tensor of the folder as the tensors that it becomes; type_of: in its place."""
    if isinstance(tensor, Quantised) and not rule.values and type_of is None:
        return _dequantised(original, tensor, rule, targets, hyper, wanted)
    dtype = "F32" if rule.values else tensor.dtype

    def parts() -> tuple[np.ndarray, ...]:
        data = tensor.floats() if rule.values else tensor.data
        return _changed(original, data, rule, targets, hyper)

    planned = []
    for number, (target, part) in enumerate(zip(targets, parts(), strict=True)):
        kind = (
            "I32"
            if rule.integers
            else (type_of or type_of_tensor)(target, part.shape, dtype, wanted)
        )

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
        kind = type_of_tensor(target, shape, tensor.dtype, wanted, tensor)
        order = None
        if kind not in FLOATS and rule.change is not None:
            order = _row_order(changed, number, inside)
            if order is None:
                kind = type_of_tensor(target, shape, tensor.dtype, wanted, tensor, keep=False)

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


def stack(folder: ModelFolder, target: str, experts: dict[int, Tensor], wanted: str) -> Planned:
    shapes = {one.shape for one in experts.values()}
    dtypes = {one.dtype for one in experts.values()}
    if sorted(experts) != list(range(len(experts))) or len(shapes) != 1 or len(dtypes) != 1:
        raise ConvertError(
            f"{folder.path}: {target}: experts {sorted(experts)[:8]} of shapes "
            f"{sorted(shapes)[:2]}, wanted all of them, of one shape and type"
        )
    shape = (len(experts), *shapes.pop())
    ordered = [experts[at] for at in sorted(experts)]
    kind = type_of_tensor(target, shape, dtypes.pop(), wanted, *ordered)

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


def join(folder: ModelFolder, target: str, parts: dict[int, Tensor], wanted: str) -> Planned:
    ordered = [parts[at] for at in sorted(parts)]
    columns = {one.shape[1:] for one in ordered}
    dtypes = {one.dtype for one in ordered}
    if sorted(parts) != list(range(len(parts))) or len(columns) != 1 or len(dtypes) != 1:
        raise ConvertError(
            f"{folder.path}: {target}: parts {sorted(parts)[:8]} of rows of {sorted(columns)[:2]}, "
            "wanted all of them, of one width and type"
        )
    shape = (sum(one.shape[0] for one in ordered), *columns.pop())
    kind = type_of_tensor(target, shape, dtypes.pop(), wanted, *ordered, keep=False)

    return _in_pieces(target, shape, kind, lambda: _one_by_one(ordered, kind))


def type_of_tensor(
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
    if len(shape) <= 1 or not name.endswith(_MATRICES) or _KEPT.search(name):
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
