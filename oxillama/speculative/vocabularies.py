"""Compares two vocabularies: whether a draft's tokens can represent a target's, and how."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxillama.errors import ConfigError


class Alignment:
    """From the target's token ids to the draft's, and from the draft's logits to the target's
    vocabulary.

    to_draft: the draft's id of each target id that a session may hold, None where the ids are the
    same. target_size, draft_size: rows of the two outputs, which may be padded. to_target: the
    target's id of each row of the draft's output, where that has no row for most tokens. Tokens
    that the draft does not have get -inf.
    """

    __slots__ = ("_from", "_to", "_to_draft", "_whole", "target_size")

    def __init__(
        self,
        target_size: int,
        draft_size: int,
        to_draft: np.ndarray | None = None,
        *,
        to_target: np.ndarray | None = None,
    ) -> None:
        self.target_size = target_size
        self._to_draft, self._whole = to_draft, to_draft is None and to_target is None
        if to_target is not None:
            self._to, self._from = to_target, np.arange(draft_size)
        elif to_draft is None:
            self._to = self._from = np.arange(min(target_size, draft_size))
        else:
            self._to, self._from = np.arange(len(to_draft)), to_draft

    @property
    def mapped(self) -> bool:
        """Whether ids differ."""
        return self._to_draft is not None

    def ids(self, tokens: Sequence[int]) -> np.ndarray:
        """The draft's ids of the target's tokens, int32."""
        ids = np.asarray(tokens, np.int32)
        return ids if self._to_draft is None else self._to_draft[ids]

    def row(self, logits: np.ndarray) -> np.ndarray:
        """float32 (target_size,): the draft's logits at the target's ids."""
        if self._whole and len(logits) == self.target_size:
            return logits
        out = np.full(self.target_size, -np.inf, np.float32)
        out[self._to] = logits[self._from]
        return out


def align(
    target: Sequence[tuple[bytes, bool]],
    draft: Sequence[tuple[bytes, bool]],
    *,
    target_rows: int,
    draft_rows: int,
) -> Alignment:
    """The alignment of two vocabularies, given as (piece, whether it is a control token) by id.

    Both must have the same pieces under the same ids, or the draft every piece of the target under
    some id; ConfigError names a missing piece.
    """
    if list(target) == list(draft):
        return Alignment(target_rows, draft_rows)
    known: dict[tuple[bytes, bool], int] = {}
    for token, piece in enumerate(draft):
        known.setdefault(piece, token)
    missing = [token for token, piece in enumerate(target) if piece not in known]
    if missing:
        first = missing[0]
        raise ConfigError(
            f"draft: its vocabulary of {len(draft)} lacks {len(missing)} of the target's "
            f"{len(target)} tokens, the first being {first} {target[first][0]!r}; wanted the same "
            "pieces, or all of the target's"
        )
    return Alignment(
        target_rows, draft_rows, np.array([known[piece] for piece in target], np.int32)
    )
