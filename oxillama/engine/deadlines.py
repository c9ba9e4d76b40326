"""When the time of requests is over: one thread that sleeps until the next deadline, and is there
only while there are any.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from itertools import count
from weakref import WeakMethod, ref

from oxillama.engine.request import Request


class Deadlines:
    """Calls `expire(request)` once a request has been in flight for its `timeout`, unless it has
    ended.
    """

    __slots__ = ("_changed", "_expire", "_heap", "_number", "_running")

    def __init__(self, expire: Callable[[Request], None]) -> None:
        self._expire = WeakMethod(expire)  # its thread keeps no engine alive
        # (when, a number that orders equal ones, the request), the next one first
        self._heap: list[tuple[float, int, ref[Request]]] = []
        self._number = count()
        self._changed = threading.Condition()
        self._running = False

    def add(self, request: Request, seconds: float) -> None:
        """End a request in so many seconds."""
        with self._changed:
            if len(self._heap) > 64 and len(self._heap) & (len(self._heap) - 1) == 0:
                self._heap = [each for each in self._heap if _alive(each[2]) is not None]
                heapq.heapify(self._heap)
            entry = (time.monotonic() + seconds, next(self._number), ref(request))
            heapq.heappush(self._heap, entry)
            if not self._running:
                threading.Thread(target=self._watch, name="oxillama deadlines", daemon=True).start()
                self._running = True
            elif self._heap[0] is entry:
                self._changed.notify()

    def close(self) -> None:
        """Forget all deadlines."""
        with self._changed:
            self._heap.clear()
            self._changed.notify()

    def _watch(self) -> None:
        while True:
            with self._changed:
                while self._heap and _alive(self._heap[0][2]) is None:
                    heapq.heappop(self._heap)
                if not self._heap:
                    self._running = False
                    return
                left = self._heap[0][0] - time.monotonic()
                if left > 0:
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))
                    continue
                request = heapq.heappop(self._heap)[2]()
            expire = self._expire()
            if request is not None and expire is not None:
                expire(request)
            request = expire = None


def _alive(entry: ref[Request]) -> Request | None:
    """The request, None for one that is gone or has ended."""
    request = entry()
    return None if request is None or request.done else request
