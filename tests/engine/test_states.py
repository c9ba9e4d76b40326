"""Slots of recurrent state: owned once, zero at first, given back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    # invariant 3
    assert pool.used == 0
    # invariant 1
    with pytest.raises(PoolError.InvalidSlot, match="nobody owns it"):
        pool.release(first)
    assert (
        PoolError.Exhausted is Exhausted
        and issubclass(Exhausted, PoolError)
        and issubclass(InvalidSlot, PoolError)
    )


@pytest.mark.parametrize("slot", (-1, 0, 2, True, "0"))
def test_a_slot_that_nobody_owns_raises(slot):
    with pytest.raises(InvalidSlot, match="nobody owns it"):
        SequencePool(2).release(slot)


@given(st.lists(st.integers(-1, 5), max_size=40), st.integers(1, 4))
def test_any_history_hands_each_slot_to_one_owner(history, capacity):
    pool, owned = SequencePool(capacity), set()
    for slot in history:
        if slot < 0 and len(owned) < capacity:
            slot = pool.alloc()
            assert slot not in owned and 0 <= slot < capacity
            owned.add(slot)
        elif slot < 0:
            with pytest.raises(Exhausted):
                pool.alloc()
        elif slot in owned:
            pool.release(slot)
            owned.remove(slot)
        else:
            with pytest.raises(InvalidSlot):
                pool.release(slot)
        assert pool.used == len(owned)


@pytest.mark.parametrize("capacity", (0, -1, True, 1.5, "2"))
def test_a_capacity_that_holds_nothing_raises(capacity):
    with pytest.raises(PoolError, match="capacity"):
        SequencePool(capacity)


def test_state_is_zero_when_handed_out_and_checkpoints_return():
    pool = SsmStatePool(1, [(2, 3), (4,)])
    slot = pool.alloc()
    pool.layers[0][slot] = 5
    saved = pool.save(slot)
    pool.release(slot)
    slot = pool.alloc()
    # invariant 2
    assert not pool.layers[0][slot].any()
    pool.load(slot, saved)
    assert (pool.layers[0][slot] == 5).all() and pool.memory_bytes == 4 * (6 + 4)
    with pytest.raises(PoolError, match="shapes"):
        pool.load(slot, [np.zeros(3)])
