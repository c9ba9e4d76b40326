"""`EngineCore`: what any thread can ask of an engine. The work itself is done by `loop.StepLoop`.

It handles integers only: tokens, pages, positions. It is given a program (an object with `step` and
`representative`), page memory, and requests whose sessions turn logits into tokens and tokens into
text. Callers touch what the loop owns only under `lock`.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from oxillama.engine.allocator import PageAllocator
from oxillama.engine.loop import StepLoop
from oxillama.engine.metrics import EngineMetrics, MetricsSnapshot
from oxillama.engine.request import PrefillRequest, Request
from oxillama.engine.scheduler import SchedulerConfig
from oxillama.engine.session import Session
from oxillama.engine.speculation import Speculator
from oxillama.errors import (
    ConfigError,
    ContextError,
    EngineError,
    NoNextToken,
    QueueFull,
    SnapshotIncompatible,
    WeightsDamaged,
)
from oxillama.media.features import MediaFeatures
from oxillama.media.placement import EncoderSource, PlacedMedia, source_of
from oxillama.media.prompt import ImagePrompt, media_of
from oxillama.model.builder import Filling
from oxillama.sampling import DiffusionConfig
from oxillama.weights.pager import PagingStats

_BUSY = "session: a request is running on it, wanted an idle session"
_CLOSED = "session: is closed"

AnyRequest = TypeVar("AnyRequest", bound=Request)

_RUNNING: weakref.WeakSet[EngineCore] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Make sure that no loop is in a step when the interpreter shuts down."""
    for core in list(_RUNNING):
        core.close()


class EngineCore:
    """Runs requests over one program. `batch` fills the arrays of `program.step`; `flag` stops a
    running step (`set`, `clear`).

    context_size: most tokens of a session. eog_ids: tokens that end generation. prefix: limits of
    the prefix cache as keyword arguments of `PrefixKvCache`, None for no cache. encoder: the name
    of an encoder architecture (each token sees its whole text and there is no next token), None for
    decoders. start_token: the token that an answer begins with, if an encoder reads the prompt
    (`model.encoder_decoder`), None for others. filling: how the model fills in masks, None for
    others; diffusion: in which way if a request does not say it. rope_factors: which of LongRoPE's
    factors all sessions use, None for a model without them. reads: the files that the model came
    from. paging: tells what was read of weights that are paged, None where none are.
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
        start_token: int | None = None,
        filling: Filling | None = None,
        diffusion: DiffusionConfig | None = None,
        rope_factors: Literal["short", "long"] | None = None,
        reads: Iterable[Path] = (),
        paging: Callable[[], PagingStats] | None = None,
    ) -> None:
        self.memory = memory
        self.encoder, self.start_token = encoder, start_token
        self.filling, self.diffusion = filling, diffusion or DiffusionConfig()
        self.context_size = context_size
        # rotations that depend on a sequence's length take what it may become: the same bits always
        program.served = context_size
        self.rope_factors = rope_factors
        self.eog_ids = frozenset(eog_ids)
        self.counters = EngineMetrics()
        self.allocator = allocator = PageAllocator(
            memory,
            self.counters.queue,
            scheduling=scheduler or SchedulerConfig(),
            page_size=page_size,
            max_pages=max_pages,
            prefix=prefix,
        )
        self.pool, self.prefix, self.states = allocator.pool, allocator.prefix, allocator.states
        self.new_sequence = allocator.new_sequence  # for sessions, which know the core alone
        # pages, sessions, requests; the loop lets go of it during a step
        self.lock = threading.RLock()
        self.step_lock = threading.Lock()  # the program: one step at a time
        # the thread that holds `step_lock` over many steps (`RawLoop`)
        self.held_by: int | None = None
        # the adapters that new sessions begin with
        self.adapters: Callable[[], Any] = tuple
        self.paging, self.reads = paging, tuple(reads)
        self.snapshots: Any = None  # set by the code that knows the model's file
        self.make_batch = batch
        self._whole = encoder is not None or filling is not None  # a row sees its whole text
        self._scheduler = allocator.scheduler
        self._loop = StepLoop(
            program,
            memory,
            allocator,
            self.counters,
            batch=batch,
            flag=flag,
            context_size=context_size,
            whole=self._whole,
            lock=self.lock,
            step_lock=self.step_lock,
        )
        self._tracker = self._loop.tracker
        self._pid = os.getpid()

    @property
    def program(self) -> Any:
        """The program that computes steps; EngineError if the engine has been closed, possibly by
        another thread.
        """
        program = self._loop.program
        if program is None:
            raise EngineError("engine: is closed")
        return program

    @property
    def closed(self) -> bool:
        """Whether it has been closed, which released the pages of every session."""
        return self._loop.closed

    @property
    def speculator(self) -> Speculator | None:
        """Drafts candidates for requests; None if nothing speculates."""
        return self._loop.speculator

    @speculator.setter
    def speculator(self, speculator: Speculator | None) -> None:
        self._loop.speculator = speculator

    def check(self) -> None:
        """Raise EngineError if the engine cannot serve: closed, failed, or in a forked child
        process.
        """
        if os.getpid() != self._pid:
            raise EngineError(
                f"engine: was loaded by process {self._pid}, and its threads are not in the forked "
                f"process {os.getpid()}; load a model in this process"
            )
        failure = self._loop.failure
        if failure is not None:
            raise type(failure)(str(failure)) from failure.__cause__
        if self._loop.closed:
            raise EngineError("engine: is closed")

    def check_waiter(self) -> None:
        """Raise EngineError if waiting for a step would never end: in the loop itself, or if this
        thread holds the steps back.
        """
        if threading.current_thread() is self._loop.thread or self._loop.workers.current:
            raise EngineError(
                "engine: its own loop (a processor, a listener) would wait for itself, wanted "
                "another thread"
            )
        if self.held_by == threading.get_ident():
            raise EngineError(
                "engine: a raw loop is open in this thread, which would wait for itself; wanted it "
                "closed"
            )

    def check_session(self, session: Session) -> Session:
        """The session, if it belongs to this engine; ConfigError for other values, EngineError for
        another engine's session and for one that was closed.
        """
        if not isinstance(session, Session):
            raise ConfigError(
                f"session: found {type(session).__name__}, wanted a Session of this engine"
            )
        if session.owner is not self:
            raise EngineError("session: belongs to another engine, wanted one of this engine")
        if session.closed:
            raise EngineError(_CLOSED)
        return session

    def new_session(self, tokens: Sequence[int] = (), *, adapters: Any = None) -> Session:
        """A session with tokens and no pages yet; adapters None: the current stack."""
        session = Session(
            self,
            self.new_sequence(),
            adapters=self.adapters() if adapters is None else adapters,
        )
        session.tokens, session.media = list(tokens), media_of(tokens)
        session.start = len(session.tokens)
        return session

    def sourced(self, ids: Sequence[int]) -> list[int]:
        """Tokens as an empty session takes them: if an encoder reads them, the decoder's start
        token follows.
        """
        if self.start_token is None or not ids or source_of(media_of(ids)) is not None:
            return ids if isinstance(ids, list) else list(ids)
        source = EncoderSource((*ids, self.start_token))
        return ImagePrompt(source.tokens, (*media_of(ids), PlacedMedia(0, source)))

    def check_unsourced(self, session: Session) -> None:
        """Raise ConfigError for a session that has a source, for which there is no second one."""
        if session.target:
            raise ConfigError(
                f"prompt: found one for a session of {len(session)} tokens, whose source the "
                "encoder has; wanted a new session (`Session.extend` appends tokens of the answer)"
            )

    def request(self, kind: type[AnyRequest], session: Session) -> AnyRequest:
        """A new request of the given kind, to be filled in and passed to `submit`."""
        return kind(session, cancel=self._cancel, check_waiter=self.check_waiter)

    def submit(self, request: AnyRequest) -> AnyRequest:
        """Pass a request to the loop; its session is busy until the request ends."""
        self.check()
        session = self.check_session(request.session)
        with self.lock:
            # again: nothing begins any more once `close` has had the lock
            self.check()
            _check_idle(session)
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
            if self._whole:
                self._check_whole(request)
            self._check_source(request)
            self._check_media(session)
            self._check_queue(1 + len(request.siblings))
            # first: where no thread can be started, nothing has begun
            if self._loop.start():
                _RUNNING.add(self)
            begun: tuple[Request, ...] = (request, *request.siblings)
            self._loop.watch(begun)
            for each in begun:
                each.session.busy = True
                self._tracker.in_flight.add(each)
                each.submitted_at = time.perf_counter()
                self.counters.started += 1
            self._loop.begin(request)
        self._loop.check_running()
        return request

    def _check_queue(self, more: int) -> None:
        """Raise QueueFull if this many more requests would exceed the scheduler's limit."""
        limits, flying = self._scheduler.config, len(self._tracker.in_flight)
        if limits.max_waiting is None or flying + more <= limits.max_sequences + limits.max_waiting:
            return
        self.counters.refused += more
        raise QueueFull(
            f"engine: {flying} requests in flight and {more} more, max_sequences "
            f"{limits.max_sequences} run and max_waiting {limits.max_waiting} wait at most"
        )

    def _check_media(self, session: Session) -> None:
        """Raise ConfigError for an image or a clip that another model's encoder made, ContextError
        for one, or a source, with more rows than one step holds; they must be evaluated in one
        step.
        """
        limits = self._scheduler.config
        most = limits.max_batch_tokens - limits.max_batch_sequences
        for each in session.media:
            rows, kind = len(each.features), each.features.kind
            if not isinstance(each.features, EncoderSource):
                _check_features(self.program, each.features)
            if each.features.together and rows > most:
                raise ContextError(
                    f"{kind}: {rows} rows, which are evaluated in one step; max_batch_tokens "
                    f"{limits.max_batch_tokens} with max_batch_sequences "
                    f"{limits.max_batch_sequences} leaves {most}",
                    tokens=rows,
                    limit=most,
                )

    def _check_source(self, request: Request) -> None:
        """Raise ConfigError for a source if no encoder reads one; if one does, for a session
        without, and for what the encoder's tokens have none of.
        """
        media = request.session.media
        source = source_of(media)
        if self.start_token is None:
            if source is not None:
                raise ConfigError("prompt: found a source for a model without an encoder before it")
            return
        if request.on_rows is not None:
            raise ConfigError(
                f"{'prompt_logprobs' if request.draws else request.kind}: found a model whose "
                "encoder reads the prompt, which has no output of its own; wanted generate, "
                "prefill or forward_one"
            )
        whole = source is not None and (media[0].start, len(media)) == (0, 1)
        if source is None or not whole or source.tokens[-1] != self.start_token:
            raise ConfigError(
                "prompt: found images, audio or no source at its beginning, wanted a text to encode"
            )

    def check_generates(self, kind: str) -> None:
        """NoNextToken for an encoder; kind: what was asked for."""
        if self.encoder is not None:
            raise NoNextToken(
                f"{kind}: {self.encoder} is an encoder, which has no next token; wanted embed, "
                "rerank or score"
            )

    def _check_whole(self, request: Request) -> None:
        """Raise for what a model cannot do whose rows see the whole text: EngineError for what
        wants a next token, ContextError for a text longer than a step.
        """
        if not request.hidden:
            self.check_generates(request.kind)
        if self.filling is not None and request.fill is None and request.on_rows is None:
            raise NoNextToken(
                f"{request.kind}: the model fills in masks and has no next token; wanted generate, "
                "chat, logits or embed"
            )
        found, most = len(request.session.tokens), self._scheduler.config.max_batch_tokens
        if request.fill is not None:
            found = len(request.fill.tokens)
        if found > most:
            raise ContextError(
                f"{request.kind}: {found} tokens, a step holds {most}; every row of this model "
                "sees the whole text, which is evaluated in one step",
                tokens=found,
                limit=most,
            )

    def keep(self, session: Session) -> Session:
        """Add a session to those that may keep pages while idle, until it is dropped or freed."""
        with self.lock:
            self.allocator.keep(session)
        return session

    def drop(self, session: Session) -> None:
        """Free a session's pages; it must be idle."""
        with self.lock:
            if session.busy:
                raise EngineError(_BUSY)
            self.allocator.sessions.remove(session)
            session.kv.release()

    def require_snapshots(self) -> Any:
        """Saves sessions; SnapshotIncompatible for an engine without a model file to bind them to,
        EngineError for one that was closed.
        """
        if self.snapshots is None:
            self.check()
            raise SnapshotIncompatible(
                "engine: was made without a model file, wanted one that a snapshot can name"
            )
        return self.snapshots

    def files(self) -> tuple[Path, ...]:
        """The files that weights are read from: the model's, and those of drafts that requests have
        named; empty for a model without files.
        """
        cores = (self, *(self.speculator.cores() if self.speculator is not None else ()))
        return tuple(path for core in cores for path in core.reads)

    def wait_for_cancelled(self, session: Session) -> None:
        """Wait for a cancelled request that still runs on the session; it ends within
        milliseconds.
        """
        with self.lock:
            ending = [
                each
                for each in self._tracker.in_flight
                if each.session is session and each.stopping
            ]
        for request in ending:
            request.wait()

    @contextmanager
    def exclusive(self, session: Session) -> Iterator[None]:
        """The lock that must be held to change an idle session; EngineError while a request runs on
        it, and for one that was closed.
        """
        self.check()
        with self.lock:
            _check_idle(session)
            yield

    def extend(self, session: Session, ids: Sequence[int]) -> np.ndarray:
        """Append tokens to a session and evaluate them; returns the logits after the last, float32
        (vocab,). If it fails, the session is as it was before.
        """
        self.check_waiter()
        self.check_session(session)
        if not isinstance(ids, list):  # a prompt with images is one
            ids = list(ids)
        if not session.tokens:
            ids = self.sourced(ids)
        if not ids:
            raise ContextError("prefill: found no tokens, wanted 1 or more")
        self.wait_for_cancelled(session)
        with self.lock, session.restored_on_error():
            before = len(session)
            restore = session.restorer()
            session.extend_locked(ids)
            request = self.request(PrefillRequest, session)
            request.restore = restore
            self.submit(request)
        try:
            return request.result()
        except BaseException:
            request.cancel()
            request.wait()
            # interrupted after the logits were computed, which no caller has seen
            with self.lock:
                if (
                    request.value is not None
                    and not session.busy
                    and len(session) == before + len(ids)
                ):
                    restore()
            raise

    def metrics(self) -> MetricsSnapshot:
        """The current counters."""
        with self.lock:
            prefix, scheduler = self.prefix, self._scheduler
            held, leaked = self.allocator.held(self._tracker.in_flight)
            return self.counters.freeze(
                requests_preempted_total=scheduler.preemptions,
                requests_waiting=len(scheduler.waiting),
                requests_running=scheduler.running,
                kv_hits_total=prefix.hits if prefix else 0,
                kv_misses_total=prefix.misses if prefix else 0,
                kv_tokens_saved_total=prefix.tokens_saved if prefix else 0,
                kv_evictions_total=prefix.evictions if prefix else 0,
                pages_used=self.pool.pages_used,
                pages_held=held,
                pages_cached=prefix.pages_used if prefix else 0,
                pages_leaked=leaked,
                page_memory_bytes=self.pool.memory_bytes,
                **({} if self.paging is None else _paging(self.paging())),
            )

    def clear_cache(self) -> None:
        """Remove every stored prefix, and return free memory to the system if no step is
        running.
        """
        self.check_waiter()
        with self.step_lock, self.lock:  # in the loop's own order
            if self.prefix is not None:
                self.prefix.clear()
            self.allocator.collect()
            self.pool.shrink_to_fit()

    def close(self) -> None:
        """End the loop; running requests end as cancelled. Safe to call twice, from any thread, and
        in a forked child.
        """
        if self._loop.closed or os.getpid() != self._pid:
            self._loop.closed = True
            return
        if self.held_by == threading.get_ident() and self._loop.thread is not None:
            self.check_waiter()  # the loop would not end
        self._loop.close()
        with self.lock:  # held by a thread that is starting the loop
            thread = self._loop.thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._loop.abandon()
        self._loop.release()
        mine = thread is threading.current_thread() or self.held_by == threading.get_ident()
        self._let_go(mine)

    def stop(self) -> None:
        """Ask the loop to end and to free the model then, without waiting, for callers that must
        not wait (a finaliser).
        """
        if not self._loop.closed and os.getpid() == self._pid:
            self._loop.close(then=self._let_go)
            self._loop.release()

    def _let_go(self, mine: bool = False) -> None:
        """Free the pages and all that holds the model, after the end of the loop: weights must not
        wait for the garbage collector, which knows nothing of their size. mine: whether this thread
        holds the steps back.
        """
        if self.speculator is not None:
            self.speculator.close()
        # another engine's draft may be in a step over these pages
        with nullcontext() if mine else self.step_lock, self.lock:
            for session in list(self.allocator.sessions):
                self.allocator.sessions.remove(session)
                session.kv.release()
            self.allocator.collect()
            if self.prefix is not None:
                self.prefix.clear()
            self.pool.shrink_to_fit()
            self._loop.program = self.snapshots = self.paging = None
            self.adapters = tuple

    def fail(self, error: WeightsDamaged) -> None:
        """End every running request with an error and refuse all later ones; from any thread."""
        self._loop.fail(error)

    def run_in_worker(self, call: Callable[[], None]) -> None:
        """Run `call()`, which must not raise, in a worker thread."""
        self._loop.workers.run(call)

    def _cancel(self, request: Request) -> None:
        self._loop.stop(request, "cancelled")


def _check_idle(session: Session) -> None:
    """Raise EngineError for a session that is closed or that a request runs on."""
    if session.closed:
        raise EngineError(_CLOSED)
    if session.busy:
        raise EngineError(_BUSY)


def _check_features(program: Any, features: MediaFeatures) -> None:
    """Raise ConfigError for features that a program cannot take in place of embeddings."""
    width, kind = features.rows.shape[1], features.kind
    axes = 1 if features.positions is None else 4 if features.fixed else 3
    if not program.causal:
        raise ConfigError(f"{kind}: found one for an encoder of texts, wanted tokens alone")
    if program.by_token:
        raise ConfigError(
            f"{kind}: found one for a model that routes tokens to experts by their number, wanted "
            "tokens alone"
        )
    if width != program.embed_columns:
        raise ConfigError(
            f"{kind}: found rows of {width}, wanted {program.embed_columns}, as this model's own "
            "encoder makes them"
        )
    if axes not in (1, program.sections):
        raise ConfigError(
            f"{kind}: found {axes} positions of each row, this model rotates by {program.sections}"
        )


def _paging(stats: PagingStats) -> dict[str, Any]:
    """The metrics of paged weights."""
    return {
        "weights_budget_bytes": stats.budget_bytes,
        "weights_packed_bytes": stats.model_bytes,
        "weights_resident_bytes": stats.resident_bytes,
        "weight_pages_read_total": stats.pages_read,
        "weight_page_hits_total": stats.page_hits,
        "weight_bytes_read_total": stats.bytes_read,
        "weight_wait_seconds_total": stats.wait_seconds,
    }
