"""What a finished step gives to whom: the rows of a plan are dealt out, tokens drawn from them,
candidates kept or let go.

Called by the engine's loop, under its lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
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
        pending = self._register.begin(request)
        if pending is None:
            return
        request.admitted_at = time.perf_counter()
        try:
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
        self._scheduler.observe(prefill_rows=prefilled, seconds=now - start)

    def _serve(self, request: Request, rows: np.ndarray, now: float) -> None:
        """What one request gets out of a step: none, some or all of its rows."""
        ticket = request.ticket
        if request.cancelled:
            self._register.end(request, "cancelled")
            return
        if ticket.state is not State.DECODING:
            if len(rows) and ticket.every_row:
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
        if ticket.draft and len(rows) > 1:
            self._verify(request, rows, now)
        # none while forced tokens are still to run
        elif len(rows):
            ticket.draft = ()
            self.draw(request, rows[-1], now)

    def _verify(self, request: Request, rows: np.ndarray, now: float) -> None:
        """Draw from the row after the last token, then from the row after each candidate as long as
        the text goes on as it said.
        """
        session, ticket = request.session, request.ticket
        tokens, start, draft, at, goes_on = (
            session.tokens,
            ticket.length,
            ticket.draft[: len(rows) - 1],
            0,
            True,
        )
        ticket.draft = ()
        while goes_on and start + at == len(tokens):
            ticket.done = session.kv.length = start + at
            goes_on = self.draw(request, rows[at], now)
            while at < len(draft) and start + at < len(tokens) and tokens[start + at] == draft[at]:
                # forced tokens may have come along: more than one at a time
                at += 1
        if goes_on:
            ticket.done = session.kv.length = start + at
        # Where the text is over, candidates that were not verified are neither right nor wrong.
        request.speculation.judged(
            accepted=at,
            rejected=len(draft) - at if goes_on else 0,
            bonus=at == len(draft) and len(tokens) > start + at,
        )

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
        session, ticket = request.session, request.ticket
        if request.token_at:
            self._counters.inter_token.observe(now - request.token_at)
        else:
            self._counters.first_token.observe(now - request.submitted_at)
        request.token_at = now
        before = len(request.generated)
        reason = advance(request, row, self._context_size)
        drawn = len(request.generated) - before
        self._counters.generated += drawn
        if ticket.state is State.DECODING:
            self._counters.decoded += drawn
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
