"""Tells an event loop what happened in the engine's thread: many wake-ups of one step cost one
write to the loop's pipe, and streams take no more than their share of the machine.

Whoever writes a stream is woken at once for its first piece and its end. In between, what comes is
written out in rounds: a round that took so many seconds is followed by a pause of `_PAUSE` times as
many, at most `_LONGEST`, so that the more there is to write, the more goes out in one piece.
"""

from __future__ import annotations

import asyncio
from collections import deque

_PAUSE = 40.0  # times a round: what is written takes 2.5 % of the time
_LONGEST = 0.2  # seconds


class Waker:
    """Sets events of one loop from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._at_once: deque[asyncio.Event] = deque()
        self._in_turn: deque[asyncio.Event] = deque()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None

    def wake(self, event: asyncio.Event, *, at_once: bool = True) -> None:
        """Set an event in the loop's thread: soon, or in the next round."""
        (self._at_once if at_once else self._in_turn).append(event)
        # in the pause after a round a timer is set, which takes what has come meanwhile
        if not self._scheduled and (at_once or self._timer is None):
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._run)
            except RuntimeError:
                if not self._loop.is_closed():
                    raise

    def _run(self) -> None:
        # first: what comes after the last look schedules another one
        self._scheduled = False
        while self._at_once:
            self._at_once.popleft().set()
        if not self._in_turn or self._timer is not None:
            return
        self._round()

    def _round(self) -> None:
        began = self._loop.time()
        # until the round is over: what comes meanwhile waits for the next
        self._timer = self._loop.call_later(_LONGEST, self._pause_over)
        while self._in_turn:
            self._in_turn.popleft().set()
        # whoever was woken runs before this, and what they wrote goes out
        self._loop.call_soon(self._loop.call_soon, self._round_over, began)

    def _round_over(self, began: float) -> None:
        now = self._loop.time()
        if self._timer is not None:
            self._timer.cancel()
        pause = min(_LONGEST, _PAUSE * (now - began))
        self._timer = self._loop.call_later(pause, self._pause_over)

    def _pause_over(self) -> None:
        self._timer = None
        if self._in_turn:
            self._round()
