"""Calls to a drafter outside the engine's loop: one at a time, in order."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable

Call = Callable[[], None]


class SerialCalls:
    """Runs functions one after another in a thread that is used while there are any. A function
    that never returns delays only those behind it.

    starter: starts a function in a thread (`Workers.run`).
    """

    __slots__ = ("_lock", "_running", "_starter", "_waiting")

    def __init__(self, starter: Callable[[Call], None]) -> None:
        self._starter = starter
        self._lock = threading.Lock()
        self._waiting: deque[Call] = deque()
        self._running = False

    def run(self, call: Call) -> None:
        """Run `call()` after the earlier ones; an exception goes to `threading.excepthook`. Where
        no thread could be started, the call is dropped and the error raised.
        """
        with self._lock:
            self._waiting.append(call)
            if self._running:
                return
            self._running = True
        try:
            self._starter(self._work)
        except BaseException:
            with self._lock:  # later calls try again
                self._running = False
                self._waiting.remove(call)
            raise

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    return
                call = self._waiting.popleft()
            try:
                call()
            except BaseException:
                threading.excepthook(
                    threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
                )
