"""Turns what an architecture recorded into the tape that runs: fuses, cuts to the wanted rows, and
assigns slots.

Each fusion is a short rule over the recorded nodes, and every one shows in `Tape.dump()`:

- a residual add followed by a norm becomes the norm's `add`; a norm quantises straight into its
  readers' activation formats;
- the q, k and v projections of one row become one matmul into one slot (one per activation format
  when formats differ);
- gate and up become one matmul with a gated epilogue;
- after the last attention only the rows whose output is wanted go on (`take_rows`).

Until slots are assigned, ops hold *registers* (any hashable name); `_assign_slots` maps them to
reused slots by liveness.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np

from oxillama.model.builder import Builder, Node, Tensor, Value
from oxillama.model.ops import OPS, OUTPUT


@dataclass(frozen=True, slots=True)
class Op:
    """One op of the tape: its name in the catalogue and its parameters, slots as numbers and
    weights as `Tensor`s.
    """

    name: str
    params: dict


@dataclass(frozen=True, slots=True)
class Tape:
    """The lowered model: ops in order, and the width of each slot in float32s."""

    ops: tuple[Op, ...]
    slots: tuple[int, ...]

    def dump(self) -> str:
        """The tape as text, an op a line; what golden tests compare and what a curious reader
        should look at.
        """
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


def lower(
    b: Builder, result: Value, act_of: Callable[[str], str], act_width: Callable[[str, int], int]
) -> Tape:
    """The tape of what `b` recorded, ending in `result`.

    `act_of(format)` names the activation format a weight format is multiplied with; `act_width(act,
    columns)` is the float32s a row of that activation format takes.
    """
    lowering = _Lowering(b.nodes, act_of, act_width)
    lowering.run(result.index)
    return _assign_slots(lowering.ops, lowering.widths)


@dataclass(slots=True)
class _Lowering:
    """Walks the nodes once, in order, emitting ops over registers."""

    nodes: list[Node]
    act_of: Callable[[str], str]
    act_width: Callable[[str, int], int]
    ops: list[Op] = field(default_factory=list)
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
    taken: dict[Hashable, Hashable] = field(default_factory=dict)

    def run(self, result: int) -> None:
        for index, node in enumerate(self.nodes):
            for source in node.inputs:
                self.readers[source].append(index)
            if node.op == "attend":
                self.cut = index
        for index, node in enumerate(self.nodes):
            getattr(self, "_" + node.op)(
                index, node, OUTPUT if self._is_output(index, result) else index
            )

    def _is_output(self, index: int, result: int) -> bool:
        """The output slot holds the result, and everything between the output projection and the
        result.
        """
        while index != result:
            if len(self.readers[index]) != 1 or self.nodes[self.readers[index][0]].op not in (
                "scale",
                "softcap",
            ):
                return False
            index = self.readers[index][0]
        return True

    def emit(self, name: str, **params) -> dict:
        self.ops.append(Op(name, params))
        return params

    def new(self, name: Hashable, width: int) -> Hashable:
        if name != OUTPUT:
            self.widths[name] = width
        return name

    # ---- reading values
    # ------------------------------------------------------------------------------------------

    def read(self, source: int, at: int) -> Hashable:
        """The f32 register of node `source` as node `at` sees it."""
        held = self.register[source]
        made = self.producer.get(held)
        if made is not None and "out" in made and made["out"] is None:
            made["out"] = self.new(held, self.nodes[source].width)
        if source <= self.cut < at:
            if held not in self.taken:
                self.taken[held] = self.new(("wanted", held), self.nodes[source].width)
                self.emit("take_rows", x=held, out=self.taken[held])
            held = self.taken[held]
        return held

    def read_act(self, source: int, at: int, act: str) -> Hashable:
        """The register of node `source` in activation format `act`, made by its norm when there is
        one.
        """
        if act == "f32":
            return self.read(source, at)
        held, crossing = self.register[source], source <= self.cut < at
        if crossing or held not in self.producer:
            held = self.read(source, at)
            if held not in self.producer:
                self.producer[held] = self.emit("quantise", x=held, acts={})
        acts = self.producer[held]["acts"]
        if act not in acts:
            acts[act] = self.new((act, held), self.act_width(act, self.nodes[source].width))
        return acts[act]

    # ---- one rule per recorded op
    # --------------------------------------------------------------------------------

    def _embed(self, index: int, node: Node, out: Hashable) -> None:
        self.register[index] = self.new(out, node.width)
        self.emit("embed", out=out, table=node.params["table"], scale=node.params["scale"])

    def _rope_table(self, index: int, node: Node, out: Hashable) -> None:
        rope = node.params["rope"]
        if rope.key not in self.tables:
            self.tables[rope.key] = self.new(out, node.width)
            self.emit("rope_table", out=out, inv_freq=rope.inv_freq, mscale=rope.magnitude)
        self.register[index] = self.tables[rope.key]

    def _add(self, index: int, node: Node, out: Hashable) -> None:
        left, right = node.inputs
        first = min(self.readers[index], default=None)
        if (
            first is not None
            and self.nodes[first].op == "norm"
            and max(self.readers[left]) == index
            and (index <= self.cut) == (first <= self.cut)
        ):
            # the norm that reads it first will do the sum in place
            self.pending_add[index] = (left, right)
            self.register[index] = self.read(left, index)
            return
        x, y = self.read(left, index), self.read(right, index)
        self.register[index] = self.new(out, node.width)
        self.emit("add", x=x, y=y, out=out)

    def _norm(self, index: int, node: Node, out: Hashable) -> None:
        (source,) = node.inputs
        add = self.pending_add.pop(source, None)
        add = None if add is None else self.read(add[1], source)
        params = self.emit(
            "norm", x=self.read(source, index), add=add, out=None, acts={}, **node.params
        )
        self.register[index], self.producer[out] = out, params

    def _linear(self, index: int, node: Node, out: Hashable) -> None:
        if len(self.readers[index]) == 1 and self.nodes[self.readers[index][0]].op in (
            "attend",
            "gate",
        ):
            # its reader emits it, side by side with its siblings
            return
        self.register[index] = self._matmul([index], out, gate=None)

    def _matmul(
        self, linears: list[int], out: Hashable, *, gate: str | None, offset: int = 0
    ) -> Hashable:
        """One matmul over linears that read the same value in the same activation format."""
        nodes = [self.nodes[index] for index in linears]
        source, act = nodes[0].inputs[0], self.act_of(nodes[0].params["weight"].format)
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
        if offset == 0:
            self.new(out, width)
        elif out != OUTPUT:
            self.widths[out] = max(self.widths[out], offset + width)
        self.emit(
            "matmul",
            x=x,
            act=act,
            weights=[node.params["weight"] for node in nodes],
            bias=bias,
            gate=gate,
            out=out,
            offset=offset,
        )
        return out

    def _gate(self, index: int, node: Node, out: Hashable) -> None:
        gate, up = node.inputs
        if self._siblings([gate, up]):
            self.register[index] = self._matmul([gate, up], out, gate=node.params["kind"])
            return
        for source in node.inputs:
            if source not in self.register:
                self.register[source] = self._matmul([source], source, gate=None)
        x, y = self.read(gate, index), self.read(up, index)
        act = self.new(("act", out), node.width)
        self.emit("activate", x=x, kind=node.params["kind"], out=act)
        self.register[index] = self.new(out, node.width)
        self.emit("mul", x=act, y=y, out=out)

    def _siblings(self, linears: list[int]) -> bool:
        """Whether these are unread linears of one value whose weights share an activation format."""
        nodes = [self.nodes[index] for index in linears]
        return (
            all(
                node.op == "linear" and index not in self.register
                for index, node in zip(linears, nodes)
            )
            and len({(node.inputs, self.act_of(node.params["weight"].format)) for node in nodes})
            == 1
        )

    def _attend(self, index: int, node: Node, out: Hashable) -> None:
        p, heads = dict(node.params), node.params["heads"]
        del p["heads"]
        qkv, offset = ("qkv", index), 0
        parts = list(node.inputs[:3])
        while parts:
            run = 1
            while run < len(parts) and self._siblings(parts[: run + 1]):
                run += 1
            self._matmul(parts[:run], qkv, gate=None, offset=offset)
            offset += sum(self.nodes[part].width for part in parts[:run])
            del parts[:run]
        shape = dict(
            q_heads=heads.query,
            kv_heads=heads.kv,
            k_dim=heads.key_dim,
            v_dim=heads.value_dim,
            layer=p.pop("layer"),
        )
        window, softcap = p.pop("window"), p.pop("softcap")
        rope = self.read(node.inputs[3], index) if len(node.inputs) > 3 else None
        self.emit("rope_store", x=qkv, rope=rope, **shape, **p)
        self.register[index] = self.new(out, node.width)
        self.emit("attend", x=qkv, **shape, window=window, softcap=softcap, sinks=None, out=out)

    def _elementwise(self, index: int, node: Node, out: Hashable) -> None:
        sources = [self.read(source, index) for source in node.inputs]
        self.register[index] = self.new(out, node.width)
        self.emit(node.op, **dict(zip("xy", sources)), **node.params, out=out)

    _mul = _scale = _softcap = _activate = _elementwise


def _assign_slots(ops: list[Op], widths: dict[Hashable, int]) -> Tape:
    """Replace registers by slot numbers; a slot is free again after the last op that touches its
    register.
    """
    last: dict[Hashable, int] = {}
    for i, op in enumerate(ops):
        for register in _registers(op):
            last[register] = i
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
        lowered.append(Op(op.name, params))
        free.extend(
            place[register]
            for register in _registers(op)
            if last[register] == i and register != OUTPUT
        )
    return Tape(tuple(lowered), tuple(slots))


def _slot_keys(op: Op) -> list[str]:
    kind = OPS[op.name]
    return [key for key in dict.fromkeys(kind.reads + kind.writes) if op.params[key] is not None]


def _registers(op: Op) -> list[Hashable]:
    """The registers an op touches, each once, reads first."""
    found: dict[Hashable, None] = {}
    for key in _slot_keys(op):
        held = op.params[key]
        for register in held.values() if isinstance(held, dict) else (held,):
            found[register] = None
    return list(found)
