"""Granite Switch by its published code, a token at a time in float64: which adapter is in force, by
both of its ways of telling, and what its files may not say.
"""

import numpy as np
import pytest

import oxillama
from oxillama.errors import LoraError, ModelError
from oxillama.gguf import GgufReader, GgufWriter
from oxillama.lora.file import LoraFile, checked_pairs
from oxillama.lora.fit import fit
from oxillama.model import load_model
from oxillama.model.record import record
from tests.lora.made import random_pair
from tests.model.invented import HIDDEN, OWN, VOCAB, float64_tensors, invent
from tests.model.stepping import IDS, batch_of, logits, memory_of

KEYS, ARCH = OWN["graniteswitch"], "graniteswitch"
A, B, C = KEYS["adapters.token_ids_activate"]
GAIN = {f"{ARCH}.adapters.router_gain": 15.0}
# a token more than adapters, the first: it switches back
BACK = 77
RESET = {
    f"{ARCH}.adapters.token_ids_activate": [BACK, A, B, C],
    f"{ARCH}.adapters.token_ids_substitute": [3, 1, 2, 1],
}


def last(text, ids):
    """The adapter in force at each token of a text: that of the last token that switches."""
    found, now = [], 0
    for token in text:
        now = ids.get(token, now)
        found.append(now)
    return found


def mean(text, ids, gain=15.0):
    """The same by IBM's SingleSwitch: attention of one head, in float32, to all tokens so far."""
    keys = np.where(np.isin(text, list(ids)), gain, -gain).astype(np.float32)
    values = np.array([ids.get(token, 0) for token in text], np.float32)
    found = []
    for at in range(1, len(text) + 1):
        shares = np.exp(keys[:at] - keys[:at].max())
        shares = shares / shares.sum(dtype=np.float32)
        found.append(int(np.rint((shares * values[:at]).sum(dtype=np.float32))))
    return found


def in_force(model, text, chunk=512):
    """The same by the compiled tape, 0 for none."""
    memory, found = memory_of(model, -(-len(text) // 16)), []
    table = range(-(-len(text) // 16))
    for at in range(0, len(text), chunk):
        part = np.array(text[at : at + chunk], np.int32)
        model.program.run_until(batch_of([(part, at, table)], memory), memory, 1)
        routes = np.array(model.program.slot(model.tape.ops[1].params["out"], len(part)))
        assert (routes[:, 1] == 1).all()
        found += (routes[:, 0] + 1).astype(int).tolist()
    return found


NUMBERS = {A: 1, B: 2, C: 3}
TEXTS = [
    [7, 8, 9],
    [A, 7, 8],
    [7, C, 8, 8],
    [7, B, 8, B, 9],
    [7, A, 8, C, 9],  # the mean is the second
    [7, A, 8, B, 9, C, 9],  # 1.5 and 2
    [7, B, 8, C, 9],  # 2.5, to even
    [7, C, 4, A, 6, A, 5, A, 4],  # 3, 2, 5/3, 3/2
    [int(token) for token in IDS],
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_last_token_that_switches_is_in_force(text, tmp_path):
    model = load_model(invent(tmp_path / "m.gguf", ARCH))
    for chunk in (512, 1, 3):
        assert in_force(model, text, chunk) == last(text, NUMBERS)


@pytest.mark.parametrize("text", TEXTS)
def test_with_a_gain_the_mean_of_all_is_in_force(text, tmp_path):
    model = load_model(invent(tmp_path / "m.gguf", ARCH, changed=GAIN))
    for chunk in (512, 1, 3):
        assert in_force(model, text, chunk) == mean(text, NUMBERS)


def test_a_gain_is_the_one_of_the_file(tmp_path):
    """A small one lets tokens that do not switch count: 3, then 3 / (1 + exp(-1) n)."""
    key = f"{ARCH}.adapters.router_gain"
    model = load_model(invent(tmp_path / "m.gguf", ARCH, changed={key: 0.5}))
    text = [C, *[7] * 20]
    assert in_force(model, text) == mean(text, NUMBERS, 0.5)
    assert set(in_force(model, text)) == {3, 2, 1, 0}


def test_a_token_may_switch_back(tmp_path):
    reader = invent(tmp_path / "m.gguf", ARCH, changed=RESET)
    text = [7, B, 8, BACK, 9, C, 7]
    assert in_force(load_model(reader), text) == [0, 2, 2, 0, 0, 3, 3]


class Plain:
    """A file's tensors by name, and what layers keep of one sequence."""

    def __init__(self, reader):
        self.tensors = float64_tensors(reader)
        self.past: dict[str, list] = {}

    def run(self, ids, numbers):
        take = dict(zip((A, B, C), KEYS["adapters.token_ids_substitute"]))
        rows = []
        for position, (token, number) in enumerate(zip(map(int, ids), numbers)):
            x = 3.0 * self.tensors["token_embd.weight"][take.get(token, token)]
            for i in range(4):
                x = x + 0.5 * self.attention(
                    self.normed(x, f"blk.{i}.attn_norm"), i, number, position
                )
                x = x + 0.5 * self.network(self.normed(x, f"blk.{i}.ffn_norm"), i, number)
            head = self.tensors[
                "output.weight" if "output.weight" in self.tensors else "token_embd.weight"
            ]
            rows.append(head @ self.normed(x, "output_norm") / 2.0)
        return np.array(rows)

    def normed(self, x, name):
        return x / np.sqrt((x * x).mean() + 1e-5) * self.tensors[f"{name}.weight"]

    def changed(self, y, x, name, number):
        """y, the product of x and a matrix, with that of the adapter in force."""
        if number:
            a, b = (self.tensors[f"{name}.lora_{part}"][number] for part in "ab")
            y = y + b @ (a @ x)
        return y

    def product(self, x, name, number):
        return self.changed(self.tensors[f"{name}.weight"] @ x, x, name, number)

    def attention(self, x, i, number, position):
        qkv = self.tensors[f"blk.{i}.attn_qkv.weight"] @ x
        q, k, v = (
            self.changed(part, x, f"blk.{i}.attn_{name}", number)
            for name, part in zip("qkv", (qkv[:128], qkv[128:192], qkv[192:]))
        )

        def turned(part, heads):
            part = part.reshape(heads, 32).copy()
            angle = position * 10000.0 ** (-np.arange(8) / 8)
            a, b = part[:, :16:2].copy(), part[:, 1:16:2].copy()
            part[:, :16:2] = a * np.cos(angle) - b * np.sin(angle)
            part[:, 1:16:2] = a * np.sin(angle) + b * np.cos(angle)
            return part

        keys = self.past.setdefault(f"keys {i}", [])
        values = self.past.setdefault(f"values {i}", [])
        keys.append(turned(k, 2))
        values.append(v.reshape(2, 32))
        q, y = turned(q, 4), np.empty((4, 32))
        for h in range(4):
            scores = np.array(keys)[:, h // 2] @ q[h] * 0.2
            shares = np.exp(scores - scores.max())
            y[h] = shares / shares.sum() @ np.array(values)[:, h // 2]
        return self.product(y.reshape(-1), f"blk.{i}.attn_output", number)

    def network(self, x, i, number):
        gate, up = (self.product(x, f"blk.{i}.ffn_{name}", number) for name in ("gate", "up"))
        return self.product(gate / (1 + np.exp(-gate)) * up, f"blk.{i}.ffn_down", number)


@pytest.mark.parametrize("changed, said", [({}, last), (GAIN, mean)])
def test_logits_are_those_of_the_published_code(changed, said, tmp_path):
    reader = invent(tmp_path / "m.gguf", ARCH, changed=changed)
    numbers = said([int(token) for token in IDS], NUMBERS)
    assert {1, 2} <= set(numbers) and len(np.unique(numbers[:10])) > 1
    wanted = Plain(reader).run(IDS, numbers)
    model = load_model(reader)
    found = logits(model, IDS, kv_type="f32")
    assert found.shape == (len(IDS), VOCAB)
    assert np.abs(found - wanted).max() <= 2e-5 * np.abs(wanted).max()
    for chunk in (1, 7):
        assert np.array_equal(found, logits(model, IDS, chunk=chunk, kv_type="f32"))


def test_rows_before_a_switch_are_those_of_a_model_without_adapters(tmp_path):
    """Their products are the same numbers, nothing is added to them."""
    reader = invent(tmp_path / "m.gguf", ARCH)
    with GgufWriter(tmp_path / "bare.gguf", "granite") as writer:
        for key, value in reader.metadata.items():
            if key.startswith(f"{ARCH}.") and ".adapters." not in key:
                writer.add(key.replace(ARCH, "granite"), value)
        for name, info in reader.tensors.items():
            if not name.endswith((".lora_a", ".lora_b")):
                values = np.frombuffer(bytes(reader.data(name)), np.float32)
                writer.add_tensor(name, values.reshape(info.shape))
    text = np.array([7, 8, 9, 7, 40, C, 4, 6], np.int32)
    bare = logits(load_model(GgufReader(tmp_path / "bare.gguf")), text)
    found = logits(load_model(reader), text)
    assert np.array_equal(found[:5], bare[:5])
    assert not np.isclose(found[5:], bare[5:]).all(axis=1).any()


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("token_ids_activate", [A, B], "found 2 tokens, wanted 3 different ones"),
        ("token_ids_activate", [A, B, A], "found 3 tokens, wanted 3 different ones"),
        ("token_ids_activate", [A, B, VOCAB], f"token_ids_activate: found {VOCAB}"),
        ("token_ids_substitute", [1, 1], "found 2 tokens, wanted 3"),
        ("token_ids_substitute", [1, 1, -1], "token_ids_substitute: found -1"),
        ("router_gain", -1.0, "router_gain: found -1.0"),
        ("count", 0, "count: found 0"),
        ("lora_rank", 32, r"blk.0.attn_q.lora_a: file has \(4, 16, 64\)"),
    ],
)
def test_what_files_may_not_say(key, value, message, tmp_path):
    reader = invent(tmp_path / "m.gguf", ARCH, changed={f"{ARCH}.adapters.{key}": value})
    with pytest.raises(ModelError, match=message):
        record(reader)


def test_no_mean_has_a_token_that_switches_back(tmp_path):
    with pytest.raises(ModelError, match="found 4 tokens, wanted 3 different ones"):
        record(invent(tmp_path / "m.gguf", ARCH, changed=RESET | GAIN))


def test_the_first_factors_of_a_stack_are_no_adapters(tmp_path):
    reader = invent(tmp_path / "m.gguf", ARCH)
    with GgufWriter(tmp_path / "n.gguf", ARCH) as writer:
        for key, value in reader.metadata.items():
            if key != "general.architecture":
                writer.add(key, value)
        for name, info in reader.tensors.items():
            values = np.frombuffer(bytes(reader.data(name)), np.float32).reshape(info.shape)
            if name == "blk.2.ffn_up.lora_b":
                values = values.copy()
                values[0, 3, 5] = 1e-3
            writer.add_tensor(name, values)
    with pytest.raises(ModelError, match="blk.2.ffn_up.lora_b: found numbers in its first matrix"):
        record(GgufReader(tmp_path / "n.gguf"))


def test_no_adapter_changes_the_adapters_of_the_file(tmp_path):
    model = load_model(invent(tmp_path / "m.gguf", ARCH))
    name, rng = "blk.1.attn_q.lora_a", np.random.default_rng(1)
    a, b = random_pair(name, (4, 16, HIDDEN), 3, rng)
    pairs = checked_pairs({f"{name}.lora_a": a, f"{name}.lora_b": b}, "one")
    with pytest.raises(
        LoraError, match=f"{name}: graniteswitch does not use this tensor as a whole"
    ):
        fit(model, LoraFile("one", ARCH, 8.0, pairs), "one")


def test_importances_of_adapters_are_of_the_rows_that_use_them(tmp_path):
    path = tmp_path / "m.gguf"
    reader = invent(path, ARCH)
    text = [int(token) for token in IDS[:32]]
    numbers = last(text, NUMBERS)
    with oxillama.load(path, context_size=64) as engine:
        sums, counts, _ = oxillama.collect_imatrix(engine, text, context=32)
    met = np.bincount(numbers, minlength=4)
    met[0] = 0
    assert (met[1:] > 0).all()
    for part in ("q.lora_a", "q.lora_b", "output.lora_a"):
        name = f"blk.0.attn_{part}"
        assert counts[name].tolist() == met.tolist()
        assert sums[name].shape == (4, reader.tensors[name].shape[2])
        assert (sums[name][0] == 0).all() and (sums[name][1:] > 0).all()
