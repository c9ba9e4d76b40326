"""Records an architecture: a Python function that runs once, at load, and asks for weights and ops.

A `Builder` hands out `Value`s (what a row holds at some point of the model) and `Layer`s (a prefix
of tensor names), and keeps a flat list of `Node`s. It checks each tensor's shape when it is asked
for, so that a missing tensor, a wrong shape or one that nobody asked for is an error at load with
the tensor's own name in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from oxillama._core.codecs import unpack_rows
from oxillama.errors import ModelError
from oxillama.gguf import GgufReader
from oxillama.gguf.keys import Keys
from oxillama.model.rope import AS_FILED, BASE, SCALING, Rope, RopeOverrides, rope_from_keys

_ARCHITECTURES: dict[str, Callable[[Builder], Value]] = {}


def architecture(*names: str) -> Callable:
    """Register the decorated function as the recorder of every GGUF `general.architecture` in
    `names`.
    """

    def register(record: Callable[[Builder], Value]) -> Callable[[Builder], Value]:
        for name in names:
            _ARCHITECTURES[name] = record
        return record

    return register


def recorders() -> Mapping[str, Callable[[Builder], Value]]:
    """Every registered architecture by its GGUF name."""
    return _ARCHITECTURES


@dataclass(frozen=True, slots=True)
class Tensor:
    """A weight as the file holds it: rows `start:stop` of a tensor, still in its blocks. `shape` is
    (rows, columns).
    """

    name: str
    format: str
    shape: tuple[int, int]
    start: int = 0

    @property
    def key(self) -> tuple[str, int, int]:
        """What makes two uses the same weight."""
        return self.name, self.start, self.shape[0]


def unpacked(reader: GgufReader, tensor: Tensor) -> np.ndarray:
    """The float32 (rows, columns) that a tensor's blocks stand for."""
    blocks = reader.data(tensor.name)
    shape = reader.tensors[tensor.name].shape
    blocks = blocks.reshape(shape[0] if len(shape) == 2 else 1, -1)[
        tensor.start : tensor.start + tensor.shape[0]
    ]
    out = np.empty(tensor.shape, np.float32)
    unpack_rows(blocks, tensor.format, out)
    return out


@dataclass(frozen=True, slots=True)
class Node:
    """One recorded op: `inputs` are indices of earlier nodes, `width` the floats a row of its
    result has.
    """

    op: str
    inputs: tuple[int, ...]
    params: dict
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """The result of a recorded op; `+` and `*` record elementwise ops on rows of equal width."""

    builder: Builder = field(repr=False)
    index: int
    width: int

    def __add__(self, other: Value) -> Value:
        return self.builder.record("add", (self, other), width=self.width)

    def __mul__(self, other: Value | float) -> Value:
        if isinstance(other, Value):
            return self.builder.record("mul", (self, other), width=self.width)
        return (
            self
            if other == 1.0
            else self.builder.record("scale", (self,), width=self.width, factor=float(other))
        )


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of one layer's attention: query heads, key/value heads, and floats per key and per
    value.
    """

    query: int
    kv: int
    key_dim: int
    value_dim: int


class Builder:
    """What an architecture's function is given: typed hyper-parameters, tensors by name, and ops to
    record.
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
        self.keys = rope.over(Keys(reader.metadata, arch))
        # of `BASE` and `SCALING`, what a rotation was made of
        self.rotated_by: set[str] = set()
        self.nodes: list[Node] = []
        self.kv_layers: list[tuple[int, int, int]] = []
        self.used: set[str] = set()
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
    # -------------------------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether the file has a tensor of this full name."""
        return name in self.reader.tensors

    def _info(self, name: str):
        info = self.reader.tensors.get(name)
        if info is None:
            raise ModelError(f"{name}: the file has no such tensor, {self.arch} needs it")
        self.used.add(name)
        return info

    def _matrix_rows(self, name: str) -> int:
        shape = self._info(name).shape
        if len(shape) != 2 or shape[1] != self.hidden:
            raise ModelError(
                f"{name}: file has {tuple(shape)}, {self.arch} needs (vocabulary, {self.hidden})"
            )
        return shape[0]

    def matrix(self, name: str, rows: int, columns: int, *, take: slice | None = None) -> Tensor:
        """The (rows, columns) weight of that name, or rows `take` of it, left in its blocks."""
        info = self._info(name)
        if tuple(info.shape) != (rows, columns):
            raise ModelError(
                f"{name}: file has {tuple(info.shape)}, {self.arch} needs {(rows, columns)}"
            )
        start, stop = (take.start, take.stop) if take else (0, rows)
        return Tensor(name, info.type_name, (stop - start, columns), start)

    def vector(self, name: str, size: int) -> np.ndarray:
        """The weight of that name as float32 (size,)."""
        info = self._info(name)
        if tuple(info.shape) != (size,):
            raise ModelError(f"{name}: file has {tuple(info.shape)}, {self.arch} needs {(size,)}")
        return unpacked(self.reader, Tensor(name, info.type_name, (1, size)))[0]

    def optional_vector(self, name: str, size: int) -> np.ndarray | None:
        """The weight of that name as float32 (size,), or None when the file has none."""
        return self.vector(name, size) if self.has(name) else None

    def unused(self) -> list[str]:
        """Tensors of the file that nobody asked for, in file order."""
        return [name for name in self.reader.tensors if name not in self.used]

    # ---- ops
    # -----------------------------------------------------------------------------------------------------

    def record(self, op: str, inputs: tuple[Value, ...], *, width: int, **params) -> Value:
        """Append an op and return its value."""
        self.nodes.append(Node(op, tuple(value.index for value in inputs), params, width))
        return Value(self, len(self.nodes) - 1, width)

    def layers(self) -> Iterator[Layer]:
        """The layers of the model in order."""
        return (Layer(self, index) for index in range(self.depth))

    def embed(self, *, scale: float = 1.0) -> Value:
        """The token's row of `token_embd.weight`, times `scale`."""
        table = self.matrix("token_embd.weight", self.vocab_size, self.hidden)
        return self.record("embed", (), width=self.hidden, table=table, scale=float(scale))

    def norm(self, x: Value, name: str, *, kind: str = "rms") -> Value:
        """Normalise each row and multiply by `name.weight` (and add `name.bias` where there is
        one).
        """
        key = (
            "attention.layer_norm_rms_epsilon" if kind == "rms" else "attention.layer_norm_epsilon"
        )
        eps = self.keys.number(key, minimum=0.0)
        return self.record(
            "norm",
            (x,),
            width=x.width,
            kind=kind,
            eps=eps,
            weight=self.vector(name + ".weight", x.width),
            bias=self.optional_vector(name + ".bias", x.width),
        )

    def linear(self, x: Value, name: str, rows: int, *, take: slice | None = None) -> Value:
        """x times the transpose of `name.weight` (rows, x.width), plus `name.bias` where there is
        one; `take` uses some of its rows.
        """
        weight = self.matrix(name + ".weight", rows, x.width, take=take)
        bias = self.optional_vector(name + ".bias", rows)
        if bias is not None and take:
            bias = np.ascontiguousarray(bias[take])
        return self.record("linear", (x,), width=weight.shape[0], weight=weight, bias=bias)

    def gate(self, gate: Value, up: Value, *, act: str) -> Value:
        """act(gate) * up, elementwise."""
        return self.record("gate", (gate, up), width=up.width, kind=act)

    def softcap(self, x: Value, cap: float) -> Value:
        """cap * tanh(x / cap), elementwise; no cap when it is 0."""
        return x if cap == 0.0 else self.record("softcap", (x,), width=x.width, cap=float(cap))

    def rope(
        self, dims: int, *, base_key: str = BASE, base: float = 10000.0, scaled: bool = True
    ) -> Rope:
        """The rotary embedding in force over `dims` floats of a head (scaling and per-frequency
        factors included).
        """
        self.rotated_by |= {base_key, SCALING} if scaled else {base_key}
        factors = self.optional_vector("rope_freqs.weight", dims // 2) if scaled else None
        return rope_from_keys(
            self.keys, dims, base_key=base_key, base=base, factors=factors, scaled=scaled
        )

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
    ) -> Value:
        """Causal attention of q over the k and v stored so far: per-head norm, rope, store,
        softmax(scale * q.k) v.
        """
        table = None
        if rope is not None:
            table = self.record("rope_table", (), width=2 * len(rope.inv_freq), rope=rope)
        self.kv_layers.append((heads.kv, heads.key_dim, heads.value_dim))
        inputs = (q, k, v) if table is None else (q, k, v, table)
        return self.record(
            "attend",
            inputs,
            width=heads.query * heads.value_dim,
            heads=heads,
            layer=len(self.kv_layers) - 1,
            rope_dims=rope.dims if rope else 0,
            style=style,
            q_scale=float(scale),
            window=window,
            softcap=float(softcap),
            q_norm=q_norm,
            k_norm=k_norm,
            eps=float(eps),
        )

    def logits(self, x: Value, *, scale: float = 1.0, softcap: float = 0.0) -> Value:
        """Final norm and output projection; the output is tied to the embedding when the file has
        no `output.weight`.
        """
        x = self.norm(x, "output_norm")
        name = "output" if self.has("output.weight") else "token_embd"
        return self.softcap(self.linear(x, name, self.vocab_size) * scale, softcap)


@dataclass(frozen=True, slots=True)
class Layer:
    """One block of the model: the same doors as the builder's, with `blk.<index>.` before every
    name.
    """

    builder: Builder = field(repr=False)
    index: int

    def name(self, suffix: str) -> str:
        """The full tensor name of a suffix."""
        return f"blk.{self.index}.{suffix}"

    def has(self, suffix: str) -> bool:
        """Whether the file has `blk.<index>.<suffix>`."""
        return self.builder.has(self.name(suffix))

    def norm(self, x: Value, suffix: str, *, kind: str = "rms") -> Value:
        """`Builder.norm` of this layer's weight."""
        return self.builder.norm(x, self.name(suffix), kind=kind)

    def linear(self, x: Value, suffix: str, rows: int, *, take: slice | None = None) -> Value:
        """`Builder.linear` of this layer's weight."""
        return self.builder.linear(x, self.name(suffix), rows, take=take)

    def vector(self, suffix: str, size: int) -> np.ndarray:
        """`Builder.vector` of this layer's weight."""
        return self.builder.vector(self.name(suffix), size)

    def integer(self, key: str, **bounds) -> int:
        """A hyper-parameter that may be an array with a value per layer."""
        return self.builder.keys.per_layer(key, self.builder.n_layers, **bounds)[self.index]
