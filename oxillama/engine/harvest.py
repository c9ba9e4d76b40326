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

from oxillama.engine.metrics import EngineMetrics
from oxillama.engine.postprocess import advance
from oxillama.engine.register import Register
from oxillama.engine.request import Request
from oxillama.engine.room import Room
from oxillama.engine.scheduler import Scheduler, State, Ticket
from oxillama.engine.together import Together
from oxillama.engine.workers import Workers

Call = Callable[[], Any]


class Harvest:
    """Deals out the rows of steps."""

    def __init__(
        self,
        room: Room,
        register: Register,
        scheduler: Scheduler,
        counters: EngineMetrics,
        *,
        context_size: int,
        workers: Workers,
        post: Callable[[tuple], None],
    ) -> None:
        """post: puts (function, request, ...) into the loop's inbox, from any thread."""
        self._room, self._register, self._scheduler, self._counters = (
            room,
            register,
            scheduler,
            counters,
        )
        self._together = Together(register, scheduler, counters)
        self._context_size, self._workers, self._post = context_size, workers, post

    def begin(self, request: Request) -> None:
        """Queue a submitted request; one whose session has logits to go on from gets its first
        token at once.
        """
        try:
            pending = self._register.begin(request)
            if pending is None:
                return
            request.admitted_at = time.perf_counter()
            if request.outside:
                self.go_on(request, self._turn(request, pending[None], ()))
            else:
                self.draw(request, pending, request.admitted_at)
        except BaseException as error:
            self._register.end(request, None, error)

    def reap(
        self,
        plan: list[tuple[Ticket, int]],
        out: np.ndarray,
        start: float,
        now: float,
        *,
        usual: bool = True,
    ) -> None:
        """Commit what the step wrote, then sample and tell. usual: its seconds tell what other
        steps will take.
        """
        counters, at, prefilled, decoded = self._counters, 0, 0, 0
        for ticket, rows in plan:
            request, first = ticket.owner, ticket.done
            if ticket.width:
                decoded += rows
                at += self._together.took(
                    request,
                    out[at : at + rows] if first + 1 == ticket.length else out[:0],
                    rows,
                    now,
                )
                continue
            done = first + rows
            take = (
                max(0, done - max(first, request.delivered))
                if ticket.every_row
                else max(0, done + 1 - ticket.length)
            )
            # of candidates nothing is known yet
            ticket.done = request.session.kv.length = min(done, ticket.length)
            if ticket.state is State.DECODING:
                decoded += rows
            else:
                prefilled += rows
            try:
                self._serve(request, out[at : at + take], now)
            except BaseException as error:  # this request's own doing: its companions go on
                self._register.end(request, None, error)
            at += take
        counters.steps += 1
        counters.prefilled += prefilled
        share = prefilled / (prefilled + decoded)
        counters.prefill_seconds += (now - start) * share
        counters.decode_seconds += (now - start) * (1 - share)
        if not usual:
            return
        self._scheduler.observe(prefill_rows=prefilled, seconds=now - start, mixed=decoded > 0)

    def _serve(self, request: Request, rows: np.ndarray, now: float) -> None:
        """What one request gets out of a step: none, some or all of its rows."""
        ticket = request.ticket
        if request.stopping:
            self._register.end(request, request.stopping)
            return
        if ticket.state is not State.DECODING:
            if len(rows) and ticket.every_row and request.on_rows is not None:
                request.on_rows(ticket.done - len(rows), rows)
                request.delivered = max(request.delivered, ticket.done)
            if ticket.done < ticket.length:
                self._room.store(request, whole_pages=True)
                return
            if request.kind == "rows":
                self._register.end(request, "stop")
                return
            if request.kind == "extend":
                request.session.pending = request.value = rows[-1].copy()
                self._register.end(request, "stop")
                return
            ticket.every_row = False
            self._room.store(request, whole_pages=True)
            if request.beams is not None:
                self._together.searched(request, request.beams.begin(rows[-1]), now)
                return
            if request.siblings:
                self._together.branch(request, rows[-1], self.begin)
        if not len(rows):  # forced tokens are still to run
            return
        draft, ticket.draft = ticket.draft[: len(rows) - 1], ()
        if request.outside:
            self.go_on(request, self._turn(request, rows.copy(), draft))
        elif draft:
            self.go_on(request, self._turn(request, rows, draft))
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
        session, ticket, tokens = request.session, request.ticket, request.session.tokens
        start, at, going = ticket.length, 0, True
        while going and start + at == len(tokens):
            if session.sampler.processors:
                row = rows[at]
                session.sampler.processed(row, (yield session.sampler.processing(row)))
            else:
                row = rows[at]
            self._stands(request, start + at)
            reason = self._advance(request, row, time.perf_counter())
            if request.owed:
                yield request.tell
            going = self._settle(request, reason)
            while at < len(draft) and start + at < len(tokens) and tokens[start + at] == draft[at]:
                # forced tokens may have come along: more than one at a time
                at += 1
        if going:
            self._stands(request, start + at)
        if request.speculation is not None and draft:
            # Where the text is over, candidates not looked at are neither right nor wrong.
            request.speculation.judged(
                accepted=at,
                rejected=len(draft) - at if going else 0,
                bonus=at == len(draft) and len(tokens) > start + at,
            )

    def go_on(self, request: Request, turn: Generator[Call, Any, None], value: Any = None) -> None:
        """Run a turn up to what it wants beside the loop, and see to that."""
        try:
            call = turn.send(value)
        except StopIteration:
            return
        self.beside(request, call, partial(self.go_on, request, turn))

    def _stands(self, request: Request, length: int) -> None:
        """So many tokens of a running request are in its pages, and what follows them there counts
        for nothing; where its pages were taken, none are.
        """
        if request.ticket.state in (State.PREFILLING, State.DECODING):
            request.ticket.done = request.session.kv.length = length

    def beside(self, request: Request, call: Call, then: Callable[[Any], None]) -> None:
        """Run `call()` in a worker while the request waits, then `then(its result)` in the loop;
        what it raises ends the request.
        """
        answer = self.parked(request, then)

        def work() -> None:
            try:
                value = call()
            except BaseException as raised:
                answer(None, raised)
            else:
                answer(value, None)

        self._workers.run(work)

    def parked(
        self, request: Request, then: Callable[[Any], None]
    ) -> Callable[[Any, BaseException | None], None]:
        """Give a request no rows until the function returned is called, in any thread, with (value,
        error): then the loop calls `then(value)`, or ends the request with the error. A request
        that ends meanwhile is not called back.
        """
        request.waits_for = then
        self._scheduler.park(request.ticket)

        def answer(value: Any, error: BaseException | None) -> None:
            self._post((self._back, request, then, value, error))

        return answer

    def _back(
        self,
        request: Request,
        then: Callable[[Any], None],
        value: Any,
        error: BaseException | None,
    ) -> None:
        """A call beside the loop has returned."""
        if request.waits_for is not then:
            return
        request.waits_for = None
        self._scheduler.unpark(request.ticket)
        try:
            if error is not None:
                raise error
            then(value)
        except BaseException as raised:
            self._register.end(request, None, raised)

    def draw(self, request: Request, row: np.ndarray, now: float) -> bool:
        """Draw the next token of a request and do all that follows from it; False when its step is
        over for it.
        """
        return self._settle(request, self._advance(request, row, now))

    def _advance(self, request: Request, row: np.ndarray, now: float) -> str | None:
        """Draw the next token of a request, and those that its grammar forces after it; returns why
        it ends, None when it goes on.
        """
        ticket = request.ticket
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
        if ticket.state is State.DECODING:
            self._counters.decoded += drawn
        return reason

    def _settle(self, request: Request, reason: str | None) -> bool:
        """What follows from a draw for the request's next step; False when there is none."""
        session, ticket = request.session, request.ticket
        if reason is not None:
            self._register.end(request, reason)
            return False
        ticket.length = len(session.tokens)
        # the context was shifted: evaluate what moved
        if session.kv.length < ticket.done:
            self._register.restart(request)
            return False
        self._scheduler.decodes(ticket)
        speculation = request.speculation
        if speculation is not None:
            if speculation.rest:  # nothing would pay: no time is spent on asking
                speculation.rest -= 1
            else:
                self._register.wanting[request] = None
        return True
