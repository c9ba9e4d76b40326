"""Requests that are more than one sequence: the beams of a search, which take steps side by side,
and siblings, which share a prompt.

What is done here is done under the engine's lock, by its loop.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oxillama.engine.metrics import EngineMetrics
from oxillama.engine.request import Request
from oxillama.engine.scheduler import Scheduler, State
from oxillama.engine.tracker import RequestTracker


class SequenceGroups:
    """What such requests get out of a step."""

    def __init__(
        self, tracker: RequestTracker, scheduler: Scheduler, counters: EngineMetrics
    ) -> None:
        self._tracker, self._scheduler, self._counters = tracker, scheduler, counters

    def process_beams(self, request: Request, out: np.ndarray, rows: int, now: float) -> int:
        """`rows` beams of a search have had their row of a step; returns how many rows of logits
        were theirs: all of `out`.
        """
        try:
            if request.stopping:
                self._tracker.end(request, request.stopping)
            elif request.beams.feed_rows(request.entry, rows, out):
                self.end_turn(request, request.beams.step(), now)
        except BaseException as error:  # this request's own doing: its companions go on
            self._tracker.end(request, None, error)
        return len(out)

    def end_turn(self, request: Request, over: bool, now: float) -> None:
        """Every beam of a search has had its turn: they take the next, or the search is over."""
        search, counters = request.beams, self._counters
        (counters.inter_token if request.token_at else counters.first_token).observe(
            now - (request.token_at or request.submitted_at)
        )
        request.token_at = now
        counters.generated += len(search.beams)
        counters.decoded += len(search.beams) if request.entry.state is State.DECODING else 0
        if over:
            request.value = search.result()
            self._tracker.end(request, "stop")
        else:
            search.update_entry(request.entry)
            self._scheduler.start_decoding(request.entry)

    def fork_siblings(
        self, request: Request, row: np.ndarray, begin: Callable[[Request], None]
    ) -> None:
        """A prompt is evaluated, `row` are its logits: the siblings who waited for it go on from
        forks of its pages.
        """
        # those that are not reached yet stay its own: it hands them over if it ends here
        while request.siblings:
            each = request.siblings[0]
            if each in self._tracker.in_flight:
                each.session.kv, each.session.pending = request.session.kv.fork(), row.copy()
                each.prompt_logprobs, each.on_rows, each.cached = (
                    request.prompt_logprobs,
                    None,
                    each.prompt_tokens,
                )
                begin(each)
            request.siblings = request.siblings[1:]
