"""Attention over a whole sequence: every row sees all keys, windows reach to both sides, and a bias
by distance is added to scores.
"""

import numpy as np
import pytest

from oxillama._core.tape import Batch
from oxillama._core.vectors import instruction_sets
from oxillama.errors import ConfigError, ContextError, ModelError
from tests.core.attention_program import memory_for, program, rows_of, tokens_for

SHAPE = dict(q_heads=4, kv_heads=2, k_dim=24, v_dim=16)


def bias(reach, seed=5):
    return np.random.default_rng(seed).standard_normal((4, 2 * reach + 1)).astype(np.float32)


def run(step, *texts, kv_type="f32"):
    """Attention rows of texts that share a step."""
    memory, table = memory_for(step, 16 * sum(len(t) // 16 + 1 for t in texts), kv_type, seed=3)
    tables, at = [], 0
    for text in texts:
        tables.append(table[at : at + len(text) // 16 + 1])
        at += len(text) // 16 + 1
    lengths = [len(text) for text in texts]
    batch = Batch(
        np.concatenate(texts),
        np.concatenate([np.arange(n) for n in lengths]),
        tables,
        np.repeat(np.arange(len(texts)), lengths),
        [],
    )
    step.run_until(batch, memory, len(step) - 1)
    return step.slot(1, sum(lengths))


def expected(tokens, *, window=0, relative=None):
    """The same in float64, from the formula."""
    n = len(tokens)
    q, k, v = np.split(rows_of(4 * 24 + 2 * 40)[tokens].astype(np.float64), [96, 144], axis=1)
    q, k, v = q.reshape(n, 4, 24), k.reshape(n, 2, 24), v.reshape(n, 2, 16)
    distance = np.arange(n)[None, :] - np.arange(n)[:, None]
    out = np.empty((n, 4, 16))
    for head in range(4):
        scores = q[:, head] @ k[:, head // 2].T
        if relative is not None:
            reach = relative.shape[1] // 2
            scores = scores + relative[head][np.clip(distance, -reach, reach) + reach]
        if window:
            scores = np.where(np.abs(distance) < window, scores, -np.inf)
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = p / p.sum(axis=1, keepdims=True) @ v[:, head // 2]
    return out.reshape(n, -1)


@pytest.mark.parametrize(
    "more",
    [
        dict(),
        dict(window=1),
        dict(window=9),
        dict(window=300),
        dict(relative=bias(7)),
        dict(relative=bias(0)),
        dict(relative=bias(400), window=130),
    ],
    ids=lambda more: "-".join(f"{k}{np.shape(v) or v}" for k, v in more.items()),
)
@pytest.mark.parametrize("length", (1, 16, 50, 600))
def test_a_row_sees_its_whole_sequence(more, length):
    tokens = tokens_for(length)
    found = run(program(**SHAPE, causal=False, max_rows=600, **more), tokens)
    assert np.abs(found - expected(tokens, **more)).max() <= 3e-6


@pytest.mark.parametrize("more", [dict(), dict(window=20), dict(relative=bias(30))], ids=str)
def test_companions_threads_and_instruction_sets_never_change_a_bit(more):
    texts = [tokens_for(n, n) for n in (300, 1, 17, 40)]
    made = dict(SHAPE, causal=False, **more)
    alone = [run(program(**made), text) for text in texts]
    for workers in (1, 2, 3):
        found = run(program(**made, num_threads=workers), *texts)
        assert np.array_equal(found, np.concatenate(alone))
    for isa in instruction_sets():
        assert np.array_equal(run(program(**made, isa=isa), texts[0]), alone[0])


def test_a_bias_of_no_distance_changes_nothing_and_one_constant_neither():
    tokens = tokens_for(90)
    causal = run(program(**SHAPE), tokens)
    flat = np.zeros((4, 3), np.float32)
    assert np.array_equal(run(program(**SHAPE, relative=flat), tokens), causal)


def test_a_sequence_that_is_cut_is_refused():
    step = program(**SHAPE, causal=False)
    assert not step.causal and program(**SHAPE).causal
    memory, table = memory_for(step, 32)
    for positions in ([0, 2, 3], [1, 2, 3]):
        batch = Batch(tokens_for(3), positions, [table], np.zeros(3, int), [])
        with pytest.raises(ContextError, match="wanted every token of a sequence in one step"):
            step.run_until(batch, memory, len(step) - 1)
    batch = Batch(tokens_for(2), [0, 1], [table], [0, 0], [], visible=[1, 2])
    with pytest.raises(ConfigError, match="visible: found limits"):
        step.run_until(batch, memory, len(step) - 1)


@pytest.mark.parametrize("shape", [(3, 5), (4, 4), (20,)], ids=str)
def test_a_bias_of_another_shape_is_refused(shape):
    with pytest.raises(ModelError, match="relative is"):
        program(**SHAPE, relative=np.zeros(shape, np.float32))
