"""A second model as a drafter: its own pages follow the session's tokens, and are cut back with
them, never filled again.

    target  t0 ... tn-1 | x0 x1 x2                 draft  t0 ... tn-1 c0 c1            (the last candidate is not run)
    x0 = c0, x1 != c1:                             cut back to  t0 ... tn-1 c0,  then run  x1

Candidates are drawn after the target's whole chain, from logits that stand in the target's
vocabulary: with a fork of the session's own sampler (the same random numbers the target will use,
so that equal logits draw equal tokens), or with a sampler of the drafter's own, whose distributions
are then handed over to be judged against. A grammar masks candidates as it masks the text.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from oxillama.engine.costs import StepCosts, measured
from oxillama.engine.engine import EngineCore
from oxillama.engine.room import common_prefix
from oxillama.engine.session import Session
from oxillama.engine.speculation import Ask, Draft, Trust
from oxillama.engine.vocabularies import Alignment
from oxillama.errors import PoolError, SamplingError
from oxillama.sampling import Distribution, Sampler

# rows of a long prompt that the draft runs between two steps of the target
CATCH_UP = 256
# draws until a draft that does not pay is tried again; doubles while it fails
PATIENCE = 16
_MOST_PATIENCE = 512
_FIRST_TRUST = 0.7


class Pace:
    """How far a draft can be trusted, and while it does not pay, how many draws until it is tried
    again.
    """

    __slots__ = ("idle", "patience", "trust")

    def __init__(self) -> None:
        self.trust, self.idle, self.patience = Trust(_FIRST_TRUST, weight=2.0), 0, PATIENCE

    def count(self, paying: int) -> int:
        """How many candidates to draft where so many would pay: one now and then where none do, to
        see whether that has changed.
        """
        if paying:
            self.idle = 0
            return paying
        self.idle += 1
        if self.idle < self.patience:
            return 0
        self.idle, self.patience = 0, min(2 * self.patience, _MOST_PATIENCE)
        return 1


class Following:
    """A draft's own session for one of the target's: `held` are the target's tokens that its pages
    are filled with.
    """

    __slots__ = ("held", "offered", "pace", "position", "sampler", "session")

    def __init__(self, session: Session, sampler: Sampler | None, pace: Pace) -> None:
        self.session, self.sampler, self.pace = session, sampler, pace
        self.held: list[int] = []
        self.offered: list[int] = []
        self.position = 0

    def remember(self) -> dict:
        """What was learned, as JSON values."""
        pace = self.pace
        return {
            "trust": [pace.trust.right, pace.trust.judged, pace.trust.reach],
            "idle": pace.idle,
            "patience": pace.patience,
            "offered": self.offered,
            "position": self.position,
        }

    def recall(self, memory: dict) -> None:
        """Take in what `remember` gave; ValueError for what it cannot have given."""
        (right, judged, reach), offered = memory["trust"], memory["offered"]
        counts = [reach, memory["idle"], memory["patience"], memory["position"], *offered]
        if any(type(each) is not int or each < 0 for each in counts) or not (
            0 <= right <= judged < np.inf and judged > 0 and reach
        ):
            raise ValueError(
                f"memory: found {memory!r}, wanted counts of 0 or more and a share of what was judged"
            )
        pace = self.pace
        pace.trust.right, pace.trust.judged, pace.trust.reach = right, judged, reach
        pace.idle, pace.patience = memory["idle"], memory["patience"]
        self.offered, self.position = list(offered), memory["position"]

    def learn(self, tokens: Sequence[int]) -> None:
        """Compare the last draft with what came."""
        came = tokens[self.position : self.position + len(self.offered)]
        self.pace.trust.learn(came, self.offered)
        if self.offered and came[:1] == self.offered[:1]:
            self.pace.patience = PATIENCE
        self.offered = []


class ModelDrafter:
    """Drafts with the program of another engine. alignment: between the two vocabularies.

    own_sampler: makes the sampler of a session's draft, None to draw with a fork of the session's
    own. weight: what a step of the draft costs of a step of the target, in bytes that it reads; it
    replaces the clock where the text itself depends on how many candidates are drafted, which is
    with a sampler of its own. Where both are the same engine, its own requests and drafts take
    turns.

    `open`, `close` and `forget` ask for no engine's lock: whoever calls them may hold the target's,
    and two engines may draft for each other.
    """

    in_loop = True

    def __init__(
        self,
        core: EngineCore,
        alignment: Alignment,
        *,
        own_sampler: Callable[[Session], Sampler] | None = None,
        weight: float = 1.0,
    ) -> None:
        self.core, self.alignment = core, alignment
        self._own_sampler, self._weight = own_sampler, weight
        self._costs: StepCosts | None = None
        self._pace = Pace()  # of all sessions, but where the text depends on it
        self.forwarded = 0  # rows that the draft has run
        self._kept: tuple[Session, Following] | None = None
        self._lock = threading.Lock()  # of `_kept`

    def open(self, session: Session) -> Following:
        """Nothing is run yet; the session that was closed last is gone on with where it stood."""
        with self._lock:
            if self._kept is not None and self._kept[0] is session:
                following, self._kept = self._kept[1], None
                return following
        return self._following(session, self.core.new_session())

    def _following(self, session: Session, drafted: Session) -> Following:
        if self._own_sampler is None:
            return Following(drafted, None, self._pace)
        return Following(drafted, self._own_sampler(session), Pace())

    def close(self, state: Following, session: Session) -> None:
        """The draft's pages stay while nobody needs them, of the last session alone."""
        with self._lock:
            self._kept = (session, state)

    def forget(self) -> None:
        """Let go of the session that was closed last; one that nobody has any more gives its pages
        back.
        """
        with self._lock:
            self._kept = None

    def kept(self, session: Session) -> Following | None:
        """What follows an idle session, None where another was closed after it."""
        with self._lock:
            return self._kept[1] if self._kept is not None and self._kept[0] is session else None

    def follow(
        self, session: Session, drafted: Session, *, held: int, sampler: bytes | None, memory: dict
    ) -> None:
        """Go on where `kept` of another process stood: `drafted` holds the first `held` tokens of
        the session in pages of this draft's.

        ValueError, after which the pages are let go, where it holds others, or `memory` is not what
        `Following.remember` gave.
        """
        wanted = self.alignment.ids(session.tokens[:held]).tolist()
        following = self._following(session, self.core.keep(drafted))
        try:
            if following.sampler is not None and sampler is not None:
                following.sampler.restore(sampler)
            if drafted.kv.length != held or drafted.tokens[:held] != wanted:
                raise ValueError(
                    f"held: found {drafted.kv.length} tokens, wanted the session's first {held}"
                )
            following.recall(memory)
        except BaseException:
            self.core.drop(drafted)
            raise
        following.held = session.tokens[:held]
        self.close(following, session)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """Candidates of all sessions, drafted together: one step of the draft for the next
        candidate of each.
        """
        self.core.check()
        out = [Draft()] * len(asks)
        work = {}
        for at, ask in enumerate(asks):
            count = self._count(ask)
            if count:
                work[at] = Line(ask, count)
        with self.held(list(work.values())):
            self.draft(list(work.values()))
        for at, line in work.items():
            line.state.position, line.state.offered = len(line.ask.session.tokens), line.tokens
            out[at] = Draft(
                line.tokens, None, line.shares if line.state.sampler is not None else None
            )
        return out

    @contextmanager
    def held(self, lines: Sequence[Line]) -> Iterator[None]:
        """While the lines are drawn nobody takes the pages of their sessions."""
        sessions = [line.state.session for line in lines]
        with self.core.lock:
            for session in sessions:
                self.core.keep(session)
                session.busy = True
        try:
            yield
        finally:
            with self.core.lock:
                for session in sessions:
                    session.busy = False

    def _count(self, ask: Ask) -> int:
        """How many candidates to draft: as many as pay, by the clock or, where the text depends on
        their number, without it.
        """
        state = ask.state
        state.learn(ask.session.tokens)
        if ask.costs is None:
            return ask.most
        chances = state.pace.trust.chances(ask.most)
        if state.sampler is None:
            self._costs = measured(self.core, ask.sequences, self._costs)
            each = (
                self._costs(ask.sequences) / ask.sequences
                if self._costs is not None
                else ask.costs(1)
            )
            return state.pace.count(
                ask.costs.best(chances, rows=ask.rows, sequences=ask.sequences, each=each)
            )
        return state.pace.count(_NOMINAL.best(chances, each=self._weight))

    def draft(self, lines: list[Line]) -> None:
        """Catch up with each line's session, then draw its candidates."""
        for line in lines:
            line.cut_back()
        most = min(CATCH_UP, self.core.program.max_rows)
        rows = self.run([(line, line.missing(most)) for line in lines])
        live = [(line, row) for line, row in zip(lines, rows) if row is not None and line.caught_up]
        while live:
            going = [line for line, row in live if line.draw(self.alignment.row(row))]
            live = []
            if going:
                rows = self.run([(line, [line.tokens[-1]]) for line in going])
                live = [(line, row) for line, row in zip(going, rows) if row is not None]

    def run(self, work: list[tuple[Line, list[int]]]) -> list[np.ndarray | None]:
        """Run tokens of several lines; the logits after the last of each, None for a line that got
        no pages.
        """
        out: list[np.ndarray | None] = [None] * len(work)
        most, start = self.core.program.max_rows, 0
        while start < len(work):  # as many lines as a step holds
            end, rows = start, 0
            while end < len(work) and rows + len(work[end][1]) <= most:
                rows += len(work[end][1])
                end += 1
            part = [
                (index, *work[index]) for index in range(start, end) if self._reserve(*work[index])
            ]
            if part:
                logits = self._step([(line, ids) for _, line, ids in part])
                for (index, line, ids), row in zip(part, logits):
                    line.state.held += ids
                    line.kv.length += len(ids)
                    out[index] = row.copy()
            start = end
        return out

    def _reserve(self, line: Line, ids: list[int]) -> bool:
        with self.core.lock:
            self.core.check()  # closed meanwhile, its pages are nobody's
            try:
                line.kv.reserve(line.kv.length + len(ids))
                return True
            except PoolError:
                return False

    def _step(self, part: list[tuple[Line, list[int]]]) -> np.ndarray:
        """Logits (lines, vocabulary) after the last token of each line; a view that the next step
        overwrites.
        """
        tokens = np.concatenate([self.alignment.ids(ids) for _, ids in part])
        positions = np.concatenate(
            [
                np.arange(line.kv.length, line.kv.length + len(ids), dtype=np.int32)
                for line, ids in part
            ]
        )
        row_table = np.repeat(np.arange(len(part), dtype=np.int32), [len(ids) for _, ids in part])
        wanted = (np.cumsum([len(ids) for _, ids in part]) - 1).astype(np.int32)
        self.forwarded += len(tokens)
        core = self.core
        with core.step_lock:
            program = core.program  # first: closed meanwhile, the lines have no pages
            batch = core.make_batch(
                tokens, positions, [line.kv.table for line, _ in part], row_table, wanted
            )
            return program.step(batch, core.memory).copy()


# a target's step by rows, where the clock may not be asked
_NOMINAL = StepCosts({1: 1.0, 17: 2.6})


class Line:
    """One session's draft while it is made: samplers and grammar that run ahead of the session's
    own.

    numbered: a sampler of the drafter's own draws each token with random numbers of its number in
    the text, so that lines which were dropped, however far they had come, cannot show; no two
    tokens of a text share numbers, so the law is what it was.
    """

    __slots__ = (
        "ask",
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

    def __init__(self, ask: Ask, count: int, *, numbered: bool = False) -> None:
        session = ask.session
        self.prefix, self.generated = session.tokens, session.sampler.generated
        self.ask, self.count, self.state, self.kv = ask, count, ask.state, ask.state.session.kv
        self.grammar = None if session.grammar is None else session.grammar.fork()
        own = self.state.sampler
        self.numbered, self.seed = numbered and own is not None, session.sampler.seed
        self.sampler = session.sampler.fork() if own is None else own.fork() if numbered else own
        # which may count their calls: they are called for the text alone, by the target's loop
        self.sampler.processors = ()
        self.tokens: list[int] = []
        self.shares: list[Distribution] = []

    def cut_back(self) -> None:
        """Forget what the session did not say; its last token is run again where nothing else would
        give logits.
        """
        state, tokens = self.state, self.prefix
        self.refit()
        keep = common_prefix(state.held, tokens, min(len(state.held), len(tokens) - 1))
        if keep < len(state.held):
            del state.held[keep:]
            self.kv.length = keep
        if state.sampler is not None:
            self.sampler.set_history(tokens, generated=self.generated)

    def refit(self) -> None:
        """Forget what somebody needed the pages of."""
        if self.kv.length < len(self.state.held):
            del self.state.held[self.kv.length :]

    def missing(self, most: int) -> list[int]:
        """The first tokens that the draft has not run: the session's, then the line's own."""
        at = len(self.state.held)
        return (
            self.prefix[at : at + most]
            if at < len(self.prefix)
            else self.tokens[at - len(self.prefix) :][:most]
        )

    @property
    def caught_up(self) -> bool:
        """Whether the draft has run all that the session said."""
        return len(self.state.held) >= len(self.prefix)

    @property
    def whole(self) -> bool:
        """Whether the draft has run its own tokens, too."""
        return len(self.state.held) == len(self.prefix) + len(self.tokens)

    def draw(self, row: np.ndarray) -> bool:
        """Add a candidate from logits of the target's vocabulary; whether there may be one more."""
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
        if len(self.tokens) == self.count or token in self.ask.stop_ids:
            return False
        if grammar is not None:
            self.ask.masker.advance(grammar, token)
            return not grammar.only_end()
        return True

    def _reseed(self) -> None:
        told = struct.pack(
            "<3Q", self.state.sampler.seed, self.seed, self.generated + len(self.tokens)
        )
        self.sampler.reseed(
            int.from_bytes(
                hashlib.blake2b(told, digest_size=8, person=b"draft line").digest(), "little"
            )
        )
