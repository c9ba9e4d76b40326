"""Requests in flight: `RequestTracker` begins and ends them under the engine's lock; `Deadlines`
ends those whose time is over.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterable
from itertools import count
from weakref import WeakMethod, ref

import numpy as np

from oxillama.engine.allocator import PageAllocator
from oxillama.engine.metrics import EngineMetrics
from oxillama.engine.request import GenerateRequest, Request
from oxillama.engine.scheduler import ScheduleEntry
from oxillama.errors import EngineError, PagingError, PoolError, starting_thread
from oxillama.media.placement import spans_of


class RequestTracker:
    """The requests that were submitted and have not ended. undrafted: speculating requests without
    candidates for their next step.
    """

    def __init__(
        self,
        allocator: PageAllocator,
        counters: EngineMetrics,
        vocab_size: int,
        run: Callable[[Callable[[], None]], None],
        *,
        whole: bool,
    ) -> None:
        """run: runs a function in a worker thread. whole: all tokens of a request are of one
        step.
        """
        self.in_flight: set[Request] = set()
        self.undrafted: dict[Request, None] = {}
        self._run = run
        self._allocator, self._scheduler = allocator, allocator.scheduler
        self._counters, self._vocab_size, self._whole = counters, vocab_size, whole

    def begin(self, request: Request) -> np.ndarray | None:
        """Make an entry for a submitted request and queue it; returns the logits to continue from,
        if its session has them.
        """
        session = request.session
        if request.stopping or request.done:
            self.end(request, request.stopping)
            return None
        tokens, kv = session.tokens, session.kv
        pending = request.start()
        if pending is None and kv.length >= len(tokens):
            # the last token again, for its logits
            kv.truncate(len(tokens) - 1)
        session.pending = None
        entry = ScheduleEntry(len(tokens), done=kv.length, priority=request.priority, owner=request)
        entry.spans = spans_of(session.media)
        request.entry = entry
        if request.fill is not None:
            entry.every_row = entry.whole = True
            entry.fill = request.fill.next
            entry.length = len(request.fill.tokens)
        elif request.on_rows is not None:
            entry.every_row = True
            entry.hidden = request.hidden
            request.delivered = entry.done
            if self._whole:
                entry.whole = True
            else:
                entry.row_limit = max(1, (32 << 20) // (4 * max(1, self._vocab_size)))
        self._scheduler.add(entry)
        return pending

    def restart(self, request: Request) -> None:
        """Put a running entry back into prefill, for positions without pages."""
        entry = request.entry
        self._scheduler.finish(entry)
        entry.done, entry.spans = request.session.kv.length, spans_of(request.session.media)
        entry.width, entry.part, entry.draft = 0, 0, ()
        self._scheduler.add(entry)

    def end(self, request: Request, reason: str | None, error: BaseException | None = None) -> None:
        """Remove a request from the engine and notify its callers; only the first end counts.

        If an allocation fails on the way, it is done once more with that error as the cause, so
        every part may run twice.
        """
        if request not in self.in_flight:
            return
        if error is None:
            reason = request.outcome or reason
        try:
            self._end(request, reason, error)
        except MemoryError as refused:
            self._end(request, reason, error or refused)

    def _end(self, request: Request, reason: str | None, error: BaseException | None) -> None:
        self.undrafted.pop(request, None)
        request.awaited_call = None
        self._release(request, error)
        own = error
        if request.speculation is not None:
            try:
                request.speculation.close(len(request.generated))
            # a drafter's doing, and no business of those who wait for the prompt
            except BaseException as raised:
                own = error or raised
        if request.end(reason, own):
            self._run(request.run_end_listeners)
        self._reassign_prompt(request, reason, error)
        self._count(request)

    def _count(self, request: Request) -> None:
        """Count the end of a request, once."""
        self.in_flight.discard(request)
        counters = self._counters
        if request.error is not None:
            counters.failed += 1
        elif request.finish_reason == "cancelled":
            counters.cancelled += 1
        else:
            counters.timed_out += request.finish_reason == "timeout"
            counters.completed += 1

    def _release(self, request: Request, error: BaseException | None) -> None:
        """Release everything a request held; its session becomes idle."""
        session = request.session
        if request.entry is not None:
            self._scheduler.finish(request.entry, everywhere=error is not None)
        request.close_forks()
        kept = session in self._allocator.sessions
        if error is None:
            self._allocator.store(request, whole_pages=kept)
        request.roll_back()  # here: once the session is idle, others may append to it
        if kept:
            self._allocator.keep(session)  # now the one used last
            # without pages that were reserved for a step that never was
            session.kv.truncate(session.kv.length)
        else:
            session.release_pages()
        session.busy = False

    def _reassign_prompt(
        self, request: Request, reason: str | None, error: BaseException | None
    ) -> None:
        """Requests that wait for the prompt of an ended request: one of them evaluates it, or all
        end with the same error.
        """
        if not isinstance(request, GenerateRequest):
            return
        waiting = [each for each in request.siblings if each in self.in_flight]
        for at, each in enumerate(waiting):
            if error is not None:
                self.end(each, reason, error)
            # it has no siblings: a remaining request evaluates the prompt
            elif each.stopping:
                self.end(each, each.stopping)
            else:
                each.siblings = tuple(waiting[at + 1 :])
                try:
                    self.begin(each)
                except MemoryError as refused:
                    self.end(each, None, refused)
                break
        request.siblings = ()

    def end_starved(self) -> None:
        """End a request that runs alone and still cannot get its pages."""
        entry, pool = self._scheduler.starved, self._allocator.pool
        if entry is not None:
            rows = self._scheduler.config.max_batch_tokens
            need = max(1, entry.width) * pool.whole_pages(
                -(-entry.length // pool.page_size), pool.near_pages(entry.length, rows)
            )
            if pool.max_pages is None:
                found = f"the system gave memory for {pool.memory.capacity}"
            else:
                found = f"{pool.max_pages} is all there is"
            self.end(
                entry.owner,
                None,
                PoolError(
                    f"page pool: {entry.length} tokens need {need} pages, {found}, "
                    f"{pool.pages_used} of them owned"
                ),
            )

    def end_stopped(self) -> None:
        """End the requests that were cancelled or timed out while a step ran."""
        for request in [each for each in self.in_flight if each.stopping]:
            self.end(request, request.stopping)

    def end_step(self, requests: Iterable[Request], cause: MemoryError | PagingError) -> None:
        """End the requests of a step whose memory could not be allocated or whose weights could not
        be read, each with an error of its own.
        """
        for request in requests:
            own: MemoryError | PagingError
            if isinstance(cause, PagingError):
                own = PagingError(str(cause), errno=cause.errno)
            else:
                own = MemoryError(f"request: memory was refused in its step; {cause}".rstrip("; "))
            own.__cause__ = cause
            self.end(request, None, own)

    def end_all(self, failure: EngineError | None) -> None:
        """End all requests, as cancelled or with the error that stopped the loop."""
        for request in list(self.in_flight):
            if failure is None:
                self.end(request, "cancelled")
                continue
            own = type(failure)(str(failure))
            own.__cause__ = failure.__cause__
            try:
                self.end(request, None, own)
            except Exception:  # what holds the pages may be what broke
                self.in_flight.discard(request)
                if request.end(None, own):
                    self._run(request.run_end_listeners)


class Deadlines:
    """Calls `expire(request)` when a request has been in flight for its `timeout` and has not
    ended. Its one thread sleeps until the next deadline, and exists only while there are deadlines.
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
        """End a request after this many seconds."""
        with self._changed:
            if len(self._heap) > 64 and len(self._heap) & (len(self._heap) - 1) == 0:
                self._heap = [each for each in self._heap if _alive(each[2]) is not None]
                heapq.heapify(self._heap)
            entry = (time.monotonic() + seconds, next(self._number), ref(request))
            heapq.heappush(self._heap, entry)
            if not self._running:
                thread = threading.Thread(
                    target=self._watch, name="oxillama deadlines", daemon=True
                )
                with starting_thread():
                    thread.start()
                self._running = True
            elif self._heap[0] is entry:
                self._changed.notify()

    def close(self) -> None:
        """Drop all deadlines."""
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
    """The request; None if it was freed or has ended."""
    request = entry()
    return None if request is None or request.done else request
