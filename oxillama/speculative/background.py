"""Background drafting: a draft model drafts in a separate thread, beyond the candidates that the
target is verifying.

    loop's thread    propose -> c0 c1 c2   [ the target runs c0 c1 c2 ]   propose -> c4 c5 c6
    draft's thread             ... c3 c4 c5 c6 ...

    (c4 c5 c6 are proposed when c0 c1 c2 were accepted and x3 = c3)

A run of candidates records the tokens that it follows. As long as the session agrees with it, the
candidates drafted meanwhile are used. Otherwise it is stale: it is stopped and dropped, and a new
one begins. A proposal waits until the number of candidates it wants exists, and no time limit
shortens it, so the drafts are those of `ModelDrafter`, sooner. With a sampler of its own, the
drafter draws by a token's position in the text (`SessionDraft`), so that neither the candidates nor
the text depend on how long a stale run was. In a long prompt, a proposal waits for at most
`CATCH_UP` rows; with a sampler of its own, only the prompt's length decides how many tokens have no
candidates for that reason.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from weakref import finalize

from oxillama.engine.session import Session
from oxillama.errors import EngineError, starting_thread
from oxillama.speculative.draft_model import CATCH_UP, ModelDrafter
from oxillama.speculative.draft_session import DraftState, SessionDraft
from oxillama.speculative.types import Draft, DraftRequest


class BackgroundState:
    """A session's run of candidates: `draft` is drawn up to `want` tokens, unless `stop`.

    error: the error of the run. ran: rows of the session evaluated since the run began. ended: the
    session, if the request ended while candidates were drawn.
    """

    __slots__ = (
        "closed",
        "complete",
        "draft",
        "ended",
        "error",
        "ran",
        "state",
        "stop",
        "want",
        "working",
    )

    def __init__(self, state: DraftState) -> None:
        self.state = state
        self.draft: SessionDraft | None = None
        self.ended: Session | None = None
        self.error: BaseException | None = None
        self.want = self.ran = 0
        self.complete = True  # there will be no more candidates
        self.stop = self.working = False
        self.closed = False  # the request has ended


class ThreadOwner:
    """Ends a drafter's thread when the last reference to this object goes."""

    __slots__ = ("__weakref__",)

    def __init__(self, drafter: BackgroundDrafter) -> None:
        finalize(self, drafter.stop).atexit = False


class BackgroundDrafter:
    """`ModelDrafter` in a separate thread. `close_thread` ends it; later proposals raise
    EngineError.
    """

    def __init__(self, inner: ModelDrafter) -> None:
        self.inner = inner
        self.stale = 0  # runs of candidates that were dropped because the text continued otherwise
        self._ready = threading.Condition()
        self._work: list[BackgroundState] = []
        self._drawing: BackgroundState | None = None
        self._ending = 0  # requests that ended while candidates for them were drawn
        self._closed = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, name="oxillama draft", daemon=True)
        with starting_thread():
            self._thread.start()

    def open(self, session: Session) -> BackgroundState:
        """Nothing is drawn yet. A session for which candidates of its last request are still drawn
        goes on with the same draft, as it would if they were not.
        """
        with self._ready:
            drawing = self._drawing
            if drawing is not None and drawing.ended is session:
                drawing.ended, drawing.closed = None, False
                self._ending -= 1
                self._ready.notify_all()
                return drawing
        return BackgroundState(self.inner.open(session))

    def close(self, state: BackgroundState, session: Session) -> None:
        """Drop the run. The draft's thread does so if it is drawing, because the caller may hold
        locks that a step of the draft needs.
        """
        with self._ready:
            state.stop = state.complete = state.closed = True
            if state in self._work:
                self._work.remove(state)
            state.draft = None
            self._ready.notify_all()
            if state.working:
                state.ended = session
                self._ending += 1
                return
        self.inner.close(state.state, session)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """For each session the next candidates of its run, or the beginning of a new one."""
        begun = [self._continue(request) or self._begin(request) for request in requests]
        return [self._take(request, at) for request, at in zip(requests, begun)]

    def wait_for_ended(self) -> None:
        """Wait until nothing is drawn any more for requests that have ended; at most for one step
        of the draft each.
        """
        with self._ready:
            while self._ending and not self._closed:
                self._ready.wait()

    def stop(self) -> None:
        """Ask the thread to end without waiting for it, as a finaliser must."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def close_thread(self) -> None:
        """End the thread and wait for it; safe to call twice."""
        self.stop()
        if self._thread is not threading.current_thread():
            self._thread.join()

    # ---- the thread that proposes

    def _continue(self, request: DraftRequest) -> int:
        """How many candidates of the run became tokens, if the session agrees with it and it can be
        continued; 0 if it is stale.
        """
        state, tokens = request.state, request.session.tokens
        with self._ready:
            draft = state.draft
            # one that still catches up with its session is begun again with what it says now
            if draft is None or not (draft.tokens or draft.caught_up):
                return 0
            at = len(tokens) - len(draft.prefix)
            if not state.complete and len(draft.tokens) < at:
                state.want = max(state.want, at)
                self._submit(state)
            while not state.complete and len(draft.tokens) < at:
                self._wait()
            if (
                0 < at <= len(draft.tokens)
                and tokens[len(draft.prefix) :] == draft.tokens[:at]
                and (len(draft.tokens) > at or not state.complete)
            ):
                # this proposal, the token after it, and the next one
                state.want = at + 2 * request.most + 1
                self._submit(state)
                return at
            self.stale += 1
        return 0

    def _begin(self, request: DraftRequest) -> int:
        state = request.state
        self._halt(state)
        draft = SessionDraft(replace(request, state=state.state), 1 << 30, numbered=True)
        # the session continues while candidates are drawn
        draft.prefix = list(request.session.tokens)
        with self._ready:
            if state.closed:
                return 0
            state.draft, state.complete, state.stop, state.error = draft, False, False, None
            # where it may not pay, no further than this proposal before that is known
            state.ran, state.want = (
                0,
                request.most if request.costs is not None else 2 * request.most + 1,
            )
            self._submit(state)
        return 0

    def _take(self, request: DraftRequest, at: int) -> Draft:
        state = request.state
        own = state.state.sampler is not None
        wanted = 0 if _too_early(request) else at + request.most
        with self._ready:
            draft = state.draft
            if draft is None:  # its request has ended
                return Draft()
            while not state.complete and (
                len(draft.tokens) < wanted
                if draft.caught_up
                else state.ran < CATCH_UP or own and wanted
            ):
                self._wait()
            if state.error is not None:
                raise state.error
            if not wanted:
                return Draft()
            tokens = draft.tokens[at : at + request.most]
            return Draft(tokens, None, draft.shares[at : at + len(tokens)] if own else None)

    def _halt(self, state: BackgroundState) -> None:
        with self._ready:
            state.stop = state.complete = True
            while state.working:
                self._wait()
            if state in self._work:
                self._work.remove(state)
            state.draft = None

    def _submit(self, state: BackgroundState) -> None:
        if state not in self._work:
            self._work.append(state)
            self._ready.notify_all()

    def _wait(self) -> None:
        if self._failure is not None or self._closed or not self._thread.is_alive():
            raise EngineError(
                "draft: its thread has "
                f"ended{'' if self._failure is None else f', {self._failure}'}"
            ) from self._failure
        self._ready.wait()

    # ---- the draft's thread

    def _loop(self) -> None:
        try:
            while True:
                with self._ready:
                    while not self._work and not self._closed:
                        self._ready.wait()
                    if self._closed:
                        return
                    state = self._work.pop(0)
                    draft, state.working, self._drawing = state.draft, True, state
                if draft is not None:
                    self._work_on(state, draft)
        except BaseException as error:  # raised again where a proposal waits
            with self._ready:
                self._failure = error
        finally:
            with self._ready:
                self._closed = True
                self._ready.notify_all()

    def _work_on(self, state: BackgroundState, draft: SessionDraft) -> None:
        """Draw candidates. An error is raised by the proposal that wants them; other sessions
        continue.
        """
        error = None
        try:
            with self.inner.reserved([draft]):
                self._draw(state, draft)
        except BaseException as raised:
            error = raised
        with self._ready:
            state.working, state.error, self._drawing = False, error, None
            state.complete = state.complete or error is not None
            ended, state.ended = state.ended, None
            if ended is not None:
                self.inner.close(state.state, ended)
                self._ending -= 1
            self._ready.notify_all()

    def _draw(self, state: BackgroundState, draft: SessionDraft) -> None:
        """Draw as many candidates as are wanted, one at a time, so that it can be stopped between
        any two.
        """
        inner, most = self.inner, min(CATCH_UP, self.inner.core.program.max_rows)
        draft.drop_lost_pages() if draft.tokens else draft.drop_rejected()
        while not state.stop and len(draft.tokens) < state.want:
            ids = draft.missing(most)
            row = inner.run([(draft, ids)])[0]
            if row is None:
                state.complete = True
                return
            goes_on = not draft.whole or draft.draw(inner.alignment.row(row))
            with self._ready:
                state.ran += len(ids)
                state.complete = state.stop or not goes_on
                self._ready.notify_all()
            if not goes_on:
                return


def _too_early(request: DraftRequest) -> bool:
    """Whether the text is too short yet for candidates by a sampler of the draft's own, as it would
    be if the draft had begun with the prompt.
    """
    generated = request.session.sampler.generated
    return (
        request.state.state.sampler is not None
        and generated * CATCH_UP < len(request.session.tokens) - generated
    )
