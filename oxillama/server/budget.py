"""A limit on the reasoning of a model: after so many tokens, only the end of the reasoning can
follow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from oxillama.chat import Turn
from oxillama.server.errors import ApiError, unsupported
from oxillama.tokenizer import TokenizerBridge
from oxillama.toolcalls.reasoning import ReasoningFormat


class ReasoningBudget:
    """A logits processor. opened: reasoning begins with the reply."""

    def __init__(
        self,
        bridge: TokenizerBridge,
        region: ReasoningFormat,
        *,
        opened: bool,
        tokens: int,
    ) -> None:
        self._bridge, self._region = bridge, region
        self._opened, self._tokens = opened, tokens
        # tokens of the prompt as it runs, which may have been shortened: those of the first call
        self._start: int | None = None
        self._end = bridge.encode(region.close, add_special=False, parse_special=True)

    def __call__(self, tokens: Sequence[int] | np.ndarray, logits: np.ndarray) -> np.ndarray:
        if self._start is None:
            self._start = len(tokens)
        said = [int(each) for each in tokens[self._start :]]
        spent = self._tokens
        if not self._opened:
            begun = self._holding(said, self._region.open)
            if begun is None:
                return logits
            spent += begun
        forced = len(said) - spent
        if not 0 <= forced < len(self._end) or self._holding(said[:spent], self._region.close):
            return logits
        only = np.full_like(logits, -np.inf)
        only[self._end[forced]] = 0.0
        return only

    def _holding(self, said: list[int], mark: str) -> int | None:
        """After how many tokens a text holds a mark, None where it does not."""

        def holds(count: int) -> bool:
            return mark in self._bridge.decode(said[:count], skip_special=False)

        if not holds(len(said)):
            return None
        return bisect_left(range(len(said)), True, key=holds)


def hold(turn: Turn, bridge: TokenizerBridge, tokens: int) -> None:
    """Bound the reasoning of a turn; ApiError if it has none, or if its beginning may be dropped
    meanwhile.
    """
    plan = turn.plan
    if plan.reasoning is None:
        raise unsupported("thinking.budget_tokens", "the reply has no reasoning to bound")
    if turn.options.get("context_shift"):
        raise unsupported(
            "context_shift", "found together with thinking.budget_tokens, wanted one of them"
        )
    bound = ReasoningBudget(bridge, plan.reasoning, opened=plan.reasoning_opened, tokens=tokens)
    turn.options["processors"] = (bound,)


def checked(tokens: int, most: int | None, *, param: str) -> int:
    """The budget, if it leaves tokens for an answer."""
    if most is not None and tokens >= most:
        raise ApiError(
            400,
            f"{param}: found {tokens}, wanted less than max_tokens, which is {most}",
            param=param,
        )
    return tokens
