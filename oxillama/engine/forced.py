"""What a grammar leaves no choice about: tokens that are taken without a draw, and text that makes
good candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oxillama.engine.speculation import MOST, Ask, Draft, Trust

_FIRST_TRUST = 0.8
_MOST_TEXT = 256  # bytes


def only_token(mask: np.ndarray | None) -> int | None:
    """The token of a mask that allows one alone; None for every other mask, and for none."""
    if mask is None or np.count_nonzero(mask) != 1:
        return None
    at = int(mask.argmax())
    word = int(mask[at])
    return None if word & (word - 1) else 32 * at + word.bit_length() - 1


class ForcedText:
    """Candidates that spell the text which the grammar says comes next. A model may spell it
    otherwise: it is asked, as for any candidate.

    vocab_bytes: the bytes of each token, empty for those that are not text. Spelled is with the
    longest token first; what may be part of a longer token, as it stands at the end of the forced
    text, is left out.
    """

    in_loop = True

    def __init__(self, vocab_bytes: Sequence[bytes]) -> None:
        self._tokens = {
            piece: token for token, piece in reversed(list(enumerate(vocab_bytes))) if piece
        }
        self._longest = max(map(len, self._tokens), default=0)

    def open(self, session: Any) -> _Spelling:
        """What was offered, and how often it was right."""
        return _Spelling()

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """The forced text in tokens."""
        return [self._draft(ask) for ask in asks]

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

    def _draft(self, ask: Ask) -> Draft:
        state, tokens = ask.state, ask.session.tokens
        state.trust.learn(
            tokens[state.position : state.position + len(state.offered)], state.offered
        )
        state.offered = []
        forced = getattr(ask.session.grammar, "forced", None)
        text = b"" if forced is None else forced(_MOST_TEXT)
        if len(text) < 2:
            return Draft()
        state.position, state.offered = len(tokens), self.spell(text)[: ask.most]
        return Draft(state.offered, state.trust.chances(len(state.offered)))


class _Spelling:
    __slots__ = ("offered", "position", "trust")

    def __init__(self) -> None:
        self.trust, self.offered, self.position = Trust(_FIRST_TRUST, weight=2.0, reach=MOST), [], 0
