"""The bare loop: it says what each matmul meets and how long each op takes, and a step taken in
parts is the step taken whole.
"""

import numpy as np
import pytest

import oxillama
from oxillama._core.tape import Batch
from oxillama.engine.raw import unpacked_acts
from oxillama.errors import ConfigError, ContextError


@pytest.fixture(scope="module")
def engine():
    with oxillama.load(num_threads=2, context_size=256) as engine:
        yield engine


def test_a_step_in_parts_leaves_what_the_whole_step_leaves(engine):
    ids = list(range(40, 70))
    ops = engine._loaded.model.tape.ops
    with engine.raw_loop() as loop:
        parts = list(loop.matmul_inputs(ids))
        batch = Batch(
            np.array(ids, np.int32),
            np.arange(30, dtype=np.int32),
            [loop._arrays[-1]],
            np.zeros(30, np.int32),
            np.arange(30, dtype=np.int32),
        )
        matmuls = [i for i, op in enumerate(ops) if op.name == "matmul" and op.params["out"] != -1]
        assert len(matmuls) == len(parts)
        for index, (weights, rows, _) in zip(matmuls, parts):
            loop._program.run_until(batch, loop._memory, index - 1)
            p = ops[index].params
            whole = unpacked_acts(loop._program.slot(p["x"], 30), p["act"], weights[0].shape[1])
            assert weights == list(p["weights"]) and np.array_equal(rows, whole)
        for wrong in (dict(first=-1), dict(first=len(ops))):
            with pytest.raises(ConfigError, match="op_index"):
                loop._program.run_until(batch, loop._memory, 3, **wrong)
        with pytest.raises(ContextError, match="matmul_inputs"):
            next(loop.matmul_inputs([]))


@pytest.mark.parametrize("act", ("f32", "q8_32", "q8_256"))
def test_activation_rows_are_unpacked_to_the_numbers_they_stand_for(act):
    from oxillama._core.matmul import quantise_rows

    x = np.random.default_rng(3).standard_normal((5, 512)).astype(np.float32)
    found = unpacked_acts(quantise_rows(x, act).view(np.float32), act, 512)
    block = {"f32": 512, "q8_32": 32, "q8_256": 256}[act]
    largest = np.abs(x).reshape(5, -1, block).max(2, keepdims=True)
    assert found.shape == x.shape
    assert (
        np.abs(found - x).reshape(5, -1, block) <= (0 if act == "f32" else 0.5001 * largest / 127)
    ).all()


@pytest.mark.parametrize(("context", "most"), ((16, 16), (1024, 512)))
def test_what_is_diagnosed_is_all_that_was_given_or_refused(context, most):
    with oxillama.load(num_threads=2, context_size=context) as engine:
        for count in (0, most + 1):
            with pytest.raises(
                ContextError, match=f"diagnose: found {count} tokens, wanted 1 to {most}$"
            ):
                next(engine.diagnose([5] * count))
        assert next(engine.diagnose([5] * most)).agrees


def test_a_sequence_taken_back_goes_on_as_before(engine):
    with engine.raw_loop() as loop:
        loop.prefill(0, list(range(40, 70)))
        first = [loop.decode([token]).copy() for token in (5, 6, 7)]
        assert loop.rewind(0, 30)
        for token, logits in zip((5, 6, 7), first):
            assert np.array_equal(loop.decode([token]), logits)
        with pytest.raises(ContextError, match="rewind: found a length of 34, wanted 0 to 33$"):
            loop.rewind(0, 34)


def test_every_op_of_the_tape_has_its_time(engine):
    with engine.raw_loop() as loop:
        loop.prefill(0, [1, 2, 3])
        timed = loop.profile(0, [4], repeat=3)
    assert [op for op, _ in timed] == list(engine._loaded.model.tape.ops)
    assert all(microseconds >= 0 for _, microseconds in timed)
