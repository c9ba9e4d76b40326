"""Qwen 4 experimental by its published code, a token at a time in float64; the rows that its hashes
choose are those of transformers 5.24; and what its files may not say.
"""

import numpy as np
import pytest

from oxillama._core.tape import Batch
from oxillama.errors import ModelError
from oxillama.gguf import GgufReader
from oxillama.model import load_model
from oxillama.model.record import record
from oxillama.weights.offload import Budget
from tests.model.invented import HIDDEN, OWN, VOCAB, float64_tensors, invent
from tests.model.stepping import IDS, batch_of, logits, memory_of

KEYS = OWN["qwen4exp"]
STREAMS, EPS, END = KEYS["hyper_connection.count"], 1e-2, KEYS["ple.eos_token_id"]
# `Qwen4ExpTextNGramEmbedding` of a vocabulary of 80, with two heads for each of two lengths, a
# least size of 20 and the seed 1234: the rows of the four heads for each token of a text
TEXT = [12, 37, 3, 37, 37, 9, 79, 0, 12, 37, 3, 4]
ROWS = [
    *([14, 23, 57, 116], [8, 24, 68, 86], [7, 25, 55, 112], [22, 23, 62, 100]),
    *([14, 29, 70, 89], [20, 30, 62, 98], [15, 29, 57, 103], [3, 38, 76, 94]),
    *([3, 47, 79, 114], [8, 24, 58, 116], [7, 25, 55, 112], [6, 39, 79, 119]),
]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def normed(x, weight=1.0, *, heads=1, eps=EPS):
    parts = x.reshape(heads, -1)
    parts = parts / np.sqrt((parts * parts).mean(axis=1, keepdims=True) + eps)
    return (parts * np.reshape(weight, (-1, parts.shape[1]))).reshape(-1)


class Plain:
    """A file's tensors by name, and what layers keep of one sequence."""

    def __init__(self, reader: GgufReader) -> None:
        self.tensors = float64_tensors(reader)
        self.past: dict[str, list[np.ndarray]] = {}
        self.ids: list[int] = []

    def run(self, ids):
        rows = []
        for token in ids:
            self.ids.append(int(token))
            x = np.tile(self.tensors["token_embd.weight"][token], STREAMS)
            for i in range(4):
                x = self.layer(x, i)
            rows.append(self.tensors["output.weight"] @ self.mixed(x, "output_hc")[1])
        return np.array(rows)

    def kept(self, name, x):
        """x behind all that was kept under that name before, oldest first."""
        self.past.setdefault(name, []).append(x)
        return np.array(self.past[name])

    def mixed(self, x, name):
        t = self.tensors
        n = normed(x, t[f"{name}_norm.weight"], heads=STREAMS)
        low = silu(t[f"{name}_down.weight"] @ n / STREAMS)
        gated = sigmoid(t[f"{name}_up.weight"] @ low) * n
        return n, gated.reshape(STREAMS, -1).mean(axis=0)

    def layer(self, x, i):
        w = lambda name: self.tensors[f"blk.{i}.{name}.weight"]  # noqa: E731
        if i == KEYS["ple.layers"][0]:
            x = x + self.hashed(x, w)
        for branch, network in (("attn", self.delta if i < 3 else self.attention),
                                ("ffn", self.experts)):  # fmt: skip
            n, y = self.mixed(x, f"blk.{i}.hc_{branch}")
            given = 2 * sigmoid(w(f"hc_{branch}_inject") @ n / STREAMS)
            x = x + np.outer(given, network(y, w, i)).reshape(-1)
        return x

    def hashed(self, x, w):
        seen = []
        for back in range(3):
            before = self.ids[-1 - back] if back < len(self.ids) else END
            seen.append(END if back and END in seen[1:] else before)
        m = KEYS["ple.layer_multipliers"]
        two = seen[0] * m[0] ^ seen[1] * m[1]
        three = two ^ seen[2] * m[2]
        places = zip((two, two, three, three), KEYS["ple.head_vocab_sizes"],
                     KEYS["ple.head_offsets"])  # fmt: skip
        table = self.tensors["per_layer_token_embd.weight"]
        e = np.concatenate([table[mixed % size + offset] for mixed, size, offset in places])
        key = normed(w("ple_key") @ e, w("ple_norm_key"), heads=STREAMS).reshape(STREAMS, -1)
        query = normed(x, w("ple_norm_query"), heads=STREAMS).reshape(STREAMS, -1)
        score = (key * query).sum(axis=1) / np.sqrt(HIDDEN)
        gate = sigmoid(np.sign(score) * np.sqrt(np.maximum(np.abs(score), 1e-6)))
        value = np.outer(gate, w("ple_value") @ e).reshape(-1)
        past = self.kept("hashed", normed(value, w("ple_norm_conv"), heads=STREAMS))[::-1]
        taps = w("ple_conv1d")[:, ::-1]  # the row's own first, then every third one
        out = sum(taps[:, j] * past[3 * j] for j in range(taps.shape[1]) if 3 * j < len(past))
        return value + silu(out)

    def delta(self, x, w, i):
        past = self.kept(f"conv {i}", w("attn_qkv") @ x)[:-5:-1]
        taps = w("ssm_conv1d")[:, ::-1]
        made = silu(sum(taps[:, j] * row for j, row in enumerate(past)))
        q, k, v = made[:32].reshape(2, 16), made[32:64].reshape(2, 16), made[64:].reshape(8, 16)
        q, k = (part / np.sqrt((part * part).sum(axis=1, keepdims=True) + 1e-6) for part in (q, k))
        strength = sigmoid(w("ssm_beta") @ x)
        step = np.logaddexp(0, w("ssm_alpha") @ x + self.tensors[f"blk.{i}.ssm_dt.bias"])
        decay = np.exp(self.tensors[f"blk.{i}.ssm_a"] * step)
        states, y = self.past.get(f"state {i}", np.zeros((8, 16, 16))), np.empty((8, 16))
        for h in range(8):
            s = states[h] * decay[h]
            s = s + np.outer(k[h % 2], strength[h] * (v[h] - k[h % 2] @ s))
            y[h], states[h] = q[h % 2] @ s / 4, s
        self.past[f"state {i}"] = states
        y = normed(y, w("ssm_norm"), heads=8)
        return w("ssm_out") @ (y * sigmoid(w("attn_gate") @ x))

    def attention(self, x, w, i):
        position = len(self.ids) - 1
        both = (w("attn_q") @ x).reshape(4, 64)

        def turned(part, heads, name, position=position):
            part = normed(part, w(name), heads=heads).reshape(heads, 32).copy()
            angle = position * 10000.0 ** (-np.arange(8) / 8)
            a, b = part[:, :8].copy(), part[:, 8:16].copy()
            part[:, :8] = a * np.cos(angle) - b * np.sin(angle)
            part[:, 8:16] = a * np.sin(angle) + b * np.cos(angle)
            return part

        q = turned(both[:, :32].reshape(-1), 4, "attn_q_norm")
        k = self.kept("keys", turned(w("attn_k") @ x, 2, "attn_k_norm"))
        v = self.kept("values", (w("attn_v") @ x).reshape(2, 32))
        seen = self.seen(x, w, position, turned)
        k, v = k[seen], v[seen]
        y = np.empty((4, 32))
        for h in range(4):
            score = np.exp(k[:, h // 2] @ q[h] / np.sqrt(32))
            y[h] = score / score.sum() @ v[:, h // 2]
        return w("attn_output") @ (y * sigmoid(both[:, 32:])).reshape(-1)

    def seen(self, x, w, position, turned):
        """The tokens of six blocks of four, and those behind the last whole block."""
        raw = self.kept("indexer", w("indexer.k_proj") @ x)
        whole = len(raw) // 4
        q = turned(w("indexer.q_proj") @ x, 2, "indexer.q_norm")
        scores = [
            np.maximum(
                q @ turned(raw[4 * i : 4 * i + 4].mean(axis=0), 1, "indexer.k_norm", 4 * i)[0], 0
            ).sum()
            for i in range(whole)
        ]
        best = np.sort(np.argsort(-np.array(scores), kind="stable")[:6])
        chosen = (4 * best[:, None] + np.arange(4)).reshape(-1)
        return np.concatenate([chosen, np.arange(4 * whole, len(raw))]).astype(int)

    def experts(self, x, w, i):
        scores = w("ffn_gate_inp") @ x
        shares = np.exp(scores) / np.exp(scores).sum()
        best = np.argsort(-shares)[:2]
        y = 0.0
        for e in best:
            up = silu(w("ffn_gate_exps")[e] @ x) * (w("ffn_up_exps")[e] @ x)
            y = y + shares[e] / shares[best].sum() * (w("ffn_down_exps")[e] @ up)
        up = silu(w("ffn_gate_shexp") @ x) * (w("ffn_up_shexp") @ x)
        return y + sigmoid(w("ffn_gate_inp_shexp") @ x) * (w("ffn_down_shexp") @ up)


def test_logits_are_those_of_the_published_code(tmp_path):
    reader = invent(tmp_path / "m.gguf", "qwen4exp")
    wanted = Plain(reader).run(IDS[:60])
    found = logits(load_model(reader), IDS[:60], kv_type="f32")
    assert found.shape == (60, VOCAB) and END in IDS[:60]
    assert np.abs(found - wanted).max() <= 2e-5 * np.abs(wanted).max()


def chosen(model, reader, steps):
    """The rows of the table that each token of a sequence takes, run in these steps."""
    table = reader.data("per_layer_token_embd.weight").view(np.float32).reshape(128, 32)
    index = next(i for i, op in enumerate(model.tape.ops) if op.name == "ngram_embed")
    memory, at, found = memory_of(model, 1), 0, []
    for ids in steps:
        model.program.run_until(batch_of([(ids, at, range(1))], memory), memory, index)
        rows = model.program.slot(model.tape.ops[index].params["out"], len(ids))
        same = rows.reshape(len(ids), 4, 1, 32) == table
        found += same.all(axis=3).argmax(axis=2).tolist()
        at += len(ids)
    return found


@pytest.mark.parametrize("cut", (1, 2, 3, 5, 12))
def test_hashes_choose_the_rows_of_transformers(cut, tmp_path):
    """However the text is cut: the last tokens are part of the state."""
    reader = invent(tmp_path / "m.gguf", "qwen4exp")
    steps = [TEXT[at : at + cut] for at in range(0, len(TEXT), cut)]
    assert chosen(load_model(reader), reader, steps) == ROWS


def test_a_table_that_stays_in_its_file_gives_the_same_bits(tmp_path):
    invent(tmp_path / "m.gguf", "qwen4exp")
    wanted = logits(load_model(GgufReader(tmp_path / "m.gguf")), IDS)
    size = sum(info.nbytes for info in GgufReader(tmp_path / "m.gguf").tensors.values())
    reader = GgufReader(tmp_path / "m.gguf")
    model = load_model(reader, offload=Budget(size - 4096), num_threads=2)
    assert model.pager is not None
    for chunk in (512, 33, 1):
        assert np.array_equal(logits(model, IDS, chunk=chunk), wanted)
    memory = memory_of(model, 9, slots=3)
    parts = [(IDS[:20], 0, [4, 1]), (IDS, 0, [0, 6, 2, 7, 5]), (IDS[60:61], 0, [3])]
    found = np.array(model.program.step(batch_of(parts, memory, slots=[2, 0, 1]), memory))
    assert np.array_equal(found[20:90], wanted)
    model.end(keep=False)


def test_a_row_of_an_image_counts_as_the_token_for_it(tmp_path):
    reader = invent(tmp_path / "m.gguf", "qwen4exp")
    model, image = load_model(reader), KEYS["ple.image_token_id"]
    ids = IDS[:30].copy()
    ids[7:20] = image
    wanted = logits(model, ids)
    table = reader.data("token_embd.weight").view(np.float32).reshape(VOCAB, HIDDEN)
    memory, every = memory_of(model, 2), np.arange(30, dtype=np.int32)
    brought = np.where(ids == image, -1, ids).astype(np.int32)
    batch = Batch(
        *(brought, every, [every[:2]], 0 * every, every),
        embeds=np.ascontiguousarray(table[ids]),
        slots=[0],
    )
    assert np.array_equal(np.array(model.program.step(batch, memory)), wanted)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("ple.layers", [0, 1], "ple.layers: found 2 layers, wanted one"),
        ("ple.layers", [4], "ple.layers: found 4, wanted an integer from 0 to 3"),
        ("ple.ngram_size", 1, "ple.ngram_size: found 1"),
        ("ple.heads_per_ngram", 3, "ple.head_vocab_sizes: found an array of 4, wanted .* 6"),
        ("ple.head_offsets", [0, 23, 52, 92], "file has 128 rows, .* need 129"),
        ("ple.layer_multipliers", [1, 1, 1 << 57], "ple.layer_multipliers: found 1441151880758558"),
        ("ple.eos_token_id", VOCAB, "ple.eos_token_id: found 80"),
        ("embedding_length_per_layer_input", 16, "found 16, wanted an integer from 32 to 32"),
        ("attention.compress_ratios", [4], "compress_ratios: found an array of 1, wanted .* 4"),
    ],
)
def test_what_a_file_may_not_say_is_refused_by_name(key, value, said, tmp_path):
    with pytest.raises(ModelError, match=said):
        record(invent(tmp_path / "m.gguf", "qwen4exp", changed={f"qwen4exp.{key}": value}))


def test_blocks_of_unknown_size_reach_as_far_as_the_budget(tmp_path):
    """llama.cpp's converter writes 0 where it does not know a layer's kind."""
    ratios = {"qwen4exp.attention.compress_ratios": [0, 0, 0, 0]}
    model = load_model(invent(tmp_path / "m.gguf", "qwen4exp", changed=ratios))
    assert model.program.positions == 24
