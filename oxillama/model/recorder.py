"""The graph that an architecture records, and the account of the tensors it reads.

A `Recorder` returns `Value`s (the content of a row at some point of the model) and keeps a flat
list of `Node`s. It checks each tensor's shape when it is asked for, so that a missing tensor, a
wrong shape or an unused tensor is an error at load with the tensor's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oxillama._core.codecs import codec_table
from oxillama.errors import ModelError, listed
from oxillama.gguf import GgufReader, TensorInfo
from oxillama.gguf.keys import Keys
from oxillama.model.ops import OPS
from oxillama.model.rope import AS_FILED, RopeOverrides
from oxillama.model.state import Latent, LayerState, Pages, Rows, Slot
from oxillama.model.tensors import Tensor, unpacked

_MOST_MISSING = 1024  # tensors, after which a file is refused at once
_FORMATS = tuple(sorted(row[0] for row in codec_table()))  # of weights


@dataclass(frozen=True, slots=True)
class Node:
    """One recorded op: `inputs` are indices of earlier nodes, `width` is the floats per row of its
    result; `stateful`: its layer keeps something for every token.
    """

    op: str
    inputs: tuple[int, ...]
    params: dict
    width: int
    stateful: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """The result of a recorded op; `+` and `*` record elementwise ops on rows of equal width."""

    builder: Recorder = field(repr=False)
    index: int
    width: int

    def __add__(self, other: Value | np.ndarray) -> Value:
        if isinstance(other, np.ndarray):
            return self.builder.op("affine", self, weight=None, bias=_vector(other, self.width))
        return self.builder.op("add", self, alike(self, other))

    def __mul__(self, other: Value | np.ndarray | float) -> Value:
        if isinstance(other, Value):
            return self.builder.op("mul", self, alike(self, other))
        if isinstance(other, np.ndarray):
            return self.builder.op("affine", self, weight=_vector(other, self.width), bias=None)
        return self if other == 1.0 else self.builder.op("scale", self, factor=float(other))

    def columns(self, start: int, stop: int, *, heads: int = 1) -> Value:
        """Columns `start` to `stop - 1` of each of `heads` parts of a row."""
        part = self.width // heads
        if self.width % heads or not 0 <= start < stop <= part:
            raise ModelError(
                f"columns: found {start} to {stop} of {heads} parts of {self.width}, wanted them "
                f"within {part}"
            )
        return self.builder.record(
            "columns", (self,), width=heads * (stop - start), start=start, stop=stop, heads=heads
        )


def alike(x: Value, y: Value) -> Value:
    """y; ModelError unless its rows are as wide as those of x."""
    if x.width != y.width:
        raise ModelError(f"elementwise op: found rows of {x.width} and {y.width}, wanted one width")
    return y


def _same(found: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether two shapes are one but for outer sizes of 1, which some converters leave out: GGUF
    means by the sizes that a tensor does not give that they are 1.
    """
    bare = []
    for shape in (tuple(found), tuple(wanted)):
        while len(shape) > 1 and shape[0] == 1:
            shape = shape[1:]
        bare.append(shape)
    return bare[0] == bare[1]


def _vector(values: np.ndarray, width: int) -> np.ndarray:
    if values.shape != (width,):
        raise ModelError(f"vector: found {values.shape}, wanted ({width},), the columns of a row")
    return np.ascontiguousarray(values, np.float32)


class Recorder:
    """A file's typed hyper-parameters, its tensors by name, the nodes recorded so far and what
    their layers keep.
    """

    def __init__(
        self,
        reader: GgufReader,
        arch: str,
        *,
        depth: int | None = None,
        rope: RopeOverrides = AS_FILED,
    ) -> None:
        self.reader = reader
        self.arch = arch
        # the keys under the architecture's prefix that have been read
        self.read: set[str] = set()
        self.keys = rope.over(Keys(reader.metadata, arch, read=self.read))
        # the keys of `BASE` and `SCALING` that a rotation was made from
        self.rotated_by: set[str] = set()
        self.nodes: list[Node] = []
        # what layers keep: in pages, and in a slot
        self.pages: list[Pages | Latent | Rows] = []
        self.slots: list[Slot] = []
        self.used: set[str] = set()
        self.missing: list[str] = []
        self.hidden = self.keys.integer("embedding_length", minimum=1, maximum=1 << 20)
        self.n_layers = self.keys.integer("block_count", minimum=1, maximum=1 << 14)
        # layers that are recorded: the first ones
        self.depth = self.n_layers if depth is None else depth
        if not 1 <= self.depth <= self.n_layers:
            raise ModelError(
                f"depth: found {depth!r}, wanted 1 to {self.n_layers}, the layers of the file"
            )
        self.vocab_size = self._matrix_rows("token_embd.weight")

    def forget(self) -> None:
        """Let go of everything, once it is lowered: values refer to what recorded them, so that an
        open file would otherwise wait for the garbage collector.
        """
        vars(self).clear()

    # ---- tensors
    # ----------------------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether the file has a tensor of this full name."""
        return name in self.reader.tensors

    def _info(self, name: str, *shape: int) -> TensorInfo:
        """The file's entry for a tensor. If it is missing, recording continues with an entry of
        the wanted shape, so that the error at the end names every missing tensor; without a shape
        it is raised here.
        """
        info = self.reader.tensors.get(name)
        if info is None:
            if name not in self.missing:
                self.missing.append(name)
            if not shape or len(self.missing) == _MOST_MISSING:
                raise self._lacking()
            return TensorInfo(name, shape, 0, "F32", 0, 0)
        self.used.add(name)
        if name.endswith(".weight"):
            # of activations rounded to a few bits by one number each, which nothing here does
            self.used.add(name.removesuffix("weight") + "input_scale")
        return info

    def _lacking(self) -> ModelError:
        count = len(self.missing)
        counted = f"at least {count}" if count == _MOST_MISSING else f"{count}"
        return ModelError(
            f"{self.missing[0]}: the file has no such tensor, {self.arch} needs it"
            + (f" ({counted} such: {listed(self.missing, 4)})" if count > 1 else "")
        )

    @contextmanager
    def complete(self) -> Iterator[None]:
        """A context manager for recording: ModelError names every missing tensor, whatever else is
        wrong.
        """
        try:
            yield
        except ModelError:
            if self.missing:
                raise self._lacking() from None
            raise
        if self.missing:
            raise self._lacking()

    def _floats(self, tensor: Tensor) -> np.ndarray:
        """The float32 (rows, columns) of a tensor, ones where it is missing."""
        if tensor.name in self.missing:
            return np.broadcast_to(np.float32(1), tensor.shape)
        self._check_format(tensor.name, tensor.format)
        return unpacked(self.reader, tensor)

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """The shape of a tensor in the file, outermost first, for sizes that no key gives; one
        size fewer than wanted means 1 row.
        """
        shape = tuple(self._info(name).shape)
        if len(shape) == dimensions - 1:
            shape = (1, *shape)
        if len(shape) != dimensions:
            raise ModelError(
                f"{name}: file has {shape}, {self.arch} needs a shape of {dimensions} dimensions"
            )
        return shape

    def _matrix_rows(self, name: str) -> int:
        shape = self._info(name, 1, self.hidden).shape
        if len(shape) != 2 or shape[1] != self.hidden:
            raise ModelError(
                f"{name}: file has {tuple(shape)}, {self.arch} needs (vocabulary, {self.hidden})"
            )
        return shape[0]

    def stack(self, name: str, count: int, rows: int, columns: int, *, skip: int = 0) -> Tensor:
        """`count` matrices (rows, columns) of one tensor (count, rows, columns), or (count * rows,
        columns), in the file's format, without the first `skip` of them.
        """
        info = self._info(name, count, rows, columns)
        if not any(
            _same(info.shape, one) for one in ((count, rows, columns), (count * rows, columns))
        ):
            raise ModelError(
                f"{name}: file has {tuple(info.shape)}, {self.arch} needs {(count, rows, columns)}"
            )
        if rows % 16:
            raise ModelError(
                f"{name}: file has matrices of {rows} rows, wanted a multiple of 16 for a stack of "
                f"{count}"
            )
        return Tensor(name, info.type_name, ((count - skip) * rows, columns), skip * rows)

    def array(self, name: str, *shape: int) -> np.ndarray:
        """The weight of that name as float32 of this shape, for weights that no product reads."""
        info = self._info(name, *shape)
        if not _same(info.shape, shape):
            raise ModelError(f"{name}: file has {tuple(info.shape)}, {self.arch} needs {shape}")
        rows = int(np.prod(shape[:-1], dtype=np.int64))
        return self._floats(Tensor(name, info.type_name, (rows, shape[-1]))).reshape(shape)

    def numbers(self, name: str, rows: int, columns: int, below: int) -> np.ndarray:
        """The table of that name as int32 (rows, columns): integers from 0 to below - 1."""
        info = self._info(name)
        if tuple(info.shape) != (rows, columns) or info.type_name != "I32":
            raise ModelError(
                f"{name}: file has {info.type_name} {tuple(info.shape)}, {self.arch} needs I32 "
                f"{(rows, columns)}"
            )
        found = self.reader.data(name).reshape(-1).view("<i4").reshape(rows, columns)
        if not 0 <= found.min() <= found.max() < below:
            raise ModelError(
                f"{name}: found numbers from {found.min()} to {found.max()}, wanted 0 to "
                f"{below - 1}"
            )
        return np.array(found, np.int32)

    def matrix(self, name: str, rows: int, columns: int, *, take: slice | None = None) -> Tensor:
        """The (rows, columns) weight of that name, or rows `take` of it, in the file's format."""
        info = self._info(name, rows, columns)
        if not _same(info.shape, (rows, columns)):
            raise ModelError(
                f"{name}: file has {tuple(info.shape)}, {self.arch} needs {(rows, columns)}"
            )
        self._check_format(name, info.type_name)
        start, stop = (take.start, take.stop) if take else (0, rows)
        return Tensor(name, info.type_name, (stop - start, columns), start)

    def _check_format(self, name: str, found: str) -> None:
        if found not in _FORMATS:
            raise ModelError(f"{name}: file has {found}, wanted one of {', '.join(_FORMATS)}")

    def vector(self, name: str, size: int) -> np.ndarray:
        """The weight of that name as float32 (size,)."""
        info = self._info(name, size)
        if not _same(info.shape, (size,)):
            raise ModelError(f"{name}: file has {tuple(info.shape)}, {self.arch} needs {(size,)}")
        return self._floats(Tensor(name, info.type_name, (1, size)))[0]

    def optional_vector(self, name: str, size: int) -> np.ndarray | None:
        """The weight of that name as float32 (size,), or None when the file has none."""
        return self.vector(name, size) if self.has(name) else None

    def unused(self) -> list[str]:
        """Tensors of the file that nothing asked for, in file order."""
        return [name for name in self.reader.tensors if name not in self.used]

    # ---- nodes
    # ----------------------------------------------------------------------------------------------

    def record(
        self, op: str, inputs: Sequence[Value], *, width: int, stateful: bool = False, **params: Any
    ) -> Value:
        """Append a node and return its value."""
        index = tuple(value.index for value in inputs)
        self.nodes.append(Node(op, index, params, width, stateful))
        return Value(self, len(self.nodes) - 1, width)

    def op(self, name: str, *inputs: Value, **params: Any) -> Value:
        """Record an op of the tape (`ops.OPS`); its inputs are in the order of its `reads`."""
        kind = OPS[name]
        if len(inputs) != len(kind.reads):
            raise ModelError(f"{name}: found {len(inputs)} inputs, wanted {', '.join(kind.reads)}")
        width = kind.width([value.width for value in inputs], params)
        return self.record(name, inputs, width=width, stateful=kind.state, **params)

    def keeps(self, state: LayerState) -> int:
        """Record what a layer keeps; returns its number among those of its kind."""
        held: list = self.slots if isinstance(state, Slot) else self.pages
        held.append(state)
        return len(held) - 1

    def concat(self, *parts: Value, heads: int = 1) -> Value:
        """Values side by side, for each of `heads` parts of their rows."""
        width = sum(part.width for part in parts)
        return self.record("concat", parts, width=width, heads=heads)

    def epsilon(self, kind: str = "rms") -> float:
        """The epsilon of the file for norms of this kind, or that of the other kind if it has only
        that. Some files give both for norms of one kind.
        """
        rms, layer = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
        key, other = (rms, layer) if kind == "rms" else (layer, rms)
        if other in self.keys:
            spare = self.keys.number(other, minimum=0.0, maximum=1.0)
            if key not in self.keys:
                return spare
        return self.keys.number(key, minimum=0.0, maximum=1.0)
