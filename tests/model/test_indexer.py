"""Attention to chosen keys: the choice by its published formula, attention to it, and rows that
have no more keys than would be chosen.
"""

import numpy as np
import pytest

from oxillama._core.attention import attend
from oxillama._core.batch import Batch
from oxillama._core.pool import LATENT, ROWS, PageMemory
from oxillama._core.tape import Program
from oxillama._core.vectors import instruction_sets
from oxillama.errors import ModelError
from oxillama.model import load_model
from oxillama.model.ops import Frame
from oxillama.model.ops.attention import ChooseSpans
from oxillama.model.record import record
from tests.model.invented import float64_tensors, invent
from tests.model.stepping import IDS, batch_of, logits, memory_of
from tests.model.test_blocks import table

# rows that see all keys, of the tests' models: 24 keys, or 6 blocks of 4 and the 3 behind them
SPARSE = {
    "deepseek32": 24,
    "dots3note": 24,
    "glm-dsa": 24,
    "glm5-next": 27,
    "hy_v4": 24,
    "minimax-m3": 32,
    "qwen4exp": 27,
}


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("arch, rows", SPARSE.items())
def test_rows_with_few_keys_see_all_of_them(arch, rows, kv_type, tmp_path):
    found = logits(load_model(invent(tmp_path / "m.gguf", arch)), IDS, kv_type=kv_type)
    more = {f"{arch}.attention.indexer.top_k": 1000}
    dense = logits(load_model(invent(tmp_path / "n.gguf", arch, changed=more)), IDS,
                   kv_type=kv_type)  # fmt: skip
    assert np.array_equal(found[:rows], dense[:rows])
    assert not np.array_equal(found[rows], dense[rows])


def normed(x, weight, eps, *, mean=False):
    x = x - x.mean(axis=-1, keepdims=True) if mean else x
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def turned(x, positions, start, style):
    """16 of the floats (rows, heads, 32), from `start` on."""
    y, angle = x.copy(), positions[:, None, None] * 10000.0 ** (-np.arange(8) / 8)
    part = y[..., start : start + 16]
    a, b = (
        (part[..., 0::2].copy(), part[..., 1::2].copy())
        if style == "norm"
        else (part[..., :8].copy(), part[..., 8:].copy())
    )
    turn = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
    y[..., start : start + 16] = (
        np.stack(turn, -1).reshape(part.shape) if style == "norm" else np.concatenate(turn, -1)
    )
    return y


@pytest.mark.parametrize(
    "arch, start, style, eps",
    [
        ("deepseek32", 0, "neox", 1e-6),
        ("glm-dsa", 0, "norm", 1e-6),
        ("dots3note", 0, "norm", 1e-6),
        ("hy_v4", 16, "norm", 1e-5),
    ],
)
def test_keys_are_chosen_by_the_published_formula(arch, start, style, eps, tmp_path):
    """The first layer's, from its input on."""
    reader = invent(tmp_path / "m.gguf", arch)
    model, t = load_model(reader), float64_tensors(reader)
    norms = [
        op.params for op in model.tape.ops if op.name == "norm" and op.params["kind"] == "layer"
    ]
    assert {one["eps"] for one in norms} == {float(np.float32(eps)) if eps > 1e-6 else eps}
    index = next(i for i, op in enumerate(model.tape.ops) if op.name == "choose_blocks")
    memory = memory_of(model, 5, kv_type="f32")
    model.program.run_until(batch_of([(IDS, 0, range(5))], memory), memory, index)
    found = model.program.slot(model.tape.ops[index].params["out"], len(IDS))[:, :24]

    first = next(
        i
        for i, op in enumerate(model.tape.ops)
        if "blk.0.attn_q_a.weight" in [one.name for one in op.params.get("weights", ())]
    )
    model.program.run_until(batch_of([(IDS, 0, range(5))], memory), memory, first - 1)
    op = model.tape.ops[first]
    x = model.program.slot(op.params["x"], len(IDS))[:, :64].astype(np.float64)
    w = lambda name: t[f"blk.0.{name}.weight"]  # noqa: E731
    positions = np.arange(len(IDS))
    latent = normed(x @ w("attn_q_a").T, w("attn_q_a_norm"), 1e-6)
    q = turned((latent @ w("indexer.attn_q_b").T).reshape(-1, 2, 32), positions, start, style)
    k = normed(x @ w("indexer.attn_k").T, w("indexer.k_norm"), eps, mean=True)
    k = turned((k + t["blk.0.indexer.k_norm.bias"])[:, None], positions, start, style)[:, 0]
    share = x @ w("indexer.proj").T
    scores = np.einsum("nhm,nh->nm", np.maximum(np.einsum("nhd,md->nhm", q, k), 0), share)
    for row in range(len(IDS)):
        best = np.sort(np.argsort(-scores[row, : row + 1], kind="stable")[:24])
        assert found[row, : len(best)].tolist() == best.tolist(), row


def test_layers_may_take_the_choice_of_a_layer_before_them(tmp_path):
    _, tape = record(invent(tmp_path / "m.gguf", "glm-dsa"))
    made = [op.params["out"] for op in tape.ops if op.name == "choose_blocks"]
    taken = [op.params["chosen"] for op in tape.ops if op.name == "attend"]
    assert taken == [made[0], made[0], made[1], made[1]]
    with pytest.raises(ModelError, match="layer 0 takes the choice of a layer before it"):
        types = {"glm-dsa.attention.indexer.types": [False, True, True, True]}
        record(invent(tmp_path / "n.gguf", "glm-dsa", changed=types))
    with pytest.raises(ModelError, match="types: found an array of 2, wanted 4 or more"):
        types = {"glm-dsa.attention.indexer.types": [True, False]}
        record(invent(tmp_path / "n.gguf", "glm-dsa", changed=types))


@pytest.mark.parametrize(
    "arch, key, value, message",
    [
        ("deepseek32", "key_length", 8, "key_length: found 8, wanted 16 or more"),
        ("glm5-next", "top_k", 3, "top_k: found 3, wanted 4 or more, the keys of a block"),
        ("qwen4exp", "top_k", 3, "top_k: found 3, wanted 4 or more, the keys of a block"),
        ("minimax-m3", "head_count", 4, "head_count: found 4, wanted 2, one for each KV head"),
        ("minimax-m3", "local_blocks", 3, "local_blocks: found 3, wanted"),
        ("minimax-m3", "block_size", 24, "ratio is 24, wanted a divisor or a multiple of 16"),
    ],
)
def test_an_indexer_that_does_not_fit_is_refused(arch, key, value, message, tmp_path):
    with pytest.raises(ModelError, match=message):
        load_model(invent(tmp_path / "m.gguf", arch,
                          changed={f"{arch}.attention.indexer.{key}": value}))  # fmt: skip


def test_keys_of_blocks_turn_by_the_positions_of_a_batch(tmp_path):
    """Whose distances alone matter, where they are not the tokens' places in the sequence."""
    model = load_model(invent(tmp_path / "m.gguf", "qwen4exp"))
    found = []
    for far in (0, 500):
        memory = memory_of(model, 5, kv_type="f32")
        places = np.arange(len(IDS), dtype=np.int32)
        batch = Batch(
            IDS, places, [np.arange(5, dtype=np.int32)], np.zeros(len(IDS), np.int32), places,
            slots=[0], rope=np.stack([places + far] * 3),
        )  # fmt: skip
        found.append(np.array(model.program.step(batch, memory)))
    assert np.abs(found[1] - found[0]).max() <= 1e-3 * np.abs(found[0]).max()


HEADS, KV_HEADS = 6, 2


def seen(numbers, position, ratio, running):
    """The tokens of the blocks of these numbers, and those behind the last whole block."""
    tokens = (np.array(numbers, int)[:, None] * ratio + np.arange(ratio)).reshape(-1)
    if running:
        return tokens[tokens <= position]
    return np.concatenate([tokens, np.arange((position + 1) // ratio * ratio, position + 1)])


@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("each, running", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("ratio", [1, 4, 16, 64])
@pytest.mark.parametrize("latent", [False, True])
def test_attention_to_chosen_keys_is_attention_to_a_memory_of_them(
    latent, ratio, each, running, kv_type
):
    """Bit for bit, whatever the threads: they are counted one after the other."""
    rng = np.random.default_rng(ratio)
    kv_heads, dim, count = 1 if latent else KV_HEADS, 32, 900
    most = 320 // ratio
    layer = (LATENT if latent else kv_heads, dim, dim)
    k, v = (rng.standard_normal((count, kv_heads, dim)).astype(np.float32) for _ in range(2))
    values = None if latent else v
    positions = [most * ratio - 1, most * ratio + ratio // 2, 700, 701, count - 1]
    numbers = np.full((len(positions), kv_heads if each else 1, most), -1, np.float32)
    for row, position in enumerate(positions):
        blocks = position // ratio + 1 if running else (position + 1) // ratio
        for one in numbers[row]:
            picked = np.sort(rng.permutation(blocks)[:most])
            one[: len(picked)] = picked
    q = rng.standard_normal((len(positions), HEADS, dim)).astype(np.float32)
    memory = PageMemory([layer], kv_type)
    pages = rng.permutation(-(-count // 16)).astype(np.int32)
    memory.ensure(len(pages))
    memory.write(pages, 0, 0, k, values)

    wanted = np.empty_like(q)
    group = HEADS // kv_heads
    for row, position in enumerate(positions):
        for head in range(kv_heads):
            one = numbers[row, head if each else 0]
            tokens = seen(one[one >= 0], position, ratio, running)
            alone = PageMemory([(LATENT if latent else 1, dim, dim)], kv_type)
            alone.ensure(-(-len(tokens) // 16))
            held = None if latent else v[tokens, head : head + 1]
            alone.write(range(alone.capacity)[: -(-len(tokens) // 16)], 0, 0,
                        np.ascontiguousarray(k[tokens, head : head + 1]),
                        None if held is None else np.ascontiguousarray(held))  # fmt: skip
            part = slice(head * group, (head + 1) * group)
            wanted[row, part] = attend(
                np.ascontiguousarray(q[row : row + 1, part]), alone,
                range(-(-len(tokens) // 16)), 0, first=len(tokens) - 1,
            )[0]  # fmt: skip

    shape = dict(q_heads=HEADS, kv_heads=kv_heads, k_dim=dim, v_dim=dim, layer=0)
    how = dict(ratio=ratio, strict=True, each=each, running=running)
    rows = len(positions)
    ops = [
        ("embed", dict(out=0, table=table(q.reshape(rows, -1)))),
        ("embed", dict(out=1, table=table(numbers.reshape(rows, -1)))),
        ("attend", dict(x=0, chosen=1, out=2, **shape, **how)),
    ]
    slots = [HEADS * dim, numbers[0].size, HEADS * dim]
    for threads in (1, 2, 5):
        program = Program(ops, slots, kv_layers=[layer], vocab_size=rows, hidden_size=1,
                          num_threads=threads)  # fmt: skip
        tables = [pages[: p // 16 + 1] for p in positions]
        every = np.arange(rows, dtype=np.int32)
        for chunk in (every, every[:1], every[2:4]):
            batch = Batch(chunk, np.array(positions, np.int32)[chunk],
                          [tables[i] for i in chunk], np.arange(len(chunk), dtype=np.int32),
                          np.arange(len(chunk), dtype=np.int32))  # fmt: skip
            program.run_until(batch, memory, 2)
            found = program.slot(2, len(chunk)).reshape(-1, HEADS, dim)
            assert np.array_equal(found, wanted[chunk]), threads


def spans(keys, queries, *, ratio, most, local, first=0, **how):
    """What `choose_spans` writes for rows from position `first` on, and what it means."""
    rows, heads, dim = queries.shape
    params = dict(x=0, heads=heads, layer=0, ratio=ratio, most=most, local=local, out=1)
    ops = [
        ("embed", dict(out=0, table=table(queries.reshape(rows, -1)))),
        ("choose_spans", params),
    ]
    layers = [(ROWS, dim, dim)]
    more = dict(kv_layers=layers, vocab_size=rows, hidden_size=1)
    program = Program(ops, [heads * dim, heads * most], **more, **how)
    memory, pages = PageMemory(layers, "f32"), -(-len(keys) // 16)
    memory.ensure(pages)
    memory.write(range(pages), 0, 0, keys[:, None])
    ids = np.arange(rows, dtype=np.int32)
    program.run_until(batch_of([(ids, first, range(pages))], memory), memory, 1)
    frame = Frame(ids, first + ids, ids, lambda tensor: None)
    frame.slots, frame.keys = {0: queries.reshape(rows, -1)}, {0: keys[:, None]}
    ChooseSpans.meaning(frame, **params)
    return program.slot(1, rows), frame.slots[1]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("ratio", [1, 8, 16, 48])
@pytest.mark.parametrize("local", [0, 2])
def test_blocks_are_chosen_for_each_head_by_their_best_key(ratio, local, threads):
    """Of small integers, so that many scores are equal and none is rounded."""
    rng = np.random.default_rng(ratio)
    keys = rng.integers(-1, 2, (500, 16)).astype(np.float32)
    for first, rows in ((0, 500), (498, 2)):
        queries = rng.integers(-1, 2, (rows, 3, 16)).astype(np.float32)
        found, wanted = spans(keys, queries, ratio=ratio, most=4, local=local, first=first,
                              num_threads=threads)  # fmt: skip
        assert np.array_equal(found, wanted)
        last = found[-1].reshape(3, 4)
        assert (np.diff(last) > 0).all()
        if local:
            assert (last[:, -2:] == [499 // ratio - 1, 499 // ratio]).all()


@pytest.mark.parametrize("heads", [2, 20])
def test_the_choice_of_each_head_is_the_same_on_every_instruction_set(heads):
    rng = np.random.default_rng(heads)
    keys = rng.standard_normal((300, 32)).astype(np.float32)
    queries = rng.standard_normal((300, heads, 32)).astype(np.float32)
    sets = [spans(keys, queries, ratio=16, most=5, local=1, isa=isa) for isa in instruction_sets()]
    assert all(np.array_equal(found, sets[0][0]) for found, _ in sets)
    assert (sets[0][0] != sets[0][1]).any(axis=1).mean() < 0.02


def test_a_key_that_is_no_number_is_passed_over():
    keys = np.ones((64, 16), np.float32)
    keys[:16] = np.nan
    keys[20] = np.nan
    queries = np.ones((64, 1, 16), np.float32)
    found, _ = spans(keys, queries, ratio=16, most=3, local=0)
    assert found[-1].tolist() == [1, 2, 3]
