"""Records an architecture: a Python function that runs once, at load, and asks for weights and ops.

A `Builder` is its argument: what `recorder` and `attention` record, and every other op. `Layer` is
the same for a prefix of tensor names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from oxillama._core.recurrent import scan_blocks
from oxillama.errors import ConfigError, ModelError
from oxillama.model.attention import AttentionRecorder
from oxillama.model.recorder import Value, alike
from oxillama.model.state import Rows, Slot
from oxillama.model.tensors import Tensor

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
class Filling:
    """How a model fills in masks. mask: the token of a place that is not filled yet. shifted: a row
    predicts the token after its own, not its own.
    """

    mask: int
    shifted: bool


class Builder(AttentionRecorder):
    """The argument of an architecture's function: typed hyper-parameters, tensors by name, and ops
    to record.
    """

    embedding: Value | None = None
    # the rows from which further tokens are predicted, and the graph that does
    carried: Value | None = None
    predictor: Predictor | None = None
    # the layers whose inputs are carried for a draft; by the first norm of each, what it reads and
    # a copy of it; all copies side by side
    extracts: tuple[int, ...] = ()
    entering: dict[str, tuple[Value, Value] | None] | None = None
    extracted: Value | None = None
    classifier: Classifier | None = None
    # the graph of an encoder that reads what comes before this graph's tokens, and the token that
    # is the first of these
    source: Builder | None = None
    start_token: int | None = None
    # the graph over a pooled row of the embedding
    projection: Builder | None = None
    # of a model that fills in masks
    filling: Filling | None = None

    def fill_masks(self) -> None:
        """Rows see the whole text, in which masks are filled in step by step."""
        self.see_all()
        root = self.keys.root
        self.filling = Filling(
            root.integer("tokenizer.ggml.mask_token_id", maximum=self.vocab_size - 1),
            root.flag("diffusion.shift_logits", default=True),
        )

    def layers(self, prefix: str = "") -> Iterator[Layer]:
        """The layers of the model in order; prefix: comes before `blk.` in their names."""
        return (Layer(self, index, prefix) for index in range(self.depth))

    def embed(
        self,
        *,
        scale: float = 1.0,
        name: str = "token_embd.weight",
        taken: np.ndarray | None = None,
    ) -> Value:
        """The token's row of the table `name`, times `scale`; or the row that a batch brings.
        taken: the token whose row each token takes, its own without.
        """
        table = self.matrix(name, self.vocab_size, self.hidden)
        more: dict[str, Any] = {} if taken is None else {"taken": taken}
        return self.record("embed", (), width=self.hidden, table=table, scale=float(scale), **more)

    def position_embed(self, name: str = "position_embd.weight") -> Value:
        """The row of a learned table (positions, embedding_length) at the token's position."""
        rows = self._matrix_rows(name)
        table = self.matrix(name, rows, self.hidden)
        return self.record("embed", (), width=self.hidden, table=table, scale=1.0, by="position")

    def features(self, start: int, count: int, *, beside: bool = False) -> Value:
        """`count` columns, from `start` on, of the rows that a batch brings: in place of tokens
        (zeros for token rows), or beside them.
        """
        more: dict[str, Any] = {"beside": True} if beside else {}
        return self.op("features", start=start, count=count, **more)

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
        y = self.record(
            "norm",
            (x,),
            width=x.width,
            kind=kind,
            eps=self.epsilon(kind) if eps is None else eps,
            weight=weight,
            bias=bias,
            **more,
        )
        if self.entering and name in self.entering and self.entering[name] is None:
            # a copy, so that sums into x are made as without it
            self.entering[name] = x, self.repeat(x, 1)
        return y

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

    def experts(
        self, x: Value, routes: Value, name: str, rows: int, *, count: int, scale: bool = True
    ) -> Value:
        """A routed value: x times the matrix (rows, columns) of the stack `name.weight` for each
        expert of the row, times its number in `name.scale` (count) and plus its row of `name.bias`
        (count, rows) if they exist (scale False: another op reads that tensor). x is one row for
        all its experts, or a routed value with a part for each.
        """
        used = routes.width // 2
        columns = self.shape(name + ".weight", 3)[2]
        if x.width not in (columns, used * columns):
            raise ModelError(
                f"{name}.weight: file has {columns} columns, {self.arch} needs {x.width} or a part "
                f"of {used}"
            )
        made = self.routed(x, routes, self.stack(name + ".weight", count, rows, columns), count)
        if scale and self.has(name + ".scale"):
            none = routes.columns(used, 2 * used) * 0.0
            scales = self.vector(name + ".scale", count).reshape(count, 1)
            factors = self.op("expert_bias", none, routes, bias=scales)
            made = self.head_scale(made, factors, heads=used)
        if not self.has(name + ".bias"):
            return made
        return self.op("expert_bias", made, routes, bias=self.array(name + ".bias", count, rows))

    def routed(self, x: Value, routes: Value, weight: Tensor, count: int) -> Value:
        """A routed value: x times the matrix of a stack of `count` for each expert of the row;
        zeros where a route is -1.
        """
        used = routes.width // 2
        width = used * (weight.shape[0] // count)
        params: dict[str, Any] = dict(weight=weight, experts=count, used=used)
        return self.record("expert_linear", (x, routes), width=width, **params)

    def switch(self, numbers: np.ndarray, *, gain: float | None = None) -> Value:
        """The adapter in force at each row, chosen by tokens, as the route of one expert; the
        parameters are those of the op.
        """
        layer = self.keeps(Rows(1 if gain is None else 2))
        more: dict[str, Any] = {} if gain is None else {"gain": gain}
        return self.op("switch", numbers=numbers, layer=layer, **more)

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

    def shift(self, x: Value) -> Value:
        """The row before each row, of the same sequence in the same step; zeros for the first."""
        return self.op("shift", x)

    def combine(self, x: Value, routes: Value) -> Value:
        """The sum of a routed value's parts, weighted by its routes."""
        return self.op("combine", x, routes)

    def gate(self, gate: Value, up: Value, *, act: str) -> Value:
        """act(gate) * up, elementwise."""
        return self.record("gate", (gate, alike(gate, up)), width=up.width, kind=act)

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
        causal: bool = True,
    ) -> Value:
        """A convolution of each channel with its own taps (channels, taps), then an activation.
        causal False: the tap in the middle is for the row itself.
        """
        state = self.keeps(Slot((weight.shape[1] - 1, x.width))) if causal else None
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

    def softcap(self, x: Value, cap: float) -> Value:
        """cap * tanh(x / cap), elementwise; no cap when it is 0."""
        return x if cap == 0.0 else self.op("softcap", x, cap=float(cap))

    def dense_head(self, *names: str) -> None:
        """Record the dense layers of these names that the file has, over a pooled row of the
        embedding.
        """
        names = tuple(name for name in names if self.has(f"{name}.weight"))
        if not names:
            return
        head = self.aside()
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
        head = self.aside()
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

    def mark_carried(self, x: Value) -> None:
        """Mark the rows of x as those from which further tokens are predicted."""
        self.carried = x

    def aside(self) -> Builder:
        """A builder of another graph over the same file, with the same account of what was read."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other.nodes, other.pages, other.slots = [], [], []
        other.embedding = other.carried = None
        other.extracts, other.entering = (), None
        return other

    def extract(self, layers: Sequence[int]) -> None:
        """Carry what comes into these layers, from 0 to `trunk_layers`, which stands for what comes
        out of the last; it is recorded by `logits`.
        """
        self.extracts = tuple(layers)
        self.entering = {f"blk.{layer}.attn_norm": None for layer in layers}

    @property
    def trunk_layers(self) -> int:
        """The number of layers without those that predict further tokens, the last
        `nextn_predict_layers` of the file (DeepSeek-AI 2024, DeepSeek-V3, section 2.2).
        """
        return self.n_layers - self.keys.integer(
            "nextn_predict_layers", default=0, maximum=self.n_layers - 1
        )

    def _extract(self, x: Value) -> None:
        """Record the rows to carry; x comes out of the last layer. What comes into a layer is what
        its first norm reads, if later layers only add to it and scale it.
        """
        stream, last, found = {x.index}, [x.index], []
        while last:
            node = self.nodes[last.pop()]
            if node.op in ("add", "scale", "affine"):
                last += set(node.inputs) - stream
                stream.update(node.inputs)
        assert self.entering is not None
        for layer in self.extracts:
            read = self.entering[f"blk.{layer}.attn_norm"]
            value, copy = (x, x) if layer == self.trunk_layers else read or (None, x)
            if value is None or value.index not in stream or len(stream) == 1:
                raise ConfigError(
                    f"draft: found one that begins with what comes into layer {layer} of "
                    f"{self.arch}, wanted a row there that a norm reads and later layers add to"
                )
            found.append(copy)
        self.extracted = self.concat(*found)

    def logits(
        self,
        x: Value,
        *,
        scale: float = 1.0,
        softcap: float = 0.0,
        norm: str | None = "output_norm",
        kind: str = "rms",
        output: str = "output",
    ) -> Value:
        """The final norm (without a weight if `norm` is None), which is marked as the embedding,
        and the output projection (with `output.bias` if there is one), tied to the token embedding
        if the file has no `output.weight`. output: a projection that comes before that one.
        """
        y = self.norm(x, norm, kind=kind)
        if self.extracts:
            self._extract(x)
        return self.softcap(self.head(y, output) * scale, softcap)

    def head(self, x: Value, *names: str) -> Value:
        """The output projection of `logits` alone; its rows are marked as the embedding."""
        if self.embedding is None:
            self.mark_embedding(x)
        held = (name for name in (*names, "output") if self.has(f"{name}.weight"))
        return self.linear(x, next(held, "token_embd"), self.vocab_size)


@dataclass(frozen=True, slots=True)
class Predictor:
    """Predicts the token after the next one (multi-token prediction): the recorded graph, over a
    token and the carried row before it, and its logits.
    """

    graph: Builder = field(repr=False)
    logits: Value = field(repr=False)


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

    def experts(
        self, x: Value, routes: Value, suffix: str, rows: int, *, count: int, scale: bool = True
    ) -> Value:
        """`Builder.experts` of this layer's weight."""
        return self.builder.experts(x, routes, self.name(suffix), rows, count=count, scale=scale)

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
