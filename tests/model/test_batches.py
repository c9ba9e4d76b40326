"""What a batch may bring beside tokens and pages: embedding rows, rope positions, visible
limits.
"""

import numpy as np
import pytest

from oxillama._core.tape import Batch, EmbeddingTable, PageMemory, Program
from oxillama.errors import ConfigError, ContextError
from oxillama.model import load_model
from oxillama.model.reference import Reference
from tests.model import tiny
from tests.model.invented import invent

IDS = (np.arange(40) * 7 % tiny.VOCAB).astype(np.int32)
EVERY = np.arange(40, dtype=np.int32)


@pytest.fixture(scope="module", params=("llama", "gemma3"))
def model(request, tmp_path_factory):
    return load_model(tiny.write(tmp_path_factory.mktemp("m") / "m.gguf", request.param))


def run(model, ids=IDS, positions=EVERY, **more):
    memory = model.page_memory(kv_type="f32")
    memory.ensure(4)
    rows = np.arange(len(ids), dtype=np.int32)
    batch = Batch(ids, positions, [range(4)], np.zeros(len(ids), np.int32), rows, **more)
    return np.array(model.program.step(batch, memory))


def embedding(model):
    reference = model.reference()
    frame = reference.frame(np.arange(tiny.VOCAB))
    next(reference.steps(frame))
    return frame.slots[model.tape.ops[0].params["out"]]


def test_rows_of_the_embedding_are_their_tokens(model):
    ids, rows = IDS.copy(), np.zeros((40, tiny.HIDDEN), np.float32)
    rows[5:20] = embedding(model)[IDS[5:20]]
    ids[5:20] = -1
    assert np.array_equal(run(model, ids, embeds=rows), run(model))


def test_embedding_rows_must_be_brought_and_fit(model):
    ids = IDS.copy()
    ids[3] = -1
    with pytest.raises(ConfigError, match="row 3: token -1"):
        run(model, ids)
    with pytest.raises(ConfigError, match="embeds: 8 columns, this program's embedding has 64"):
        run(model, ids, embeds=np.zeros((40, 8), np.float32))
    with pytest.raises(ConfigError, match=r"embeds: found float64 \(40, 64\)"):
        run(model, ids, embeds=np.zeros((40, 64)))


def test_positions_that_rotate_are_apart_from_those_of_pages(model):
    plain = run(model)
    assert np.array_equal(run(model, rope=EVERY), plain)
    # attention sees differences of positions alone
    far = run(model, rope=EVERY + 1000)
    assert np.abs(far - plain).max() < 2e-3 * np.abs(plain).max()
    stretched = run(model, rope=2 * EVERY)
    assert np.abs(stretched - plain).max() > 1e-2 * np.abs(plain).max()
    with pytest.raises(ConfigError, match="rope: 3 sections, this program rotates by 1"):
        run(model, rope=np.stack([EVERY] * 3))


def test_each_frequency_turns_by_the_position_of_its_section():
    freqs = np.array([1.0, 0.5, 0.25, 0.125], np.float32)
    ops = [("rope_table", dict(out=0, inv_freq=freqs, sections=[0, 1, 2, 1]))]
    more = dict(kv_layers=[], vocab_size=4, hidden_size=8, max_rows=8, num_threads=1)
    step = Program(ops, [8], **more)

    memory = PageMemory([])
    memory.ensure(1)
    where = np.array([[3, 4], [5, 6], [7, 8]], np.int32)
    batch = Batch([0, 0], [0, 1], [[0]], [0, 0], [], rope=where)
    step.run_until(batch, memory, 0)
    angles = where[[0, 1, 2, 1]].T * freqs
    wanted = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    assert np.abs(step.slot(0, 2) - wanted).max() <= 1e-6


def agrees_with_reference(model, visible):
    """Logits of rows that see as far as `visible` says, after a comparison with the definition."""
    reference = Reference(model.tape, model.reader, kv_type="f32")
    frame = reference.frame(IDS)
    frame.visible = visible
    for _ in reference.steps(frame):
        pass
    found, wanted = run(model, visible=visible), frame.slots[-1]
    assert np.abs(found - wanted).max() <= 2e-5 * np.abs(wanted).max()
    return found


@pytest.mark.parametrize("spans", ([(0, 40)], [(5, 12)], [(0, 3), (30, 40)]))
def test_rows_see_as_far_as_their_limit(model, spans):
    visible = EVERY + 1
    for start, stop in spans:
        visible[start:stop] = stop
    found = agrees_with_reference(model, visible)
    assert not np.array_equal(found, run(model))


def test_strict_layers_see_no_further_than_their_own_row(tmp_path):
    model = load_model(invent(tmp_path / "m.gguf", "gemma4"))
    visible = EVERY + 1
    visible[5:12] = 12
    strict = [op.params.get("strict", False) for op in model.tape.ops if op.name == "attend"]
    assert set(strict) == {False, True}
    agrees_with_reference(model, visible)


def test_a_limit_beyond_what_is_stored_is_refused(model):
    for limit in (40, 42):
        visible = EVERY + 1
        visible[-1 if limit == 42 else 20] = limit if limit == 42 else 20
        with pytest.raises(ConfigError, match="visible keys, wanted"):
            run(model, visible=visible)


def test_a_position_without_a_row_in_the_table_is_refused(tmp_path):

    rows = np.zeros((4, 8), np.float32)
    table = EmbeddingTable(rows.reshape(-1).view(np.uint8), "F32", 4, 8)
    ops = [("embed", dict(out=0, table=table, scale=1.0, by="position"))]
    more = dict(kv_layers=[], vocab_size=4, hidden_size=8, max_rows=8, num_threads=1)
    step, memory = Program(ops, [8], **more), PageMemory([])
    memory.ensure(1)
    step.run_until(Batch([0], [3], [[0]], [0], []), memory, 0)
    with pytest.raises(ContextError, match="position 4, wanted one below 4"):
        step.run_until(Batch([0], [4], [[0]], [0], []), memory, 0)


def test_recurrent_models_want_a_slot_a_sequence(tmp_path):

    model = load_model(invent(tmp_path / "m.gguf", "mamba"))
    memory = model.page_memory()
    memory.ensure(4)
    memory.ensure_slots(1)

    def step(positions, **more):
        rows = len(positions)
        batch = Batch([1] * rows, positions, [range(4)], [0] * rows, [], **more)
        model.program.step(batch, memory)

    with pytest.raises(ConfigError, match="no slots"):
        step([0])
    with pytest.raises(ContextError, match="slot 1, wanted 0 to 0"):
        step([0], slots=[1])
    with pytest.raises(ConfigError, match="row 1: position 2 after 0"):
        step([0, 2], slots=[0])
    step([0, 1], slots=[0])


def test_features_are_columns_of_rows_that_are_brought():
    table = EmbeddingTable(np.ones((4, 8), np.float32).reshape(-1).view(np.uint8), "F32", 4, 8)
    ops = [
        ("embed", dict(out=0, table=table, scale=1.0)),
        ("features", dict(out=1, start=8, count=8)),
    ]
    more = dict(kv_layers=[], vocab_size=4, hidden_size=8, max_rows=8, num_threads=1)
    step, memory = Program(ops, [8, 8], **more), PageMemory([])
    memory.ensure(1)
    assert step.embed_columns == 16
    rows = np.arange(48, dtype=np.float32).reshape(3, 16)
    where = ([0, -1, 2], [0, 1, 2], [[0]], [0] * 3, [])
    step.run_until(Batch(*where, embeds=rows), memory, 1)
    assert step.slot(0, 3)[:, :8].tolist() == [[1] * 8, rows[1, :8].tolist(), [1] * 8]
    assert step.slot(1, 3)[:, :8].tolist() == [[0] * 8, rows[1, 8:].tolist(), [0] * 8]
    step.run_until(Batch([0, 1, 2], *where[1:]), memory, 1)
    assert not step.slot(1, 3).any()
    with pytest.raises(ConfigError, match="embeds: 8 columns, this program's embedding has 16"):
        step.run_until(Batch(*where, embeds=rows[:, :8].copy()), memory, 1)


def test_spans_hold_keys_and_ascend(model):
    def spans(first, last):
        ids = IDS[: len(first)]
        return run(model, ids, EVERY[: len(first)], spans=np.array([first, last], np.int32))

    with pytest.raises(ConfigError, match="row 1: sees keys 2 to 3, wanted some from 0 to 2"):
        spans([0, 2], [2, 3])
    with pytest.raises(ConfigError, match="row 2: sees keys from 0 on after 1, wanted ascending"):
        spans([0, 1, 0], [1, 3, 3])
    with pytest.raises(ConfigError, match="spans: found some, wanted none for this program"):
        spans([0, 0], [2, 2])
