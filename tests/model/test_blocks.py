"""Keys that blocks of tokens become, the choice among them, and attention to them (DeepSeek V4):
the ops against their meaning beyond two blocks of 128, and bits that depend on nothing else.
"""

import numpy as np
import pytest

from oxillama._core.pool import LATENT, ROWS, PageMemory
from oxillama._core.tape import Batch, EmbeddingTable, Program
from oxillama._core.vectors import instruction_sets
from oxillama.errors import ConfigError, ModelError, PoolError
from oxillama.model import load_model
from oxillama.model.builder import Builder
from oxillama.model.ops import Frame
from oxillama.model.ops.attention import ChooseBlocks
from oxillama.model.record import record
from oxillama.model.reference import Reference
from tests.model import invented
from tests.model.invented import VOCAB, invent
from tests.model.stepping import batch_of, check_meanings, logits, memory_of, step

IDS = np.random.default_rng(11).integers(0, VOCAB, 290).astype(np.int32)
ARCH = "deepseek4"


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    return invent(tmp_path_factory.mktemp("blocks") / "m.gguf", ARCH)


def params(model, name, key):
    return [op.params.get(key) for op in model.tape.ops if op.name == name]


def test_every_op_agrees_with_its_meaning_beyond_two_large_blocks(reader):
    model, pages = load_model(reader), -(-len(IDS) // 16)
    memory = memory_of(model, pages, kv_type="f32")
    batch = batch_of([(IDS, 0, range(pages))], memory)
    reference = Reference(model.tape, reader, kv_type="f32")
    frame = reference.frame(IDS)
    check_meanings(reference, model, batch, memory, IDS, tolerance=5e-5, frame=frame)
    ratios = dict(zip(params(model, "compress", "into"), params(model, "compress", "ratio")))
    for layer in range(len(model.config.states)):
        wanted, ratio = frame.keys[layer], ratios.get(layer, 0)
        rows = np.concatenate([memory.read(page, layer)[0] for page in range(pages)])
        if ratio:  # a key is in one piece, in the rows of the last tokens of its block
            blocks = rows[: len(rows) // ratio * ratio].reshape(-1, ratio, rows.shape[2])
            rows = blocks[:, -min(ratio, 16) :].reshape(len(blocks), 1, -1)
        assert np.abs(rows[: len(wanted)] - wanted).max() <= 5e-5 * np.abs(wanted).max(), layer


@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8_0", "q4_0"])
def test_bits_do_not_depend_on_chunks_threads_or_companions(reader, kv_type):
    whole = logits(load_model(reader, num_threads=1), IDS, kv_type=kv_type)
    model = load_model(reader, num_threads=2)
    for chunk in (1, 9, 128, 200):
        assert np.array_equal(whole, logits(model, IDS, chunk=chunk, kv_type=kv_type)), chunk
    memory = memory_of(model, 40, kv_type=kv_type)
    tables = np.random.default_rng(1).permutation(40)
    parts = [(IDS[:20], 0, tables[:2]), (IDS, 0, tables[2:21]), (IDS[:131], 0, tables[21:30])]
    found = step(model, batch_of(parts, memory), memory)
    assert np.array_equal(found, np.concatenate([whole[:20], whole, whole[:131]]))


@pytest.mark.parametrize("kv_type", ["f16", "q4_0"])
@pytest.mark.parametrize("length", [255, 256, 262])
def test_a_page_may_be_copied_in_the_middle_of_a_block(reader, kv_type, length):
    """What forks do: the first tokens of a page go on in another page."""
    model = load_model(reader)
    whole = logits(model, IDS, kv_type=kv_type)
    memory = memory_of(model, 40, kv_type=kv_type)
    step(model, batch_of([(IDS[:length], 0, range(20))], memory), memory)
    table = [*range(length // 16), *range(20, 30)]
    if length % 16:
        memory.copy(length // 16, table[length // 16], tokens=length % 16)
    for ids, pages in ((IDS[:20], range(20)), (IDS[length:], table)):  # another goes on otherwise
        found = step(model, batch_of([(ids, length, pages)], memory), memory)
    assert np.array_equal(found, whole[length:])


def test_rows_of_a_page_are_those_that_were_written():
    layers = [(ROWS, 24, 24), (2, 32, 32)]
    memory = PageMemory(layers, "q8_0", 32)
    memory.ensure(3)
    rows = np.random.default_rng(2).standard_normal((50, 1, 24)).astype(np.float32)
    memory.write([2, 0], 0, 0, rows)
    assert memory.kv_layers == layers
    assert np.array_equal(np.concatenate([memory.read(p, 0)[0] for p in (2, 0)])[:50], rows)
    memory.copy(2, 1)
    memory.copy(0, 1, tokens=18)
    assert np.array_equal(memory.read(1, 0)[0], np.concatenate([rows[32:], rows[18:32]]))
    other = PageMemory(layers, "q8_0", 32)
    other.ensure(1)
    other.load(0, memory.export(2))
    assert np.array_equal(other.read(0, 0)[0], rows[:32])
    with pytest.raises(PoolError, match="v: found"):
        memory.write([0], 0, 0, rows[:16], rows[:16])


def chosen(keys, queries, weights, *, ratio, most, first=0, **how):
    """What the op writes for rows of a sequence from position `first` on, and what it means."""
    rows, (heads, dim) = len(queries), queries.shape[1:]
    width = dim // ratio
    ops = [
        ("embed", dict(out=0, table=table(queries.reshape(rows, -1)))),
        ("embed", dict(out=1, table=table(weights))),
        ("choose_blocks", dict(x=0, shares=1, layer=0, ratio=ratio, most=most, out=2)),
    ]
    layers = [(ROWS, width, width)]
    slots = [heads * dim, heads, most]
    more = dict(kv_layers=layers, vocab_size=rows, hidden_size=1)
    program = Program(ops, slots, **more, **how)
    memory, pages = PageMemory(layers, "f32"), -(-(first + rows) // 16)
    memory.ensure(pages)
    memory.write(range(pages), 0, 0, keys.reshape(-1, 1, width))
    ids = np.arange(rows, dtype=np.int32)
    program.run_until(batch_of([(ids, first, range(pages))], memory), memory, 2)
    frame = Frame(ids, first + ids, ids, lambda tensor: None)
    frame.slots = {0: queries.reshape(rows, -1), 1: weights}
    frame.keys = {0: keys.reshape(-1, 1, dim)}
    ChooseBlocks.meaning(frame, x=0, shares=1, layer=0, ratio=ratio, most=most, out=2)
    return program.slot(2, rows), frame.slots[2]


def table(rows):
    return EmbeddingTable(np.ascontiguousarray(rows).reshape(-1).view(np.uint8), "F32", *rows.shape)


@pytest.mark.parametrize("most", [1, 2, 7, 40])
@pytest.mark.parametrize("ratio", [4, 16])
def test_the_blocks_of_the_highest_scores_are_chosen_and_the_first_of_equal_ones(ratio, most):
    """Of small integers, so that many scores are equal and none is rounded."""
    rng = np.random.default_rng(most)
    rows = 200
    keys = rng.integers(-1, 2, (rows // ratio, 16)).astype(np.float32)
    queries = rng.integers(-1, 2, (rows, 3, 16)).astype(np.float32)
    weights = rng.integers(-1, 3, (rows, 3)).astype(np.float32)
    found, wanted = chosen(keys, queries, weights, ratio=ratio, most=most)
    assert np.array_equal(found, wanted)
    ahead = wanted[-1][wanted[-1] >= 0]
    assert len(ahead) == min(most, rows // ratio) and (np.diff(ahead) > 0).all()


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("first, rows", [(2999, 1), (1022, 2), (20, 3)])
def test_the_scores_of_few_rows_are_shared_out(first, rows, threads):
    """A row's are cut into chunks of 256 where there are fewer rows than workers."""
    rng = np.random.default_rng(rows)
    keys = rng.integers(-2, 3, ((first + rows) // 4, 16)).astype(np.float32)
    queries = rng.integers(-2, 3, (rows, 3, 16)).astype(np.float32)
    weights = rng.integers(-1, 3, (rows, 3)).astype(np.float32)
    for most in (7, 300):
        found, wanted = chosen(
            keys, queries, weights, ratio=4, most=most, first=first, num_threads=threads
        )
        assert np.array_equal(found, wanted), most


@pytest.mark.parametrize("heads", [3, 16, 80])
def test_the_choice_is_the_same_on_every_instruction_set(heads):
    rng = np.random.default_rng(heads)
    keys = rng.standard_normal((75, 32)).astype(np.float32)
    queries = rng.standard_normal((300, heads, 32)).astype(np.float32)
    weights = rng.standard_normal((300, heads)).astype(np.float32)
    sets = [chosen(keys, queries, weights, ratio=4, most=20, isa=isa) for isa in instruction_sets()]
    assert all(np.array_equal(found, sets[0][0]) for found, _ in sets)
    # a score that is nearly another may be rounded to it
    assert (sets[0][0] != sets[0][1]).any(axis=1).mean() < 0.02


def test_a_score_that_is_no_number_is_the_least():
    keys = np.ones((8, 16), np.float32)
    keys[[0, 3]] = np.nan
    queries, weights = np.ones((32, 1, 16), np.float32), np.ones((32, 1), np.float32)
    found, _ = chosen(keys, queries, weights, ratio=4, most=6)
    assert found[-1].tolist() == [1, 2, 4, 5, 6, 7]


ATTEND = dict(x=0, q_heads=2, kv_heads=1, k_dim=32, v_dim=32, layer=1, out=1)
COMPRESS = dict(
    layer=2,
    into=0,
    ratio=4,
    dim=32,
    weight=np.ones(32, np.float32),
    inv_freq=np.ones(4, np.float32),
    eps=0.0,
)


@pytest.mark.parametrize(
    "name, params, message",
    [
        ("attend", ATTEND | dict(chosen=3, ratio=1), "or not strict"),
        ("attend", ATTEND | dict(chosen=3, ratio=1, strict=True, window=8), "beside a window"),
        ("attend", ATTEND | dict(chosen=3, ratio=3, strict=True), "ratio is 3, wanted a divisor"),
        ("attend", ATTEND | dict(running=True), "each or running without a choice"),
        (
            "choose_spans",
            dict(x=0, heads=3, layer=0, ratio=4, most=3, local=1, out=1),
            "of 3 heads",
        ),
        (
            "choose_spans",
            dict(x=0, heads=8, layer=0, ratio=4, most=3, local=4, out=1),
            "local is 4",
        ),
        (
            "choose_spans",
            dict(x=0, heads=4, layer=0, ratio=4, most=3, local=1, out=1),
            "layer 0 is",
        ),
        ("compress", COMPRESS | dict(carried=8), "carried is 8, wanted an even number, no gates"),
        ("compress", COMPRESS | dict(ratio=1), "ratio is 1, gated True"),
        ("compress", COMPRESS | dict(gated=False, overlap=True), "gates where blocks overlap"),
        ("keep_rows", dict(x=0, gate=0, layer=2), "gate or bias alone"),
        ("turn", dict(x=0, rope=3, heads=2, out=1, start=31), "2 heads of 64 floats with 1 pairs"),
        ("turn", dict(x=0, rope=3, heads=2, out=1, style="pairs"), "style is 'pairs'"),
        ("attend", ATTEND | dict(blocks=0, ratio=4, chunk=8), "blocks beside"),
        ("attend", ATTEND | dict(blocks=0, ratio=4, causal=False), "blocks beside"),
        ("attend", ATTEND | dict(blocks=0, ratio=6), "ratio is 6, wanted a divisor or a multiple"),
        ("attend", ATTEND | dict(blocks=0, ratio=16), "blocks 0 is .*, wanted rows of 2 floats"),
        ("attend", ATTEND | dict(blocks=1, ratio=4), "blocks 1 is .*, wanted rows of 8 floats"),
        ("compress", COMPRESS | dict(overlap=True), "layer 2 is .*, wanted rows of 128 floats"),
        ("compress", COMPRESS | dict(ratio=8), "into 0 is .*, wanted rows of 4 floats"),
        ("compress", COMPRESS | dict(inv_freq=np.ones(17, np.float32)), "has 17 frequencies"),
        ("choose_blocks", dict(x=0, shares=2, layer=0, ratio=4, most=3, out=1), "of 3 heads"),
        ("choose_blocks", dict(x=0, shares=3, layer=0, ratio=4, most=3, out=0), "which it reads"),
        ("turn", dict(x=0, rope=2, heads=64, out=1), "wanted whole heads that hold them"),
        (
            "keep_rows",
            dict(x=0, gate=0, bias=np.ones((4, 64), np.float32), layer=3, into=3),
            "into is layer 3, wanted another",
        ),
        (
            "keep_rows",
            dict(x=0, gate=0, bias=np.ones((4, 32), np.float32), layer=3, into=0),
            r"bias is \(4, 32\), wanted \(positions, 64\)",
        ),
    ],
)
def test_ops_that_do_not_fit_are_refused_by_name(name, params, message):
    layers = [(ROWS, 8, 8), (LATENT, 32, 32), (ROWS, 64, 64), (ROWS, 128, 128)]
    rows = np.ones((VOCAB, 64), np.float32)
    embeds = [
        ("embed", dict(out=0, table=table(rows))),
        ("embed", dict(out=2, table=table(rows[:, :3]))),
        ("embed", dict(out=3, table=table(rows[:, :2]))),
    ]
    more = dict(kv_layers=layers, vocab_size=VOCAB, hidden_size=1)
    with pytest.raises(ModelError, match=message):
        Program([*embeds, (name, params)], [96, 128, 3, 2], **more)


def test_a_batch_may_not_bring_rows_where_tokens_choose_experts(reader):
    model = load_model(reader)
    memory = memory_of(model, 1)
    rows = np.zeros((3, 64), np.float32)
    batch = Batch([1, -1, 2], [0, 1, 2], [[0]], [0, 0, 0], [2], embeds=rows)
    with pytest.raises(ConfigError, match="row 1: a row in place of a token, wanted a token"):
        model.program.step(batch, memory)


def changed(tmp_path, **keys):
    return invent(tmp_path / "m.gguf", ARCH, changed={f"{ARCH}.{k}": v for k, v in keys.items()})


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("attention.compress_ratios", [0, 4, 128], "found an array of 3, wanted 4 or more"),
        ("attention.compress_ratios", [0, 4, 64, 4], "found 64, wanted one of"),
        ("hash_layer_count", 1, "hash_layer_count: found 1, and layer 1 with a table"),
        ("attention.output_group_count", 3, "found 3, wanted a divisor of 4"),
        ("attention.indexer.key_length", 8, "found 8, wanted 16 or more"),
        ("attention.head_count_kv", 2, "head_count_kv: found 2, wanted"),
        ("attention.value_length", 16, "value_length: found 16, wanted"),
    ],
)
def test_what_is_not_built_so_is_refused(tmp_path, key, value, message):
    with pytest.raises(ModelError, match=message):
        record(changed(tmp_path, **{key: value}))


def test_a_table_of_experts_is_checked(reader):
    b = Builder(reader, ARCH)
    assert b.numbers("blk.0.ffn_gate_tid2eid.weight", VOCAB, 2, 4).dtype == np.int32
    for name, sizes, message in (
        (
            "blk.0.ffn_gate_tid2eid.weight",
            (VOCAB, 2, 3),
            "found numbers from 0 to 3, wanted 0 to 2",
        ),
        ("blk.0.ffn_gate_tid2eid.weight", (VOCAB, 3, 4), r"I32 \(80, 2\), deepseek4 needs I32 \("),
        ("token_embd.weight", (VOCAB, 64, 4), r"file has F32 \(80, 64\)"),
    ):
        with pytest.raises(ModelError, match=message):
            b.numbers(name, *sizes)


def test_yarn_turns_layers_with_blocks_alone_and_keeps_their_magnitude(tmp_path, monkeypatch):
    scaling = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
    }
    monkeypatch.setitem(invented.OWN, ARCH, invented.OWN[ARCH] | scaling)
    _, tape = record(invent(tmp_path / "m.gguf", ARCH))
    plain, scaled = (op.params for op in tape.ops if op.name == "rope_table")
    wanted = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    assert np.array_equal(plain["inv_freq"], wanted.astype(np.float32))
    assert scaled["inv_freq"][-1] == np.float32(5000.0 ** (-14 / 16) / 4)
    assert (plain["mscale"], scaled["mscale"]) == (1.0, 1.0)
