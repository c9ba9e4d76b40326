"""What can go back to an earlier position: pages at once, recurrent state through checkpoints, and
what can do neither says so.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Protocol, runtime_checkable

from oxillama.engine.states import SsmStatePool
from oxillama.errors import NotSupported, PositionBeyondEnd, RewindError

__all__ = [
    "NotSupported",
    "PositionBeyondEnd",
    "Rewindable",
    "RewindError",
    "StateCheckpoints",
    "rewindable",
]


@runtime_checkable
class Rewindable(Protocol):
    """Something that holds a past of `length` positions and can forget its end."""

    @property
    def length(self) -> int:
        """Positions held."""

    def rewind(self, length: int) -> None:
        """Hold the first `length` positions alone; PositionBeyondEnd for more than there are,
        NotSupported where it cannot be done.
        """


def rewindable(memory: Any) -> bool:
    """Whether sequences in this memory can forget their end. Memory of a recurrent model, whose
    past is one state, says it cannot.
    """
    return bool(getattr(memory, "rewindable", True))


class StateCheckpoints:
    """A recurrent sequence that can go back: its state before each of the last positions, copied
    aside.

    pool, slot: where the state lives. keep: checkpoints held; a rewind must reach one of them, or
    the end.
    """

    __slots__ = ("_keep", "_pool", "_saved", "_slot", "length")

    def __init__(self, pool: SsmStatePool, slot: int, *, keep: int = 17) -> None:
        self._pool, self._slot, self._keep = pool, slot, keep
        self._saved: OrderedDict[int, list] = OrderedDict()
        self.length = 0

    def mark(self) -> None:
        """Keep the state as it stands, at the present length."""
        self._saved[self.length] = self._pool.save(self._slot)
        while len(self._saved) > self._keep:
            self._saved.popitem(last=False)

    def advance(self, positions: int) -> None:
        """Say that the state has taken in so many more positions."""
        self.length += positions

    def rewind(self, length: int) -> None:
        """Put the state back to where it was after `length` positions."""
        if length > self.length or length < 0:
            raise PositionBeyondEnd(f"rewind: found position {length}, wanted 0 to {self.length}")
        if length == self.length:
            return
        if length not in self._saved:
            raise NotSupported(
                f"rewind: no checkpoint at position {length}, wanted one of {list(self._saved)}"
            )
        self._pool.load(self._slot, self._saved[length])
        for position in [each for each in self._saved if each > length]:
            del self._saved[position]
        self.length = length
