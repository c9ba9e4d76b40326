"""Drafting ahead: the draft model works in a thread of its own on what follows its candidates while
the target still verifies them.

    loop's thread    propose -> c0 c1 c2     [ the target runs c0 c1 c2 ]      propose -> c4 c5 c6, when c0 c1 c2 stood and x3 = c3
    draft's thread             ... c3 c4 c5 c6 ...

A line of candidates knows the tokens it assumes. When the session went on as it said, what it has
drawn meanwhile is at hand; when not, the line is stale: it is stopped, dropped, and another begun.
Whoever asks waits until the line is as long as it wants: nothing is cut short by a clock, so the
drafts are those of `ModelDrafter`, sooner. A sampler of the drafter's own draws by the number of a
token in the text (`Line`), so that neither the candidates nor the text depend on how far a stale
line had come. Of a long prompt nobody waits for more than `CATCH_UP` rows at a time; by a sampler
of its own, the prompt's length alone says how many tokens come without candidates for that.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from weakref import finalize

from oxillama.engine.drafting import CATCH_UP, Following, Line, ModelDrafter
from oxillama.engine.session import Session
from oxillama.engine.speculation import Ask, Draft
from oxillama.errors import EngineError


class Ahead:
    """A session's line: `line` is being drawn, up to `want` tokens, unless `stop`. error: what it
    failed of.

    ran: rows of the session that were run since the line was begun. left: the session, once the
    request is over while the line is drawn.
    """

    __slots__ = ("error", "following", "left", "line", "over", "ran", "stop", "want", "working")

    def __init__(self, following: Following) -> None:
        self.following = following
        self.line: Line | None = None
        self.left: Session | None = None
        self.error: BaseException | None = None
        self.want = self.ran = 0
        self.over = True  # the line will get no longer
        self.stop = self.working = False


class Lease:
    """Of a drafter's thread: it ends when nobody has the lease any more."""

    __slots__ = ("__weakref__",)

    def __init__(self, drafter: AheadDrafter) -> None:
        finalize(self, drafter.stop).atexit = False


class AheadDrafter:
    """`ModelDrafter` with a thread of its own. `close_thread` ends it; proposals asked for
    afterwards raise EngineError.
    """

    in_loop = True

    def __init__(self, inner: ModelDrafter) -> None:
        self.inner = inner
        # lines that were dropped because the session went on otherwise
        self.stale = 0
        self._ready = threading.Condition()
        self._work: list[Ahead] = []
        self._closed = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, name="oxillama draft", daemon=True)
        self._thread.start()

    def open(self, session: Session) -> Ahead:
        """Nothing is drawn yet."""
        return Ahead(self.inner.open(session))

    def close(self, state: Ahead, session: Session) -> None:
        """The line is dropped; by its own thread where that draws it: whoever closes holds locks
        that a step of the draft may want.
        """
        with self._ready:
            state.stop = state.over = True
            if state in self._work:
                self._work.remove(state)
            state.line = None
            if state.working:
                state.left = session
                return
        self.inner.close(state.following, session)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """For each session what its line says next, or a new line's beginning."""
        begun = [self._continue(ask) or self._begin(ask) for ask in asks]
        return [self._take(ask, at) for ask, at in zip(asks, begun)]

    def stop(self) -> None:
        """Ask the thread to end, and wait for nothing: for whoever may not wait (a finaliser)."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def close_thread(self) -> None:
        """End the thread and wait for it; safe to call twice."""
        self.stop()
        if self._thread is not threading.current_thread():
            self._thread.join()

    # ---- the loop's thread
    # ----------------------------------------------------------------------------------------------

    def _continue(self, ask: Ask) -> int:
        """How many tokens of the line came true, where the session went on as it said and it can go
        on; 0 where it is stale.
        """
        state, tokens = ask.state, ask.session.tokens
        with self._ready:
            line = state.line
            # a session that is still caught up with: on, with what it says now
            if line is None or not (line.tokens or line.caught_up):
                return 0
            at = len(tokens) - len(line.prefix)
            while not state.over and len(line.tokens) < at:
                self._wait()
            if (
                0 < at <= len(line.tokens)
                and tokens[len(line.prefix) :] == line.tokens[:at]
                and (len(line.tokens) > at or not state.over)
            ):
                # this proposal, the token after it, and the next one
                state.want = at + 2 * ask.most + 1
                self._submit(state)
                return at
            self.stale += 1
        return 0

    def _begin(self, ask: Ask) -> int:
        state = ask.state
        self._halt(state)
        line = Line(_inner(ask), 1 << 30, numbered=True)
        # the session goes on while the line is drawn
        line.prefix = list(ask.session.tokens)
        with self._ready:
            state.line, state.over, state.stop, state.error, state.ran = line, False, False, None, 0
            state.want = 2 * ask.most + 1
            self._submit(state)
        return 0

    def _take(self, ask: Ask, at: int) -> Draft:
        state = ask.state
        own, line, wanted = (
            state.following.sampler is not None,
            state.line,
            0 if _too_early(ask) else at + ask.most,
        )
        with self._ready:
            while not state.over and (
                len(line.tokens) < wanted
                if line.caught_up
                else state.ran < CATCH_UP or own and wanted
            ):
                self._wait()
            if state.error is not None:
                raise state.error
            if not wanted:
                return Draft()
            tokens = line.tokens[at : at + ask.most]
            return Draft(tokens, None, line.shares[at : at + len(tokens)] if own else None)

    def _halt(self, state: Ahead) -> None:
        with self._ready:
            state.stop = state.over = True
            while state.working:
                self._wait()
            if state in self._work:
                self._work.remove(state)
            state.line = None

    def _submit(self, state: Ahead) -> None:
        if state not in self._work:
            self._work.append(state)
            self._ready.notify_all()

    def _wait(self) -> None:
        if self._failure is not None or self._closed or not self._thread.is_alive():
            raise EngineError(
                f"draft: its thread has ended{'' if self._failure is None else f', {self._failure}'}"
            ) from self._failure
        self._ready.wait()

    # ---- the draft's thread
    # -----------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while True:
                with self._ready:
                    while not self._work and not self._closed:
                        self._ready.wait()
                    if self._closed:
                        return
                    state = self._work.pop(0)
                    line, state.working = state.line, True
                self._work_on(state, line)
        except BaseException as error:  # whoever waits must be told
            with self._ready:
                self._failure = error
        finally:
            with self._ready:
                self._closed = True
                self._ready.notify_all()

    def _work_on(self, state: Ahead, line: Line) -> None:
        """Draw a line; what it fails of is told to whoever asks for it, and the other lines go on."""
        error = None
        try:
            with self.inner.held([line]):
                self._draw(state, line)
        except BaseException as told:
            error = told
        with self._ready:
            state.working, state.error = False, error
            state.over = state.over or error is not None
            self._ready.notify_all()
        if state.left is not None:
            self.inner.close(state.following, state.left)

    def _draw(self, state: Ahead, line: Line) -> None:
        """Draw a line as far as it is wanted, a token at a time, so that it can be stopped between
        any two.
        """
        inner, most = self.inner, min(CATCH_UP, self.inner.core.program.max_rows)
        line.refit() if line.tokens else line.cut_back()
        while not state.stop and len(line.tokens) < state.want:
            ids = line.missing(most)
            row = inner.run([(line, ids)])[0]
            if row is None:
                state.over = True
                return
            goes_on = not line.whole or line.draw(inner.alignment.row(row))
            with self._ready:
                state.ran += len(ids)
                state.over = not goes_on
                self._ready.notify_all()
            if not goes_on:
                return


def _too_early(ask: Ask) -> bool:
    """Whether the text is too short yet for candidates by a sampler of the draft's own, as it would
    be if the draft had begun with the prompt.
    """
    generated = ask.session.sampler.generated
    return (
        ask.state.following.sampler is not None
        and generated * CATCH_UP < len(ask.session.tokens) - generated
    )


def _inner(ask: Ask) -> Ask:
    return Ask(
        ask.session,
        ask.state.following,
        ask.most,
        ask.costs,
        ask.rows,
        ask.sequences,
        ask.stop_ids,
        ask.masker,
    )
