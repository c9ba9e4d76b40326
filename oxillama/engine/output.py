"""What a finished step gives to whom: the rows of a plan are dealt out, tokens drawn from them,
candidates kept or let go.

Called by the engine's loop, under its lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import numpy as np

from oxillama.engine.allocator import PageAllocator
from oxillama.engine.groups import SequenceGroups
from oxillama.engine.metrics import EngineMetrics
from oxillama.engine.postprocess import advance
from oxillama.engine.request import Request
from oxillama.engine.scheduler import ScheduleEntry, Scheduler, State
from oxillama.engine.tracker import RequestTracker
from oxillama.engine.workers import Workers

Call = Callable[[], Any]


class OutputProcessor:
    """Deals out the rows of steps."""

    def __init__(
        self,
        allocator: PageAllocator,
        tracker: RequestTracker,
        scheduler: Scheduler,
        counters: EngineMetrics,
        *,
        context_size: int,
        workers: Workers,
        post: Callable[[tuple], None],
    ) -> None:
        """post: puts (function, request, ...) into the loop's inbox, from any thread."""
        self._allocator, self._tracker, self._scheduler, self._counters = (
            allocator,
            tracker,
            scheduler,
            counters,
        )
        self._groups = SequenceGroups(tracker, scheduler, counters)
        self._context_size, self._workers, self._post = context_size, workers, post

    def begin(self, request: Request) -> None:
        """Queue a submitted request; one whose session has logits to go on from gets its first
        token at once.
        """
        try:
            pending = self._tracker.begin(request)
            if pending is None:
                return
            request.admitted_at = time.perf_counter()
            if request.has_callbacks:
                self.resume(request, self._turn(request, pending[None], ()))
            else:
                self.draw(request, pending, request.admitted_at)
        except BaseException as error:
            self._tracker.end(request, None, error)

    def process(
        self,
        plan: list[tuple[ScheduleEntry, int]],
        out: np.ndarray,
        start: float,
        now: float,
        *,
        representative: bool = True,
    ) -> None:
        """Commit what the step wrote, then sample and tell. representative: its seconds tell what other
        steps will take.
        """
        counters, at, prefilled, decoded = self._counters, 0, 0, 0
        for entry, rows in plan:
            request, first = entry.owner, entry.done
            if entry.width:
                decoded += rows
                at += self._groups.process_beams(
                    request,
                    out[at : at + rows] if first + 1 == entry.length else out[:0],
                    rows,
                    now,
                )
                continue
            done = first + rows
            take = (
                max(0, done - max(first, request.delivered))
                if entry.every_row
                else max(0, done + 1 - entry.length)
            )
            # of candidates nothing is known yet
            entry.done = request.session.kv.length = min(done, entry.length)
            if entry.state is State.DECODING:
                decoded += rows
            else:
                prefilled += rows
            try:
                self._serve(request, out[at : at + take], now)
            except BaseException as error:  # this request's own doing: its companions go on
                self._tracker.end(request, None, error)
            at += take
        counters.steps += 1
        counters.prefilled += prefilled
        share = prefilled / (prefilled + decoded)
        counters.prefill_seconds += (now - start) * share
        counters.decode_seconds += (now - start) * (1 - share)
        if not representative:
            return
        self._scheduler.observe(prefill_rows=prefilled, seconds=now - start, mixed=decoded > 0)

    def _serve(self, request: Request, rows: np.ndarray, now: float) -> None:
        """What one request gets out of a step: none, some or all of its rows."""
        entry = request.entry
        if request.stopping:
            self._tracker.end(request, request.stopping)
            return
        if entry.state is not State.DECODING:
            if len(rows) and entry.every_row and request.on_rows is not None:
                request.on_rows(entry.done - len(rows), rows)
                request.delivered = max(request.delivered, entry.done)
            if entry.done < entry.length:
                self._allocator.store(request, whole_pages=True)
                return
            if request.kind == "rows":
                self._tracker.end(request, "stop")
                return
            if request.kind == "extend":
                request.session.pending = request.value = rows[-1].copy()
                self._tracker.end(request, "stop")
                return
            entry.every_row = False
            self._allocator.store(request, whole_pages=True)
            if request.beams is not None:
                self._groups.end_turn(request, request.beams.begin(rows[-1]), now)
                return
            if request.siblings:
                self._groups.fork_siblings(request, rows[-1], self.begin)
        if not len(rows):  # forced tokens are still to run
            return
        draft, entry.draft = entry.draft[: len(rows) - 1], ()
        if request.has_callbacks:
            self.resume(request, self._turn(request, rows.copy(), draft))
        elif draft:
            self.resume(request, self._turn(request, rows, draft))
        else:
            self.draw(request, rows[-1], now)

    def _turn(
        self, request: Request, rows: np.ndarray, draft: Sequence[int]
    ) -> Generator[Call, Any, None]:
        """Draw from the row after the last token, then from the row after each candidate as long as
        the text goes on as it said.

        Yields what is to run beside the loop before it goes on, and is sent what that returned:
        processors, before each draw, and listeners, after it. Meanwhile others may have taken the
        request's pages; the rows are its own.
        """
        session, entry, tokens = request.session, request.entry, request.session.tokens
        start, at, going = entry.length, 0, True
        while going and start + at == len(tokens):
            if session.sampler.processors:
                row = rows[at]
                session.sampler.processed(row, (yield session.sampler.processing(row)))
            else:
                row = rows[at]
            self._keep_rows(request, start + at)
            reason = self._advance(request, row, time.perf_counter())
            if request.pending_calls:
                yield request.run_listeners
            going = self._after_draw(request, reason)
            while at < len(draft) and start + at < len(tokens) and tokens[start + at] == draft[at]:
                # forced tokens may have come along: more than one at a time
                at += 1
        if going:
            self._keep_rows(request, start + at)
        if request.speculation is not None and draft:
            # Where the text is over, candidates not looked at are neither right nor wrong.
            request.speculation.verified(
                accepted=at,
                rejected=len(draft) - at if going else 0,
                bonus=at == len(draft) and len(tokens) > start + at,
            )

    def resume(self, request: Request, turn: Generator[Call, Any, None], value: Any = None) -> None:
        """Run a turn up to what it wants beside the loop, and see to that."""
        try:
            call = turn.send(value)
        except StopIteration:
            return
        self.call_worker(request, call, partial(self.resume, request, turn))

    def _keep_rows(self, request: Request, length: int) -> None:
        """So many tokens of a running request are in its pages, and what follows them there counts
        for nothing; where its pages were taken, none are.
        """
        if request.entry.state in (State.PREFILLING, State.DECODING):
            request.entry.done = request.session.kv.length = length

    def call_worker(self, request: Request, call: Call, then: Callable[[Any], None]) -> None:
        """Run `call()` in a worker while the request waits, then `then(its result)` in the loop;
        what it raises ends the request.
        """
        answer = self.park(request, then)

        def work() -> None:
            try:
                value = call()
            except BaseException as raised:
                answer(None, raised)
            else:
                answer(value, None)

        self._workers.run(work)

    def park(
        self, request: Request, then: Callable[[Any], None]
    ) -> Callable[[Any, BaseException | None], None]:
        """Give a request no rows until the function returned is called, in any thread, with (value,
        error): then the loop calls `then(value)`, or ends the request with the error. A request
        that ends meanwhile is not called back.
        """
        request.awaited_call = then
        self._scheduler.park(request.entry)

        def answer(value: Any, error: BaseException | None) -> None:
            self._post((self._returned, request, then, value, error))

        return answer

    def _returned(
        self,
        request: Request,
        then: Callable[[Any], None],
        value: Any,
        error: BaseException | None,
    ) -> None:
        """A call beside the loop has returned."""
        if request.awaited_call is not then:
            return
        request.awaited_call = None
        self._scheduler.unpark(request.entry)
        try:
            if error is not None:
                raise error
            then(value)
        except BaseException as raised:
            self._tracker.end(request, None, raised)

    def draw(self, request: Request, row: np.ndarray, now: float) -> bool:
        """Draw the next token of a request and do all that follows from it; False when its step is
        over for it.
        """
        return self._after_draw(request, self._advance(request, row, now))

    def _advance(self, request: Request, row: np.ndarray, now: float) -> str | None:
        """Draw the next token of a request, and those that its grammar forces after it; returns why
        it ends, None when it goes on.
        """
        entry = request.entry
        if request.token_at:
            self._counters.inter_token.observe(now - request.token_at)
        else:
            self._counters.first_token.observe(now - request.submitted_at)
            request.first_at = now
        request.token_at = now
        before = len(request.generated)
        reason = advance(request, row, self._context_size)
        drawn = len(request.generated) - before
        self._counters.generated += drawn
        if entry.state is State.DECODING:
            self._counters.decoded += drawn
        return reason

    def _after_draw(self, request: Request, reason: str | None) -> bool:
        """What follows from a draw for the request's next step; False when there is none."""
        session, entry = request.session, request.entry
        if reason is not None:
            self._tracker.end(request, reason)
            return False
        entry.length = len(session.tokens)
        # the context was shifted: evaluate what moved
        if session.kv.length < entry.done:
            self._tracker.restart(request)
            return False
        self._scheduler.start_decoding(entry)
        speculation = request.speculation
        if speculation is not None:
            if speculation.rest:  # nothing would pay: no time is spent on asking
                speculation.rest -= 1
            else:
                self._tracker.undrafted[request] = None
        return True
