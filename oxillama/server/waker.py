"""Tells an event loop what happened in the engine's thread: many wake-ups of one step cost one
write to the loop's pipe.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Waker:
    """Sets events of one loop from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready: deque[asyncio.Event] = deque()
        self._scheduled = False

    def wake(self, event: asyncio.Event) -> None:
        """Set an event soon, in the loop's thread."""
        self._ready.append(event)
        if not self._scheduled:
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._run)
            except RuntimeError:
                if not self._loop.is_closed():
                    raise

    def _run(self) -> None:
        # first: what comes after the last look schedules another one
        self._scheduled = False
        while self._ready:
            self._ready.popleft().set()
