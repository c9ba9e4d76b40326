"""Slots of recurrent state: owned once, zero at first, given back."""
import numpy as np
import pytest

from oxillama.engine.states import SequencePool, SsmStatePool
from oxillama.errors import Exhausted, InvalidSlot, PoolError


def test_slots_run_out_and_come_back():
    pool = SequencePool(2)
    first, second = pool.alloc(), pool.alloc()
    with pytest.raises(Exhausted, match="all 2 slots"):
        pool.alloc()
    pool.release(first)
    assert pool.alloc() == first and pool.used == 2
    pool.release(first)
    pool.release(second)
    assert pool.used == 0


@pytest.mark.parametrize("slot", (-1, 0, 2, True, "0"))
def test_a_slot_that_nobody_owns_raises(slot):
    with pytest.raises(InvalidSlot, match="nobody owns it"):
        SequencePool(2).release(slot)


def test_state_is_zero_when_handed_out_and_checkpoints_return():
    pool = SsmStatePool(1, [(2, 3), (4,)])
    slot = pool.alloc()
    pool.layers[0][slot] = 5
    saved = pool.save(slot)
    pool.release(slot)
    slot = pool.alloc()
    assert not pool.layers[0][slot].any()
    pool.load(slot, saved)
    assert (pool.layers[0][slot] == 5).all() and pool.memory_bytes == 4 * (6 + 4)
    with pytest.raises(PoolError, match="shapes"):
        pool.load(slot, [np.zeros(3)])
