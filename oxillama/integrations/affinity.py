"""`Affinity`: in which order engines are asked to take a prompt, by how much of it their prefix
caches hold and by how much they have to do.

What an engine holds is what it has published (`fingerprint`), and what was sent there since the
time that its cache reaches back to: the cache evicts what was used least recently, so one number
says which of all that was sent is still there.

An engine that holds half of a prompt or more is asked first, unless it has more requests than
another by more than `overload`; one that holds less, up to as many fewer. What many prompts begin
with (a system message) draws nobody: it is evaluated once by every engine, and pays there too.
"""

from __future__ import annotations

import math
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from oxillama.integrations.fingerprint import chosen, held, published

Name = TypeVar("Name", bound=Hashable)
_REMEMBERED = 16384  # hashes an engine
_MANY = 8  # prompts that began with the same


@dataclass(slots=True)
class _Known:
    """What is known of one engine: `sent` has (time, how often) of every hash, oldest first;
    `since` is how far back its cache reaches, as far as it has said so.
    """

    sent: OrderedDict[bytes, tuple[float, int]] = field(default_factory=OrderedDict)
    report: object = None
    pages: frozenset[bytes] = frozenset()
    since: float = -math.inf

    def depth(self, pages: Sequence[bytes]) -> int:
        """How many of a prompt's pages are stored, or soon will be."""
        sent, since = self.sent, self.since
        here = {each for each in pages if each in sent and sent[each][0] > since}
        return held(pages, self.pages | here if here else self.pages)


class Affinity(Generic[Name]):
    """What a router knows of engines by their names."""

    def __init__(self, *, overload: int = 8, clock: Callable[[], float] = time.monotonic) -> None:
        """overload: requests by which one may have more than the one with the fewest."""
        self._overload, self._clock = overload, clock
        self._known: dict[Name, _Known] = {}

    def order(
        self,
        loads: Mapping[Name, int],
        pages: Sequence[bytes],
        *,
        owners: Collection[Name] | None = None,
    ) -> list[Name]:
        """The names in `loads`, how many requests each has, best first. owners: those that count as
        holding everything, None where the pages decide.
        """
        least = min(loads.values(), default=0)

        def rank(name: Name) -> tuple[bool, float, int, float]:
            share, draw = (
                self._share(name, pages) if owners is None else (float(name in owners),) * 2
            )
            left = loads[name] - least > self._overload * min(1.0, 2.0 * draw)
            return left, 0.0 if left else -share, loads[name], random.random()

        return sorted(loads, key=rank)

    def _share(self, name: Name, pages: Sequence[bytes]) -> tuple[float, float]:
        """(how much of a prompt an engine holds, how much of that counts against its load)."""
        known = self._known.get(name)
        depth = known.depth(pages) if known is not None else 0
        if not depth:
            return 0.0, 0.0
        last, share = pages[depth - 1], depth / len(pages)
        often = sum(each.sent[last][1] for each in self._known.values() if last in each.sent)
        return share, share if often < _MANY else 0.0

    def sent(self, name: Name, pages: Sequence[bytes]) -> None:
        """A prompt went to an engine."""
        sent, now = self._known.setdefault(name, _Known()).sent, self._clock()
        for each in reversed(chosen(pages)):
            sent[each] = now, sent[each][1] + 1 if each in sent else 1
            sent.move_to_end(each)
        while len(sent) > _REMEMBERED:
            sent.popitem(last=False)

    def update(self, name: Name, report: object, data: bytes, seconds: float) -> None:
        """Take what an engine's `Publisher` has published: pages in `data`, and how many seconds
        its cache reaches back. report: the object that brought it, which counts once.
        """
        known = self._known.setdefault(name, _Known())
        if known.report is not report:
            known.report, known.pages = report, published(data)
            known.since = self._clock() - seconds

    def keep(self, names: Collection[Name]) -> None:
        """Forget all other engines."""
        for gone in self._known.keys() - set(names):
            del self._known[gone]
