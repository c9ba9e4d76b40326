"""Pooling that cannot see chunks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.engine.embedding import Pooler, PoolingMode, submit_embedding
from oxillama.engine.scheduler import SchedulerConfig
from oxillama.errors import EmptySequence, SamplingError
from tests.engine.null import HIDDEN, VOCAB, NullProgram, core, hashed

ROWS = np.random.default_rng(3).standard_normal((40, 6)).astype(np.float32)


def pooled(mode, cuts, normalize=True, rows=ROWS):
    pooler = Pooler(mode, normalize=normalize)
    edges = [0, *sorted(cuts), len(rows)]
    for start, end in zip(edges, edges[1:]):
        pooler.add(start, rows[start:end])
    return pooler.result()


@given(
    st.sampled_from([m for m in PoolingMode if m is not PoolingMode.RANK]),
    st.lists(st.integers(0, 40), max_size=6),
    st.booleans(),
)
def test_chunks_do_not_change_a_bit(mode, cuts, normalize):
    assert np.array_equal(pooled(mode, cuts, normalize), pooled(mode, [], normalize))


@pytest.mark.parametrize(
    ("mode", "wanted"),
    (
        ("last", ROWS[-1]),
        ("cls", ROWS[0]),
        ("max", ROWS.max(0)),
        ("none", ROWS),
        ("mean", ROWS.astype(np.float64).mean(0).astype(np.float32)),
    ),
)
def test_modes_are_what_they_say(mode, wanted):
    assert np.allclose(pooled(PoolingMode(mode), [7], normalize=False), wanted, rtol=1e-6, atol=0)


def test_normalised_vectors_have_length_one():
    assert np.allclose(np.linalg.norm(pooled(PoolingMode.MEAN, [])), 1, atol=1e-6)
    assert np.allclose(np.linalg.norm(pooled(PoolingMode.NONE, []), axis=1), 1, atol=1e-6)
    assert not pooled(PoolingMode.LAST, [], rows=np.zeros((2, 3), np.float32)).any()


def test_rows_that_come_twice_count_once():
    pooler = Pooler(PoolingMode.MEAN)
    pooler.add(0, ROWS[:20])
    pooler.add(10, ROWS[10:])
    assert np.array_equal(pooler.result(), pooled(PoolingMode.MEAN, []))


@pytest.mark.parametrize("mode", [m for m in PoolingMode if m is not PoolingMode.RANK])
@pytest.mark.parametrize("wrong", (np.nan, np.inf, -np.inf))
@pytest.mark.parametrize("normalize", (True, False))
def test_numbers_that_are_not_finite_are_no_vector(mode, wrong, normalize):
    rows = np.full_like(ROWS, wrong)
    with pytest.raises(SamplingError, match=f"^embedding: found {wrong}, wanted finite numbers$"):
        pooled(mode, [3], normalize, rows=rows)


def test_nothing_to_pool_raises():
    with pytest.raises(EmptySequence):
        Pooler(PoolingMode.MEAN).result()


def test_texts_of_every_length_share_steps_without_padding():
    program, texts = (
        NullProgram(),
        [
            [(3 * i + j) % VOCAB for i in range(length)]
            for j, length in enumerate((1, 40, 7, 300, 16, 2, 90))
        ],
    )
    engine = core(program=program, scheduler=SchedulerConfig(prefill_chunk=64, max_batch_tokens=64))
    # all are there before the first step
    with engine.lock:
        work = [submit_embedding(engine, ids, pooling="mean", normalize=False) for ids in texts]
    for ids, (request, pooler) in zip(texts, work):
        request.result(60)
        total = np.zeros(HIDDEN)
        for at in range(len(ids)):
            total = total + hashed(ids[: at + 1], HIDDEN)
        assert np.array_equal(pooler.result(), (total / len(ids)).astype(np.float32))
    # 456 rows in steps of 64
    assert sum(program.rows) == sum(map(len, texts)) and len(program.rows) <= 9
    engine.close()
