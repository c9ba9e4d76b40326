"""Memory of a recurrent model's sequence in addition to its pages: a slot with the state, and
checkpoints of it.

    pages        0..15  16..31  32..40         length 41
    slot         the state after 41 tokens     each further token overwrites it
    spares       after 42, after 43            slots of candidates, from a step to its draws
    checkpoints  after 33, after 41            bytes, shared by forks and stored prefixes

A state cannot drop its last tokens. `truncate` and `fork` go back to the nearest checkpoint at or
before the position asked for (see `length`), and the engine evaluates the rest again, with the same
bits. Checkpoints are taken at positions to which a sequence is likely to return (the ends of
prompts and of answers), and live as long as a sequence or a stored prefix holds them. Their total
size is limited; the least recently used are dropped first.

Rows that may be dropped, candidates, leave the slot as it is: a step writes the state after each of
them to a spare slot (`trail`). When `length` becomes one of those positions, that slot is the
sequence's own from then on; nothing is copied. `settle` gives back the others. The bytes of all
spare slots are limited too; where none is left, there are no candidates.

Invariants (tests cite them by number):

1. A slot is either free or owned by exactly one sequence; releasing a free or unknown slot raises
`InvalidSlot`. 2. The state in a sequence's slot is that after exactly `length` tokens. 3. Bytes of
checkpoints never exceed `checkpoint_bytes`. 4. When every sequence is released, `used` is 0. 5.
Spare slots are owned, and their bytes never exceed `spare_bytes`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol
from weakref import ref

from oxillama.engine.memory.pages import SLACK, KvCachePool, PagedKvCache
from oxillama.errors import (
    Exhausted,
    InvalidSlot,
    NotSupported,
    PoolError,
    PositionBeyondEnd,
    not_pickled,
)

MAX_SLOTS = 1 << 16


class SlotMemory(Protocol):
    """What a pool of states needs from memory (`_core.pool.PageMemory`)."""

    slot_bytes: int

    def ensure_slots(self, n_slots: int) -> None: ...
    def save_slot(self, slot: int) -> bytes: ...
    def load_slot(self, slot: int, data: bytes) -> None: ...


class SequencePool:
    """`capacity` numbered slots: `alloc` returns a free one (Exhausted if there is none), `release`
    frees it (InvalidSlot unless it is owned).
    """

    __slots__ = ("_free", "_owned", "capacity")

    def __init__(self, capacity: int) -> None:
        whole = isinstance(capacity, int) and not isinstance(capacity, bool)
        if not whole or not 1 <= capacity < 1 << 31:
            raise PoolError(f"capacity: found {capacity!r:.50}, wanted an integer of 1 to 2^31 - 1")
        self.capacity = capacity
        self._free = list(range(capacity - 1, -1, -1))
        self._owned = bytearray(capacity)

    @property
    def used(self) -> int:
        """Slots with an owner."""
        return self.capacity - len(self._free)

    def alloc(self) -> int:
        """A free slot, the lowest first in a new pool; Exhausted if there is none."""
        if not self._free:
            raise Exhausted(
                f"sequence pool: all {self.capacity} slots are owned, wanted a free one"
            )
        slot = self._free.pop()
        self._owned[slot] = 1
        return slot

    def release(self, slot: int) -> None:
        """Free a slot; InvalidSlot unless it is owned."""
        self.check(slot)
        self._owned[slot] = 0
        self._free.append(slot)

    def check(self, slot: int) -> None:
        """Raise InvalidSlot unless the slot is owned."""
        if (
            isinstance(slot, bool)
            or not isinstance(slot, int)
            or not 0 <= slot < self.capacity
            or not self._owned[slot]
        ):
            raise InvalidSlot(
                f"slot {slot!r}: has no owner, wanted an owned slot (0 to {self.capacity - 1})"
            )


class Checkpoint:
    """The state after `position` tokens; `data` is None once the pool dropped it."""

    __slots__ = ("__weakref__", "data", "position")

    def __init__(self, position: int, data: bytes) -> None:
        self.position = position
        self.data: bytes | None = data


class SsmStatePool:
    """The recurrent states of a model's sequences: one slot of `memory` for each, spare ones, of at
    most `spare_bytes` in all, for the states after candidates, and checkpoints, copies of at most
    `checkpoint_bytes`. PoolError if no slot is free.
    """

    __slots__ = (
        "_checkpoints",
        "_forgotten",
        "checkpoint_bytes",
        "memory",
        "slots",
        "spares",
        "spares_used",
    )

    __reduce__ = not_pickled(
        "pool: holds states in memory of this process",
        "make one in each process; `save()` gives a state as bytes",
    )

    def __init__(
        self,
        memory: SlotMemory,
        *,
        capacity: int = MAX_SLOTS,
        checkpoint_bytes: int = 256 << 20,
        spare_bytes: int = 512 << 20,
    ) -> None:
        if not hasattr(memory, "slot_bytes"):
            raise PoolError(f"memory: found {memory!r:.50}, wanted memory of state slots")
        self.memory = memory
        self.slots = SequencePool(capacity)
        self.checkpoint_bytes = checkpoint_bytes
        self.spares = spare_bytes // memory.slot_bytes  # that there can be at once
        self.spares_used = 0
        # least recently used first; those that somebody holds, and until `_collect` the forgotten
        self._checkpoints: OrderedDict[ref[Checkpoint], None] = OrderedDict()
        self._forgotten: list[ref[Checkpoint]] = []

    @property
    def used(self) -> int:
        """Slots with an owner."""
        return self.slots.used

    @property
    def memory_bytes(self) -> int:
        """Bytes of the slots in use and of the checkpoints."""
        self._collect()
        return (self.used + len(self._checkpoints)) * self.memory.slot_bytes

    def alloc(self) -> int:
        """A slot with undefined content; PoolError if there is none or the allocation fails."""
        slot = self.slots.alloc()
        try:
            self.memory.ensure_slots(slot + 1)
        except BaseException:
            self.slots.release(slot)
            raise
        return slot

    def release(self, slot: int) -> None:
        """Free a slot; InvalidSlot unless it is owned."""
        self.slots.release(slot)

    def alloc_spare(self) -> int:
        """A slot for the state after a candidate; PoolError if there are too many."""
        if self.spares_used == self.spares:
            raise Exhausted(f"spare slots: all {self.spares} are owned, wanted a free one")
        slot = self.alloc()
        self.spares_used += 1
        return slot

    def release_spares(self, slots: list[int]) -> None:
        """Free slots of `alloc_spare`, or those that took their place."""
        for slot in slots:
            self.release(slot)
        self.spares_used -= len(slots)

    def save(self, slot: int) -> bytes:
        """A copy of a slot's state."""
        self.slots.check(slot)
        return self.memory.save_slot(slot)

    def load(self, slot: int, data: bytes) -> None:
        """Restore a state from `save` into a slot."""
        self.slots.check(slot)
        self.memory.load_slot(slot, data)

    def checkpoint(self, slot: int, position: int) -> Checkpoint:
        """Copy a slot's state; the least recently used copies are dropped to make space."""
        made = Checkpoint(position, self.save(slot))
        self._collect()
        # whatever thread frees it only leaves a note
        self._checkpoints[ref(made, self._forgotten.append)] = None
        while len(self._checkpoints) * self.memory.slot_bytes > self.checkpoint_bytes:
            oldest = self._checkpoints.popitem(last=False)[0]()
            if oldest is not None:
                oldest.data = None
        return made

    def _collect(self) -> None:
        """Count checkpoints no more that nobody holds."""
        while self._forgotten:
            self._checkpoints.pop(self._forgotten.pop(), None)

    def use(self, checkpoint: Checkpoint) -> bytes | None:
        """The bytes of a checkpoint, which becomes the most recently used; None if they were
        dropped.
        """
        if checkpoint.data is not None:
            self._checkpoints.move_to_end(ref(checkpoint))
        return checkpoint.data


class SequenceState(PagedKvCache):
    """Pages, slots and checkpoints of one sequence of a recurrent model."""

    __slots__ = ("_marks", "_spares", "_tokens", "_trail", "_waiting", "slot", "states")

    stateful = True

    def __init__(self, pool: KvCachePool, states: SsmStatePool) -> None:
        self.states = states
        self.slot: int | None = None
        self._tokens = 0
        # what a slot is to be filled with once there is one
        self._waiting: bytes | None = None
        self._marks: list[Checkpoint] = []
        self._trail: dict[int, int] = {}  # the slot of the state after so many tokens
        self._spares: list[int] = []  # slots that hold nothing yet
        super().__init__(pool)

    @property
    def length(self) -> int:
        """Tokens that pages and state hold."""
        return self._tokens

    @length.setter
    def length(self, length: int) -> None:
        if length != self._tokens and length in self._trail and self.slot is not None:
            self._trail[self._tokens] = self.slot
            self.slot = self._trail.pop(length)
            self._marks = [mark for mark in self._marks if mark.position <= length]
        elif length < self._tokens:
            self.rewind(length)
        self._tokens = length

    def spare(self, count: int) -> bool:
        """As `PagedKvCache.spare`: have spare slots for so many rows. The states of a draft's long
        run make room for new ones, those of the fewest tokens first.
        """
        while len(self._spares) < count:
            if len(self._trail) < SLACK:
                try:
                    self._spares.append(self.states.alloc_spare())
                    continue
                except PoolError:
                    pass
            if not self._trail:
                return False
            self._spares.append(self._trail.pop(min(self._trail)))
        return True

    def trail(self, length: int, count: int) -> list[int]:
        """The slots that a step writes the states after `length` + 1 to `length` + `count` tokens
        to, of those that `spare` reserved. A sequence whose step was not finished must be released,
        or settled if it had candidates alone.
        """
        slots, self._spares = self._spares[:count], self._spares[count:]
        for position, slot in enumerate(slots, length + 1):
            if position in self._trail:  # of a step that was not finished
                self._spares.append(self._trail[position])
            self._trail[position] = slot
        return slots

    def drop(self, length: int) -> None:
        """As `PagedKvCache.drop`: go back to a state in a spare slot, or as `truncate` does."""
        if length in self._trail:
            self.length = length
        else:
            self.truncate(length)

    def settle(self) -> None:
        """Keep the state after `length` tokens alone."""
        self.states.release_spares([*self._trail.values(), *self._spares])
        self._trail, self._spares = {}, []

    def reserve(self, length: int, *, bare: int = 0) -> None:
        """As `PagedKvCache.reserve`, and a slot with the state after `self.length` tokens."""
        if length <= self.writable:
            return
        if self.slot is None:
            self.slot = self.states.alloc()
        if self._waiting is not None:
            self.states.load(self.slot, self._waiting)
            self._waiting = None
        super().reserve(length, bare=bare)

    def mark(self) -> Checkpoint | None:
        """Take a checkpoint here, unless there is one; None for an empty sequence."""
        self._marks = [mark for mark in self._marks if mark.data is not None]
        found = next((mark for mark in self._marks if mark.position == self._tokens), None)
        if found is None and self.slot is not None and self._tokens and self._waiting is None:
            found = self.states.checkpoint(self.slot, self._tokens)
            self._marks.append(found)
        return found

    def _nearest(self, length: int) -> Checkpoint | None:
        """The last checkpoint at or before a position."""
        held = (mark for mark in self._marks if mark.data is not None and mark.position <= length)
        return max(held, key=lambda mark: mark.position, default=None)

    def truncate(self, length: int) -> None:
        """Drop positions from `length` on, and earlier ones back to the nearest checkpoint."""
        if not 0 <= length <= self._tokens:
            raise PoolError(f"truncate: found length {length}, wanted 0 to {self._tokens}")
        self.settle()
        if length < self._tokens:
            mark = self._nearest(length)
            self._waiting = None if mark is None else self.states.use(mark)
            length = self._tokens = 0 if mark is None else mark.position
            self._marks = [each for each in self._marks if each.position <= length]
        super().truncate(length)

    def rewind(self, length: int) -> None:
        """Go back to exactly `length` positions; NotSupported if there is no checkpoint."""
        if not 0 <= length <= self._tokens:
            raise PositionBeyondEnd(f"rewind: found position {length}, wanted 0 to {self._tokens}")
        mark = self._nearest(length)
        if 0 < length < self._tokens and (mark is None or mark.position != length):
            raise NotSupported(
                f"rewind: no checkpoint at position {length}, wanted one of "
                f"{[m.position for m in self._marks]}"
            )
        self.truncate(length)

    def adopt(
        self, pages: list[int], length: int, checkpoint: Checkpoint | None = None, *, shed: int = 0
    ) -> None:
        """As `PagedKvCache.adopt`, with the checkpoint of the state after `length` tokens."""
        data = None if checkpoint is None else self.states.use(checkpoint)
        if data is None or checkpoint is None or checkpoint.position != length:
            raise PoolError(f"adopt: found no state after {length} tokens, wanted its checkpoint")
        super().adopt(pages, length, shed=shed)
        self._waiting, self._marks = data, [checkpoint]

    def fork(self, length: int | None = None) -> SequenceState:
        """Another sequence with the first `length` (default: all) positions, or those up to the
        nearest checkpoint before.
        """
        length = self._tokens if length is None else length
        if not 0 <= length <= self._tokens:
            raise PoolError(f"fork: found length {length}, wanted 0 to {self._tokens}")
        data = self._waiting
        if length < self._tokens:
            mark = self._nearest(length)
            data, length = (None, 0) if mark is None else (self.states.use(mark), mark.position)
        elif data is None and self.slot is not None and length:
            data = self.states.save(self.slot)
        twin = SequenceState(self.pool, self.states)
        twin.pages = self.shareable_pages()[: -(-length // self.pool.page_size)]
        twin._tokens, twin._waiting = length, data
        twin._marks = [mark for mark in self._marks if mark.position <= length]
        self.pool.share_all(twin.pages)
        return twin

    def release(self) -> None:
        """Release pages and slots; the sequence is empty and can be used again."""
        self.settle()
        if self.slot is not None:
            self.states.release(self.slot)
        self.slot, self._waiting, self._marks, self._tokens = None, None, [], 0
        super().release()
