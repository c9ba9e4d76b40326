"""The pieces of a prompt for images and clips that come again, as those of a conversation do."""

from __future__ import annotations

import threading
from collections import OrderedDict

from oxillama.media.features import MediaFeatures

# bytes of features that are kept
KEPT_BYTES = 64 << 20

Pieces = tuple["str | MediaFeatures", ...]


class KeptPieces:
    """The latest pieces by the hash of what they are made of; safe to use from any thread."""

    __slots__ = ("_held", "_lock", "_nbytes")

    def __init__(self) -> None:
        self._held: OrderedDict[bytes, Pieces] = OrderedDict()
        self._lock = threading.Lock()
        self._nbytes = 0

    def get(self, key: bytes) -> Pieces | None:
        """The pieces under a hash, None if they are not held."""
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def keep(self, key: bytes, pieces: Pieces) -> Pieces:
        """Hold pieces, and let go of those that were asked for the longest time ago."""
        with self._lock:
            if key not in self._held:
                self._held[key] = pieces
                self._nbytes += _nbytes(pieces)
            while self._nbytes > KEPT_BYTES:
                self._nbytes -= _nbytes(self._held.popitem(last=False)[1])
        return pieces


def _nbytes(pieces: Pieces) -> int:
    return sum(each.nbytes for each in pieces if isinstance(each, MediaFeatures))
