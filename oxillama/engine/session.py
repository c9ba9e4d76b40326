"""`Session`: a conversation's whole state, and the unit of everything.

    tokens   t0 t1 ... tn-1            all of them, prompt and generated
    kv       pages of the first kv.length of them; what is missing is evaluated again when it is needed, with the same bits
    pending  logits after the last token, where they are known

`fork` shares pages until one side writes; `truncate` forgets the end. A session belongs to one engine and is touched by its loop while a
request runs on it (`busy`); the engine's doors see to that.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from oxillama.engine.pages import PagedKvCache
from oxillama.errors import ContextError


class Session:
    """Tokens, pages, sampler, grammar state, text decoder, stop filter and adapters of one sequence."""

    __slots__ = ("adapters", "busy", "grammar", "kv", "pending", "sampler", "start", "stops", "text", "tokens")

    def __init__(self, kv: PagedKvCache, *, adapters: tuple = ()) -> None:
        self.kv = kv
        self.tokens: list[int] = []
        self.start = 0                             # where generated tokens begin
        self.pending: np.ndarray | None = None     # float32 (vocab,)
        self.sampler: Any = None
        self.grammar: Any = None
        self.text: Any = None
        self.stops: Any = None
        self.adapters = adapters
        self.busy = False

    def __len__(self) -> int:
        return len(self.tokens)

    def fork(self) -> Session:
        """An independent session in the same state; pages are shared, nothing is copied until one side writes."""
        twin = Session(self.kv.fork(), adapters=self.adapters)
        twin.tokens, twin.start = list(self.tokens), self.start
        twin.pending = self.pending
        for part in ("sampler", "grammar", "text", "stops"):
            value = getattr(self, part)
            setattr(twin, part, None if value is None else value.fork())
        return twin

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on. Sampler, grammar and text go too: what they have seen cannot be unseen."""
        if not 0 <= length <= len(self.tokens):
            raise ContextError(f"truncate: found length {length}, wanted 0 to {len(self.tokens)}")
        if length == len(self.tokens):
            return
        del self.tokens[length:]
        if self.kv.length > length:
            self.kv.truncate(length)
        self.start = min(self.start, length)
        self.pending = self.sampler = self.grammar = self.text = self.stops = None

    def release(self) -> None:
        """Give the pages back; the tokens stay, so the session can go on at the price of evaluating them again."""
        self.kv.release()
