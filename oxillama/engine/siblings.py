"""`Siblings`: several completions of one prompt. The prompt is evaluated once, and each completion
continues from a fork of its pages.

The first draws with the seed of a single request, number i with `derived_seed(seed, i)`. Each
completion names its seed, and a single request with that seed draws the same tokens.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from oxillama.completion import Completion
from oxillama.engine.engine import EngineCore
from oxillama.engine.generation import SharedVocabulary, make_request
from oxillama.engine.request import GenerateRequest, check_timeout
from oxillama.engine.session import Session
from oxillama.errors import ConfigError
from oxillama.options import Options
from oxillama.sampling import SamplerConfig

_MASK = (1 << 64) - 1


def derived_seed(seed: int, index: int) -> int:
    """The seed of sibling `index`: the seed itself for 0, then the index-th output of SplitMix64
    (Steele, Lea, Flood 2014) started at it.
    """
    if not index:
        return seed
    mixed = (seed + index * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


class Siblings:
    """The requests of one prompt. `result()` is the list of the `n` best completions, or of all in
    order if only `n` were drawn.

    The best have the highest mean log-probability per token (of the model, before any sampler
    stage); a completion without tokens comes last.
    """

    __slots__ = ("_keep_logprobs", "n", "requests")

    def __init__(self, requests: list[GenerateRequest], *, n: int, keep_logprobs: bool) -> None:
        """keep_logprobs: keep log-probabilities in the completions, because the caller asked for
        them.
        """
        self.requests, self.n, self._keep_logprobs = tuple(requests), n, keep_logprobs

    @property
    def session(self) -> Session | None:
        """The session of the completion returned, when all have ended; None if several are
        returned.
        """
        if self.n > 1 or not self.done:
            return None
        best: Session = max(self.requests, key=_likelihood).session
        return best

    @property
    def done(self) -> bool:
        """Whether all have ended."""
        return all(request.done for request in self.requests)

    def cancel(self) -> None:
        """Stop all of them. Safe from any thread, more than once."""
        for request in self.requests:
            request.cancel()

    def result(self, timeout: float | None = None) -> list[Completion]:
        """Wait for all. Raises the error of the first that fails and cancels the others;
        TimeoutError after `timeout` seconds.
        """
        check_timeout(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        try:
            return self._best(
                [
                    request.result(None if end is None else max(0.0, end - time.monotonic()))
                    for request in self.requests
                ]
            )
        except TimeoutError:
            raise
        except BaseException:
            self.cancel()
            raise

    def __await__(self) -> Generator[Any, None, list[Completion]]:
        return self._wait().__await__()

    def __iter__(self) -> Any:
        self.cancel()
        raise ConfigError(
            f"n, best_of: found {len(self.requests)} completions to stream as one, wanted 1; "
            "iterate over `requests`"
        )

    __aiter__ = __iter__

    async def _wait(self) -> list[Completion]:
        try:
            return self._best([await request for request in self.requests])
        finally:
            # if one failed or the waiting task was cancelled; ended requests are not affected
            self.cancel()

    def _best(self, done: list[Completion]) -> list[Completion]:
        if len(done) > self.n:
            done = sorted(done, key=_likelihood, reverse=True)[: self.n]
        return done if self._keep_logprobs else [replace(each, logprobs=()) for each in done]


def _likelihood(done: Completion | GenerateRequest) -> float:
    """Mean log-probability per token."""
    values = [each.raw for each in done.logprobs]
    return sum(values) / len(values) if values else float("-inf")


def make_siblings(
    core: EngineCore,
    vocabulary: SharedVocabulary | None,
    options: Options,
    *,
    default: SamplerConfig,
    prompt: Sequence[int] | None,
    session: Session | None = None,
) -> Siblings:
    """The requests of one prompt for `n` or `best_of`. Submit the first; it brings the others
    along.
    """
    count = options.best_of or options.n
    if session is not None or prompt is None:
        raise ConfigError(
            f"n, best_of: found {count} completions of a session, wanted a prompt; `Session.fork` "
            "gives sessions to continue"
        )
    keep_logprobs = options.logprobs is not None
    single = replace(
        options,
        n=1,
        best_of=None,
        logprobs=options.logprobs if keep_logprobs or count == options.n else 0,
    )
    first = make_request(core, vocabulary, single, default=default, prompt=prompt)
    seed = first.session.sampler.seed
    others = [
        make_request(
            core,
            vocabulary,
            replace(single, seed=derived_seed(seed, index)),
            default=default,
            prompt=prompt,
        )
        for index in range(1, count)
    ]
    first.siblings = tuple(others)
    return Siblings([first, *others], n=options.n, keep_logprobs=keep_logprobs)
