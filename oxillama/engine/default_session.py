"""`DefaultSession`: the one conversation that an engine itself holds, for callers who keep none of
their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from oxillama.engine.engine import EngineCore
from oxillama.engine.session import Session


class DefaultSession:
    """A session made when it is first needed, and beside it the one used last. Whoever changes the
    default session holds `lock`.
    """

    __slots__ = ("_core", "_kept", "_session", "lock", "recent")

    def __init__(self, core: EngineCore) -> None:
        self.lock = threading.RLock()
        # what a prompt of None goes on with: a session, or `Siblings`, who know theirs at the end
        self.recent: Any = None
        self._core = core
        self._session: Session | None = None
        self._kept: list[Session] = []  # sessions of `keeping`

    def get(self) -> Session:
        """The default session."""
        with self.lock:
            if self._session is None:
                self._session = self._core.keep(self._core.new_session())
            return self._session

    def use(self) -> Session:
        """The default session, which is now the one used last."""
        with self.lock:
            self.recent = self.get()
            return self.recent

    def retaining(self, make: Callable) -> Callable:
        """`make` of a request, whose session keeps its pages where nobody stores them, until
        another request that was made so takes its place.
        """

        def made(core: EngineCore, vocabulary: Any, options: Any, **more: Any) -> Any:
            request = make(core, vocabulary, options, **more)
            # of several completions it is known at their end
            session = getattr(request, "session", None)
            with core.lock:
                idle = [each for each in self._kept if each is not session and not each.busy]
                for each in idle:
                    core.drop(each)
                self._kept = [each for each in self._kept if each not in idle]
                if (
                    session is not None
                    and more.get("session") is None
                    and not _stored(core, len(session), options)
                ):
                    self._kept.append(core.keep(session))
            return request

        return made

    def take(self, session: Session) -> None:
        """Hold another session: it is the default one and the one used last; the one before is closed."""
        with self.lock:
            if self._session is not None:
                self._session.close()
            self._session = self.recent = session

    def truncate(self, length: int) -> None:
        """Forget its tokens from `length` on."""
        with self.lock:
            self.get().truncate(length)

    def reset(self) -> None:
        """Close it; the next use makes another."""
        with self.lock:
            session = self.get()
            session.close()
            if self.recent is session:
                self.recent = None
            self._session = None


def _stored(core: EngineCore, tokens: int, options: Any) -> bool:
    """Whether the prefix cache will take all that a request can evaluate."""
    if core.prefix is None or not options.cache_prompt:
        return False
    most = (
        core.context_size
        if options.max_tokens is None
        else min(core.context_size, tokens + options.max_tokens)
    )
    return -(-most // core.pool.page_size) <= core.prefix.max_pages
