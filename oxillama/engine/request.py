"""What a caller holds while the engine works: a `Request`.

    GenerateRequest   text after a prompt
    RowsRequest       logits of every token; EmbedRequest: hidden states
    PrefillRequest    tokens at the end of a session
    BeamRequest       a beam search

The engine's loop appends to a request and notifies its listeners; `stream` reads it. A listener
runs in a worker thread. Its request waits for it, other requests do not.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from oxillama.completion import Completion, Piece, Timings, Usage
from oxillama.engine.speculation import RequestCandidates
from oxillama.engine.stream import HEARD, Stream, awaited, pieces_of
from oxillama.errors import Cancelled, ConfigError, EngineError, not_pickled
from oxillama.sampling import Logprobs
from oxillama.sampling.diffusion import Denoiser


class Request:
    """Work given to the engine; `InferenceEngine.submit` makes one. `result()` waits for the end,
    iteration streams, `cancel()` stops it.

    Attributes written by the loop are read-only for callers. `session` is the session it runs on.
    """

    __slots__ = (
        "__weakref__",
        "_cancel",
        "_check_waiter",
        "_done",
        "_listener_lock",
        "_listeners",
        "_lock",
        "_pid",
        "_worker_listeners",
        "admitted_at",
        "awaited_call",
        "cache",
        "cached",
        "delivered",
        "ended_at",
        "entry",
        "error",
        "finish_reason",
        "first_at",
        "on_rows",
        "outcome",
        "owner",
        "pending_calls",
        "prefix_source",
        "priority",
        "prompt_tokens",
        "session",
        "stopping",
        "submitted_at",
        "timeout",
        "token_at",
        "value",
    )

    kind: ClassVar[str]  # the method of the engine that asks for it
    draws: ClassVar[bool] = False  # it continues after its prompt
    hidden: ClassVar[bool] = False  # its rows are hidden states, not logits
    caches: ClassVar[bool] = True  # it may use and fill the prefix cache, unless it says otherwise

    # what generation alone has
    fill: Denoiser | None = None
    generated: Sequence[int] = ()
    pieces: Sequence[tuple[str, int]] = ()
    logprobs: Sequence[Any] = ()
    siblings: tuple[GenerateRequest, ...] = ()
    speculation: RequestCandidates | None = None
    read: Callable[[Completion], Completion] | None = None
    events: Callable[[], Any] | None = None

    def __init__(
        self,
        session: Any,
        *,
        cancel: Callable[[Request], None],
        check_waiter: Callable[[], None] = lambda: None,
    ) -> None:
        """check_waiter: raises if the caller would wait for itself."""
        self.session = session
        self.cache = self.caches
        # called with (first position, rows) of every row of the prompt
        self.on_rows: Callable[[int, Any], None] | None = None
        self.delivered = 0  # positions that it was called with
        self.owner: Any = None  # whom the request keeps alive while it runs
        self.prompt_tokens = self.cached = 0
        self.value: Any = None  # what kinds other than generation produce
        self.finish_reason: str | None = None
        self.error: BaseException | None = None
        # why the loop is to end it: "cancelled" or "timeout"
        self.stopping: str | None = None
        # the reason to finish that its last token gave, while listeners are called: a cancel that
        # comes then does not change it
        self.outcome: str | None = None
        self.priority = 0  # the lower number goes first
        self.timeout: float | None = None  # seconds from submit
        # the call in a worker thread that its next token waits for
        self.awaited_call: object = None
        self.pending_calls = 0  # calls of listeners in worker threads that are to come
        self.entry: Any = None
        self.prefix_source: tuple[Any, int] | None = None
        self.submitted_at = self.admitted_at = self.first_at = self.token_at = self.ended_at = 0.0
        self._cancel, self._check_waiter = cancel, check_waiter
        self._done = threading.Event()
        self._listeners: tuple[Callable[[], None], ...] = ()
        # listeners that run in worker threads
        self._worker_listeners: tuple[Callable[[], None], ...] = ()
        self._listener_lock = threading.Lock()  # one call of those at a time
        self._lock = threading.Lock()
        self._pid = os.getpid()

    # ---- what a kind says of itself, asked by the loop
    # ----------------------------------------------------------------------------------------------

    @property
    def sessions(self) -> Sequence[Any]:
        """The sessions whose pages this request holds."""
        return (self.session,)

    def start(self) -> Any:
        """Prepare the session for its first step; returns the logits to continue from, None if a
        step is needed for them.
        """
        return None

    def take_prompt(self, rows: Any) -> None:
        """The prompt of a request that draws nothing is evaluated; `rows` are the last rows."""

    def close_forks(self) -> None:
        """Release the pages of forked sessions. Calling it again does nothing."""

    def roll_back(self) -> None:
        """Undo the changes to its session, if there is no result."""

    # ---- for callers
    # ----------------------------------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self.stopping == "cancelled"

    @property
    def done(self) -> bool:
        """Whether the request has ended, for any reason."""
        return self._done.is_set()

    def cancel(self) -> None:
        """Stop the request. Safe from any thread, at any time, more than once."""
        if not self._done.is_set():
            self._cancel(self)

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end and return the `Completion` (or the value of other kinds).

        Raises the error that ended the request, and TimeoutError after `timeout` seconds; the
        request itself continues (the option `timeout` ends a request).
        """
        self.check_process()
        check_timeout(timeout)
        if not self._done.is_set():
            self._check_waiter()
        if not self._done.wait(
            None if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)
        ):
            raise TimeoutError(
                f"request: not finished within {timeout} s; it continues; `cancel()` ends it"
            )
        return self._outcome()

    def check_process(self) -> None:
        """Raise EngineError in a forked child process, where the request can never end."""
        if self._pid != os.getpid():
            raise EngineError(
                f"request: was made in process {self._pid}, and never ends in the forked process "
                f"{os.getpid()}; load a model in this process and ask it"
            )

    def check_waiter(self) -> None:
        """Raise EngineError in a thread that would wait for itself: the engine's own."""
        self._check_waiter()

    def wait(self) -> None:
        """Wait for the end, whatever the reason; returns at once for a request that was never
        submitted.
        """
        self.check_process()
        if self.submitted_at and not self._done.is_set():
            self._check_waiter()
            while not self._done.wait(HEARD):
                pass

    def __iter__(self) -> Iterator[Piece]:
        return Stream(self, owner=False)

    def __await__(self) -> Generator[Any, None, Any]:
        return awaited(self).__await__()

    def __aiter__(self) -> AsyncIterator[Piece]:
        return pieces_of(self)

    def listen(self, listener: Callable[[], None], *, in_loop: bool = False) -> None:
        """Call `listener()` after every piece and at the end, in a worker thread.

        The request's next token waits for the listener; other requests do not. If it raises, the
        request ends with that error and the listener is not called again; an exception at the end
        goes to `threading.excepthook`. It may read and cancel, but must not wait for the engine.
        in_loop: call it directly in the loop's thread; all requests wait for it, so it must never
        block.
        """
        with self._lock:
            if in_loop:
                self._listeners = (*self._listeners, listener)
            else:
                self._worker_listeners = (*self._worker_listeners, listener)

    def stop_listening(self, listener: Callable[[], None]) -> None:
        """Stop calling `listener`."""
        with self._lock:
            self._listeners = tuple(each for each in self._listeners if each != listener)
            self._worker_listeners = tuple(
                each for each in self._worker_listeners if each != listener
            )

    def run_listeners(self) -> None:
        """Make the pending calls of listeners, in a worker thread."""
        with self._listener_lock:
            while self.pending_calls:
                self.pending_calls -= 1
                for listener in self._worker_listeners:
                    try:
                        listener()
                    except BaseException:
                        self.stop_listening(listener)
                        raise

    def run_end_listeners(self) -> None:
        """Make the last calls of listeners, including pending ones. The request has ended, so
        exceptions do not affect it.
        """
        with self._listener_lock:
            count, self.pending_calls = self.pending_calls + 1, 0
            for _ in range(count):
                for listener in self._worker_listeners:
                    _called(listener)

    def end(self, reason: str | None, error: BaseException | None = None) -> bool:
        """End the request, from the loop; only the first call counts. Returns whether
        `run_end_listeners` must be run.

        A request that has ended holds no reference to the engine, so the engine can be freed before
        it, nor to its entry, which refers to it: it is freed with its last reference, not by a
        search for cycles.

        A StopIteration of a caller's function becomes a RuntimeError, as in a generator (PEP 479):
        a loop over the stream would take it for the end of the text.
        """
        if self._done.is_set():
            return False
        if isinstance(error, (StopIteration, StopAsyncIteration)):
            stop, error = error, RuntimeError(f"request: its function raised {error!r}")
            error.__cause__ = stop
        self.finish_reason, self.error = reason, error
        self.ended_at = time.perf_counter()
        self._cancel, self._check_waiter, self.owner = _nothing, _nothing, None
        self.on_rows = self.prefix_source = self.entry = None
        self._done.set()
        for listener in self._listeners:
            _called(listener)
        return bool(self._worker_listeners)

    def piece(self, index: int) -> Piece:
        """Piece number `index` of those pushed so far."""
        text, upto = self.pieces[index]
        start = self.pieces[index - 1][1] if index else 0
        return Piece(
            text, tuple(self.generated[start:upto]), None, tuple(self.logprobs[start:upto])
        )

    def last_piece(self) -> Piece:
        """The last piece of a stream: no text, the tokens without text, and the reason."""
        start = self.pieces[-1][1] if self.pieces else 0
        return Piece(
            "",
            tuple(self.generated[start:]),
            self.finish_reason,
            tuple(self.logprobs[start:]),
            self.timings(),
        )

    @property
    def prompt_ids(self) -> list[int]:
        """The tokens of the prompt as the model was first given it, whatever was dropped since."""
        return list(self.session.tokens[: self.prompt_tokens])

    def timings(self) -> Timings:
        """Where its time went, until now or until its end."""
        began, admitted, first = self.submitted_at, self.admitted_at, self.first_at
        until = self.ended_at or time.perf_counter()
        evaluated, more = self.prompt_tokens - self.cached, len(self.generated) - 1
        return Timings(
            total_seconds=until - began if began else 0.0,
            queue_seconds=(admitted or until) - began if began else 0.0,
            first_token_seconds=first - began if first else 0.0,
            prompt_tokens_per_second=_rate(evaluated, first - admitted) if first else 0.0,
            tokens_per_second=_rate(more, self.token_at - first) if first else 0.0,
        )

    def __repr__(self) -> str:
        """Its kind, whether and how it has ended, and its tokens."""
        state = self.finish_reason or "running"
        if self.error is not None:
            state = f"failed: {type(self.error).__name__}"
        elif not self._done.is_set():
            state = "running" if self.admitted_at else "waiting" if self.submitted_at else "new"
        return (
            f"<Request {self.kind}, {state}, {self.prompt_tokens} + {len(self.generated)} tokens>"
        )

    def _repr_html_(self) -> str:
        """For notebooks: the text so far, below what `repr` says."""
        text = "".join(text for text, _ in self.pieces)
        return (
            f"<code>{escape(repr(self))}</code>"
            f'<div style="white-space: pre-wrap">{escape(text)}</div>'
        )

    __reduce__ = not_pickled(
        "request: belongs to the engine of this process", "pickle its result()"
    )

    def _outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        if self.finish_reason in ("cancelled", "timeout"):
            raise Cancelled("request: was cancelled before it had its result")
        return self.value


class GenerateRequest(Request):
    """Text after a prompt; the result is a `Completion`."""

    __slots__ = (
        "events",
        "fill",
        "generated",
        "logprobs",
        "masker",
        "max_tokens",
        "min_tokens",
        "pieces",
        "prompt_logprobs",
        "prompt_ranks",
        "read",
        "seed",
        "shift_keep",
        "shifted_prompt",
        "shifts",
        "siblings",
        "speculation",
        "stop_ids",
        "takes_forced",
        "truncated",
    )

    kind = "generate"
    draws = True

    if TYPE_CHECKING:  # as in every request, with the type of the value

        def result(self, timeout: float | None = None) -> Completion: ...

        def __await__(self) -> Generator[Any, None, Completion]: ...

    def __init__(
        self,
        session: Any,
        *,
        cancel: Callable[[Request], None],
        check_waiter: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(session, cancel=cancel, check_waiter=check_waiter)
        # that the session's draws began from
        self.seed: int | None = None if session.sampler is None else session.sampler.seed
        self.max_tokens: int | None = None
        self.min_tokens = 0
        self.stop_ids: frozenset[int] = frozenset()
        self.masker: Any = None  # consumes tokens for the session's grammar
        self.speculation: RequestCandidates | None = None  # brings candidates into the steps
        self.fill: Denoiser | None = None  # its answer, of a model that fills in masks
        # tokens that the grammar forces are taken without a draw; the same ones either way
        self.takes_forced = True
        # requests that continue from a fork of its pages when the prompt is evaluated
        self.siblings: tuple[GenerateRequest, ...] = ()
        # context shift: first tokens that stay, None: no shift
        self.shift_keep: int | None = None
        self.truncated = self.shifts = 0
        self.shifted_prompt: list[int] | None = None  # the prompt, once a shift has cut it
        self.generated: list[int] = []
        self.pieces: list[tuple[str, int]] = []  # (text, tokens generated when it came)
        self.logprobs: list[Logprobs] = []
        self.prompt_logprobs: list[tuple[float, list[int], list[float]]] = []
        self.prompt_ranks: list[int] = []  # of the same tokens; 1 is the likeliest
        self.read: Callable[[Completion], Completion] | None = None  # reads a chat's reply
        # makes a reader of the pieces of a chat's reply
        self.events: Callable[[], Any] | None = None

    @property
    def prompt_ids(self) -> list[int]:
        return super().prompt_ids if self.shifted_prompt is None else self.shifted_prompt

    @property
    def has_callbacks(self) -> bool:
        """Whether Python functions of the caller run between its tokens, in worker threads."""
        return bool(
            self._worker_listeners or (self.session.sampler and self.session.sampler.processors)
        )

    def start(self) -> Any:
        session = self.session
        if self.on_rows is not None:  # every row is reported: those evaluated before, too
            session.kv.truncate(0)
        drawn = self.speculation is not None and self.speculation.drawn
        return session.pending if session.kv.length == len(session.tokens) and not drawn else None

    def push(self, text: str) -> None:
        """Append a piece of text, from the loop."""
        self.pieces.append((text, len(self.generated)))
        self.pending_calls += bool(self._worker_listeners)
        for listener in self._listeners:
            try:
                listener()
            except BaseException:
                self.stop_listening(listener)
                raise

    def roll_back(self) -> None:
        if self.fill is not None:  # its pages were of tokens that are none of the session's
            self.session.kv.truncate(0)

    def end(self, reason: str | None, error: BaseException | None = None) -> bool:
        if not self._done.is_set():
            self.masker = self.fill = None
        return super().end(reason, error)

    def _outcome(self) -> Completion:
        if self.error is not None:
            raise self.error
        speculation = self.speculation
        done = Completion(
            "".join(text for text, _ in self.pieces),
            tuple(self.generated),
            self.finish_reason or "cancelled",
            Usage(
                self.prompt_tokens, len(self.generated), self.cached, self.truncated, self.shifts
            ),
            self.seed,
            tuple(self.logprobs),
            tuple(self.prompt_logprobs),
            prompt_ranks=tuple(self.prompt_ranks),
            speculation=speculation.stats()
            if speculation is not None and speculation.reported
            else None,
            timings=self.timings(),
            pieces=tuple(self.pieces) if self.logprobs else (),
        )
        return done if self.read is None else self.read(done)


class RowsRequest(Request):
    """The logits of every token of a prompt, passed to `on_rows` in chunks. The result is `value`,
    which the maker of the request sets.
    """

    __slots__ = ()

    kind = "logits"
    caches = False


class EmbedRequest(RowsRequest):
    """The hidden state of every token instead of its logits."""

    __slots__ = ()

    kind = "embed"
    hidden = True


class PrefillRequest(Request):
    """Tokens appended to a session; the result is the logits after the last one."""

    __slots__ = ("restore",)

    kind = "prefill"

    restore: Callable[[], None]  # brings the session back where there is no result

    def take_prompt(self, rows: Any) -> None:
        self.session.pending = self.value = rows[-1].copy()

    def roll_back(self) -> None:
        if self.value is None:
            self.restore()


class BeamSteps(Protocol):
    """A beam search as the loop runs it, implemented by `beam.BeamSearch`."""

    @property
    def sessions(self) -> Sequence[Any]:
        """The session of each live beam."""

    def begin(self, row: Any) -> bool:
        """Take the first tokens from the logits of the prompt's last row; True if the search is
        over.
        """

    def feed_rows(self, entry: Any, rows: int, out: Any) -> bool:
        """Take the logits `out` of `rows` beams; True when `step` is due."""

    def step(self) -> bool:
        """Choose the next beams; True when the search is over."""

    def update_entry(self, entry: Any) -> None:
        """Schedule a row of every beam."""

    def result(self) -> Any:
        """The hypotheses, best first."""

    def release(self) -> None:
        """Release the pages of all beams, which are then evaluated again."""

    def close(self) -> None:
        """Release the pages of all beams and drop the beams."""


class BeamRequest(Request):
    """A beam search. Its sequences run in the same steps after the prompt is evaluated; the result
    is the list of hypotheses.
    """

    __slots__ = ("search",)

    kind = "beam_generate"
    draws = True

    search: BeamSteps

    @property
    def sessions(self) -> Sequence[Any]:
        return (self.session, *self.search.sessions)

    def close_forks(self) -> None:
        self.search.close()


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count > 0 and seconds > 0 else 0.0


def _nothing(*_: Any) -> None:
    """Replaces the references to the engine when a request has ended."""


def _called(listener: Callable[[], None]) -> None:
    """Call a listener of the end; an exception goes to `threading.excepthook`."""
    try:
        listener()
    except BaseException:
        with suppress(BaseException):
            threading.excepthook(
                threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
            )


def check_timeout(timeout: Any) -> None:
    """Raise ConfigError unless the value is a number of seconds or None."""
    if timeout is not None and (
        isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or timeout != timeout
    ):
        raise ConfigError(f"timeout: found {timeout!r}, wanted seconds, or None")


def finished(request: Any) -> Any:
    """The result of a request or of siblings. An exception during the wait (Ctrl-C) cancels it."""
    try:
        return request.result()
    except BaseException:
        request.cancel()
        raise


def all_finished(requests: Iterable[Any]) -> list[Any]:
    """The results of requests that start as they are iterated. An exception, including an error of
    one request, cancels all.
    """
    begun: list[Any] = []
    try:
        begun.extend(requests)
        return [request.result() for request in begun]
    except BaseException:
        for request in begun:
            request.cancel()
        raise
