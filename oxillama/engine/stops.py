"""Stop strings: text that may be the beginning of one is held back until it cannot be, and a stop
itself is never shown.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopText:
    """Filters a stream of text. `tail` is the end of all text so far, of which the last `held`
    characters were not shown.
    """

    __slots__ = ("_longest", "held", "stops", "tail")

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self.tail = ""
        self.held = 0
        self._longest = max(map(len, self.stops), default=0)

    def feed(self, text: str) -> tuple[str, bool]:
        """(text that may be shown now, whether a stop string was completed); a stop ends where the
        earliest one begins.
        """
        if not self.stops:
            return text, False
        tail = self.tail + text
        shown = len(self.tail) - self.held
        begins = [at for at in map(tail.find, self.stops) if at >= 0]
        if begins:
            self.tail, self.held = "", 0
            return tail[shown : min(begins)], True
        hold = self._may_begin(tail)
        out = tail[shown : max(shown, len(tail) - hold)]
        self.held = min(hold, len(tail) - shown)
        self.tail = tail[-max(self._longest - 1, 1) :]
        return out, False

    def flush(self) -> str:
        """The text held back, shown now; it still counts as the beginning of a stop if more text is
        fed.
        """
        out = self.tail[len(self.tail) - self.held :]
        self.held = 0
        return out

    def fork(self) -> StopText:
        """An independent filter that stands where this one does."""
        twin = StopText(self.stops)
        twin.tail, twin.held = self.tail, self.held
        return twin

    def _may_begin(self, tail: str) -> int:
        """Length of the longest end of `tail` that a stop string begins with."""
        best = 0
        for stop in self.stops:
            for size in range(min(len(stop) - 1, len(tail)), best, -1):
                if tail.endswith(stop[:size]):
                    best = size
                    break
        return best
