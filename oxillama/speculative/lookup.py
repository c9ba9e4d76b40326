"""Prompt lookup: the tokens that followed the newest tokens earlier, in the session itself or in
another one, may follow again.

    tokens   ... the quick brown fox ... the quick brown        candidates: fox ...
                 ^-------------^          ^-------------^
                 the longest earlier run that ends as the text does

A lookup takes microseconds and no rows. Each lookup is compared with the text that came, even if
its candidates were not run, so that the acceptance rate is known for every length of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oxillama.errors import ConfigError
from oxillama.speculative.acceptance import AcceptanceEstimate
from oxillama.speculative.types import MAX_CANDIDATES, Draft, DraftRequest

_OCCURRENCES = 8  # earlier places that are compared
_LONGEST = 32  # tokens of a run that are compared
# tokens at the end of a session that are still learned from: more were left where lookups rested,
# because they cost more than they gained
_MOST_UNREAD = 32
_NEIGHBOUR_RUN = 4  # tokens that must agree with another session
_NEIGHBOUR_ENTRIES = 1 << 17
_CLASSES = (3, 5, 9, 17)  # runs of 2, 3-4, 5-8, 9-16, 17 and more are estimated apart
_FIRST_CHANCES = (0.3, 0.5, 0.7, 0.8, 0.9)

Occurrence = tuple[list[int], int]


class RunIndex:
    """The newest occurrence of each run in all sessions of a drafter. When full, it is cleared."""

    __slots__ = ("_occurrences",)

    def __init__(self) -> None:
        self._occurrences: dict[tuple[int, ...], Occurrence] = {}

    def add(self, tokens: list[int], end: int) -> None:
        """The run that ends before position `end` of a session is followed by the tokens from
        there.
        """
        if len(self._occurrences) >= _NEIGHBOUR_ENTRIES:
            self._occurrences.clear()
        self._occurrences[tuple(tokens[end - _NEIGHBOUR_RUN : end])] = (tokens, end)

    def find(self, tokens: list[int]) -> Occurrence | None:
        """Where another session continues after this one's newest run."""
        run = tuple(tokens[-_NEIGHBOUR_RUN:])
        place = self._occurrences.get(run)
        if place is None or place[0] is tokens:
            return None
        other, end = place
        # it may have been cut since
        return (
            place if len(other) > end and tuple(other[end - _NEIGHBOUR_RUN : end]) == run else None
        )


class Lookup:
    """The index of one session: where its pairs of tokens occurred before, and the acceptance rate
    for runs of each length.
    """

    __slots__ = ("_before", "_last", "_offered", "_seen", "_estimates", "neighbours", "tokens")

    def __init__(
        self,
        tokens: list[int],
        neighbours: RunIndex | None,
        first: Sequence[float] = _FIRST_CHANCES,
    ) -> None:
        self.tokens, self.neighbours = tokens, neighbours
        self._estimates = [AcceptanceEstimate(each) for each in first]  # of each class
        # (position, candidates, class)
        self._offered: tuple[int, list[int], int] | None = None
        self._clear()

    def _clear(self) -> None:
        self._last: dict[tuple[int, int], int] = {}  # pair -> where it was last followed
        # position -> where the pair before it was followed before that
        self._before = [0, 0]
        self._seen = 2
        self._offered = None

    @property
    def chances(self) -> list[float]:
        """The probability, for a run of each class, that a candidate is accepted."""
        return [each.chance for each in self._estimates]

    @property
    def unread(self) -> int:
        """The number of tokens not yet added to the index."""
        return len(self.tokens) - self._seen

    def learn(self) -> None:
        """Add the new tokens to the index; a session that was truncated is indexed again."""
        tokens, length = self.tokens, len(self.tokens)
        if length < self._seen - 1:
            self._clear()
        if self._offered is not None:
            position, candidates, group = self._offered
            self._estimates[group].learn(tokens[position : position + len(candidates)], candidates)
            self._offered = None
        last, before, neighbours = self._last, self._before, self.neighbours
        # the newest pair stays out: nothing follows it yet
        for at in range(self._seen, length):
            pair = (tokens[at - 2], tokens[at - 1])
            before.append(last.get(pair, 0))
            last[pair] = at
            if neighbours is not None and at >= _NEIGHBOUR_RUN:
                neighbours.add(tokens, at)
        self._seen = max(self._seen, length)

    def find(self, most: int) -> Draft:
        """Up to `most` candidates with their chances."""
        tokens = self.tokens
        if len(tokens) < 3:
            return Draft()
        place, run = self._longest()
        source = tokens
        if run < _NEIGHBOUR_RUN and self.neighbours is not None:
            found = self.neighbours.find(tokens)
            if found is not None:
                (source, place), run = found, _NEIGHBOUR_RUN
        if not place:
            return Draft()
        out = source[place : place + most]
        if source is tokens:
            period = len(tokens) - place
            # the run reaches the end: the text goes in a circle
            while len(out) < most:
                out.append(out[len(out) - period])
        group = sum(run >= least for least in _CLASSES)
        self._offered = (len(tokens), out, group)
        return Draft(out, self._estimates[group].chances(len(out)))

    def _longest(self) -> tuple[int, int]:
        """(where the longest earlier run that ends like the text is followed, its length); (0, 0)
        if there is none.
        """
        tokens = self.tokens
        place = self._last.get((tokens[-2], tokens[-1]), 0)
        best, length, tries = 0, 0, _OCCURRENCES
        while place and tries:
            run, most = 2, min(_LONGEST, place)
            while run < most and tokens[place - 1 - run] == tokens[-1 - run]:
                run += 1
            if run > length:
                best, length = place, run
                if run == _LONGEST:
                    break
            place = self._before[place]
            tries -= 1
        return best, length


class LookupDrafter:
    """Candidates by prompt lookup; with `neighbours=False` sessions do not use each other's
    tokens.
    """

    def __init__(self, *, most: int = MAX_CANDIDATES, neighbours: bool = True) -> None:
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ConfigError(f"most: found {most!r}, wanted an integer of 1 or more")
        self.most = most
        self._neighbours = RunIndex() if neighbours else None
        self._first = list(_FIRST_CHANCES)

    def open(self, session: Any) -> Lookup:
        """Nothing is indexed before the first `propose`."""
        return Lookup(session.tokens, self._neighbours, self._first)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """The tokens that followed before."""
        out = []
        for request in requests:
            if request.state.tokens is not request.session.tokens:
                request.state.tokens = request.session.tokens
            request.state.learn()
            out.append(request.state.find(min(request.most, self.most)))
        return out

    def close(self, state: Lookup, session: Any) -> None:
        """Its tokens remain known to other sessions for a while, and the next session begins
        half-way to the acceptance rates it ended with.
        """
        if state.unread <= _MOST_UNREAD:
            state.learn()
        self._first = [(first + chance) / 2 for first, chance in zip(self._first, state.chances)]
