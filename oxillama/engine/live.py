"""`LiveSession`: the one conversation that an engine itself holds, for callers who keep none of their own."""
from __future__ import annotations

import threading

from oxillama.engine.engine import EngineCore
from oxillama.engine.session import Session


class LiveSession:
    """A session made when it is first needed, and beside it the one used last. Whoever changes the live session holds `lock`."""

    __slots__ = ("_core", "_session", "lock", "recent")

    def __init__(self, core: EngineCore) -> None:
        self.lock = threading.RLock()
        self.recent: Session | None = None         # what a prompt of None goes on with
        self._core = core
        self._session: Session | None = None

    def get(self) -> Session:
        """The live session."""
        with self.lock:
            if self._session is None:
                self._session = self._core.keep(self._core.new_session())
            return self._session

    def use(self) -> Session:
        """The live session, which is now the one used last."""
        with self.lock:
            self.recent = self.get()
            return self.recent

    def take(self, session: Session) -> None:
        """Hold another session: it is the live one and the one used last; the one before is closed."""
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
            live = self.get()
            live.close()
            if self.recent is live:
                self.recent = None
            self._session = None
