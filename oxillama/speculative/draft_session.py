"""A draft model's side of a session: which of its tokens are in the draft's pages, how likely
candidates are to be accepted, and the candidates while they are drawn.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np

from oxillama.engine.allocator import common_prefix
from oxillama.engine.session import Session
from oxillama.errors import SamplingError
from oxillama.sampling import Distribution, Sampler
from oxillama.speculative.acceptance import AcceptanceEstimate
from oxillama.speculative.types import DraftRequest

# draws until a draft that does not pay is tried again; doubles while it fails
PATIENCE = 16
_MOST_PATIENCE = 512
_FIRST_CHANCE = 0.7


class DraftAcceptance:
    """How likely a draft's candidates are to be accepted, and where no clock may decide and they do
    not pay, how many draws until they are tried again.
    """

    __slots__ = ("estimate", "idle", "patience")

    def __init__(self) -> None:
        self.estimate = AcceptanceEstimate(_FIRST_CHANCE, weight=2.0)
        self.idle, self.patience = 0, PATIENCE

    def count(self, paying: int) -> int:
        """How many candidates to draft if this many pay: occasionally one if none do, to see
        whether that has changed.
        """
        if paying:
            self.idle = 0
            return paying
        self.idle += 1
        if self.idle < self.patience:
            return 0
        self.idle, self.patience = 0, min(2 * self.patience, _MOST_PATIENCE)
        return 1


class DraftState:
    """A draft's session for one of the target's; `held` are the target's tokens in its pages.
    reached: of a draft with a sampler of its own, the tokens that were in its pages, lost or not.
    """

    __slots__ = (
        "acceptance",
        "held",
        "noted",
        "offered",
        "position",
        "reached",
        "sampler",
        "session",
    )

    def __init__(
        self, session: Session, sampler: Sampler | None, acceptance: DraftAcceptance
    ) -> None:
        self.session, self.sampler, self.acceptance = session, sampler, acceptance
        self.held: list[int] = []
        self.reached: list[int] = []
        self.offered: list[int] = []
        self.position = 0
        self.noted = 0  # of the target's tokens, those counted for the shortlist

    def to_dict(self) -> dict:
        """What was learned, as JSON values."""
        acceptance = self.acceptance
        return {
            "trust": [
                acceptance.estimate.right,
                acceptance.estimate.judged,
                acceptance.estimate.reach,
            ],
            "idle": acceptance.idle,
            "patience": acceptance.patience,
            "offered": self.offered,
            "position": self.position,
        }

    def load_dict(self, memory: dict) -> None:
        """Restore the result of `to_dict`; ValueError for anything else."""
        (right, judged, reach), offered = memory["trust"], memory["offered"]
        counts = [reach, memory["idle"], memory["patience"], memory["position"], *offered]
        if any(type(each) is not int or each < 0 for each in counts) or not (
            0 <= right <= judged < np.inf and judged > 0 and reach
        ):
            raise ValueError(
                f"memory: found {memory!r}, wanted counts of 0 or more and a share of what was "
                "judged"
            )
        acceptance = self.acceptance
        acceptance.estimate.right, acceptance.estimate.judged, acceptance.estimate.reach = (
            right,
            judged,
            reach,
        )
        acceptance.idle, acceptance.patience = memory["idle"], memory["patience"]
        self.offered, self.position = list(offered), memory["position"]

    def keep_reached(self, tokens: Sequence[int], most: int) -> int:
        """Cut `reached` to what it has in common with the first `most` tokens of the text; returns
        how many those are.
        """
        self.reached += self.held[len(self.reached) :]
        keep = common_prefix(self.reached, tokens, min(len(self.reached), most))
        del self.reached[keep:]
        return keep

    def lose_pages(self, session: Session) -> None:
        """Go on in an empty session of the draft's; the pages go with the one before."""
        self.reached += self.held[len(self.reached) :]
        self.session, self.held = session, []

    def learn(self, tokens: Sequence[int]) -> None:
        """Compare the last draft with what came."""
        came = tokens[self.position : self.position + len(self.offered)]
        self.acceptance.estimate.learn(came, self.offered)
        if self.offered and came[:1] == self.offered[:1]:
            self.acceptance.patience = PATIENCE
        self.offered = []


class SessionDraft:
    """The candidates of one session while they are drawn: a sampler and a grammar that run ahead of
    the session's own.

    numbered: a sampler of the drafter's own draws each token with random numbers that depend on the
    token's position in the text, so that dropped candidates, however many, change nothing. No two
    tokens of a text share numbers, so the distribution is unchanged.
    """

    __slots__ = (
        "request",
        "count",
        "generated",
        "grammar",
        "kv",
        "numbered",
        "prefix",
        "sampler",
        "seed",
        "shares",
        "state",
        "tokens",
    )

    def __init__(self, request: DraftRequest, count: int, *, numbered: bool = False) -> None:
        session = request.session
        self.prefix, self.generated = session.tokens, session.sampler.generated
        self.request, self.count, self.state, self.kv = (
            request,
            count,
            request.state,
            request.state.session.kv,
        )
        self.grammar = None if session.grammar is None else session.grammar.fork()
        own = self.state.sampler
        self.numbered, self.seed = numbered and own is not None, session.sampler.seed
        self.sampler = session.sampler.fork() if own is None else own.fork() if numbered else own
        # which may count their calls: they are called for the text alone, by the target's loop
        self.sampler.processors = ()
        self.tokens: list[int] = []
        self.shares: list[Distribution] = []

    def drop_rejected(self) -> None:
        """Drop candidates that the session did not accept; its last token is run again if there are
        no logits otherwise.
        """
        state, tokens = self.state, self.prefix
        if state.sampler is not None:
            state.keep_reached(tokens, len(tokens) - 1)
        self.drop_lost_pages()
        keep = common_prefix(state.held, tokens, min(len(state.held), len(tokens) - 1))
        if keep < len(state.held):
            del state.held[keep:]
            self.kv.drop(keep)
            self.drop_lost_pages()
        self.kv.settle()
        if state.sampler is not None:
            self.sampler.set_history(tokens, generated=self.generated)

    def drop_lost_pages(self) -> None:
        """Drop tokens whose pages were taken."""
        if self.kv.length < len(self.state.held):
            del self.state.held[self.kv.length :]

    def missing(self, most: int) -> list[int]:
        """The first tokens that the draft has not run: the session's, then its own candidates."""
        at = len(self.state.held)
        return (
            self.prefix[at : at + most]
            if at < len(self.prefix)
            else self.tokens[at - len(self.prefix) :][:most]
        )

    @property
    def caught_up(self) -> bool:
        """Whether the draft has run all tokens of the session."""
        return len(self.state.held) >= len(self.prefix)

    @property
    def whole(self) -> bool:
        """Whether the draft has run its own tokens, too."""
        return len(self.state.held) == len(self.prefix) + len(self.tokens)

    def draw(self, row: np.ndarray) -> bool:
        """Add a candidate from logits of the target's vocabulary; returns whether there may be one
        more.
        """
        grammar = self.grammar
        mask = None if grammar is None else grammar.mask()
        try:
            if self.state.sampler is None:
                token = self.sampler.sample(row, mask)
            else:
                if self.numbered:
                    self._reseed()
                self.shares.append(self.sampler.distribution(row, mask))
                token = self.sampler.sample_from(self.shares[-1])
        # the draft knows nothing that may come here
        except SamplingError:
            del self.shares[len(self.tokens) :]
            return False
        self.sampler.accept(token)
        self.tokens.append(token)
        if len(self.tokens) == self.count or token in self.request.stop_ids:
            return False
        if grammar is not None:
            self.request.masker.advance(grammar, token)
            return not grammar.only_end()
        return True

    def _reseed(self) -> None:
        data = struct.pack(
            "<3Q", self.state.sampler.seed, self.seed, self.generated + len(self.tokens)
        )
        self.sampler.reseed(
            int.from_bytes(
                hashlib.blake2b(data, digest_size=8, person=b"draft line").digest(), "little"
            )
        )
