"""A limit on the reasoning of a model: after so many tokens, only the end of the reasoning can
follow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxillama.chat import Turn
from oxillama.server.errors import ApiError, unsupported
from oxillama.tokenizer import TokenizerBridge
from oxillama.toolcalls.openings import SPACE
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
        said = tokens[self._start :]
        begun = 0 if self._opened else self._begun(said)
        if begun is None:
            return logits
        spent = begun + self._tokens
        forced = len(said) - spent
        if not 0 <= forced < len(self._end) or self._region.close in self._text(said[:spent]):
            return logits
        only = np.full_like(logits, -np.inf)
        only[self._end[forced]] = 0.0
        return only

    def _begun(self, said: Sequence[int] | np.ndarray) -> int | None:
        """After how many tokens of a reply its reasoning has begun, which it does before anything
        but spaces; None where it has not.
        """
        mark = self._region.open
        for count in range(1, len(said) + 1):
            text = self._text(said[:count]).lstrip(SPACE)
            if text.startswith(mark):
                return count
            if not mark.startswith(text):
                return None
        return None

    def _text(self, said: Sequence[int] | np.ndarray) -> str:
        return self._bridge.decode([int(each) for each in said], skip_special=False)


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
