"""Tells an event loop what happened in the engine's thread: many rings of one step cost one write
to the loop's pipe, and streams take no more than their share of the machine.

Whoever writes a stream is woken at once for its first piece and its end. In between, what comes is
written out in rounds: a round that took so many seconds of the processor is followed by a pause of
`_PAUSE` times as many, at most `_LONGEST`, so that the more there is to write, the more goes out in
one piece. While a round runs, a worker of the engine has no core, and the others wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

_PAUSE = 100.0  # times a round: what is written takes 1 % of a core
_LONGEST = 0.2  # seconds


class Bell:
    """Wakes the one task that waits for it; rung from any thread. However often it is rung before
    the task runs, it costs one wake-up.
    """

    __slots__ = ("_future", "_heard", "_loop", "rung")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] | None = None
        self._heard = False  # by the event loop, not yet by the task
        self.rung = False  # it waits for the next round

    def clear(self) -> None:
        """Forget what was rung so far: whoever looks next sees what it was rung for."""
        self._heard = False

    async def wait(self) -> None:
        """Wait until it is rung, or was since it was cleared."""
        if self._heard:
            return
        self._future = self._loop.create_future()
        try:
            await self._future
        finally:
            self._future = None

    def hear(self) -> None:
        """Wake the task; in the loop's thread."""
        # first: what is rung for after this is rung again
        self.rung = False
        self._heard = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class Waker:
    """Rings the bells of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._at_once: deque[Bell] = deque()
        self._in_turn: deque[Bell] = deque()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None

    def bell(self) -> Bell:
        """A bell of this loop."""
        return Bell(self._loop)

    def ring(self, bell: Bell, *, at_once: bool = True) -> None:
        """Let the loop's thread hear a bell: soon, or in the next round."""
        if at_once:
            self._at_once.append(bell)
        elif bell.rung:
            return
        else:
            bell.rung = True
            self._in_turn.append(bell)
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
            self._at_once.popleft().hear()
        if not self._in_turn or self._timer is not None:
            return
        self._round()

    def _round(self) -> None:
        began = time.thread_time()
        # until the round is over: what comes meanwhile waits for the next
        self._timer = self._loop.call_later(_LONGEST, self._pause_over)
        while self._in_turn:
            self._in_turn.popleft().hear()
        # whoever was woken runs before this, and what they wrote goes out
        self._loop.call_soon(self._loop.call_soon, self._round_over, began)

    def _round_over(self, began: float) -> None:
        took = time.thread_time() - began
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(min(_LONGEST, _PAUSE * took), self._pause_over)

    def _pause_over(self) -> None:
        self._timer = None
        if self._in_turn:
            self._round()
