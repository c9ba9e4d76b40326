"""Candidates that spell the text which a grammar forces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from oxillama.speculative.acceptance import AcceptanceEstimate
from oxillama.speculative.types import MAX_CANDIDATES, Draft, DraftRequest

_FIRST_CHANCE = 0.8
_MOST_TEXT = 256  # bytes


@runtime_checkable
class ForcesText(Protocol):
    """A grammar's state that knows which text must come next."""

    def forced(self, limit: int = 4096) -> bytes:
        """The bytes that every continuation starts with, at most `limit`."""


class ForcedText:
    """Candidates that spell the text which the grammar forces. The model may spell it otherwise:
    they are verified as any candidates are.

    vocab_bytes: the bytes of each token, empty for those that are not text. The longest token comes
    first; the last token is left out where it reaches the end of the forced text, because it may be
    part of a longer one.
    """

    def __init__(self, vocab_bytes: Sequence[bytes]) -> None:
        self._tokens = {
            piece: token for token, piece in reversed(list(enumerate(vocab_bytes))) if piece
        }
        self._longest = max(map(len, self._tokens), default=0)

    def open(self, session: Any) -> _Spelling:
        """What was offered, and how often it was right."""
        return _Spelling()

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """The forced text in tokens."""
        return [self._draft(request) for request in requests]

    def close(self, state: _Spelling, session: Any) -> None:
        """Nothing is kept."""

    def spell(self, text: bytes) -> list[int]:
        """Tokens whose bytes are a beginning of `text`, the longest first, without the last that
        reaches its end.
        """
        out, at = [], 0
        while at < len(text):
            end = next(
                (
                    end
                    for end in range(min(len(text), at + self._longest), at, -1)
                    if text[at:end] in self._tokens
                ),
                at,
            )
            if end == at or end == len(text):
                break
            out.append(self._tokens[text[at:end]])
            at = end
        return out

    def _draft(self, request: DraftRequest) -> Draft:
        state, tokens = request.state, request.session.tokens
        state.estimate.learn(
            tokens[state.position : state.position + len(state.offered)], state.offered
        )
        state.offered = []
        grammar = request.session.grammar
        text = grammar.forced(_MOST_TEXT) if isinstance(grammar, ForcesText) else b""
        if len(text) < 2:
            return Draft()
        state.position, state.offered = len(tokens), self.spell(text)[: request.most]
        return Draft(state.offered, state.estimate.chances(len(state.offered)))


class _Spelling:
    __slots__ = ("estimate", "offered", "position")

    def __init__(self) -> None:
        self.estimate = AcceptanceEstimate(_FIRST_CHANCE, weight=2.0, reach=MAX_CANDIDATES)
        self.offered: list[int] = []
        self.position = 0
