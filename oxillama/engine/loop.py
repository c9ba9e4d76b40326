"""The step loop: `schedule -> step -> sample -> output`, in one thread that starts on demand and
sleeps when idle.

    callers --submit, cancel--> inbox --+                     +--> Request.push --> callers
                                        |                     |
                                    [ plan -> step -> draw -> text ]     thread "oxillama engine"

How a token is made: `_run_step` plans a step, runs it and distributes its rows
(`_distribute_rows`). `_take_rows` handles the rows of one request. `_advance` turns a row into a
token and its text (`output.OutputProcessor`), `_after_draw` schedules the request's next row, and
`_look_ahead` finds candidates for it. A request with candidates, or with Python functions of its
caller, draws in `_draw_tokens`.

Python functions of callers (logits processors, listeners, drafters) run in worker threads
(`workers`). Their request waits for them, others do not.

Errors: an error of one request (nothing left to sample, a page pool too small for it) ends that
request. If an allocation fails or paged weights cannot be read, the requests of that step end with
the MemoryError or PagingError, and the loop continues. Any other exception in the loop ends every
running request with that cause, and every later call raises it.
"""

from __future__ import annotations

import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from oxillama.engine.allocator import PageAllocator
from oxillama.engine.batcher import Batcher, Plan, give_carried, taken_rows, wanted_rows
from oxillama.engine.metrics import EngineMetrics
from oxillama.engine.output import OutputProcessor
from oxillama.engine.request import BeamRequest, GenerateRequest, Request
from oxillama.engine.scheduler import State
from oxillama.engine.speculation import Speculator
from oxillama.engine.tracker import Deadlines, RequestTracker
from oxillama.engine.workers import Workers
from oxillama.errors import (
    Cancelled,
    EngineError,
    PagingError,
    WeightsDamaged,
    starting_thread,
)
from oxillama.media.placement import spans_of

_CLOSE = object()
_MEASURED = 7  # a bit mask: every eighth step without candidates is measured for speculation
_DECODING = State.DECODING  # read for every token
STALL_SECONDS = 1.0  # that others wait for the pages of one whose function does not return
AWAY_SECONDS = 0.01  # until a request without pages looks again for pages in transit

Call = Callable[[], Any]


class StepLoop:
    """Runs the requests of a tracker over one program. Data shared with other threads is accessed
    under `lock`, which the loop does not hold during a step.
    """

    def __init__(
        self,
        program: Any,
        memory: Any,
        allocator: PageAllocator,
        counters: EngineMetrics,
        *,
        batch: Callable,
        flag: Any,
        context_size: int,
        whole: bool,
        lock: threading.RLock,
        step_lock: threading.Lock,
    ) -> None:
        """batch: makes the input of `program.step`. flag: stops a running step (`set`, `clear`).
        whole: see `RequestTracker`.
        """
        self.program, self.memory = program, memory
        self.workers = Workers()
        self.tracker = RequestTracker(
            allocator, counters, program.vocab_size, self.workers.run_quietly, whole=whole
        )
        self.inbox: SimpleQueue = SimpleQueue()  # (function, argument, ...) for the loop to call
        self.thread: threading.Thread | None = None
        self.failure: EngineError | None = None
        self.closed = False
        # given by the caller that knows what may draft; None: nothing speculates
        self.speculator: Speculator | None = None
        self._allocator, self._scheduler, self._counters = allocator, allocator.scheduler, counters
        self._deadlines = Deadlines(self._expire)
        self._output = OutputProcessor(context_size)
        self._batch = Batcher(batch, allocator.scheduler.config.max_batch_tokens)
        self._carries = getattr(program, "carries", False)
        # sequences have a recurrent state, which an unfinished step leaves undefined
        self._stateful = bool(getattr(memory, "slot_layers", ()))
        self._flag, self._lock, self._step_lock = flag, lock, step_lock
        self._command: tuple | None = None  # what is being done of the inbox
        # nothing can be planned before something comes into the inbox or these seconds are over
        self._stall = 0.0
        self._stops = False  # a request was asked to stop since a plan was last looked through
        self._plan: Plan = []
        self._at_end: Call | None = None

    # ---- any thread
    # ---------------------------------------------------------------------------------------------

    def start(self) -> bool:
        """Start the thread, under the lock; False if it already runs."""
        if self.thread is not None:
            return False
        thread = threading.Thread(target=self._run, name="oxillama engine", daemon=True)
        with starting_thread():
            thread.start()
        self.thread = thread  # which runs: `close` waits for its end
        return True

    def post(self, *command: Any) -> None:
        """Let the loop call (function, argument, ...)."""
        self.inbox.put(command)

    def watch(self, requests: Iterable[Request]) -> None:
        """Let the deadlines of requests run that are about to begin."""
        for each in requests:
            if each.timeout is not None:
                self._deadlines.add(each, each.timeout)

    def begin(self, request: Request) -> None:
        """Let the loop begin a submitted request, followed by its siblings. The caller holds the
        lock, under which its session became busy.
        """
        self.inbox.put((self._begin, request))

    def check_running(self) -> None:
        """End the requests in flight if the loop ended after a caller's check for that."""
        if self.failure is not None or self.closed:
            self.abandon()

    def stop(self, request: Request, reason: str) -> None:
        """End a request within a few milliseconds; a step that is mostly this request's is
        stopped. Where that costs the others their recurrent state, one that is this request's
        alone.
        """
        request.stopping = request.stopping or reason
        self._stops = True
        plan = self._plan
        own = sum(rows for entry, rows in plan if entry.owner is request)
        if own and (1 if self._stateful else 2) * own >= sum(rows for _, rows in plan):
            self._flag.set()
        self.inbox.put((self.tracker.end, request, request.stopping))

    def close(self, then: Call | None = None) -> None:
        """Ask the loop to end, without waiting; `then()` is called after its end, in its thread."""
        self._at_end = then
        self.closed = True
        self._flag.set()
        self.inbox.put(_CLOSE)
        thread = self.thread
        if then is not None and (thread is None or not thread.is_alive()):
            # a finaliser may run inside of `threading`, whose locks it must not wait for
            with suppress(RuntimeError):  # the interpreter ends
                start_new_thread(self._end, ())

    def _end(self) -> None:
        then, self._at_end = self._at_end, None
        if then is not None:
            then()

    def release(self) -> None:
        """Let the threads of deadlines and workers end."""
        self._deadlines.close()
        self.workers.close()

    def _expire(self, request: Request) -> None:
        self.stop(request, "timeout")

    def fail(self, error: WeightsDamaged) -> None:
        """End every running request with an error and refuse all later ones."""
        self.failure = error
        self.inbox.put((_raise, error))  # requests are ended by the loop alone

    def abandon(self) -> None:
        """End the requests that the loop will not run any more."""
        with self._lock:
            thread = self.thread
            if self.failure is not None:
                self.tracker.end_all(self.failure)
            elif self.closed and (
                thread is None or not thread.is_alive() or thread is threading.current_thread()
            ):
                self.tracker.end_all(None)

    def park(
        self, request: Request, then: Callable[[Any], None]
    ) -> Callable[[Any, BaseException | None], None]:
        """Give a request no rows until the returned function is called, in any thread, with (value,
        error). The loop then calls `then(value)`, or ends the request with the error. Nothing is
        called for a request that has ended meanwhile.
        """
        request.awaited_call = then
        self._scheduler.park(request.entry)

        def answer(value: Any, error: BaseException | None) -> None:
            self.post(self._call_returned, request, then, value, error)

        return answer

    # ---- the loop: commands and steps
    # ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                try:
                    if not self._take_commands():
                        return
                    self._run_step()
                except (MemoryError, PagingError) as refused:
                    self._end_failed_step(refused)
        except BaseException as error:  # every request in flight learns of the end
            self._fail(error)
        finally:
            self.abandon()
            self._end()

    def _take_commands(self) -> bool:
        """Handle the commands in the inbox, and wait there while nothing can be planned; False at
        the engine's end.
        """
        inbox, scheduler = self.inbox, self._scheduler
        while scheduler.idle or self._stall or not inbox.empty():
            try:
                command = inbox.get(timeout=self._stall or None)
            except Empty:
                command = (scheduler.evict_parked,)
            self._stall = 0.0
            if command is _CLOSE:
                return False
            self._command = command
            with self._lock:
                command[0](*command[1:])
            # it refers to its request, which the caller may have dropped
            self._command = command = None
        return True

    def _run_step(self) -> None:
        """One step, from the plan to the callers."""
        if self.tracker.undrafted:
            self._draft()
        began = time.perf_counter()
        with self._lock:
            plan = self._scheduler.schedule()
            if not plan:
                starved = self._scheduler.starved
                if starved is not None and self._allocator.pages_in_transit(starved.owner):
                    self._stall = AWAY_SECONDS
                    return
                self.tracker.end_starved()
                self._stall = STALL_SECONDS if self._scheduler.parked else 0.0
                return
            self._plan = plan
            self._flag.clear()
            if self.closed or self._stops:
                self._stops = False
                if self.closed or any(entry.owner.stopping for entry, _ in plan):
                    self._plan = []
                    self.tracker.end_stopped()
                    return
            taking = taken_rows(plan, len(self._scheduler.decoding)) if self._carries else {}
            # last: it says where candidates leave their state
            batch, hidden = self._batch(plan, taking)
        start = time.perf_counter()
        try:
            with self._step_lock:
                out = self.program.step(
                    batch, self.memory, output="hidden" if hidden else "logits", cancel=self._flag
                )
                now = time.perf_counter()
                with self._lock:
                    if taking:
                        give_carried(plan, taking, self.program.carried())
                    self._distribute_rows(plan, out, began, start, now)
                    self._plan = []
        except Cancelled:
            with self._lock:
                self._plan = []
                # first: an ended request leaves its state to its session and to stored prefixes
                self._release_states(plan)
                self.tracker.end_stopped()
                if self._stateful:
                    self._evaluate_again(plan)

    def _distribute_rows(
        self, plan: Plan, out: np.ndarray, began: float, start: float, now: float
    ) -> None:
        """Commit what a step wrote, and give its rows to the requests of the plan. The step was
        planned from `began` and ran from `start` to `now`.
        """
        counters, at, prefilled, decoded = self._counters, 0, 0, 0
        candidates = forced = 0  # of the rows
        representative = self.program.representative  # first: a listener may close the engine
        for entry, rows in plan:
            request, first = entry.owner, entry.done
            # the next row of a text: the common case, kept short
            if (
                rows == 1
                and first + 1 == entry.length
                and entry.state is _DECODING
                and not entry.width
            ):
                decoded += 1
                entry.done = request.session.kv.length = entry.length
                try:
                    self._take_rows(request, out[at : at + 1], now)
                except BaseException as error:  # its own doing, as below
                    self.tracker.end(request, None, error)
                at += 1
                continue
            if entry.width:
                decoded += rows
                at += self._take_beams(
                    request,
                    out[at : at + rows] if first + 1 == entry.length else out[:0],
                    rows,
                    now,
                )
                continue
            done = first + rows
            take = wanted_rows(entry, rows)
            # of candidates nothing is known yet
            entry.done = request.session.kv.length = min(done, entry.length)
            if entry.state is State.DECODING:
                decoded += rows
                candidates += done - entry.done
                forced += entry.done - first - 1
            else:
                prefilled += rows
            try:
                self._take_rows(request, out[at : at + take], now)
            except BaseException as error:  # this request's own doing: its companions go on
                self.tracker.end(request, None, error)
            at += take
        counters.steps += 1
        if prefilled:
            counters.prefilled += prefilled
            share = prefilled / (prefilled + decoded)
            counters.prefill_seconds += (now - start) * share
            counters.decode_seconds += (now - start) * (1 - share)
        else:
            counters.decode_seconds += now - start
        if representative:
            self._scheduler.observe(
                prefill_rows=prefilled, seconds=now - start, decode_rows=decoded
            )
            # Some of many equal steps are enough. Rows of forced tokens take less time
            # than others, because nothing is drawn from them.
            if (
                (candidates or not counters.steps & _MEASURED)
                and not (prefilled or forced)
                and request.speculation is not None
                and self.speculator is not None
            ):
                self.speculator.record(decoded - candidates, decoded, time.perf_counter() - began)

    def _take_rows(self, request: Any, rows: np.ndarray, now: float) -> None:
        """Handle the rows (none, some or all) that a request of any kind has in a step."""
        entry = request.entry
        if request.stopping:
            self.tracker.end(request, request.stopping)
            return
        if entry.state is not _DECODING:
            if not self._prefilled(request, rows, now):
                return
            rows = rows[-1:]  # of a scored prompt all rows are here; a token is drawn from one
        if not len(rows):  # forced tokens are still to run
            return
        draft = entry.draft
        if draft:
            draft, entry.draft = draft[: len(rows) - 1], ()
        if draft or request.has_callbacks:
            self._resume(request, self._draw_tokens(request, rows, draft))
        elif self._after_draw(request, self._advance(request, rows[0], now)):
            self._look_ahead(request)

    def _prefilled(self, request: Request, rows: np.ndarray, now: float) -> bool:
        """Rows of a prompt were evaluated; True if a token is drawn from the last one."""
        entry = request.entry
        if len(rows) and entry.every_row and request.on_rows is not None:
            request.on_rows(entry.done - len(rows), rows)
            request.delivered = max(request.delivered, entry.done)
        if entry.done < entry.length:
            self._allocator.store(request, whole_pages=True)
            return False
        if isinstance(request, GenerateRequest) and request.fill is not None:
            self._resume(request, self._fill(request, rows, now))
            return False
        if not request.draws:
            request.take_prompt(rows)
            self.tracker.end(request, "stop")
            return False
        entry.every_row = False
        self._allocator.store(request, whole_pages=True)
        if isinstance(request, BeamRequest):
            self._end_beam_turn(request, request.search.begin(rows[-1]), now)
            return False
        if isinstance(request, GenerateRequest) and request.siblings:
            self._fork_siblings(request, rows[-1])
        return True

    def _fill(
        self, request: GenerateRequest, rows: np.ndarray, now: float
    ) -> Generator[Call, Any, None]:
        """Fill masks from the rows of a pass, pass on what is final, and schedule the next pass."""
        session, entry = request.session, request.entry
        entry.done = session.kv.length = 0  # every pass reads all tokens anew
        before = len(request.generated)
        reason = self._output.fill(request, rows)
        made = len(request.generated) - before
        if made or reason is not None:
            self._time(request, now)
        self._counters.generated += made
        if request.pending_calls:
            request.outcome = reason
            yield request.run_listeners
        if reason is not None:
            self.tracker.end(request, reason)
        else:
            assert request.fill is not None
            entry.fill = request.fill.next

    # ---- draws
    # ---------------------------------------------------------------------------------------------

    def _begin(self, request: Request) -> None:
        """Queue a submitted request. If its session has logits to continue from, it draws its first
        token at once.
        """
        try:
            if isinstance(request, GenerateRequest):
                self._output.shift_full(request)
            pending = self.tracker.begin(request)
            if pending is None or not isinstance(request, GenerateRequest):
                return
            request.admitted_at = time.perf_counter()
            if request.has_callbacks:
                self._resume(request, self._draw_tokens(request, pending[None], ()))
            elif self._after_draw(request, self._advance(request, pending, request.admitted_at)):
                self._look_ahead(request)
        except BaseException as error:
            self.tracker.end(request, None, error)

    def _time(self, request: Request, now: float) -> None:
        """Note that tokens come now: after how long, from the last or from the beginning."""
        if request.token_at:
            self._counters.inter_token.observe(now - request.token_at)
        else:
            self._counters.first_token.observe(now - request.submitted_at)
            request.first_at = now
        request.token_at = now

    def _advance(self, request: GenerateRequest, row: np.ndarray, now: float) -> str | None:
        """Draw and count; returns why the request ends, None if it continues."""
        counters = self._counters
        self._time(request, now)
        generated = request.generated
        before = len(generated)
        reason = self._output.advance(request, row)
        drawn = len(generated) - before
        counters.generated += drawn
        if request.entry.state is _DECODING:
            counters.decoded += drawn
        return reason

    def _after_draw(self, request: GenerateRequest, reason: str | None) -> bool:
        """Schedule the next row of a request, or end it; reason: why it ends."""
        session, entry = request.session, request.entry
        if reason is not None:
            self.tracker.end(request, reason)
            return False
        entry.length = len(session.tokens)
        # the context was shifted: evaluate what moved
        if session.kv.length < entry.done:
            self.tracker.restart(request)
            return False
        if entry.spans:  # also of one without pages, which a shift moves all the same
            entry.spans = spans_of(session.media)
        if entry.state is not _DECODING:
            self._scheduler.start_decoding(entry)
        return True

    def _look_ahead(self, request: GenerateRequest) -> None:
        """A request continues: find candidates for its next step, or note that it wants some."""
        speculation = request.speculation
        if speculation is None:
            return
        if speculation.rest:  # nothing would pay: no time is spent on asking
            speculation.rest -= 1
        elif speculation.wants(request, len(self._scheduler.decoding)):
            self.tracker.undrafted[request] = None

    def _draw_tokens(
        self, request: GenerateRequest, rows: np.ndarray, draft: Sequence[int]
    ) -> Generator[Call, Any, None]:
        """Draw from the row after the last token, then from the row after each candidate as long as
        the draws agree with the candidates.

        Yields functions for a worker to run (processors before each draw, listeners after it) and
        is sent their results. Meanwhile other requests may take this request's pages; the rows
        belong to it.
        """
        session, entry, tokens = request.session, request.entry, request.session.tokens
        start, at, going = entry.length, 0, True
        own = request.has_callbacks
        if own:  # the next step writes where these are
            rows = rows.copy()
        while going and start + at == len(tokens):
            if session.sampler.processors:
                row = rows[at]
                session.sampler.processed(row, (yield session.sampler.processing(row)))
            else:
                row = rows[at]
            self._keep_rows(request, start + at)
            reason = self._advance(request, row, time.perf_counter())
            if request.pending_calls:
                if not own:  # the listener came after the step
                    rows, own = rows.copy(), True
                request.outcome = reason
                yield request.run_listeners
            while at < len(draft) and start + at < len(tokens) and tokens[start + at] == draft[at]:
                # forced tokens may have come along: more than one at a time
                at += 1
            if reason is not None and request.speculation is not None and draft:
                # First: callers read the counts as soon as the request has ended. Candidates not
                # looked at are neither accepted nor rejected.
                bonus = at == len(draft) and len(tokens) > start + at
                request.speculation.verified(accepted=at, rejected=0, bonus=bonus, over=True)
                draft = ()
            going = self._after_draw(request, reason)
        if request.speculation is not None and draft:
            request.speculation.verified(
                accepted=at,
                rejected=len(draft) - at if going else 0,
                bonus=at == len(draft) and len(tokens) > start + at,
            )
        if going:
            self._keep_rows(request, start + at)
            if draft:
                session.kv.settle()
            self._look_ahead(request)

    def _keep_rows(self, request: Request, length: int) -> None:
        """Keep the first `length` tokens of a running request in its pages; later positions are
        invalid. If its pages were taken, none are kept.
        """
        if request.entry.state in (State.PREFILLING, State.DECODING):
            request.entry.done = request.session.kv.length = length

    def _draft(self) -> None:
        """Ask for candidates for the requests that want them. This runs without the lock, because a
        draft model takes time and only the loop changes what it reads.
        """
        tracker, speculator = self.tracker, self.speculator
        wanting, tracker.undrafted = tracker.undrafted, {}
        # one that waits for a function of its own is asked for once that has returned
        tracker.undrafted = {each: None for each in wanting if each.entry.parked}
        requests = [
            each for each in wanting if each.entry.state is State.DECODING and not each.entry.parked
        ]
        if speculator is None:
            return
        for request, error in speculator.propose(
            requests,
            sequences=len(self._scheduler.decoding),
            prefilled=self._counters.prefilled,
            parking=self.park,
        ):
            # else they end as cancelled, whatever a draft that was closed with this engine says
            if not self.closed:
                with self._lock:
                    self.tracker.end(request, None, error)

    # ---- requests of several sequences
    # ---------------------------------------------------------------------------------------------

    def _take_beams(self, request: BeamRequest, out: np.ndarray, rows: int, now: float) -> int:
        """`rows` beams of a search had a row in a step; returns how many rows of logits were
        theirs: all of `out`.
        """
        try:
            if request.stopping:
                self.tracker.end(request, request.stopping)
            elif request.search.feed_rows(request.entry, rows, out):
                self._end_beam_turn(request, request.search.step(), now)
        except BaseException as error:  # this request's own doing: its companions go on
            self.tracker.end(request, None, error)
        return len(out)

    def _end_beam_turn(self, request: BeamRequest, over: bool, now: float) -> None:
        """Every beam of a search had its row: choose the next beams, or end the search."""
        search, counters = request.search, self._counters
        self._time(request, now)
        counters.generated += len(search.sessions)
        counters.decoded += len(search.sessions) if request.entry.state is State.DECODING else 0
        if over:
            request.value = search.result()
            self.tracker.end(request, "stop")
        else:
            search.update_entry(request.entry)
            self._scheduler.start_decoding(request.entry)

    def _fork_siblings(self, request: GenerateRequest, row: np.ndarray) -> None:
        """A prompt is evaluated and `row` are its logits. The siblings that waited for it continue
        from forks of its pages.
        """
        # those that are not reached yet stay its own: it hands them over if it ends here
        while request.siblings:
            each = request.siblings[0]
            if each in self.tracker.in_flight:
                each.session.kv, each.session.pending = request.session.kv.fork(), row.copy()
                each.prompt_logprobs, each.prompt_ranks = (
                    request.prompt_logprobs,
                    request.prompt_ranks,
                )
                each.on_rows, each.cached = None, each.prompt_tokens
                self._begin(each)
            request.siblings = request.siblings[1:]

    # ---- functions of callers, in workers
    # ---------------------------------------------------------------------------------------------

    def _resume(
        self, request: GenerateRequest, turn: Generator[Call, Any, None], value: Any = None
    ) -> None:
        """Run a turn up to the next function for a worker, and start that function."""
        try:
            call = turn.send(value)
        except StopIteration:
            return
        answer = self.park(request, partial(self._resume, request, turn))

        def work() -> None:
            try:
                value = call()
            except BaseException as raised:
                answer(None, raised)
            else:
                answer(value, None)

        self.workers.run(work)

    def _call_returned(
        self,
        request: Request,
        then: Callable[[Any], None],
        value: Any,
        error: BaseException | None,
    ) -> None:
        """A function that a request waited for has returned."""
        if request.awaited_call is not then:
            return
        request.awaited_call = None
        self._scheduler.unpark(request.entry)
        if error is not None:
            self.tracker.end(request, None, error)
            return
        try:
            then(value)
        except BaseException as raised:
            self.tracker.end(request, None, raised)

    # ---- errors
    # ---------------------------------------------------------------------------------------------

    def _evaluate_again(self, plan: Plan) -> None:
        """The other requests of a stopped step, whose recurrent state was lost, start again, from
        stored checkpoints if there are any.
        """
        for entry, _ in plan:
            if entry.owner in self.tracker.in_flight:
                self.tracker.restart(entry.owner)

    def _end_failed_step(self, refused: MemoryError | PagingError) -> None:
        """An allocation failed or weights could not be read: end the requests that needed it. Those
        are the requests of a command or a plan; before there is a plan, the one that pages are
        taken for, otherwise all running requests, or all waiting ones if none runs.
        """
        with self._lock:
            scheduler, command = self._scheduler, self._command
            asking, plan = scheduler.asking, self._plan
            scheduler.asking, self._plan, self._command = None, [], None
            self._release_states(plan)
            if command is not None:
                self.tracker.end_step(command[1:2], refused)
                return
            entries = [entry for entry, _ in plan] or ([asking] if asking is not None else [])
            entries = entries or [*scheduler.prefilling, *scheduler.decoding]
            self.tracker.end_step(
                [each.owner for each in entries or list(scheduler.waiting)], refused
            )

    def _release_states(self, plan: Plan) -> None:
        """An unfinished step left the recurrent state of its requests undefined."""
        if self._stateful:
            for entry, _ in plan:
                self._allocator.release(entry)

    def _fail(self, error: BaseException) -> None:
        """The loop failed: all running requests end with the cause, and later calls raise it."""
        failure: EngineError
        if isinstance(error, WeightsDamaged):
            failure = error
        else:
            failure = EngineError(
                f"engine: failed in its step loop, {type(error).__name__}: {error}"
            )
            failure.__cause__ = error
        self.failure = failure
        self.tracker.end_all(failure)


def _raise(error: BaseException) -> None:
    raise error
