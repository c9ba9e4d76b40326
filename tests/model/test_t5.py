"""T5: the same bits in any company, what its layers keep, and what its programs refuse."""

import numpy as np
import pytest

from oxillama._core.tape import Batch
from oxillama.errors import ConfigError, ContextError, ModelError
from oxillama.gguf import GgufReader
from oxillama.model import load_model
from oxillama.model.arch.t5 import bucket_of
from oxillama.model.encoder_decoder import sourced_batch
from oxillama.model.record import record
from tests.model.invented import invent
from tests.model.stepping import memory_of
from tests.model.stepping import sourced_step as step

SOURCE, ANSWER = [5, 9, 33, 7, 70, 7] * 6, [2, 11, 60, 3, 44, 9, 17, 71]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Four layers of an encoder, three of a decoder."""
    path = tmp_path_factory.mktemp("t5") / "m.gguf"
    return load_model(invent(path, "t5"), num_threads=2)


def alone(model, source, answer, *, kv_type="f32"):
    tokens = [*source, *answer]
    pages = -(-len(tokens) // 16)
    part = (tokens, 0, range(pages), len(source))
    return step(model, [part], memory_of(model, pages, kv_type=kv_type))


@pytest.mark.parametrize("kind", ("F32", "Q8_0"))
def test_bits_do_not_depend_on_steps_threads_or_companions(tmp_path, kind):
    one = load_model(invent(tmp_path / "m.gguf", "t5", kind=kind), num_threads=1)
    model = load_model(GgufReader(tmp_path / "m.gguf"), num_threads=2)
    whole = alone(one, SOURCE, ANSWER, kv_type="f16")
    assert np.isfinite(whole).all() and len(whole) == len(ANSWER)
    memory = memory_of(model, 9)
    table, end, found = [4, 1, 7], len(SOURCE), []
    found.append(step(model, [([*SOURCE, ANSWER[0]], 0, table, end)], memory))
    found += [step(model, [([ANSWER[at]], end + at, table, end)], memory) for at in (1, 2, 3)]
    # the rest beside a sequence that begins, and one that is at its end
    others = (SOURCE[3:8], ANSWER[1:3]), (SOURCE[:20], ANSWER[:1])
    step(model, [([*others[1][0], 2], 0, [0, 8], 20)], memory)
    last = step(
        model,
        [
            ([*others[0][0], *others[0][1]], 0, [3], 5),
            (ANSWER[4:], end + 4, table, end),
            ([9], 21, [0, 8], 20),
        ],
        memory,
    )
    assert np.array_equal(whole, np.concatenate([*found, last[2:-1]]))
    assert np.array_equal(last[:2], alone(one, *others[0], kv_type="f16"))
    assert np.array_equal(last[-1:], alone(one, others[1][0], [2, 9], kv_type="f16")[1:])


def test_a_decoder_keeps_its_source_where_it_keeps_itself(model):
    """A layer of pages for each layer of the decoder, and none for the encoder."""
    config = model.config
    assert config.kv_layers == ((2, 32, 32),) * 3 and config.layers == 3
    # the file's context is that of a source, and of an answer
    assert (config.context_length, config.start_token) == (512, 0)


def test_a_source_is_read_whole_and_before_its_answer(model):
    memory = memory_of(model, 1)
    with pytest.raises(ContextError, match="row 0: position 3, wanted every token of a sequence"):
        step(model, [([5, 6, 0], 3, [0], 5)], memory)
    batch = sourced_batch(*_rows([4, 0], [2, 3]), spans=np.array([[0, 0], [3, 3]], np.int32))
    with pytest.raises(ContextError, match="position 2"):
        model.source.step(batch.source, memory, output="hidden")
    batch = sourced_batch(*_rows([4, 0], [2, 3]), spans=np.array([[0, 0], [2, 2]], np.int32))
    assert batch.source is None
    batch = sourced_batch(*_rows([4], [1]), spans=np.array([[0], [1]], np.int32))
    assert np.isfinite(model.program.step(batch.target, memory)).all()


def _rows(tokens, positions):
    return (
        np.array(tokens, np.int32),
        np.array(positions, np.int32),
        [np.zeros(1, np.int32)],
        np.zeros(len(tokens), np.int32),
        np.array([len(tokens) - 1], np.int32),
    )


def test_rows_of_an_answer_are_behind_their_source(model):
    memory = memory_of(model, 1)
    with pytest.raises(ConfigError, match="row 0: position 2, wanted one behind its span"):
        batch = Batch(*_rows([4], [2]), spans=np.array([[0], [3]], np.int32))
        model.program.step(batch, memory)
    with pytest.raises(ConfigError, match="spans: found none, wanted some"):
        model.program.step(Batch(*_rows([4], [2])), memory)


def test_buckets_of_a_decoder_are_all_for_tokens_before():
    """Section 2.1, with 32 buckets: half for single distances, the rest up to 128."""
    both = bucket_of(np.arange(-128, 129), 32)
    assert both[128:].tolist()[:12] == [0, 17, 18, 19, 20, 21, 22, 23, 24, 24, 24, 24]
    assert both[[0, 128 - 8, 128 - 7]].tolist() == [15, 8, 7]
    before = bucket_of(-np.arange(129), 32, later=False)
    assert before[:20].tolist() == [*range(16), 16, 16, 16, 17]
    assert (before[63], before[128], before.max()) == (26, 31, 31)
    assert (np.diff(before) >= 0).all()


def test_what_a_file_of_t5_must_say(tmp_path):
    for key, value, message in (
        ("decoder_start_token_id", 80, "found 80, wanted an integer from 0 to 79"),
        ("attention.relative_buckets_count", 256, "found 256, wanted an integer from 4 to 255"),
    ):
        with pytest.raises(ModelError, match=message):
            record(invent(tmp_path / "m.gguf", "t5", changed={f"t5.{key}": value}))
    with pytest.raises(ConfigError, match="depth: found 2 for t5, wanted all 4 layers"):
        record(invent(tmp_path / "m.gguf", "t5"), depth=2)
