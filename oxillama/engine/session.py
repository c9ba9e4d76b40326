"""`Session`: a conversation's whole state, and the unit of everything.

    tokens   t0 t1 ... tn-1            all of them, prompt and generated
    kv       pages of the first kv.length of them; what is missing is evaluated again when it is needed, with the same bits
    pending  logits after the last token, where they are known

`fork` shares pages until one side writes; `truncate` forgets the end. A session belongs to one engine, which is asked before anything
changes: while a request runs on a session it is `busy`, and its loop alone touches it.
"""
from __future__ import annotations

from contextlib import AbstractContextManager
from os import PathLike
from typing import Any, Protocol

import numpy as np

from oxillama.engine.pages import PagedKvCache
from oxillama.errors import ContextError


class Owner(Protocol):
    """What a session asks of its engine."""

    def change(self, session: Session) -> AbstractContextManager:
        """The lock under which an idle session may be changed; raises EngineError for a busy one."""

    def keep(self, session: Session) -> Session:
        """Let an idle session keep its pages."""

    def drop(self, session: Session) -> None:
        """Take its pages back."""

    def saved(self) -> Any:
        """Where sessions are saved (`snapshot.Snapshots`); raises SnapshotIncompatible for an engine without a model file."""


class Session:
    """Tokens, pages, sampler, grammar state, text decoder, stop filter and adapters of one sequence."""

    __slots__ = ("adapters", "at_start", "busy", "grammar", "kv", "owner", "pending", "sampler", "start", "stops", "text", "tokens")

    def __init__(self, owner: Owner, kv: PagedKvCache, *, adapters: tuple = ()) -> None:
        self.owner = owner
        self.kv = kv
        self.tokens: list[int] = []
        self.start = 0                             # where generated tokens begin
        self.pending: np.ndarray | None = None     # float32 (vocab,)
        self.sampler: Any = None
        self.grammar: Any = None
        self.text: Any = None
        self.stops: Any = None
        self.at_start = False                      # the next text is the first: without the vocabulary's leading space
        self.adapters = adapters
        self.busy = False

    def __len__(self) -> int:
        return len(self.tokens)

    def fork(self) -> Session:
        """An independent session in the same state; pages are shared, nothing is copied until one side writes."""
        with self.owner.change(self):
            return self.owner.keep(self.twin())

    def twin(self) -> Session:
        """A fork that nobody keeps, for whoever has the engine's lock and gives its pages back."""
        twin = Session(self.owner, self.kv.fork(), adapters=self.adapters)
        twin.tokens, twin.start, twin.pending, twin.at_start = list(self.tokens), self.start, self.pending, self.at_start
        for part in ("sampler", "grammar", "text", "stops"):
            value = getattr(self, part)
            setattr(twin, part, None if value is None else value.fork())
        return twin

    def extend(self, ids: list[int]) -> None:
        """Append tokens, not yet evaluated. Sampler, grammar and text of what was generated before are over."""
        with self.owner.change(self):
            self.tokens.extend(ids)
            self.start = len(self.tokens)
            self._forget()

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on. Sampler, grammar and text go too: what they have seen cannot be unseen."""
        with self.owner.change(self):
            if isinstance(length, bool) or not isinstance(length, int) or not 0 <= length <= len(self.tokens):
                raise ContextError(f"truncate: found length {length!r}, wanted 0 to {len(self.tokens)}")
            if length == len(self.tokens):
                return
            del self.tokens[length:]
            if self.kv.length > length:
                self.kv.truncate(length)
            self.start = min(self.start, length)
            self._forget()

    def snapshot(self, **options: Any) -> bytes:
        """The whole state as bytes, for `engine.restore` of any engine over the same model; options are those of `Snapshots.take`."""
        return self.owner.saved().take(self, **options)

    def snapshot_to_file(self, path: str | PathLike, **options: Any) -> None:
        """The same in a file, which holds either what it held before or all of the snapshot, whatever fails when."""
        self.owner.saved().save(self, path, **options)

    def close(self) -> None:
        """Give the pages back for good; its tokens can still be read."""
        with self.owner.change(self):
            self.owner.drop(self)

    def _forget(self) -> None:
        self.pending = self.sampler = self.grammar = self.text = self.stops = None
        self.at_start = False
