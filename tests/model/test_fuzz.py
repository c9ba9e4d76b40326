"""Random graphs: what the recorded nodes mean one by one is what the lowered, compiled tape
computes.
"""

import numpy as np
import pytest

from oxillama._core.panels import PackedMatrix
from oxillama._core.tape import Batch, EmbeddingTable, PageMemory, Program
from oxillama.gguf.keys import Keys
from oxillama.model.attention import Heads
from oxillama.model.builder import Builder, Value
from oxillama.model.lower import lower
from oxillama.model.ops import OPS, Frame
from oxillama.model.ops.numeric import activated, as_kept, rotated
from oxillama.model.rope import Rope
from oxillama.model.state import Slot
from oxillama.model.tensors import Tensor

VOCAB, WIDTH, ROWS = 48, 32, 21


class Graph(Builder):
    """A builder over weights that are made when a node needs them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.arch, self.nodes, self.pages, self.slots = "fuzz", [], [], []
        self.keys, self.embedding, self.causal = Keys({}, "fuzz"), None, True
        self.hidden, self.vocab_size = WIDTH, VOCAB
        self.weights: dict[str, np.ndarray] = {}

    def tensor(self, rows: int, columns: int) -> Tensor:
        name = f"w{len(self.weights)}"
        made = self.rng.standard_normal((rows, columns)) / np.sqrt(columns)
        self.weights[name] = made.astype(np.float32)
        return Tensor(name, "F32", (rows, columns))

    def vector(self, size: int) -> np.ndarray:
        return self.rng.standard_normal(size).astype(np.float32)

    def product(self, x: Value, rows: int) -> Value:
        bias = self.vector(rows) if self.rng.random() < 0.3 else None
        weight = self.tensor(rows, x.width)
        return self.record("linear", (x,), width=rows, weight=weight, bias=bias)

    def normed(self, x: Value) -> Value:
        kind = self.rng.choice(["rms", "layer"])
        weight = self.vector(x.width) if self.rng.random() < 0.8 else None
        return self.record(
            "norm", (x,), width=x.width, kind=str(kind), eps=1e-5, weight=weight, bias=None
        )

    def attended(self, x: Value) -> Value:
        pick, rng = (lambda *some: some[rng.integers(len(some))]), self.rng
        heads = Heads(4, int(pick(1, 2, 4)), 8, int(pick(8, 16)))
        source = pick(x, self.normed(x))
        q = self.product(source, 32)
        k = self.product(pick(x, source), 8 * heads.kv)
        v = self.product(source, heads.value_dim * heads.kv)
        if rng.random() < 0.4:
            q, k = self.normed(q), self.normed(k)
        rope = None
        if rng.random() < 0.6:
            rope = Rope(8, (10000.0 ** (-np.arange(4) / 4)).astype(np.float32), 1.0)
        y = self.attend(
            q,
            k,
            v,
            heads=heads,
            rope=rope,
            style=str(pick("norm", "neox")),
            scale=0.35,
            window=int(pick(0, 0, 5)),
            softcap=float(pick(0.0, 20.0)),
            sinks=self.vector(4) if rng.random() < 0.2 else None,
            slopes=np.abs(self.vector(4)) if rng.random() < 0.2 else None,
        )
        return self.product(y, WIDTH)

    def latent(self, x: Value) -> Value:
        q, kept, key = self.product(x, 48), self.product(x, 16), self.product(x, 8)
        absorbed = self.record(
            "expert_linear",
            (q.columns(0, 4, heads=4),),
            width=64,
            weight=self.tensor(64, 4),
            experts=4,
            used=0,
        )
        q = self.concat(absorbed, q.columns(4, 12, heads=4), heads=4)
        k = self.concat(self.normed(kept), key)
        rope = Rope(8, (100.0 ** (-np.arange(4) / 4)).astype(np.float32), 1.0)
        y = self.attend_latent(q, k, heads=4, value=16, rope=rope, style="norm", scale=0.3)
        return self.product(y, WIDTH)

    def routed(self, x: Value) -> Value:
        gating = str(self.rng.choice(["softmax", "sigmoid", "chosen"]))
        routes = self.route(self.product(x, 8), used=3, gating=gating, normalise=True, scale=1.5)

        def of_experts(x, rows, columns):
            weight = self.tensor(8 * rows, columns)
            return self.record(
                "expert_linear", (x, routes), width=3 * rows, weight=weight, experts=8, used=3
            )

        y = self.gate(of_experts(x, 16, WIDTH), of_experts(x, 16, WIDTH), act="silu")
        return self.combine(of_experts(y, WIDTH, 16), routes)

    def gated(self, x: Value) -> Value:
        gate, up = self.product(x, 24), self.product(x, 24)
        if self.rng.random() < 0.3:
            up = up + self.product(self.product(x, 4), 24)
        return self.product(self.gate(gate, up, act="gelu_tanh"), WIDTH)

    def recurrent(self, x: Value) -> Value:
        y = self.conv(self.product(x, 40), self.rng.standard_normal((40, 3)).astype(np.float32))
        heads = int(self.rng.choice([40, 2]))
        dt = self.activate(self.product(y, heads), "softplus")
        b, c = self.product(y, 6), self.product(y, 6)
        a = -np.abs(self.rng.standard_normal((heads, 1 if heads == 2 else 6))).astype(np.float32)
        return self.product(self.scan(y, dt, b, c, a=a, d=self.vector(heads)), WIDTH)

    def decayed(self, x: Value) -> Value:
        r, k, v = (self.product(x, 20), self.product(x, 20), self.product(x, 34))
        w = self.activate(self.product(x, 20), "sigmoid")
        u = self.vector(20).reshape(2, 10) if self.rng.random() < 0.5 else None
        taken = ()
        if self.rng.random() < 0.5:
            away = self.activate(k, "tanh")  # so that less than the state is taken away
            taken = (away * -0.05, away)
        y = self.wkv(r, w, k, v, *taken, heads=2, u=u, scale=0.5)
        y = self.head_scale(y, r, k, heads=2) if self.rng.random() < 0.5 else y
        return self.product(self.head_scale(y, self.product(x, 2), heads=2), WIDTH)

    def plain(self, x: Value) -> Value:
        which = self.rng.integers(6)
        if which == 0:
            return self.clamp(x, -0.5, 1.0)
        if which == 1:
            return self.activate(x, "relu2") * 0.5
        if which == 2:
            return x * self.vector(x.width)
        if which == 3:
            return self.softcap(x, 3.0) + self.vector(x.width)
        if which == 4:
            return self.concat(x.columns(8, 16, heads=2), x.columns(0, 8, heads=2), heads=2)
        return x * self.activate(self.product(x, WIDTH), "sigmoid")


def graph(seed: int) -> tuple[Graph, Value]:
    """A random model: parts that follow, skip and run beside each other, then logits."""
    b = Graph(seed)
    x = b.record("embed", (), width=WIDTH, table=b.tensor(VOCAB, WIDTH), scale=1.0)
    parts = (b.attended, b.latent, b.routed, b.gated, b.recurrent, b.decayed, b.plain)
    earlier = [x]
    for _ in range(b.rng.integers(2, 6)):
        part = parts[b.rng.integers(len(parts))]
        source = x if b.rng.random() < 0.7 else earlier[b.rng.integers(len(earlier))]
        y = part(b.normed(source) if b.rng.random() < 0.7 else source)
        shape = b.rng.integers(4)
        if shape == 0:
            x = b.normed(x + y)
        elif shape == 1:
            x = x + b.normed(y)
        elif shape == 2:
            x = x + y + b.gated(b.normed(source))
        else:
            x = y + x
        earlier.append(x)
    b.mark_embedding(b.normed(x))
    result = b.product(b.embedding, VOCAB)
    return b, b.softcap(result * 0.5, 9.0) if b.rng.random() < 0.5 else result


def direct(b: Graph, f: Frame) -> list[np.ndarray]:
    """Each recorded node by its own meaning, over all rows: no fusion, no slots, no cut."""
    rows: list[np.ndarray] = []
    for index, node in enumerate(b.nodes):
        x, p, name = [rows[i] for i in node.inputs], dict(node.params), node.op
        if name == "linear":
            y = x[0].astype(np.float64) @ f.weights(p["weight"]).T.astype(np.float64)
            made = (y if p["bias"] is None else y + p["bias"]).astype(np.float32)
        elif name == "gate":
            made = activated(x[0], p["kind"]) * x[1]
        elif name == "columns":
            made = x[0].reshape(len(x[0]), p["heads"], -1)[..., p["start"] : p["stop"]]
            made = made.reshape(len(x[0]), -1)
        elif name == "concat":
            parts = [each.reshape(len(each), p["heads"], -1) for each in x]
            made = np.concatenate(parts, axis=2).reshape(len(x[0]), -1)
        elif name == "rope_table":
            angles = np.arange(ROWS)[:, None] * p["rope"].inv_freq.astype(np.float64)
            made = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
        elif name == "expert_linear":
            f.slots = dict(enumerate(x))
            routes = 1 if len(x) > 1 else None
            kind, weight = OPS["experts"], p["weight"]
            kind.meaning(
                f, x=0, routes=routes, act="f32", weights=[weight], experts=p["experts"], out="y"
            )
            made = f.slots["y"]
        elif name == "attention":
            made = _attention(f, x, p)
        else:
            f.slots = dict(enumerate(x))
            reads = {key: i for i, key in enumerate(OPS[name].reads[: len(x)])}
            OPS[name].meaning(f, **reads, **p, out="y")
            made = f.slots["y"]
        rows.append(made)
        assert made.shape == (ROWS, node.width), (index, name)
    return rows


def _attention(f: Frame, x: list[np.ndarray], p: dict) -> np.ndarray:
    """Softmax attention, row by row and head by head."""
    heads, latent = p["heads"], p.get("latent", False)
    table = x[-1] if p["rope_dims"] else None
    q = x[0].reshape(ROWS, heads.query, heads.key_dim).astype(np.float64)
    k = x[1].reshape(ROWS, heads.kv, heads.key_dim).astype(np.float64)
    if table is not None:
        start = p.get("rope_start", 0)
        for part in (q, k):
            part[..., start:] = rotated(part[..., start:], table, p["rope_dims"], p["style"])
    k = as_kept(k, "f32").astype(np.float64)
    v = k[..., : heads.value_dim] if latent else x[2].reshape(ROWS, heads.kv, -1).astype(np.float64)
    out = np.zeros((ROWS, heads.query, heads.value_dim))
    for t in range(ROWS):
        first = max(0, t - p["window"] + 1) if p["window"] else 0
        for h in range(heads.query):
            g = h // (heads.query // heads.kv)
            s = k[first : t + 1, g] @ q[t, h] * p["q_scale"]
            s = p["softcap"] * np.tanh(s / p["softcap"]) if p["softcap"] else s
            if p.get("slopes") is not None:
                s = s + p["slopes"][h] * (np.arange(first, t + 1) - t)
            sink = [] if p.get("sinks") is None else [p["sinks"][h]]
            e = np.exp(np.concatenate([s, sink]) - max([*s, *sink]))
            out[t, h] = (e[: len(s)] / e.sum()) @ v[first : t + 1, g]
    return out.reshape(ROWS, -1).astype(np.float32)


def program(b: Graph, result: Value) -> tuple[Program, PageMemory]:
    tape = lower(b, result)
    ops = []
    for op in tape.ops:
        ready = dict(op.params)
        if "table" in ready:
            rows = b.weights[ready["table"].name]
            raw = rows.reshape(-1).view(np.uint8)
            ready["table"] = EmbeddingTable(raw, "F32", *rows.shape)
        if "weights" in ready:
            made = [b.weights[w.name] for w in ready["weights"]]
            ready["weights"] = [
                PackedMatrix(w.reshape(-1).view(np.uint8), "F32", *w.shape) for w in made
            ]
        ops.append((op.name, ready))
    kv, slots = [state.dims for state in b.pages], [state.shape for state in b.slots]
    assert all(isinstance(state, Slot) for state in b.slots)
    made = Program(
        ops,
        list(tape.slots),
        kv_layers=kv,
        slot_layers=slots,
        hidden=tape.embedding,
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        max_rows=64,
        num_threads=2,
    )
    memory = PageMemory(kv, "f32", 16, slot_layers=slots)
    memory.ensure(2)
    if slots:
        memory.ensure_slots(1)
    return made, memory


@pytest.mark.parametrize("seed", range(120))
def test_the_compiled_tape_means_what_was_recorded(seed):
    b, result = graph(seed)
    tokens = np.random.default_rng(seed).integers(0, VOCAB, ROWS).astype(np.int32)
    every = np.arange(ROWS, dtype=np.int32)
    wanted = direct(b, Frame(tokens, every, every, lambda w: b.weights[w.name], "f32"))
    step, memory = program(b, result)
    slots = {"slots": [0]} if memory.slot_layers else {}
    for rows in (every, every[[2, 9, 20]], every[-1:]):
        batch = Batch(tokens, every, [[0, 1]], np.zeros(ROWS, np.int32), rows, **slots)
        for output, value in (("logits", result), ("hidden", b.embedding)):
            found = step.step(batch, memory, output=output)
            right = wanted[value.index][rows]
            assert np.abs(found - right).max() <= 2e-4 * max(1.0, np.abs(right).max()), output
