"""Requests in flight: how one begins, and every end it may have. What is done here is done under
the engine's lock.
"""

from __future__ import annotations

import numpy as np

from oxillama.engine.metrics import EngineMetrics
from oxillama.engine.pages import KvCachePool
from oxillama.engine.request import Request
from oxillama.engine.room import Room
from oxillama.engine.scheduler import Scheduler, Ticket
from oxillama.errors import EngineError, PoolError


class Register:
    """The requests that were submitted and have not ended. wanting: those that speculate and have
    no candidates for their next step yet.
    """

    def __init__(
        self,
        pool: KvCachePool,
        room: Room,
        scheduler: Scheduler,
        counters: EngineMetrics,
        vocab_size: int,
    ) -> None:
        self.in_flight: set[Request] = set()
        self.wanting: dict[Request, None] = {}
        self._pool, self._room, self._scheduler, self._counters, self._vocab_size = (
            pool,
            room,
            scheduler,
            counters,
            vocab_size,
        )

    def begin(self, request: Request) -> np.ndarray | None:
        """Make a ticket of a submitted request and queue it; returns the logits it goes on from,
        where its session has them.
        """
        session = request.session
        if request.cancelled or request.done:
            self.end(request, "cancelled")
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
        ticket = Ticket(len(tokens), done=kv.length, owner=request)
        request.ticket = ticket
        if request.on_rows is not None:
            ticket.every_row = True
            ticket.hidden = request.hidden
            request.delivered = ticket.done
            ticket.row_limit = max(1, (32 << 20) // (4 * max(1, self._vocab_size)))
        self._scheduler.add(ticket)
        return pending

    def restart(self, request: Request) -> None:
        """Send a running ticket back to prefill what its pages lack."""
        ticket = request.ticket
        self._scheduler.finish(ticket)
        ticket.done = request.session.kv.length
        self._scheduler.add(ticket)

    def end(self, request: Request, reason: str | None, error: BaseException | None = None) -> None:
        """Take a request out of the engine and tell its callers; the first end counts."""
        if request not in self.in_flight:
            return
        self.in_flight.discard(request)
        self.wanting.pop(request, None)
        request.waits_for = None
        try:
            self._put_away(request, error)
        # the ledger itself: the loop ends of it, and tells this one too
        except BaseException:
            self.in_flight.add(request)
            raise
        counters, speculation, own = self._counters, request.speculation, error
        if speculation is not None:
            try:
                speculation.close(len(request.generated))
            # a drafter's doing, and no business of those who wait for the prompt
            except BaseException as told:
                own = error or told
        if own is not None:
            counters.failed += 1
        elif reason == "cancelled":
            counters.cancelled += 1
        else:
            counters.completed += 1
        request.end(reason, own)
        self._hand_over(request, reason, error)

    def _put_away(self, request: Request, error: BaseException | None) -> None:
        """What a request held goes where it belongs, and its session is idle."""
        session = request.session
        if request.ticket is not None:
            self._scheduler.finish(request.ticket)
        if request.beams is not None:
            request.beams.close()
        kept = session in self._room.sessions
        if error is None:
            self._room.store(request, whole_pages=kept)
        if request.kind == "extend" and request.value is None:
            # here: once it is idle somebody else may append to it
            session.cut(request.before)
        if kept:
            self._room.keep(session)  # now the one used last
            # without pages that were reserved for a step that never was
            session.kv.truncate(session.kv.length)
        else:
            session.kv.release()
        session.busy = False

    def _hand_over(self, request: Request, reason: str | None, error: BaseException | None) -> None:
        """Those who still wait for the prompt of a request that has ended: one of them evaluates
        it, or all end of the same error.
        """
        heirs = [each for each in request.siblings if each in self.in_flight]
        request.siblings = ()
        for at, each in enumerate(heirs):
            if error is not None:
                self.end(each, reason, error)
            # it has no siblings: whoever lives evaluates the prompt
            elif each.cancelled:
                self.end(each, "cancelled")
            else:
                each.siblings = tuple(heirs[at + 1 :])
                self.begin(each)
                return

    def end_starved(self) -> None:
        """A request that is alone and cannot be given its pages will never be."""
        ticket = self._scheduler.starved
        if ticket is not None:
            need = -(-ticket.length // self._pool.page_size) * max(1, ticket.width)
            self.end(
                ticket.owner,
                None,
                PoolError(
                    f"page pool: {ticket.length} tokens need {need} pages, {self._pool.max_pages or self._pool.memory.capacity} is all there is, "
                    f"{self._pool.pages_used} of them owned"
                ),
            )

    def end_cancelled(self) -> None:
        """End whoever was cancelled while a step ran."""
        for request in [each for each in self.in_flight if each.cancelled]:
            self.end(request, "cancelled")

    def end_all(self, failure: EngineError | None) -> None:
        """End everybody, as cancelled, or because of what broke the loop."""
        for request in list(self.in_flight):
            if failure is None:
                self.end(request, "cancelled")
                continue
            told = type(failure)(str(failure))
            told.__cause__ = failure.__cause__
            try:
                self.end(request, None, told)
            except Exception:  # the ledger itself may be what broke
                self.in_flight.discard(request)
                request.end(None, told)
