"""Threads for Python functions of callers: logits processors, listeners, drafters.

    loop     draw A   step   step        draw A        a slow function delays its own request,
    worker        [ processor of A ]                   and no other

A function has a thread to itself while it runs. Threads are reused and end after some idle seconds.
They are daemon threads, so a function that never returns does not delay the end of the interpreter.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from oxillama.errors import starting_thread

IDLE_SECONDS = 5.0


class Workers:
    """Runs functions without arguments, each at once and in its own thread."""

    __slots__ = ("_calls", "_closed", "_idle", "_lock", "_threads")

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closed = False
        self._idle = 0  # threads that wait and were given nothing
        self._lock = threading.Lock()
        self._threads: set[int] = set()

    @property
    def current(self) -> bool:
        """Whether the calling thread is one of these."""
        return threading.get_ident() in self._threads

    def run(self, call: Callable[[], None]) -> None:
        """Run `call()`, which must not raise, and return at once; EngineError if the system refuses
        a thread.
        """
        with self._lock:
            if self._idle:
                self._idle -= 1
                self._calls.put(call)
                return
        thread = threading.Thread(
            target=self._work, args=([call],), name="oxillama worker", daemon=True
        )
        with starting_thread():
            thread.start()

    def run_quietly(self, call: Callable[[], None]) -> None:
        """Run `call()` for which no caller waits: exceptions go to `threading.excepthook`, and it
        is not called if the system refuses a thread.
        """

        def quietly() -> None:
            try:
                call()
            except BaseException:
                with suppress(BaseException):
                    threading.excepthook(
                        threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
                    )

        with suppress(RuntimeError):
            self.run(quietly)

    def close(self) -> None:
        """End the idle threads; busy ones end with their function."""
        with self._lock:
            self._closed = True
            for _ in range(self._idle):
                self._calls.put(None)
            self._idle = 0

    def _work(self, first: list[Callable[[], None]]) -> None:
        me = threading.get_ident()
        self._threads.add(me)
        try:
            call: Callable[[], None] | None = first.pop()
            while call is not None:
                call()
                call = None  # what it held may go
                with self._lock:
                    if self._closed:
                        return
                    self._idle += 1
                call = self._next()
        finally:
            self._threads.discard(me)

    def _next(self) -> Callable[[], None] | None:
        while True:
            try:
                return self._calls.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        return None
