"""Records an architecture: a Python function that runs once, at load, and asks for weights and ops.

A `Builder` returns `Value`s (the content of a row at some point of the model) and `Layer`s (a
prefix of tensor names), and keeps a flat list of `Node`s. It checks each tensor's shape when it is
asked for, so that a missing tensor, a wrong shape or an unused tensor is an error at load with the
tensor's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from oxillama._core.recurrent import scan_blocks
from oxillama.errors import ModelError, listed
from oxillama.gguf import GgufReader, TensorInfo
from oxillama.gguf.keys import Keys
from oxillama.model.ops import OPS
from oxillama.model.rope import AS_FILED, BASE, SCALING, Rope, RopeOverrides, rope_from_keys
from oxillama.model.state import Latent, LayerState, Pages, Rows, Slot
from oxillama.model.tensors import Tensor, unpacked

_MOST_MISSING = 1024  # tensors, after which a file is refused at once
_ARCHITECTURES: dict[str, Callable[[Builder], Value | None]] = {}


def architecture(*names: str) -> Callable:
    """Register the decorated function as the recorder of every GGUF `general.architecture` in
    `names`.
    """

    def register(
        record: Callable[[Builder], Value | None],
    ) -> Callable[[Builder], Value | None]:
        for name in names:
            _ARCHITECTURES[name] = record
        return record

    return register


def recorders() -> Mapping[str, Callable[[Builder], Value | None]]:
    """Every registered architecture by its GGUF name."""
    return _ARCHITECTURES


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

    builder: Builder = field(repr=False)
    index: int
    width: int

    def __add__(self, other: Value | np.ndarray) -> Value:
        if isinstance(other, np.ndarray):
            return self.builder.op("affine", self, weight=None, bias=_vector(other, self.width))
        return self.builder.op("add", self, _alike(self, other))

    def __mul__(self, other: Value | np.ndarray | float) -> Value:
        if isinstance(other, Value):
            return self.builder.op("mul", self, _alike(self, other))
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


def _alike(x: Value, y: Value) -> Value:
    if x.width != y.width:
        raise ModelError(f"elementwise op: found rows of {x.width} and {y.width}, wanted one width")
    return y


def _vector(values: np.ndarray, width: int) -> np.ndarray:
    if values.shape != (width,):
        raise ModelError(f"vector: found {values.shape}, wanted ({width},), the columns of a row")
    return np.ascontiguousarray(values, np.float32)


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of one layer's attention: query heads, key/value heads, and floats per key and per
    value.
    """

    query: int
    kv: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """Keys of blocks of `ratio` tokens; layer: the number, among the layers that keep pages, of the
    one that keeps them.
    """

    layer: int
    ratio: int


@dataclass(frozen=True)
class Choice:
    """The keys that rows attend to: numbers of blocks of `ratio` tokens, as the ops `choose_blocks`
    and `choose_spans` write them; each, running: see the op `attend`.
    """

    numbers: Value
    ratio: int
    each: bool = False
    running: bool = False

    def params(self) -> dict[str, Any]:
        """As parameters of the op `attend`."""
        more = {name: True for name in ("each", "running") if getattr(self, name)}
        return dict(ratio=self.ratio, strict=True, **more)


class Builder:
    """The argument of an architecture's function: typed hyper-parameters, tensors by name, and ops
    to record.
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
        self.embedding: Value | None = None
        # None until the first attention asks the file, or the architecture says
        self.causal: bool | None = None
        self.classifier: Classifier | None = None
        # the graph over a pooled row of the embedding
        self.projection: Builder | None = None
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
        return unpacked(self.reader, tensor)

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """The shape of a tensor in the file, outermost first, for sizes that no key gives."""
        shape = tuple(self._info(name).shape)
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

    def stack(self, name: str, count: int, rows: int, columns: int) -> Tensor:
        """`count` matrices (rows, columns) of one tensor (count, rows, columns), or (count * rows,
        columns), in the file's format.
        """
        info = self._info(name, count, rows, columns)
        if tuple(info.shape) not in ((count, rows, columns), (count * rows, columns)):
            raise ModelError(
                f"{name}: file has {tuple(info.shape)}, {self.arch} needs {(count, rows, columns)}"
            )
        if rows % 16:
            raise ModelError(
                f"{name}: file has matrices of {rows} rows, wanted a multiple of 16 for a stack of "
                f"{count}"
            )
        return Tensor(name, info.type_name, (count * rows, columns))

    def array(self, name: str, *shape: int) -> np.ndarray:
        """The weight of that name as float32 of this shape, for weights that no product reads."""
        info = self._info(name, *shape)
        if tuple(info.shape) != shape:
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
        if tuple(info.shape) != (rows, columns):
            raise ModelError(
                f"{name}: file has {tuple(info.shape)}, {self.arch} needs {(rows, columns)}"
            )
        start, stop = (take.start, take.stop) if take else (0, rows)
        return Tensor(name, info.type_name, (stop - start, columns), start)

    def vector(self, name: str, size: int) -> np.ndarray:
        """The weight of that name as float32 (size,)."""
        info = self._info(name, size)
        if tuple(info.shape) != (size,):
            raise ModelError(f"{name}: file has {tuple(info.shape)}, {self.arch} needs {(size,)}")
        return self._floats(Tensor(name, info.type_name, (1, size)))[0]

    def optional_vector(self, name: str, size: int) -> np.ndarray | None:
        """The weight of that name as float32 (size,), or None when the file has none."""
        return self.vector(name, size) if self.has(name) else None

    def unused(self) -> list[str]:
        """Tensors of the file that nothing asked for, in file order."""
        return [name for name in self.reader.tensors if name not in self.used]

    # ---- ops
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

    def layers(self, prefix: str = "") -> Iterator[Layer]:
        """The layers of the model in order; prefix: comes before `blk.` in their names."""
        return (Layer(self, index, prefix) for index in range(self.depth))

    def embed(self, *, scale: float = 1.0) -> Value:
        """The token's row of `token_embd.weight`, times `scale`; or the row that a batch brings."""
        table = self.matrix("token_embd.weight", self.vocab_size, self.hidden)
        return self.record("embed", (), width=self.hidden, table=table, scale=float(scale))

    def position_embed(self, name: str = "position_embd.weight") -> Value:
        """The row of a learned table (positions, embedding_length) at the token's position."""
        rows = self._matrix_rows(name)
        table = self.matrix(name, rows, self.hidden)
        return self.record("embed", (), width=self.hidden, table=table, scale=1.0, by="position")

    def features(self, start: int, count: int) -> Value:
        """`count` columns, from `start` on, of the rows that a batch brings; zeros for token
        rows.
        """
        return self.op("features", start=start, count=count)

    def embed_extra(self, name: str, *, scale: float = 1.0) -> Value:
        """The token's row of an additional table (vocabulary, any width), times `scale`; row 0 if a
        batch brings an embedding row instead of a token.
        """
        rows, width = self.shape(name, 2)
        if rows < self.vocab_size:
            raise ModelError(f"{name}: file has {rows} rows, {self.arch} needs {self.vocab_size}")
        table = self.matrix(name, rows, width)
        return self.record("embed", (), width=width, table=table, scale=float(scale), filler=0)

    def ngram_embed(
        self,
        name: str,
        *,
        multipliers: Sequence[int],
        sizes: Sequence[int],
        offsets: Sequence[int],
        stop: int,
        filler: int,
    ) -> Value:
        """Rows of the table `name` by hashes of the last tokens; the parameters are those of the
        op.
        """
        rows, width = self.shape(name, 2)
        return self.op(
            "ngram_embed",
            table=self.matrix(name, rows, width),
            multipliers=list(multipliers),
            sizes=list(sizes),
            offsets=list(offsets),
            stop=stop,
            filler=filler,
            state=self.keeps(Slot((len(sizes), len(multipliers) - 1))),
        )

    def epsilon(self, kind: str = "rms") -> float:
        """The epsilon of the file for norms of this kind, or that of the other kind if it has only
        that. Some files give both for norms of one kind.
        """
        rms, layer = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
        key, other = (rms, layer) if kind == "rms" else (layer, rms)
        if other in self.keys:
            spare = self.keys.number(other, minimum=0.0)
            if key not in self.keys:
                return spare
        return self.keys.number(key, minimum=0.0)

    def norm(
        self,
        x: Value,
        name: str | None,
        *,
        kind: str = "rms",
        heads: int = 1,
        eps: float | None = None,
    ) -> Value:
        """Normalise each of `heads` parts of a row ("rms", or "layer", which subtracts the mean),
        multiply by `name.weight` and add `name.bias` if there is one; without a weight if name is
        None. Weight and bias are for a part, or for the whole row: (heads, part) in the file, or
        one vector.
        """
        weight = bias = None
        if name is not None:
            # some files leave the suffix out
            full = name if self.has(name) else name + ".weight"
            shape = tuple(self._info(full, x.width // heads).shape)
            wide = (heads, x.width // heads)
            if shape == wide:
                weight = self.array(full, *shape).reshape(-1)
            elif shape == (x.width // heads,):
                weight = self.vector(full, x.width // heads)
            else:
                weight = self.vector(full, x.width)
            shift = name + ".bias"
            if self.has(shift) and tuple(self._info(shift).shape) == wide:
                bias = self.array(shift, *wide).reshape(-1)
            else:
                bias = self.optional_vector(shift, len(weight))
        more: dict[str, Any] = {"heads": heads} if heads > 1 else {}
        return self.record(
            "norm",
            (x,),
            width=x.width,
            kind=kind,
            eps=self.epsilon(kind) if eps is None else eps,
            weight=weight,
            bias=bias,
            **more,
        )

    def linear(
        self,
        x: Value,
        name: str,
        rows: int,
        *,
        take: slice | None = None,
        bias: bool = True,
        scale: bool = True,
    ) -> Value:
        """x times the transpose of `name.weight` (rows, x.width), times the number `name.scale` and
        plus `name.bias` if they exist (bias or scale False: another op reads that tensor); `take`
        uses some of its rows.
        """
        weight = self.matrix(name + ".weight", rows, x.width, take=take)
        shift = self.optional_vector(name + ".bias", rows) if bias else None
        if shift is not None and take:
            shift = np.ascontiguousarray(shift[take])
        factor = self.optional_vector(name + ".scale", 1) if scale else None
        if factor is None:
            return self.record("linear", (x,), width=weight.shape[0], weight=weight, bias=shift)
        y = self.record("linear", (x,), width=weight.shape[0], weight=weight, bias=None)
        y = y * float(factor[0])
        return y if shift is None else y + shift

    def stacked(self, x: Value, name: str, rows: int, *, count: int) -> Value:
        """Part k of a row times matrix k of the stack `name.weight` (count, rows, part): a separate
        matrix for each head.
        """
        weight = self.stack(name + ".weight", count, rows, x.width // count)
        return self.record(
            "expert_linear", (x,), width=count * rows, weight=weight, experts=count, used=0
        )

    def route(
        self,
        scores: Value,
        *,
        used: int,
        gating: str = "softmax",
        bias: np.ndarray | None = None,
        groups: int = 1,
        groups_used: int = 1,
        group_by: str = "best",
        normalise: bool = False,
        scale: float = 1.0,
        share: int = 1,
        by_token: np.ndarray | None = None,
    ) -> Value:
        """Choose `used` experts for each row by its scores; the parameters are those of the op."""
        return self.op(
            "route",
            scores,
            used=used,
            gating=gating,
            bias=bias,
            groups=groups,
            groups_used=groups_used,
            group_by=group_by,
            normalise=normalise,
            scale=float(scale),
            **({"share": share} if share > 1 else {}),
            **({} if by_token is None else {"by_token": by_token}),
        )

    def experts(self, x: Value, routes: Value, name: str, rows: int, *, count: int) -> Value:
        """A routed value: x times the matrix (rows, columns) of the stack `name.weight` for each
        expert of the row, plus its row of `name.bias` (count, rows) if there is one. x is one row
        for all its experts, or a routed value with a part for each.
        """
        used = routes.width // 2
        columns = self.shape(name + ".weight", 3)[2]
        if x.width not in (columns, used * columns):
            raise ModelError(
                f"{name}.weight: file has {columns} columns, {self.arch} needs {x.width} or a part "
                f"of {used}"
            )
        weight = self.stack(name + ".weight", count, rows, columns)
        made = self.record(
            "expert_linear",
            (x, routes),
            width=used * rows,
            weight=weight,
            experts=count,
            used=used,
        )
        if not self.has(name + ".bias"):
            return made
        return self.op("expert_bias", made, routes, bias=self.array(name + ".bias", count, rows))

    def weighted(self, x: Value, weights: Value) -> Value:
        """The sum of the parts of a row of x, weighted by a row of `weights` with one number per
        part.
        """
        return self.combine(x, self.concat(weights, weights))

    def measure(self, x: Value, kind: str, *, heads: int = 1) -> Value:
        """One number for each of `heads` parts of a row: "rms", the root of its mean square,
        "deviation" or "sum".
        """
        return self.op("measure", x, kind=kind, **({"heads": heads} if heads > 1 else {}))

    def softmax(self, x: Value, *, heads: int = 1, rounds: int = 0, eps: float = 0.0) -> Value:
        """The softmax of each of `heads` parts of a row; rounds, eps: those of the op."""
        return self.op("softmax", x, heads=heads, rounds=rounds, eps=float(eps))

    def repeat(self, x: Value, times: int) -> Value:
        """A row repeated `times` times side by side."""
        return self.record(
            *("copy", (x,)), width=times * x.width, count=x.width, heads=times, stride=x.width
        )

    def combine(self, x: Value, routes: Value) -> Value:
        """The sum of a routed value's parts, weighted by its routes."""
        return self.op("combine", x, routes)

    def concat(self, *parts: Value, heads: int = 1) -> Value:
        """Values side by side, for each of `heads` parts of their rows."""
        width = sum(part.width for part in parts)
        return self.record("concat", parts, width=width, heads=heads)

    def gate(self, gate: Value, up: Value, *, act: str) -> Value:
        """act(gate) * up, elementwise."""
        return self.record("gate", (gate, _alike(gate, up)), width=up.width, kind=act)

    def activate(self, x: Value, act: str) -> Value:
        """An activation, elementwise: silu, gelu_tanh, gelu_erf, gelu_quick, relu, relu2, sigmoid,
        tanh, softplus, exp_excess, exp or signed_root.
        """
        return self.op("activate", x, kind=act)

    def clamp(self, x: Value, low: float, high: float) -> Value:
        """x within `low` and `high`, elementwise."""
        return self.op("clamp", x, low=float(low), high=float(high))

    def conv(
        self,
        x: Value,
        weight: np.ndarray,
        bias: np.ndarray | None = None,
        *,
        act: str | None = None,
    ) -> Value:
        """A causal convolution of each channel with its own taps (channels, taps), then an
        activation.
        """
        state = self.keeps(Slot((weight.shape[1] - 1, x.width)))
        weight = np.ascontiguousarray(weight)
        return self.op("conv", x, weight=weight, bias=bias, act=act, state=state)

    def scan(
        self,
        x: Value,
        dt: Value,
        b: Value,
        c: Value,
        *,
        a: np.ndarray,
        d: np.ndarray | None,
        groups: int = 1,
    ) -> Value:
        """A selective state space over x; shapes are those of the op. dt is positive already."""
        blocks = scan_blocks(x.width, dt.width)
        state = self.keeps(Slot((blocks, b.width // groups, 16)))
        a = np.ascontiguousarray(a)
        return self.op("scan", x, dt, b, c, a=a, d=d, groups=groups, state=state)

    def delta(
        self,
        q: Value,
        k: Value,
        v: Value,
        w: Value,
        beta: Value,
        *,
        heads: int,
        key_heads: int,
        tiled: bool,
        scale: float,
    ) -> Value:
        """Linear attention under the gated delta rule; shapes and parameters are those of the
        op.
        """
        blocks = -(-v.width // heads // 16)
        state = self.keeps(Slot((heads * blocks, q.width // key_heads, 16)))
        more: dict[str, Any] = dict(key_heads=key_heads, tiled=tiled, scale=float(scale))
        return self.op("delta", q, k, v, w, beta, heads=heads, state=state, **more)

    def wkv(
        self,
        r: Value,
        w: Value,
        k: Value,
        v: Value,
        a: Value | None = None,
        b: Value | None = None,
        *,
        heads: int,
        u: np.ndarray | None = None,
        scale: float = 1.0,
    ) -> Value:
        """Linear attention whose state decays per key; shapes and parameters are those of the
        op.
        """
        state = self.keeps(Slot((heads * -(-v.width // heads // 16), k.width // heads, 16)))
        inputs = (r, w, k, v) if a is None or b is None else (r, w, k, v, a, b)
        params: dict[str, Any] = dict(heads=heads, u=u, scale=float(scale), state=state)
        return self.record("wkv", inputs, width=v.width, stateful=True, **params)

    def head_scale(self, x: Value, p: Value, q: Value | None = None, *, heads: int) -> Value:
        """Each head of x times the dot product of that head of p and q; without q, p has one number
        per head.
        """
        inputs = (x, p) if q is None else (x, p, q)
        return self.record("head_scale", inputs, width=x.width, heads=heads)

    def keeps(self, state: LayerState) -> int:
        """Record what a layer keeps; returns its number among those of its kind."""
        held: list = self.slots if isinstance(state, Slot) else self.pages
        held.append(state)
        return len(held) - 1

    def softcap(self, x: Value, cap: float) -> Value:
        """cap * tanh(x / cap), elementwise; no cap when it is 0."""
        return x if cap == 0.0 else self.op("softcap", x, cap=float(cap))

    def rope(
        self,
        dims: int,
        *,
        base_key: str = BASE,
        base: float = 10000.0,
        scaled: bool = True,
        sections: Sequence[int] | None = None,
    ) -> Rope:
        """The rotary embedding over `dims` floats of a head, with the scaling and frequency factors
        in force. sections: which of a token's positions each pair uses, if a batch brings several.
        """
        self.rotated_by |= {base_key, SCALING} if scaled else {base_key}
        factors = far = None
        if scaled and (
            self.has("rope_factors_long.weight") or self.has("rope_factors_short.weight")
        ):
            factors = self.vector("rope_factors_short.weight", dims // 2)
            far = self.vector("rope_factors_long.weight", dims // 2)
        elif scaled:
            factors = self.optional_vector("rope_freqs.weight", dims // 2)
        made = rope_from_keys(
            self.keys, dims, base_key=base_key, base=base, factors=factors, scaled=scaled, far=far
        )
        if sections is None:
            return made
        if len(sections) != dims // 2 or min(sections) < 0:
            raise ModelError(
                f"{self.arch}.rope.dimension_sections: found {len(sections)} pairs, wanted "
                f"{dims // 2}"
            )
        return replace(made, sections=np.asarray(sections, np.int32))

    def attend(
        self,
        q: Value,
        k: Value,
        v: Value,
        *,
        heads: Heads,
        rope: Rope | None,
        style: str,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        q_norm: np.ndarray | None = None,
        k_norm: np.ndarray | None = None,
        eps: float = 0.0,
        sinks: np.ndarray | None = None,
        slopes: np.ndarray | None = None,
        rope_start: int = 0,
        norm_last: bool = False,
        temper: tuple[float, int, int] | None = None,
        relative: np.ndarray | None = None,
        chunk: int = 0,
        spans: bool = False,
        strict: bool = False,
        most: int = 0,
        choice: Choice | None = None,
    ) -> Value:
        """Attention of q over the k and v stored so far: per-head norm, rope, store, softmax(scale
        * q.k) v. rope None: no rotation (NoPE). Causal, unless the file or `see_all` says
        otherwise; then a row sees its whole sequence.

        sinks (query heads,): a score without a value; slopes (query heads,): ALiBi; relative (query
        heads, 2 n + 1): a bias for each distance key - query from -n to n. window: keys at a
        smaller distance, on both sides if attention is not causal; 0 for all. rope_start: the float
        of each head where rotation begins. norm_last: the norms come after it. temper: (rate, span,
        offset), the growth of queries with their position (see the op `rope_store`). chunk: rows
        see the keys from its last multiple on. spans: if attention is not causal, rows see only the
        keys of their span in the batch. strict: no key after a row's own, even if a batch says that
        rows of an image see each other. most: the positions a sequence may have, if the model
        attends differently beyond; 0 for any. choice: rows see no other keys.
        """
        if self.causal is None:
            self.causal = self.keys.flag("attention.causal", default=True)
        state = Pages(heads.kv, heads.key_dim, heads.value_dim, window or chunk)
        asked: dict[str, Any] = dict(
            sinks=sinks,
            slopes=slopes,
            relative=relative,
            rope_start=rope_start or None,
            norm_last=norm_last or None,
            temper=temper,
            chunk=chunk or None,
            spans=spans or None,
            strict=strict or None,
            most=most or None,
        )
        more = {name: value for name, value in asked.items() if value is not None}
        more |= choice.params() if choice else {}
        if not self.causal:
            if slopes is not None:
                raise ModelError(
                    f"{self.arch}.attention.causal: found False, wanted True for ALiBi"
                )
            more["causal"] = False
        return self.record(
            "attention",
            (q, k, v, *self._table(rope), *([choice.numbers] if choice else [])),
            width=heads.query * heads.value_dim,
            stateful=True,
            heads=heads,
            layer=self.keeps(state),
            rope_dims=rope.dims if rope else 0,
            style=style,
            q_scale=float(scale),
            window=window,
            softcap=float(softcap),
            q_norm=q_norm,
            k_norm=k_norm,
            eps=float(eps),
            **more,
        )

    def attend_stored(
        self,
        q: Value,
        *,
        heads: Heads,
        layer: int,
        rope: Rope | None,
        style: str,
        scale: float,
        window: int = 0,
        q_norm: np.ndarray | None = None,
        eps: float = 0.0,
        strict: bool = False,
    ) -> Value:
        """Causal attention of q over keys that an earlier attention stored; layer: its number among
        those that keep pages (`len(b.pages) - 1` after it). The other parameters are those of
        `attend`.
        """
        state = self.pages[layer]
        if state != Pages(heads.kv, heads.key_dim, heads.value_dim, window):
            raise ModelError(
                f"{self.arch}: layer {layer} keeps {state}, an attention to it needs {heads} and a "
                f"window of {window}"
            )
        return self.record(
            "attention",
            (q, *self._table(rope)),
            width=heads.query * heads.value_dim,
            stateful=True,
            heads=heads,
            layer=layer,
            rope_dims=rope.dims if rope else 0,
            style=style,
            q_scale=float(scale),
            window=window,
            softcap=0.0,
            q_norm=q_norm,
            k_norm=None,
            eps=float(eps),
            keep=False,
            **({"strict": True} if strict else {}),
        )

    def attend_latent(
        self,
        q: Value,
        k: Value,
        *,
        heads: int,
        value: int,
        rope: Rope | None,
        style: str,
        scale: float,
        temper: tuple[float, int, int] | None = None,
        sinks: np.ndarray | None = None,
        window: int = 0,
        choice: Choice | None = None,
    ) -> Value:
        """Attention whose layer stores one row k per token for all heads, of which the first
        `value` floats are the value: the absorbed form of multi-head latent attention (DeepSeek-AI
        2024, DeepSeek-V2, section 2.1). rope rotates the last floats of k and of each head of q;
        the result has `value` floats per head. temper, sinks, window, choice: see `attend`.
        """
        shape = Heads(heads, 1, k.width, value)
        more: dict[str, Any] = {
            name: one for name, one in (("temper", temper), ("sinks", sinks)) if one is not None
        }
        more |= choice.params() if choice else {}
        return self.record(
            "attention",
            (q, k, *self._table(rope), *([choice.numbers] if choice else [])),
            width=heads * value,
            stateful=True,
            heads=shape,
            layer=self.keeps(Latent(k.width, value)),
            rope_dims=rope.dims if rope else 0,
            rope_start=k.width - rope.dims if rope else 0,
            style=style,
            q_scale=float(scale),
            window=window,
            softcap=0.0,
            q_norm=None,
            k_norm=None,
            eps=0.0,
            latent=True,
            **more,
        )

    def attend_blocks(
        self,
        q: Value,
        k: Value,
        *,
        heads: int,
        rope: Rope,
        scale: float,
        window: int,
        k_norm: np.ndarray,
        sinks: np.ndarray,
        blocks: Blocks | None = None,
        chosen: Value | None = None,
    ) -> Value:
        """Attention whose layer stores one row k per token, which is key and value of all heads,
        for a window of tokens, and also sees the keys of whole blocks of tokens, or of those the
        ones chosen. Heads of q, and k with a weight, are normed; their last floats are rotated, and
        back in the result.
        """
        (table,) = self._table(rope)
        more: dict[str, Any] = {}
        if blocks is not None:
            more = dict(blocks=blocks.layer, ratio=blocks.ratio)
        picks = () if chosen is None else (chosen,)
        y = self.record(
            "attention",
            (q, k, table, *picks),
            width=heads * k.width,
            stateful=True,
            heads=Heads(heads, 1, k.width, k.width),
            layer=self.keeps(Latent(k.width, k.width, window)),
            rope_dims=rope.dims,
            rope_start=k.width - rope.dims,
            style="norm",
            q_scale=float(scale),
            window=window,
            softcap=0.0,
            q_norm=np.ones(k.width, np.float32),
            k_norm=k_norm,
            eps=self.epsilon(),
            sinks=sinks,
            latent=True,
            **more,
        )
        start = k.width - rope.dims
        return self.op("turn", y, table, heads=heads, start=start, back=True)

    def turn(
        self, x: Value, rope: Rope, *, heads: int = 1, start: int, style: str = "norm"
    ) -> Value:
        """x with the floats that `rope` rotates in each head, from `start` on, rotated by the
        token's position.
        """
        return self.op("turn", x, *self._table(rope), heads=heads, start=start, style=style)

    def keep(self, x: Value) -> Blocks:
        """Keep the row x of each token, as the key of that token."""
        layer = self.keeps(Rows(x.width))
        self.record("compress", (x,), width=1, stateful=True, layer=layer)
        return Blocks(layer, 1)

    def compress(
        self,
        x: Value,
        gate: Value,
        *,
        bias: np.ndarray,
        weight: np.ndarray | None,
        rope: Rope | None,
        overlap: bool = False,
    ) -> Blocks:
        """Keep rows x and gates of each token, and make one key of each block of len(bias) tokens;
        the parameters are those of the ops `keep_rows` and `compress`.
        """
        dim, more = x.width // (1 + overlap), dict[str, Any]()
        if weight is not None:
            more = dict(weight=weight, eps=self.epsilon())
        if rope is not None:
            more |= dict(inv_freq=rope.inv_freq, mscale=rope.magnitude)
        if overlap:
            more["overlap"] = True
        return self._compressed((x, gate), len(bias), dim, bias=np.ascontiguousarray(bias), **more)

    def compress_mean(self, x: Value, *, ratio: int, weight: np.ndarray, rope: Rope) -> Blocks:
        """`compress` without gates: a key is the normalised mean of a block's rows, its first
        floats rotated by the position where the block begins. Rows carry that position, because a
        batch may give other positions than those of the sequence.
        """
        (table,) = self._table(rope)
        return self._compressed(
            (self.concat(x, table),),
            ratio,
            x.width,
            weight=weight,
            eps=self.epsilon(),
            gated=False,
            carried=table.width,
        )

    def _compressed(self, kept: tuple[Value, ...], ratio: int, dim: int, **more: Any) -> Blocks:
        if 16 % ratio and ratio % 16 or ratio < 2:
            raise ModelError(
                f"{self.arch}: blocks of {ratio} tokens, wanted a divisor or a multiple of 16"
            )
        if dim % min(ratio, 16):
            raise ModelError(
                f"{self.arch}: keys of {dim} floats for blocks of {ratio} tokens, wanted a "
                f"multiple of {min(ratio, 16)} floats"
            )
        window = (1 + more.get("overlap", False)) * ratio
        layer = self.keeps(Rows(sum(part.width for part in kept), window))
        into = self.keeps(Rows(dim // min(ratio, 16)))
        asked = dict(layer=layer, into=into, ratio=ratio, dim=dim, **more)
        self.record("compress", kept, width=1, stateful=True, **asked)
        return Blocks(into, ratio)

    def choose_blocks(
        self, q: Value, weights: Value | None, blocks: Blocks, *, heads: int, most: int
    ) -> Value:
        """The numbers of the blocks that each row attends to; the parameters are those of the
        op.
        """
        params: dict[str, Any] = dict(layer=blocks.layer, ratio=blocks.ratio, most=most)
        inputs = (q,) if weights is None else (q, weights)
        params |= dict(heads=heads) if weights is None else {}
        return self.record("choose_blocks", inputs, width=most, stateful=True, **params)

    def _table(self, rope: Rope | None) -> tuple[Value, ...]:
        if rope is None:
            return ()
        return (self.record("rope_table", (), width=2 * len(rope.inv_freq), rope=rope),)

    def see_all(self) -> None:
        """Every row sees its whole sequence. A file may only confirm this."""
        if self.keys.flag("attention.causal", default=False):
            raise ModelError(
                f"{self.arch}.attention.causal: found True, wanted False: {self.arch} is an encoder"
            )
        self.causal = False

    def dense_head(self, *names: str) -> None:
        """Record the dense layers of these names that the file has, over a pooled row of the
        embedding.
        """
        names = tuple(name for name in names if self.has(f"{name}.weight"))
        if not names:
            return
        head = _Head(self)
        x = head.embed()
        for name in names:
            rows = self.shape(f"{name}.weight", 2)[0]
            for key, size in (("in", x.width), ("out", rows)):
                self.keys.integer(f"{name}_feat_{key}", default=size, minimum=size, maximum=size)
            x = head.linear(x, name, rows)
        head.mark_embedding(x)
        self.projection = head

    def classify(self, *, act: str, pooling: Literal["cls", "mean", "last"]) -> None:
        """Record the classifier of the file, if it has one: `cls` (dense, then act) and `cls.norm`
        if they exist, and `cls.output` with a row for each label, over a pooled row of the
        embedding. With the two labels yes and no, scores are probabilities.
        """
        if not self.has("cls.output.weight"):
            return
        rows = self.shape("cls.output.weight", 2)[0]
        labels = self.keys.texts("classifier.output_labels", default=())
        if labels and len(labels) != rows:
            raise ModelError(
                f"{self.arch}.classifier.output_labels: found {len(labels)}, wanted {rows}, the "
                "rows of cls.output.weight"
            )
        head = _Head(self)
        x = head.embed()
        if self.has("cls.weight"):
            x = head.activate(head.linear(x, "cls", self.hidden), act)
            if self.has("cls.norm.weight"):
                x = head.norm(x, "cls.norm", kind="layer")
        x = head.linear(x, "cls.output", rows)
        judge = tuple(label.lower() for label in labels) == ("yes", "no")
        if judge:
            # the softmax of two scores
            lead = x.columns(0, 1) + x.columns(1, 2) * -1.0
            x = head.activate(head.concat(lead, lead * -1.0), "sigmoid")
        head.mark_embedding(x)
        labels = labels or tuple(f"LABEL_{i}" for i in range(rows))
        self.classifier = Classifier(head, labels, pooling, 0 if judge or rows == 1 else None)

    def mark_embedding(self, x: Value) -> Value:
        """Mark the rows of x as the embedding of a text; returns x."""
        self.embedding = x
        return x

    def logits(
        self,
        x: Value,
        *,
        scale: float = 1.0,
        softcap: float = 0.0,
        norm: str | None = "output_norm",
        kind: str = "rms",
    ) -> Value:
        """The final norm (without a weight if `norm` is None), which is marked as the embedding,
        and the output projection (with `output.bias` if there is one), tied to the token embedding
        if the file has no `output.weight`.
        """
        x = self.norm(x, norm, kind=kind)
        return self.softcap(self.head(x) * scale, softcap)

    def head(self, x: Value) -> Value:
        """The output projection of `logits` alone; its rows are marked as the embedding."""
        if self.embedding is None:
            self.mark_embedding(x)
        name = "output" if self.has("output.weight") else "token_embd"
        return self.linear(x, name, self.vocab_size)


class _Head(Builder):
    """Records a separate graph over the same file: the processing of a pooled row, which a batch
    brings as its embedding.
    """

    def __init__(self, body: Builder) -> None:
        vars(self).update(vars(body))  # the same keys, and the same account of what was read
        self.nodes, self.pages, self.slots = [], [], []
        self.embedding = None


@dataclass(frozen=True, slots=True)
class Classifier:
    """Turns a pooled row of the embedding into a score for each label.

    head: the recorded graph, over a row of the embedding. pooling: how the rows of a text become
    one. score: the label whose number says how relevant a text is; None if the caller must choose.
    """

    head: Builder = field(repr=False)
    labels: tuple[str, ...]
    pooling: Literal["cls", "mean", "last"]
    score: int | None


@dataclass(frozen=True, slots=True)
class Layer:
    """One block of the model: the builder's methods, with `blk.<index>.` before every name (and
    `prefix` before that).
    """

    builder: Builder = field(repr=False)
    index: int
    prefix: str = ""

    def name(self, suffix: str) -> str:
        """The full tensor name of a suffix."""
        return f"{self.prefix}blk.{self.index}.{suffix}"

    def has(self, suffix: str) -> bool:
        """Whether the file has `blk.<index>.<suffix>`."""
        return self.builder.has(self.name(suffix))

    def norm(self, x: Value, suffix: str, *, kind: str = "rms", heads: int = 1) -> Value:
        """`Builder.norm` of this layer's weight."""
        return self.builder.norm(x, self.name(suffix), kind=kind, heads=heads)

    def linear(
        self, x: Value, suffix: str, rows: int, *, take: slice | None = None, bias: bool = True
    ) -> Value:
        """`Builder.linear` of this layer's weight."""
        return self.builder.linear(x, self.name(suffix), rows, take=take, bias=bias)

    def stacked(self, x: Value, suffix: str, rows: int, *, count: int) -> Value:
        """`Builder.stacked` of this layer's weight."""
        return self.builder.stacked(x, self.name(suffix), rows, count=count)

    def experts(self, x: Value, routes: Value, suffix: str, rows: int, *, count: int) -> Value:
        """`Builder.experts` of this layer's weight."""
        return self.builder.experts(x, routes, self.name(suffix), rows, count=count)

    def vector(self, suffix: str, size: int) -> np.ndarray:
        """`Builder.vector` of this layer's weight."""
        return self.builder.vector(self.name(suffix), size)

    def optional_vector(self, suffix: str, size: int) -> np.ndarray | None:
        """`Builder.optional_vector` of this layer's weight."""
        return self.builder.optional_vector(self.name(suffix), size)

    def array(self, suffix: str, *shape: int) -> np.ndarray:
        """`Builder.array` of this layer's weight."""
        return self.builder.array(self.name(suffix), *shape)

    def integer(self, key: str, **bounds: Any) -> int:
        """A hyper-parameter that may be an array with a value per layer."""
        return self.builder.keys.per_layer(key, self.builder.n_layers, **bounds)[self.index]
