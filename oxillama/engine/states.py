"""Slots of recurrent state: fixed-size memory per sequence for models whose past is a state, not
pages.

Invariants (tests cite them by number):

1. A slot is either free or owned by exactly one caller; releasing a free or unknown slot raises
`InvalidSlot`. 2. A slot is zero when it is handed out, whatever its last owner left there. 3. When
every slot is released, `used` is 0.
"""

from __future__ import annotations

import numpy as np

from oxillama.errors import Exhausted, InvalidSlot, PoolError


class SequencePool:
    """`capacity` numbered slots: `alloc` gives one, `release` takes it back."""

    __slots__ = ("_free", "_owned", "capacity")

    def __init__(self, capacity: int) -> None:
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise PoolError(f"capacity: found {capacity!r}, wanted an integer of 1 or more")
        self.capacity = capacity
        self._free = list(range(capacity - 1, -1, -1))
        self._owned = bytearray(capacity)

    @property
    def used(self) -> int:
        """Slots that somebody owns."""
        return self.capacity - len(self._free)

    def alloc(self) -> int:
        """A free slot, lowest first on a fresh pool; raises Exhausted when there is none."""
        if not self._free:
            raise Exhausted(
                f"sequence pool: all {self.capacity} slots are owned, wanted a free one"
            )
        slot = self._free.pop()
        self._owned[slot] = 1
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back; raises InvalidSlot unless it is owned."""
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
                f"slot {slot!r}: nobody owns it, wanted an owned slot (0 to {self.capacity - 1})"
            )


class SsmStatePool:
    """Recurrent state of every slot: one float32 array per layer, shape (capacity, *layer_shape),
    zeroed when a slot is handed out.
    """

    __slots__ = ("layers", "slots")

    def __init__(self, capacity: int, layer_shapes: list[tuple[int, ...]]) -> None:
        self.slots = SequencePool(capacity)
        self.layers = [np.zeros((capacity, *shape), np.float32) for shape in layer_shapes]

    @property
    def memory_bytes(self) -> int:
        """Bytes of all slots."""
        return sum(layer.nbytes for layer in self.layers)

    @property
    def used(self) -> int:
        """Slots that somebody owns."""
        return self.slots.used

    def alloc(self) -> int:
        """A zeroed slot; raises Exhausted when there is none."""
        slot = self.slots.alloc()
        for layer in self.layers:
            layer[slot] = 0
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back; raises InvalidSlot unless it is owned."""
        self.slots.release(slot)

    def save(self, slot: int) -> list[np.ndarray]:
        """Copies of a slot's state, layer by layer: a checkpoint."""
        self.slots.check(slot)
        return [layer[slot].copy() for layer in self.layers]

    def load(self, slot: int, checkpoint: list[np.ndarray]) -> None:
        """Put a checkpoint of `save` into a slot."""
        self.slots.check(slot)
        found, wanted = (
            [saved.shape for saved in checkpoint],
            [layer.shape[1:] for layer in self.layers],
        )
        if found != wanted:
            raise PoolError(f"checkpoint: found shapes {found}, wanted {wanted}")
        for layer, saved in zip(self.layers, checkpoint):
            layer[slot] = saved
