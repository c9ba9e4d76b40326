"""Turns what an architecture recorded into the tape that runs: fuses, cuts to the wanted rows, and
assigns slots.

A recorded op of the catalogue is emitted as it is; a few nodes have a rule of their own, each
short, and every fusion shows in `Tape.dump()`:

- a residual add followed by a norm becomes the norm's `add`; a norm quantises straight into its
  readers' activation formats;
- the q, k and v projections of one row become one matmul into one slot (one per activation format
  when formats differ);
- gate and up become one matmul with a gated epilogue, of experts too; a product and its row-wise
  addend become one;
- after the last op that keeps state only the rows whose output is wanted go on (`take_rows`).

Until slots are assigned, ops hold *registers* (any hashable name); `_assign_slots` maps them to
reused slots by liveness.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import numpy as np

from oxillama._core.kernels import packable_formats
from oxillama._core.matmul import act_bytes
from oxillama.errors import ModelError
from oxillama.model.builder import Builder, Value
from oxillama.model.ops import OPS, OUTPUT
from oxillama.model.recorder import Node
from oxillama.model.tensors import Tensor

# the activation format that each weight format is multiplied with
_ACTS = {name: act for name, _, _, act in packable_formats()}


@dataclass(frozen=True, slots=True)
class TapeOp:
    """One op of the tape: its name in `ops.OPS` and its parameters, with slots as numbers and
    weights as `Tensor`s.
    """

    name: str
    params: dict


@dataclass(frozen=True, slots=True)
class Tape:
    """The lowered model: ops in order, and the width of each slot in float32s. embedding: the slot
    of the rows that embeddings are made from, before the first op that writes the output; None
    without one. width: floats of such a row. carried: the slot of the rows behind the last layer
    that `predictor`, the tape that predicts further tokens, begins with; both are None for a file
    without such layers. source: the tape of an encoder that reads the tokens before those of this
    tape, and keeps in the same pages what these look at; None for a model without one. extracts:
    the layers whose inputs are carried instead, for a draft model that begins with them.
    projection, classifier: the processing of a pooled row of the embedding, None for models
    without.
    """

    ops: tuple[TapeOp, ...]
    slots: tuple[int, ...]
    embedding: int | None = None
    width: int = 0
    carried: int | None = None
    predictor: Tape | None = None
    source: Tape | None = None
    extracts: tuple[int, ...] = ()
    projection: Tape | None = None
    classifier: Tape | None = None

    @property
    def all_ops(self) -> tuple[TapeOp, ...]:
        """The ops of the tape, then those of the source and those over a pooled row."""
        more = (self.source, self.projection, self.classifier)
        return (*self.ops, *(op for tape in more if tape is not None for op in tape.ops))

    def dump(self) -> str:
        """The tape as text, one op per line; golden tests compare it."""
        return (
            "\n".join(
                f"{op.name:<10} "
                + " ".join(
                    f"{key}={_shown(value)}"
                    for key, value in op.params.items()
                    if value is not None
                )
                for op in self.ops
            )
            + f"\nslots {list(self.slots)}\n"
            + "".join(
                f"{name}\n{tape.dump()}"
                for name in ("predictor", "source", "projection", "classifier")
                if (tape := getattr(self, name)) is not None
            )
        )


def _shown(value) -> str:
    if isinstance(value, Tensor):
        rows = "" if value.start == 0 else f"@{value.start}"
        return f"{value.name}{rows}:{value.format}{list(value.shape)}".replace(" ", "")
    if isinstance(value, np.ndarray):
        return f"f32{list(value.shape)}".replace(" ", "")
    if isinstance(value, list):
        return "[" + ",".join(map(_shown, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{item}" for key, item in value.items()) + "}"
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def lower(b: Builder, result: Value | None) -> Tape:
    """The tape of what `b` recorded, ending in `result`, the logits; None if it ends in the rows
    marked as the embedding.
    """
    lowering = _Lowering(b.nodes)
    marks = (None if x is None else x.index for x in (result, b.embedding, b.carried))
    embedding, carried = lowering.run(*marks)
    tape = _assign_slots(lowering.ops, lowering.widths, embedding, carried)
    return tape if b.embedding is None else replace(tape, width=b.embedding.width)


@dataclass(slots=True)
class _Lowering:
    """Walks the nodes once, in order, emitting ops over registers."""

    nodes: list[Node]
    ops: list[TapeOp] = field(default_factory=list)
    widths: dict[Hashable, int] = field(default_factory=dict)
    readers: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    # node -> the register that holds its value
    register: dict[int, Hashable] = field(default_factory=dict)
    # register -> params of the norm or quantise op that can also fill acts
    producer: dict[Hashable, dict] = field(default_factory=dict)
    # one register per distinct rope table
    tables: dict[tuple, Hashable] = field(default_factory=dict)
    pending_add: dict[int, tuple[int, int]] = field(default_factory=dict)
    # nodes after this one see wanted rows only
    cut: int = -1
    # those up to this one see the kept rows; -1: none do
    carried: int = -1
    taken: dict[tuple[Hashable, str], Hashable] = field(default_factory=dict)
    # nodes that are read outside of the tape
    pinned: set[int] = field(default_factory=set)

    def run(
        self, result: int | None, embedding: int | None, carried: int | None
    ) -> tuple[Hashable | None, Hashable | None]:
        """Emit everything; returns the registers of the embedding's rows and of those carried."""
        self.pinned = {index for index in (result, embedding, carried) if index is not None}
        for index, node in enumerate(self.nodes):
            for source in node.inputs:
                self.readers[source].append(index)
            if node.stateful or not node.inputs:
                self.cut = index
        self.carried = -1 if carried is None else carried
        for index, node in enumerate(self.nodes):
            rule = getattr(self, "_" + node.op, self._plain)
            rule(index, node, OUTPUT if self._is_output(index, result) else index)
        end = len(self.nodes)
        kept = None if embedding is None else self.read(embedding, end)
        if result is not None and result <= self.cut:
            self.emit("take_rows", x=self.read_all(result), out=OUTPUT)
        return kept, None if carried is None else self.read_rows(carried, "kept")

    def rows(self, index: int) -> str:
        """The rows that a node runs over."""
        return "all" if index <= self.cut else "kept" if index <= self.carried else "wanted"

    def _is_output(self, index: int, result: int | None) -> bool:
        """The output slot holds the result, and everything between the output projection and the
        result.
        """
        if result is None or index <= self.cut:
            return False
        while index != result:
            if len(self.readers[index]) != 1 or index in self.pinned:
                return False
            index = self.readers[index][0]
            if self.nodes[index].op not in ("scale", "softcap"):
                return False
        return True

    def waits(self, index: int) -> bool:
        """Whether a node is emitted by its only reader, together with its siblings."""
        if index in self.pinned or len(self.readers[index]) != 1:
            return False
        node, reader = self.nodes[index], self.nodes[self.readers[index][0]]
        if self.rows(index) != self.rows(self.readers[index][0]):
            return False
        if node.op == "linear":
            return reader.op in ("attention", "gate", "add", "concat")
        if node.op == "expert_linear":
            return reader.op == "gate"
        if node.op == "columns":
            return reader.op == "concat" and reader.params["heads"] == node.params["heads"]
        return node.op == "concat" and reader.op == "attention"

    def emitted_at(self, index: int) -> int:
        """The node at which this one is emitted."""
        while index < len(self.nodes) and self.waits(index):
            index = self.readers[index][0]
        return index

    def last_use(self, index: int) -> int:
        """The node at which the value of this one is read for the last time."""
        return max(map(self.emitted_at, self.readers[index]), default=index)

    def emit(self, name: str, **params) -> dict:
        self.ops.append(TapeOp(name, params))
        return params

    def new(self, name: Hashable, width: int) -> Hashable:
        if name != OUTPUT:
            self.widths[name] = width
        return name

    # ---- reading values
    # ------------------------------------------------------------------------------------------

    def read_all(self, source: int) -> Hashable:
        """The f32 register of node `source`, emitted now if it waited for its reader."""
        if source not in self.register:
            node = self.nodes[source]
            getattr(self, "_" + node.op)(source, node, source, alone=True)
        held = self.register[source]
        made = self.producer.get(held)
        if made is not None and "out" in made and made["out"] is None:
            made["out"] = self.new(held, self.nodes[source].width)
        return held

    def read(self, source: int, at: int) -> Hashable:
        """The f32 register of node `source` as node `at` sees it."""
        return self.read_rows(source, self.rows(at))

    def read_rows(self, source: int, rows: str) -> Hashable:
        """The f32 register of `rows` of node `source`."""
        held, of = self.read_all(source), self.rows(source)
        if of == rows:
            return held
        if (held, rows) not in self.taken:
            self.taken[held, rows] = self.new((rows, held), self.nodes[source].width)
            more = {"of": of} if of != "all" else {"rows": rows} if rows != "wanted" else {}
            self.emit("take_rows", x=held, out=self.taken[held, rows], **more)
        return self.taken[held, rows]

    def read_act(self, source: int, at: int, act: str) -> Hashable:
        """The register of node `source` in activation format `act`, made by its norm when there is
        one.
        """
        if act == "f32":
            return self.read(source, at)
        if source not in self.register:
            self.read_all(source)
        held, crossing = self.register[source], self.rows(source) != self.rows(at)
        if crossing or held not in self.producer:
            held = self.read(source, at)
            if held not in self.producer:
                self.producer[held] = self.emit("quantise", x=held, acts={})
        acts = self.producer[held]["acts"]
        if act not in acts:
            acts[act] = self.new((act, held), _act_width(act, self.nodes[source].width))
        return acts[act]

    # ---- one rule per recorded op
    # --------------------------------------------------------------------------------

    def _plain(self, index: int, node: Node, out: Hashable) -> None:
        """Emit an op as it was recorded."""
        sources = [self.read(source, index) for source in node.inputs]
        self.register[index] = self.new(out, node.width)
        self.emit(node.op, **dict(zip(OPS[node.op].reads, sources)), **node.params, out=out)

    def _embed(self, index: int, node: Node, out: Hashable) -> None:
        self.register[index] = self.new(out, node.width)
        self.emit("embed", out=out, **node.params)

    def _rope_table(self, index: int, node: Node, out: Hashable) -> None:
        rope = node.params["rope"]
        if rope.key not in self.tables:
            self.tables[rope.key] = self.new(out, node.width)
            more: dict = {} if rope.sections is None else {"sections": rope.sections}
            if rope.far is not None:
                more |= {"far": rope.far, "near": rope.near}
            self.emit("rope_table", out=out, inv_freq=rope.inv_freq, mscale=rope.magnitude, **more)
        self.register[index] = self.tables[rope.key]

    def _add(self, index: int, node: Node, out: Hashable) -> None:
        left, right = node.inputs
        first = min(map(self.emitted_at, self.readers[index]), default=None)
        if (
            first is not None
            and first < len(self.nodes)
            and self.nodes[first].op == "norm"
            and left != right
            and left not in self.pinned
            and self.nodes[left].op != "rope_table"
            and self.last_use(left) == index
            and self.rows(index) == self.rows(first)
        ):
            # the norm that reads it first will do the sum in place
            self.pending_add[index] = (left, right)
            self.read_all(right)
            held = self.register[index] = self.read(left, index)
            # what its producer could still make of it is of the value before the sum
            self.producer.pop(held, None)
            return
        for product, other in ((right, left), (left, right)):
            if product != other and product not in self.register and self._is_linear(product):
                addend = self.read(other, index)
                self.register[index] = self._matmul([product], out, gate=None, addend=addend)
                return
        x, y = self.read(left, index), self.read(right, index)
        self.register[index] = self.new(out, node.width)
        self.emit("add", x=x, y=y, out=out)

    def _is_linear(self, index: int) -> bool:
        return self.nodes[index].op == "linear"

    def _norm(self, index: int, node: Node, out: Hashable) -> None:
        (source,) = node.inputs
        pending = self.pending_add.pop(source, None)
        add = None if pending is None else self.read(pending[1], source)
        params = self.emit(
            "norm", x=self.read(source, index), add=add, out=None, acts={}, **node.params
        )
        if out == OUTPUT:
            params["out"] = out
        self.register[index], self.producer[out] = out, params

    def _linear(self, index: int, node: Node, out: Hashable, *, alone: bool = False) -> None:
        if alone or not self.waits(index):
            self.register[index] = self._matmul([index], out, gate=None)

    def _columns(self, index: int, node: Node, out: Hashable, *, alone: bool = False) -> None:
        if not alone and self.waits(index):
            return
        x, heads, start = (
            self.read(node.inputs[0], index),
            node.params["heads"],
            node.params["start"],
        )
        count, step = node.width // heads, self.nodes[node.inputs[0]].width // heads
        self.register[index] = self.new(out, node.width)
        self.emit(
            "copy", x=x, out=out, count=count, heads=heads, first=start, step=step, stride=count
        )

    def _concat(self, index: int, node: Node, out: Hashable, *, alone: bool = False) -> None:
        if alone or not self.waits(index):
            self.register[index] = self.new(out, node.width)
            self._place(index, out, 0, index)

    def _place(self, index: int, out: Hashable, offset: int, at: int) -> None:
        """Put the value of node `index` into columns of a register from `offset` on."""
        node = self.nodes[index]
        if index in self.register and self.register[index] != out or node.op != "concat":
            x = self.read(index, at)
            self.emit("copy", x=x, out=out, count=node.width, offset=offset)
            return
        heads = node.params["heads"]
        stride = node.width // heads
        for part in node.inputs:
            piece = self.nodes[part]
            first, step, source = 0, piece.width // heads, part
            if piece.op == "columns" and part not in self.register:
                source, first = piece.inputs[0], piece.params["start"]
                step = self.nodes[source].width // heads
            self.emit(
                "copy",
                x=self.read(source, at),
                out=out,
                count=piece.width // heads,
                heads=heads,
                first=first,
                step=step,
                offset=offset,
                stride=stride,
            )
            offset += piece.width // heads

    def _matmul(
        self,
        linears: list[int],
        out: Hashable,
        *,
        gate: str | None,
        offset: int = 0,
        addend: Hashable | None = None,
    ) -> Hashable:
        """One matmul over linears that read the same value in the same activation format."""
        nodes = [self.nodes[index] for index in linears]
        source, act = nodes[0].inputs[0], _act_of(nodes[0].params["weight"])
        biases = [node.params["bias"] for node in nodes]
        bias = None
        if any(part is not None for part in biases):
            bias = np.concatenate(
                [
                    np.zeros(node.width, np.float32) if part is None else part
                    for node, part in zip(nodes, biases)
                ]
            )
        x = self.read_act(source, linears[0], act)
        width = nodes[0].width if gate else sum(node.width for node in nodes)
        if offset == 0 and out not in self.widths:
            self.new(out, width)
        elif out != OUTPUT:
            self.widths[out] = max(self.widths[out], offset + width)
        more = {} if addend is None else {"addend": addend}
        self.emit(
            "matmul",
            x=x,
            act=act,
            weights=[node.params["weight"] for node in nodes],
            bias=bias,
            gate=gate,
            out=out,
            offset=offset,
            **more,
        )
        return out

    def _expert_linear(self, index: int, node: Node, out: Hashable, *, alone: bool = False) -> None:
        if alone or not self.waits(index):
            self.register[index] = self._experts([index], out, gate=None)

    def _experts(self, linears: list[int], out: Hashable, *, gate: str | None) -> Hashable:
        """One op over stacks that read the same value in the same activation format."""
        nodes = [self.nodes[index] for index in linears]
        source, *routes = nodes[0].inputs
        act = _act_of(nodes[0].params["weight"])
        x = self.read_act(source, linears[0], act)
        self.new(out, nodes[0].width)
        self.emit(
            "experts",
            x=x,
            routes=self.read(routes[0], linears[0]) if routes else None,
            act=act,
            weights=[node.params["weight"] for node in nodes],
            experts=nodes[0].params["experts"],
            used=nodes[0].params["used"],
            gate=gate,
            out=out,
        )
        return out

    def _gate(self, index: int, node: Node, out: Hashable) -> None:
        gate, up = node.inputs
        kind = node.params["kind"]
        if gate != up and out != OUTPUT and self._siblings([gate, up]):
            self.register[index] = self._matmul([gate, up], out, gate=kind)
            return
        if gate != up and out != OUTPUT and self._siblings([gate, up], op="expert_linear"):
            self.register[index] = self._experts([gate, up], out, gate=kind)
            return
        x, y = self.read(gate, index), self.read(up, index)
        act = self.new(("act", out), node.width)
        self.emit("activate", x=x, kind=kind, out=act)
        self.register[index] = self.new(out, node.width)
        self.emit("mul", x=act, y=y, out=out)

    def _siblings(self, products: list[int], op: str = "linear") -> bool:
        """Whether these are unread products of one value whose weights share an activation
        format.
        """
        nodes = [self.nodes[index] for index in products]
        return (
            all(
                node.op == op and index not in self.register for index, node in zip(products, nodes)
            )
            and len(
                {
                    (node.inputs, _act_of(node.params["weight"]), node.width)
                    if op != "linear"
                    else (node.inputs, _act_of(node.params["weight"]))
                    for node in nodes
                }
            )
            == 1
        )

    def _attention(self, index: int, node: Node, out: Hashable) -> None:
        p, heads = dict(node.params), node.params["heads"]
        del p["heads"]
        qkv, offset = ("qkv", index), 0
        queries = int(heads.query > 0)
        count = 2 if p.pop("latent", False) else queries + 2 * p.get("keep", True)
        parts = list(node.inputs[:count])
        rest = list(node.inputs[count:])
        rope, picks = (rest[:1], rest[1:]) if p["rope_dims"] else ([], rest)
        while parts:
            run = 1
            while run < len(parts) and self._siblings(parts[: run + 1]):
                run += 1
            width = sum(self.nodes[part].width for part in parts[:run])
            if self._siblings(parts[:run]):
                self._matmul(parts[:run], qkv, gate=None, offset=offset)
            else:
                self.new(qkv, max(offset + width, self.widths.get(qkv, 0)))
                self._place(parts[0], qkv, offset, index)
            offset += width
            del parts[:run]
        shape = dict(
            q_heads=heads.query,
            kv_heads=heads.kv,
            k_dim=heads.key_dim,
            v_dim=heads.value_dim,
            layer=p.pop("layer"),
        )
        window, softcap = p.pop("window"), p.pop("softcap")
        sinks, slopes = p.pop("sinks", None), p.pop("slopes", None)
        more = {} if slopes is None else {"slopes": slopes}
        more |= {
            name: p.pop(name)
            for name in (
                "relative",
                "causal",
                "chunk",
                "spans",
                "behind",
                "strict",
                "most",
                "blocks",
                "ratio",
                "each",
                "running",
            )
            if name in p
        }
        if picks:
            more["chosen"] = self.read(picks[0], index)
        table = self.read(rope[0], index) if rope else None
        self.emit("rope_store", x=qkv, rope=table, **shape, **p)
        if not queries:
            return
        self.register[index] = self.new(out, node.width)
        self.emit(
            "attend", x=qkv, **shape, window=window, softcap=softcap, sinks=sinks, **more, out=out
        )

    def _compress(self, index: int, node: Node, out: Hashable) -> None:
        """Rows of all tokens of a step are kept before keys are made of them."""
        p = dict(node.params)
        kept = {
            name: self.read(source, index) for name, source in zip(("x", "gate"), node.inputs)
        } | {name: p[name] for name in ("layer", "into") if name in p}
        if "bias" in p:
            kept["bias"] = p.pop("bias")
        self.emit("keep_rows", **kept)
        if "into" in p:
            self.emit("compress", **p)


def _act_of(weight: Tensor) -> str:
    """The activation format for a weight."""
    if weight.format not in _ACTS:
        raise ModelError(
            f"{weight.name}: file has {weight.format}, which no kernel multiplies, wanted one of "
            f"{', '.join(sorted(_ACTS))}"
        )
    return _ACTS[weight.format]


def _act_width(act: str, columns: int) -> int:
    """Float32s of a row of an activation format."""
    return -(-act_bytes(act, columns) // 4)


def _assign_slots(
    ops: list[TapeOp],
    widths: dict[Hashable, int],
    embedding: Hashable | None,
    carried: Hashable | None,
) -> Tape:
    """Replace registers by slot numbers; a slot is free again after the last op that touches its
    register, those of `embedding` and `carried` never.
    """
    last: dict[Hashable, int] = {}
    for i, op in enumerate(ops):
        for register in _registers(op):
            last[register] = i
    for kept in (embedding, carried):
        if kept is not None:
            last[kept] = len(ops)
    slots: list[int] = []
    free: list[int] = []
    place: dict[Hashable, int] = {OUTPUT: OUTPUT}
    lowered = []
    for i, op in enumerate(ops):
        for register in _registers(op):
            if register not in place:
                fitting = [slot for slot in free if slots[slot] >= widths[register]]
                if fitting:
                    slot = min(fitting, key=lambda s: slots[s])
                elif free:
                    slot = max(free, key=lambda s: slots[s])
                    slots[slot] = widths[register]
                else:
                    slots.append(widths[register])
                    slot = len(slots) - 1
                if slot in free:
                    free.remove(slot)
                place[register] = slot
        params = dict(op.params)
        for key in _slot_keys(op):
            held = params[key]
            params[key] = (
                {act: place[r] for act, r in held.items()}
                if isinstance(held, dict)
                else place[held]
            )
        lowered.append(TapeOp(op.name, params))
        free.extend(
            place[register]
            for register in _registers(op)
            if last[register] == i and register != OUTPUT
        )
    kept, carries = (None if one is None else place[one] for one in (embedding, carried))
    return Tape(tuple(lowered), tuple(slots), kept, carried=carries)


def _slot_keys(op: TapeOp) -> list[str]:
    kind = OPS[op.name]
    keys = dict.fromkeys(kind.reads + kind.writes)
    return [key for key in keys if op.params.get(key) is not None]


def _registers(op: TapeOp) -> list[Hashable]:
    """The registers an op touches, each once, reads first."""
    found: dict[Hashable, None] = {}
    for key in _slot_keys(op):
        held = op.params[key]
        for register in held.values() if isinstance(held, dict) else (held,):
            found[register] = None
    return list(found)
