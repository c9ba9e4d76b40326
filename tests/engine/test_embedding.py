"""Pooling that cannot see chunks."""
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.engine.embedding import Pooler, PoolingMode
from oxillama.errors import EmptySequence

ROWS = np.random.default_rng(3).standard_normal((40, 6)).astype(np.float32)


def pooled(mode, cuts, normalize=True, rows=ROWS):
    pooler = Pooler(mode, normalize=normalize)
    edges = [0, *sorted(cuts), len(rows)]
    for start, end in zip(edges, edges[1:]):
        pooler.add(start, rows[start:end])
    return pooler.result()


@given(st.sampled_from(list(PoolingMode)), st.lists(st.integers(0, 40), max_size=6), st.booleans())
def test_chunks_do_not_change_a_bit(mode, cuts, normalize):
    assert np.array_equal(pooled(mode, cuts, normalize), pooled(mode, [], normalize))


@pytest.mark.parametrize(("mode", "wanted"), (
    ("last", ROWS[-1]), ("cls", ROWS[0]), ("max", ROWS.max(0)), ("none", ROWS),
    ("mean", ROWS.astype(np.float64).mean(0).astype(np.float32))))
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


def test_nothing_to_pool_raises():
    with pytest.raises(EmptySequence):
        Pooler(PoolingMode.MEAN).result()
