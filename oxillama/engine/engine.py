"""The step loop: `schedule -> step -> sample -> postprocess`, in one thread that starts on demand
and sleeps when idle.

    callers --submit, cancel--> inbox --+                     +--> Request.push, Request.end --> callers
                                        |                     |
                                   [ schedule -> step -> sample -> postprocess ]      thread "oxillama engine"

`EngineCore` knows integers: tokens, pages, positions. It is given a program (anything with `step`
and `usual`), page memory, and requests whose sessions carry what turns logits into tokens and
tokens into text. Callers never touch what the loop owns but under `lock`, which the loop does not
hold during a step.

Errors: what one request does wrong (nothing left to sample, a page pool too small for it) ends that
request. Where memory is refused, the requests of that step end with the MemoryError, and the loop
goes on. Whatever else is raised in the loop fails every request in flight with that cause, and
every call afterwards says so.

Python functions that callers bring (logits processors, listeners, drafters) run in threads beside
the loop (`workers`): their request waits for them, others do not.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal

import numpy as np

from oxillama.engine.allocator import PageAllocator
from oxillama.engine.batching import Batcher
from oxillama.engine.deadlines import Deadlines
from oxillama.engine.images import images_of, spans_of
from oxillama.engine.metrics import EngineMetrics, MetricsSnapshot
from oxillama.engine.output import OutputProcessor
from oxillama.engine.pages import KvCachePool, PagedKvCache
from oxillama.engine.prefix import PrefixKvCache
from oxillama.engine.request import Request
from oxillama.engine.rewind import rewindable
from oxillama.engine.scheduler import ScheduleEntry, Scheduler, SchedulerConfig, State
from oxillama.engine.session import Session
from oxillama.engine.speculation import Speculator
from oxillama.engine.states import SequenceState, SsmStatePool
from oxillama.engine.tracker import RequestTracker
from oxillama.engine.workers import Workers
from oxillama.errors import (
    Cancelled,
    ConfigError,
    ContextError,
    EngineError,
    NoNextToken,
    QueueFull,
    SnapshotIncompatible,
    WeightsDamaged,
)

_CLOSE = object()
STALL_SECONDS = 1.0  # that others wait for the pages of one whose function does not return
_BUSY = "session: a request is running on it, wanted an idle session"

_RUNNING: weakref.WeakSet[EngineCore] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Let no loop be in a step while the interpreter is taken down."""
    for core in list(_RUNNING):
        core.close()


class EngineCore:
    """Runs requests over one program. `batch` makes what `program.step` is given; `flag` stops a
    running step (`set`, `clear`).

    context_size: most tokens of a session. eog_ids: tokens that end generation. prefix: limits of
    the prefix cache as keyword arguments of `PrefixKvCache`, None for no cache. encoder: the name of
    an architecture whose tokens see their whole text, and which has no next token; None for others.
    rope_factors: which of LongRoPE's factors rotate every session, None for a model without them.
    """

    def __init__(
        self,
        program: Any,
        memory: Any,
        *,
        batch: Callable,
        flag: Any,
        context_size: int,
        eog_ids: Iterable[int] = (),
        scheduler: SchedulerConfig | None = None,
        page_size: int = 16,
        max_pages: int | None = None,
        prefix: dict | None = None,
        encoder: str | None = None,
        rope_factors: Literal["short", "long"] | None = None,
    ) -> None:
        self._program, self.memory = program, memory
        self._encoder = encoder
        self.context_size = context_size
        # rotations that depend on a sequence's length take what it may become: the same bits always
        program.served = context_size
        self.rope_factors = rope_factors
        self.eog_ids = frozenset(eog_ids)
        self.counters = EngineMetrics()
        self.pool = KvCachePool(memory, page_size=page_size, max_pages=max_pages)
        # of models that keep recurrent state, None for others
        self.states = SsmStatePool(memory) if getattr(memory, "slot_layers", ()) else None
        if prefix is not None and self.states is not None:
            prefix = {**prefix, "stateful": True, "alive": lambda mark: mark.data is not None}
        self.prefix = PrefixKvCache(self.pool, **prefix) if prefix is not None else None
        self.allocator = PageAllocator(self.pool, self.prefix, self.counters.queue)
        # pages, sessions, requests; the loop lets go of it during a step
        self.lock = threading.RLock()
        self.step_lock = threading.Lock()  # the program: one step at a time
        # the thread that holds `step_lock` over many steps (`RawLoop`)
        self.held_by: int | None = None
        # the adapters that new sessions begin with: a function that tells them
        self.adapters: Callable[[], Any] = tuple
        self.snapshots: Any = None  # given by whoever knows the model's file
        self._flag = flag
        allocator = self.allocator
        self._scheduler = Scheduler(
            scheduler or SchedulerConfig(),
            admit=allocator.admit,
            reserve=allocator.reserve,
            release=allocator.release,
        )
        allocator.scheduler = self._scheduler
        self._tracker = RequestTracker(
            self.pool, allocator, self._scheduler, self.counters, program.vocab_size, self._run
        )
        self._tracker.whole = encoder is not None
        # (function, request, ...) for the loop to call
        self._inbox: SimpleQueue = SimpleQueue()
        self._workers = Workers()
        self._deadlines = Deadlines(self._expire)
        self._output = OutputProcessor(
            allocator,
            self._tracker,
            self._scheduler,
            self.counters,
            context_size=context_size,
            workers=self._workers,
            post=self._post,
        )
        self._command: tuple | None = None  # what is being done of the inbox
        self._stalled = False  # nothing can be planned before something comes into the inbox
        self._thread: threading.Thread | None = None
        self._failure: EngineError | None = None
        self._plan: list[tuple[ScheduleEntry, int]] = []
        # given by the caller that knows what may draft; None: nothing speculates
        self.speculator: Speculator | None = None
        self._closed = False
        self._pid = os.getpid()
        self.make_batch = batch
        self._batch = Batcher(batch, self._scheduler.config.max_batch_tokens)

    # ---- doors: any thread
    # ---------------------------------------------------------------------------------------------

    @property
    def program(self) -> Any:
        """What computes the steps; EngineError once the engine is closed, which may be while
        somebody is about to ask.
        """
        program = self._program
        if program is None:
            raise EngineError("engine: is closed")
        return program

    def check(self) -> None:
        """Raise EngineError when the engine cannot serve: closed, failed, or in a process that was
        forked off.
        """
        if os.getpid() != self._pid:
            raise EngineError(
                f"engine: belongs to process {self._pid}, this is process {os.getpid()}; wanted spawn, not fork"
            )
        if self._failure is not None:
            raise type(self._failure)(str(self._failure)) from self._failure.__cause__
        if self._closed:
            raise EngineError("engine: is closed")

    def check_waiter(self) -> None:
        """Raise EngineError where waiting for a step would never end: in the loop itself, and where
        this thread holds the steps back.
        """
        if threading.current_thread() is self._thread or self._workers.current:
            raise EngineError(
                "engine: its own loop (a processor, a listener) would wait for itself, wanted another thread"
            )
        if self.held_by == threading.get_ident():
            raise EngineError(
                "engine: a raw loop is open in this thread, which would wait for itself; wanted it closed"
            )

    def check_session(self, session: Session) -> Session:
        """The session, if it is one of this engine; ConfigError, or EngineError for another
        engine's.
        """
        if not isinstance(session, Session):
            raise ConfigError(
                f"session: found {type(session).__name__}, wanted a Session of this engine"
            )
        if session.owner is not self:
            raise EngineError("session: belongs to another engine, wanted one of this engine")
        return session

    def new_sequence(self) -> PagedKvCache:
        """What a session holds of the tokens before: pages, and state where the model keeps any."""
        return (
            PagedKvCache(self.pool)
            if self.states is None
            else SequenceState(self.pool, self.states)
        )

    def new_session(self, tokens: Sequence[int] = (), *, adapters: Any = None) -> Session:
        """A session that holds tokens and no pages yet; adapters None: those in force now."""
        session = Session(
            self, self.new_sequence(), adapters=self.adapters() if adapters is None else adapters
        )
        session.tokens, session.images = list(tokens), images_of(tokens)
        session.start = len(session.tokens)
        return session

    def request(self, session: Session, *, kind: str = "generate") -> Request:
        """A request to be filled in and handed to `submit`."""
        return Request(session, kind=kind, cancel=self._cancel, check_waiter=self.check_waiter)

    def submit(self, request: Request) -> Request:
        """Give a request to the loop; its session is busy until the request ends."""
        self.check()
        session = self.check_session(request.session)
        with self.lock:
            # again: nothing begins any more once `close` has had the lock
            self.check()
            if session.busy:
                raise EngineError(_BUSY)
            if not session.tokens:
                raise ContextError(
                    "prompt: found no tokens, wanted 1 or more", tokens=0, limit=self.context_size
                )
            if len(session.tokens) > self.context_size:
                raise ContextError(
                    f"prompt: {len(session.tokens)} tokens, the context holds {self.context_size}",
                    tokens=len(session.tokens),
                    limit=self.context_size,
                )
            if self._encoder is not None:
                self._check_encoder(request)
            self._check_images(session)
            self._check_queue(1 + len(request.siblings))
            # first: where none can be started, nothing has begun
            if self._thread is None:
                thread = threading.Thread(target=self._loop, name="oxillama engine", daemon=True)
                thread.start()
                self._thread = thread  # which runs: `close` waits for its end
                _RUNNING.add(self)
            for each in (request, *request.siblings):
                each.session.busy = True
                self._tracker.in_flight.add(each)
                each.submitted_at = time.perf_counter()
                self.counters.started += 1
        for each in (request, *request.siblings):
            if each.timeout is not None:
                self._deadlines.add(each, each.timeout)
        self._inbox.put((self._output.begin, request))
        # the loop may have ended between the check and the inbox
        if self._failure is not None or self._closed:
            self._abandon()
        return request

    def _check_queue(self, more: int) -> None:
        """Raise QueueFull where so many more requests would be beyond the scheduler's bound."""
        limits, flying = self._scheduler.config, len(self._tracker.in_flight)
        if limits.max_waiting is None or flying + more <= limits.max_sequences + limits.max_waiting:
            return
        self.counters.refused += more
        raise QueueFull(
            f"engine: {flying} requests in flight and {more} more, max_sequences {limits.max_sequences} run "
            f"and max_waiting {limits.max_waiting} wait at most"
        )

    def _check_images(self, session: Session) -> None:
        """Raise ContextError for an image whose rows must be of one step and are more than one holds."""
        limits = self._scheduler.config
        most = limits.max_batch_tokens - limits.max_batch_sequences
        for start, end in spans_of(session.images):
            if end - start > most:
                raise ContextError(
                    f"image: {end - start} rows, which are evaluated in one step; max_batch_tokens "
                    f"{limits.max_batch_tokens} beside max_batch_sequences {limits.max_batch_sequences} leaves {most}",
                    tokens=end - start,
                    limit=most,
                )

    def _check_encoder(self, request: Request) -> None:
        """Raise for what an encoder cannot do: EngineError, ContextError for a text longer than a step."""
        if not request.hidden:
            kind = {"rows": "logits", "extend": "prefill", "beams": "beam_generate"}.get(
                request.kind, request.kind
            )
            raise NoNextToken(
                f"{kind}: {self._encoder} is an encoder, which has no next token; wanted embed, rerank or score"
            )
        found, most = len(request.session.tokens), self._scheduler.config.max_batch_tokens
        if found > most:
            raise ContextError(
                f"embed: {found} tokens, a step holds {most}; a text of {self._encoder} is evaluated in one step",
                tokens=found,
                limit=most,
            )

    def keep(self, session: Session) -> Session:
        """Count a session among those that may keep pages while idle; until it is dropped, or
        forgotten.
        """
        with self.lock:
            self.allocator.keep(session)
        return session

    def drop(self, session: Session) -> None:
        """Free a session's pages; it must be idle."""
        with self.lock:
            if session.busy:
                raise EngineError(_BUSY)
            self.allocator.sessions.pop(session, None)
            session.kv.release()

    def saved(self) -> Any:
        """Where sessions are saved; SnapshotIncompatible for an engine that was made without a
        model file to bind them to.
        """
        if self.snapshots is None:
            raise SnapshotIncompatible(
                "engine: was made without a model file, wanted one that a snapshot can name"
            )
        return self.snapshots

    def files(self) -> tuple[Path, ...]:
        """The files that weights are read from: the model's own, and those of the drafts that
        requests have named; none for models without.
        """
        cores = (self, *(self.speculator.cores() if self.speculator is not None else ()))
        return tuple(
            path
            for core in cores
            if core.snapshots is not None
            for path in core.snapshots.reader.paths
        )

    def settle(self, session: Session) -> None:
        """Wait for a cancelled request that still runs on the session; it leaves within
        milliseconds.
        """
        for request in [
            each
            for each in tuple(self._tracker.in_flight)
            if each.session is session and each.stopping
        ]:
            request.wait()

    @contextmanager
    def change(self, session: Session) -> Iterator[None]:
        """The lock under which an idle session may be changed; EngineError while a request runs on
        it.
        """
        self.check()
        with self.lock:
            if session.busy:
                raise EngineError(_BUSY)
            yield

    def extend(self, session: Session, ids: Sequence[int]) -> np.ndarray:
        """Append tokens to a session and evaluate them; returns the logits after the last, float32
        (vocab,).

        Without success nothing is appended.
        """
        self.check_waiter()
        self.check_session(session)
        ids = list(ids)
        if not ids:
            raise ContextError("prefill: found no tokens, wanted 1 or more")
        with self.lock, session.restored_on_error():
            before = len(session)
            if before + len(ids) > self.context_size:
                raise ContextError(
                    f"prefill: {before} tokens and {len(ids)} more, the context holds {self.context_size}",
                    tokens=before + len(ids),
                    limit=self.context_size,
                )
            session.extend(ids)
            request = self.request(session, kind="extend")
            request.before = before
            self.submit(request)
        try:
            return request.result()
        except BaseException:
            request.cancel()
            request.wait()
            # interrupted with the logits at hand: nobody saw them
            with self.lock:
                if (
                    request.value is not None
                    and not session.busy
                    and len(session) == before + len(ids)
                ):
                    session.cut(before)
            raise

    def metrics(self) -> MetricsSnapshot:
        """The counters as they are now."""
        with self.lock:
            prefix, scheduler, leaked = (
                self.prefix,
                self._scheduler,
                self.allocator.leaked(self._tracker.in_flight),
            )
            return self.counters.freeze(
                requests_preempted_total=scheduler.preemptions,
                requests_waiting=len(scheduler.waiting),
                requests_running=scheduler.running,
                kv_hits_total=prefix.hits if prefix else 0,
                kv_misses_total=prefix.misses if prefix else 0,
                kv_tokens_saved_total=prefix.tokens_saved if prefix else 0,
                kv_evictions_total=prefix.evictions if prefix else 0,
                pages_used=self.pool.pages_used,
                pages_cached=prefix.pages_used if prefix else 0,
                pages_leaked=leaked,
                page_memory_bytes=self.pool.memory_bytes,
            )

    def clear_cache(self) -> None:
        """Forget every stored prefix and give free memory back to the system where no step is
        running.
        """
        self.check_waiter()
        with self.step_lock, self.lock:  # in the loop's own order
            if self.prefix is not None:
                self.prefix.clear()
            self.allocator.collect()
            self.pool.shrink_to_fit()

    def close(self) -> None:
        """End the loop; requests in flight end as cancelled. Safe to call twice, from any thread,
        in a forked child too.
        """
        if self._closed or os.getpid() != self._pid:
            self._closed = True
            return
        if self.held_by == threading.get_ident() and self._thread is not None:
            self.check_waiter()  # the loop would not end
        self._closed = True
        self._flag.set()
        self._inbox.put(_CLOSE)
        with self.lock:  # which whoever is starting the thread holds
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._abandon()
        self._deadlines.close()
        self._workers.close()
        if self.speculator is not None:
            self.speculator.close()
        mine = thread is threading.current_thread() or self.held_by == threading.get_ident()
        # another engine's draft may be in a step over these pages
        with nullcontext() if mine else self.step_lock, self.lock:
            for session in list(self.allocator.sessions):
                self.allocator.sessions.pop(session)
                session.kv.release()
            self.allocator.collect()
            if self.prefix is not None:
                self.prefix.clear()
            self.pool.shrink_to_fit()
            self._program = None

    def stop(self) -> None:
        """Ask the loop to end, and wait for nothing: for whoever may not wait (a finaliser)."""
        if not self._closed and os.getpid() == self._pid:
            self._closed = True
            self._flag.set()
            self._inbox.put(_CLOSE)
            self._deadlines.close()
            self._workers.close()

    # ---- the loop
    # --------------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while True:
                try:
                    if not self._commands():
                        return
                    self._tick()
                except MemoryError as refused:
                    self._survive(refused)
        except BaseException as error:  # the loop must never end without everybody being told
            self._fail(error)
        finally:
            self._abandon()

    def _commands(self) -> bool:
        """Do what came through the inbox, and wait there while nothing can be planned; False at the
        engine's end.
        """
        inbox, scheduler = self._inbox, self._scheduler
        while scheduler.idle or self._stalled or not inbox.empty():
            try:
                command = inbox.get(timeout=STALL_SECONDS if self._stalled else None)
            except Empty:
                command = (scheduler.evict_parked,)
            self._stalled = False
            if command is _CLOSE:
                return False
            self._command = command
            with self.lock:
                command[0](*command[1:])
            # it knows its request, which whoever asked may have forgotten
            self._command = command = None
        return True

    def _tick(self) -> None:
        """One step, from the plan to the callers."""
        if self._tracker.undrafted:
            self._draft()
        with self.lock:
            plan = self._scheduler.schedule()
            if not plan:
                self._tracker.end_starved()
                self._stalled = self._scheduler.parked > 0
                return
            self._plan = plan
            batch, hidden = self._batch(plan)
            self._flag.clear()
            if self._closed or any(entry.owner.stopping for entry, _ in plan):
                self._plan = []
                self._tracker.end_stopped()
                return
        start = time.perf_counter()
        try:
            with self.step_lock:
                out = self.program.step(
                    batch, self.memory, output="hidden" if hidden else "logits", cancel=self._flag
                )
                now = time.perf_counter()
                with self.lock:
                    self._output.process(plan, out, start, now, representative=self.program.usual)
                    self._plan = []
        except Cancelled:
            with self.lock:
                self._plan = []
                self._tracker.end_stopped()
                if self.states is not None:
                    self._evaluate_again(plan)

    def _evaluate_again(self, plan: list[tuple[ScheduleEntry, int]]) -> None:
        """A stopped step left the recurrent state of its other requests undefined: they begin again,
        from stored checkpoints where there are any.
        """
        for entry, _ in plan:
            if entry.owner in self._tracker.in_flight:
                self.allocator.release(entry)
                self._tracker.restart(entry.owner)

    def _survive(self, refused: MemoryError) -> None:
        """Memory was refused: the requests it was wanted for end of that. They are those of a
        command or a plan; before there is a plan, the one that pages are sought for, else everybody
        who runs, or waits where nobody does.
        """
        with self.lock:
            scheduler, command = self._scheduler, self._command
            asking, plan = scheduler.asking, self._plan
            scheduler.asking, self._plan, self._command = None, [], None
            if command is not None:
                self._tracker.end_step(command[1:2], refused)
                return
            entries = [entry for entry, _ in plan] or ([asking] if asking is not None else [])
            entries = entries or [*scheduler.prefilling, *scheduler.decoding]
            self._tracker.end_step(
                [each.owner for each in entries or list(scheduler.waiting)], refused
            )

    def _draft(self) -> None:
        """Candidates for the requests that want them. Not under the lock: a draft model takes its
        time, and what it reads is the loop's alone.
        """
        tracker, speculator = self._tracker, self.speculator
        wanting, tracker.undrafted = tracker.undrafted, {}
        # one that waits for a function of its own is asked for once that has returned
        tracker.undrafted = {each: None for each in wanting if each.entry.parked}
        requests = [
            each for each in wanting if each.entry.state is State.DECODING and not each.entry.parked
        ]
        if speculator is None or not rewindable(self.memory):  # a row at a time
            for request in requests:
                if request.speculation is not None:
                    request.speculation.fallbacks += 1
            return
        for request, error in speculator.propose(
            requests,
            sequences=len(self._scheduler.decoding),
            prefilled=self.counters.prefilled,
            parking=self._output.park,
        ):
            # else they end as cancelled, whatever a draft that was closed with this engine says
            if not self._closed:
                with self.lock:
                    self._tracker.end(request, None, error)

    def beside_loop(self, call: Callable[[], None]) -> None:
        """Run `call()`, which must not raise, in a thread beside the loop."""
        self._workers.run(call)

    def _post(self, command: tuple) -> None:
        """Let the loop call (function, arguments...), from any thread."""
        self._inbox.put(command)

    # ---- ends
    # ---------------------------------------------------------------------------------------------------------

    def _cancel(self, request: Request) -> None:
        """From any thread: the request ends within a few milliseconds; a step that is mostly its
        own is stopped.
        """
        self._stop(request, "cancelled")

    def _expire(self, request: Request) -> None:
        """From the thread of deadlines: the time of a request is over."""
        self._stop(request, "timeout")

    def _stop(self, request: Request, reason: str) -> None:
        request.stopping = request.stopping or reason
        plan = self._plan
        own = sum(rows for entry, rows in plan if entry.owner is request)
        if 2 * own >= sum(rows for _, rows in plan) > 0:
            self._flag.set()
        self._inbox.put((self._tracker.end, request, request.stopping))

    def _run(self, call: Callable[[], None]) -> None:
        """Run a function of a caller beside the loop, once nobody waits for it any more."""

        def quietly() -> None:
            try:
                call()
            except BaseException:
                with suppress(BaseException):
                    threading.excepthook(
                        threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
                    )

        with suppress(RuntimeError):  # no thread to be had: it is not called
            self._workers.run(quietly)

    def fail(self, error: WeightsDamaged) -> None:
        """End every request in flight with an error, and refuse all that come later; from any
        thread.
        """
        self._failure = error
        self._inbox.put((_raise, error))  # requests are ended by the loop alone

    def _fail(self, error: BaseException) -> None:
        """The loop broke: everybody in flight learns why, and so does whoever comes later."""
        failure: EngineError
        if isinstance(error, WeightsDamaged):
            failure = error
        else:
            failure = EngineError(
                f"engine: failed in its step loop, {type(error).__name__}: {error}"
            )
            failure.__cause__ = error
        self._failure = failure
        self._tracker.end_all(failure)

    def _abandon(self) -> None:
        """Requests that the loop will not come to any more."""
        with self.lock:
            thread = self._thread
            if self._failure is not None:
                self._tracker.end_all(self._failure)
            elif self._closed and (
                thread is None or not thread.is_alive() or thread is threading.current_thread()
            ):
                self._tracker.end_all(None)


def _raise(error: BaseException) -> None:
    raise error
