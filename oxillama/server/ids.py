"""Ids that cannot be guessed. Random bytes are fetched from the system many at a time, because each
system call lets other threads run, and under load a request would wait for its turn after each.
"""

from __future__ import annotations

import os
from collections import deque

_BYTES, _AT_ONCE = 12, 512
_ready: deque[bytes] = deque()


# a forked child draws its own, or it would give out its parent's
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ready.clear)


def new_id(prefix: str = "") -> str:
    """The prefix and 24 hexadecimal digits."""
    return prefix + _next().hex()


def new_number() -> int:
    """An integer of 31 bits."""
    return int.from_bytes(_next()[:4], "little") >> 1


def _next() -> bytes:
    while True:
        try:
            return _ready.popleft()
        except IndexError:
            data = os.urandom(_BYTES * _AT_ONCE)
            _ready.extend(data[at : at + _BYTES] for at in range(0, len(data), _BYTES))
