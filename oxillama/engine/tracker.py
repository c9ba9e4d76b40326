"""Requests in flight: how one begins, and every end it may have. What is done here is done under
the engine's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from oxillama.engine.allocator import PageAllocator
from oxillama.engine.images import spans_of
from oxillama.engine.metrics import EngineMetrics
from oxillama.engine.pages import KvCachePool
from oxillama.engine.request import Request
from oxillama.engine.scheduler import ScheduleEntry, Scheduler
from oxillama.errors import EngineError, PoolError


class RequestTracker:
    """The requests that were submitted and have not ended. undrafted: those that speculate and
    have no candidates for their next step yet.
    """

    def __init__(
        self,
        pool: KvCachePool,
        allocator: PageAllocator,
        scheduler: Scheduler,
        counters: EngineMetrics,
        vocab_size: int,
        run: Callable[[Callable[[], None]], None],
    ) -> None:
        """run: runs a function beside the loop."""
        self.whole = False  # all tokens of a request are of one step
        self.in_flight: set[Request] = set()
        self.undrafted: dict[Request, None] = {}
        self._run = run
        self._pool, self._allocator, self._scheduler, self._counters, self._vocab_size = (
            pool,
            allocator,
            scheduler,
            counters,
            vocab_size,
        )

    def begin(self, request: Request) -> np.ndarray | None:
        """Make an entry of a submitted request and queue it; returns the logits it goes on from,
        where its session has them.
        """
        session = request.session
        if request.stopping or request.done:
            self.end(request, request.stopping)
            return None
        tokens, kv = session.tokens, session.kv
        if request.kind == "generate" and request.on_rows is not None:
            # every row is reported: those that were evaluated before, too
            kv.truncate(0)
        pending = (
            session.pending if request.kind == "generate" and kv.length == len(tokens) else None
        )
        if pending is None and kv.length >= len(tokens):
            # the last token again, for its logits
            kv.truncate(len(tokens) - 1)
        session.pending = None
        entry = ScheduleEntry(len(tokens), done=kv.length, priority=request.priority, owner=request)
        entry.spans = spans_of(session.images)
        request.entry = entry
        if request.on_rows is not None:
            entry.every_row = True
            entry.hidden = request.hidden
            request.delivered = entry.done
            if self.whole:
                entry.whole = True
            else:
                entry.row_limit = max(1, (32 << 20) // (4 * max(1, self._vocab_size)))
        self._scheduler.add(entry)
        return pending

    def restart(self, request: Request) -> None:
        """Send a running entry back to prefill what its pages lack."""
        entry = request.entry
        self._scheduler.finish(entry)
        entry.done, entry.spans = request.session.kv.length, spans_of(request.session.images)
        self._scheduler.add(entry)

    def end(self, request: Request, reason: str | None, error: BaseException | None = None) -> None:
        """Take a request out of the engine and tell its callers; the first end counts.

        Where memory for that is refused, it is done once more, with the refusal as the cause: every
        part of it may run twice.
        """
        if request not in self.in_flight:
            return
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
        """The end of a request in the counters, once."""
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
        """What a request held goes where it belongs, and its session is idle."""
        session = request.session
        if request.entry is not None:
            self._scheduler.finish(request.entry, everywhere=error is not None)
        if request.beams is not None:
            request.beams.close()
        kept = session in self._allocator.sessions
        if error is None:
            self._allocator.store(request, whole_pages=kept)
        if request.kind == "extend" and request.value is None:
            # here: once it is idle somebody else may append to it
            session.cut(request.before)
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
        """Those who still wait for the prompt of a request that has ended: one of them evaluates
        it, or all end of the same error.
        """
        waiting = [each for each in request.siblings if each in self.in_flight]
        for at, each in enumerate(waiting):
            if error is not None:
                self.end(each, reason, error)
            # it has no siblings: whoever lives evaluates the prompt
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
        """A request that is alone and cannot be given its pages will never be."""
        entry = self._scheduler.starved
        if entry is not None:
            need = -(-entry.length // self._pool.page_size) * max(1, entry.width)
            self.end(
                entry.owner,
                None,
                PoolError(
                    f"page pool: {entry.length} tokens need {need} pages, {self._pool.max_pages or self._pool.memory.capacity} is all there is, "
                    f"{self._pool.pages_used} of them owned"
                ),
            )

    def end_stopped(self) -> None:
        """End whoever was cancelled, or ran out of time, while a step ran."""
        for request in [each for each in self.in_flight if each.stopping]:
            self.end(request, request.stopping)

    def end_step(self, requests: Iterable[Request], cause: MemoryError) -> None:
        """End the requests of a step that memory was refused for; each gets an error of its own."""
        for request in requests:
            own = MemoryError(f"request: memory was refused in its step; {cause}".rstrip("; "))
            own.__cause__ = cause
            self.end(request, None, own)

    def end_all(self, failure: EngineError | None) -> None:
        """End everybody, as cancelled, or because of what broke the loop."""
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
