"""Slots of recurrent state, checkpoints, and the sequences that hold them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama._core.pool import PageMemory
from oxillama.engine.memory.pages import KvCachePool
from oxillama.engine.memory.states import SequencePool, SequenceState, SsmStatePool
from oxillama.errors import Exhausted, InvalidSlot, NotSupported, PoolError, PositionBeyondEnd

SHAPE = (2, 8)  # one checkpoint is 64 bytes


def pools(**more):
    memory = PageMemory([], slot_layers=[SHAPE])
    return KvCachePool(memory), SsmStatePool(memory, **more)


def write(kv, tokens):
    """Take in so many tokens: the state says how many it has seen."""
    kv.reserve(kv.length + tokens)
    kv.commit(kv.length + tokens)
    kv.states.memory.load_slot(kv.slot, bytes([kv.length]) * 64)


def seen(kv):
    kv.reserve(kv.length + 1)
    return kv.states.memory.save_slot(kv.slot)[0]


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
    with pytest.raises(PoolError.InvalidSlot, match="has no owner"):
        pool.release(first)
    assert (
        PoolError.Exhausted is Exhausted
        and issubclass(Exhausted, PoolError)
        and issubclass(InvalidSlot, PoolError)
    )


@pytest.mark.parametrize("slot", (-1, 0, 2, True, "0"))
def test_a_slot_that_nobody_owns_raises(slot):
    with pytest.raises(InvalidSlot, match="has no owner"):
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


def test_a_sequence_goes_back_to_the_nearest_checkpoint():
    pages, states = pools()
    kv = SequenceState(pages, states)
    for tokens in (20, 13, 8):
        write(kv, tokens)
        kv.mark()
    kv.truncate(40)
    assert (kv.length, seen(kv)) == (33, 33)
    kv.truncate(20)
    assert (kv.length, seen(kv), len(kv.pages)) == (20, 20, 2)
    kv.truncate(19)
    assert kv.length == 0 and kv.pages == []


def test_a_slot_whose_memory_is_refused_is_free():
    _, states = pools()

    class Refusing:
        slot_bytes = 64

        def ensure_slots(self, count):
            raise MemoryError(count)

    states.memory, memory = Refusing(), states.memory
    for make in (states.alloc, states.alloc_spare):
        with pytest.raises(MemoryError):
            make()
    states.memory = memory
    assert (states.used, states.spares_used, states.alloc()) == (0, 0, 0)


def test_a_fork_has_a_state_of_its_own():
    pages, states = pools()
    kv = SequenceState(pages, states)
    write(kv, 20)
    kv.mark()
    write(kv, 7)
    twin, earlier = kv.fork(), kv.fork(25)
    write(kv, 5)
    assert (twin.length, seen(twin), earlier.length, seen(earlier)) == (27, 27, 20, 20)
    assert seen(kv) == 32 and states.used == 3
    for each in (kv, twin, earlier):
        each.release()
    assert states.used == 0 and pages.pages_used == 0


def test_only_exactly_a_checkpoint_can_be_rewound_to():
    pages, states = pools()
    kv = SequenceState(pages, states)
    write(kv, 20)
    kv.mark()
    write(kv, 5)
    with pytest.raises(NotSupported, match="no checkpoint at position 24"):
        kv.length = 24
    with pytest.raises(PositionBeyondEnd, match="found position 26"):
        kv.rewind(26)
    for _ in range(2):  # also to where it is
        kv.rewind(20)
        assert (kv.length, seen(kv)) == (20, 20)
    with pytest.raises(PositionBeyondEnd, match="found position -1, wanted 0 to 20"):
        kv.rewind(-1)
    kv.rewind(0)
    assert (kv.length, kv.pages) == (0, [])


def test_checkpoints_are_bounded_and_the_least_recently_used_go_first():
    pages, states = pools(checkpoint_bytes=2 * 64)
    kv = SequenceState(pages, states)
    marks = []
    for _ in range(3):
        write(kv, 10)
        marks.append(kv.mark())
    assert [mark.data is not None for mark in marks] == [False, True, True]
    states.use(marks[1])
    write(kv, 1)
    kv.mark()
    assert [mark.data is not None for mark in marks] == [False, True, False]
    kv.truncate(30)
    assert kv.length == 20 and states.memory_bytes <= 3 * 64


def test_a_checkpoint_that_nobody_holds_takes_no_memory_and_no_place():
    pages, states = pools(checkpoint_bytes=2 * 64)
    kv = SequenceState(pages, states)
    write(kv, 20)
    kept = kv.mark()
    for tokens in (5, 6, 7):
        other = SequenceState(pages, states)
        write(other, tokens)
        other.mark()
        other.release()
    assert kept.data == bytes([20]) * 64 and states.memory_bytes == 2 * 64
    kv.release()
    del kept
    assert states.memory_bytes == 0


def test_a_sequence_adopts_pages_with_their_state_alone():
    pages, states = pools()
    kv = SequenceState(pages, states)
    write(kv, 20)
    mark = kv.mark()
    held = [pages.alloc(), pages.alloc()]
    for checkpoint in (None, mark):
        length = 20 if checkpoint is None else 21
        with pytest.raises(PoolError, match="no state after"):
            SequenceState(pages, states).adopt(held, length, checkpoint)
    other = SequenceState(pages, states)
    other.adopt(held, 20, mark)
    assert (other.length, seen(other)) == (20, 20)


def step(kv, tokens, candidates):
    """A step of rows and candidates: each state says how many tokens it has seen."""
    length = kv.length + tokens
    kv.reserve(length + candidates)
    assert kv.spare(candidates)
    for at, slot in enumerate(kv.trail(length, candidates), length + 1):
        kv.states.memory.load_slot(slot, bytes([at]) * 64)
    kv.states.memory.load_slot(kv.slot, bytes([length]) * 64)
    kv.length = length


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_accepted_candidates_leave_the_state_after_the_last_of_them(steps):
    pages, states = pools(spare_bytes=5 * 64)
    kv, length = SequenceState(pages, states), 0
    for tokens, candidates, accepted in steps:
        step(kv, tokens, candidates)
        length += tokens
        assert states.spares_used == candidates and states.used == 1 + candidates
        for _ in range(min(accepted, candidates)):
            length += 1
            kv.length = length
            # invariant 2
            assert states.save(kv.slot)[0] == length == kv.length
        kv.settle()
        assert states.save(kv.slot)[0] == length and (states.used, states.spares_used) == (1, 0)
    kv.release()
    # invariant 4
    assert states.used == 0 and pages.pages_used == 0


def test_spare_slots_are_bounded_for_all_sequences_together():
    # invariant 5
    pages, states = pools(spare_bytes=3 * 64 + 63)
    first, second = SequenceState(pages, states), SequenceState(pages, states)
    step(first, 4, 2)
    assert not second.spare(2) and second.spare(1) and states.spares_used == 3
    first.settle()
    assert second.spare(3) and not first.spare(1)
    second.release()
    assert states.spares_used == 0 and first.spare(3)
    first.truncate(4)
    assert (states.used, states.spares_used) == (1, 0)


def test_a_long_run_of_candidates_keeps_the_last_states():
    pages, states = pools(spare_bytes=4 * 64)
    kv = SequenceState(pages, states)
    step(kv, 10, 0)
    kv.mark()
    for _ in range(8):  # as a draft that runs ahead of its text: a candidate a step
        step(kv, 0, 1)
        kv.length += 1
    assert (kv.length, states.spares_used) == (18, 4)
    kv.drop(15)
    assert (kv.length, states.save(kv.slot)[0]) == (15, 15)
    kv.settle()
    assert states.spares_used == 0
    kv.drop(13)
    assert (kv.length, seen(kv)) == (10, 10)


def test_a_step_that_was_not_finished_keeps_no_slot():
    pages, states = pools()
    kv = SequenceState(pages, states)
    step(kv, 5, 0)
    for _ in range(3):
        kv.reserve(7)
        assert kv.spare(2) and len(kv.trail(5, 2)) == 2
    assert states.used == 1 + states.spares_used and states.spares_used <= 4
    kv.settle()
    assert (states.used, states.spares_used) == (1, 0)
