"""What can go back to an earlier position: pages at once, recurrent state through checkpoints, and
what can do neither says so.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from oxillama.errors import NotSupported, PositionBeyondEnd, RewindError

__all__ = [
    "NotSupported",
    "PositionBeyondEnd",
    "Rewindable",
    "RewindError",
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
    past is one state, cannot: its sequences go back to checkpoints and are evaluated again from there.
    """
    return bool(getattr(memory, "rewindable", True)) and not getattr(memory, "slot_layers", ())
