"""What comes of a request: the pieces of its text, the completion at its end, counts and times."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape
from typing import Any

from oxillama.sampling import Logprobs
from oxillama.toolcalls.events import CallMalformed, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecStats:
    """Counts of a speculating request.

    accepted: candidates that became tokens. rejected: candidates that were evaluated and did not.
    bonus_tokens: tokens drawn after the last candidate when all were accepted. total_output_tokens:
    with and without candidates. total_elapsed: seconds from the first draw to the end.
    n1_fallbacks: steps without candidates.
    """

    accepted: int = 0
    rejected: int = 0
    bonus_tokens: int = 0
    total_output_tokens: int = 0
    total_elapsed: float = 0.0
    n1_fallbacks: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Accepted candidates divided by evaluated ones; 0 if there were none."""
        verified = self.accepted + self.rejected
        return self.accepted / verified if verified else 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request: of the prompt, how many of them came from the prefix cache or a
    sibling, and generated; and context shifts.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    truncated_tokens: int = 0  # left out of the prompt because truncation was asked for
    context_shifts: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and generated tokens together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of a request went, in seconds, while other requests ran too.

    queue_seconds: from submit to admission. first_token_seconds: from submit to the first token.
    prompt_tokens_per_second: prompt tokens evaluated between admission and the first token.
    tokens_per_second: tokens after the first, from the first to the last. A rate is 0 if there was
    nothing to measure.
    """

    total_seconds: float = 0.0
    queue_seconds: float = 0.0
    first_token_seconds: float = 0.0
    prompt_tokens_per_second: float = 0.0
    tokens_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a stream: whole UTF-8 text and its token ids. The last piece has the finish reason
    and the timings.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: str | None = None
    logprobs: tuple[Logprobs, ...] = ()
    timings: Timings | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request: its text and tokens, why it ended, and the seed of its sampler.

    - `finish_reason`: "stop", "length" (max_tokens or the end of the context), "cancelled",
      "timeout", or, in a chat that ended with tool calls, "tool_calls".
    - `logprobs`: where they were asked for, of each token; `prompt_logprobs`: of each prompt token
      after the first (its log-probability, the likeliest ids, their log-probabilities), and
      `prompt_ranks`: the place of each of these among all tokens, 1 for the likeliest.
    - `content`, `reasoning`, `tool_calls`, `malformed_calls`: of a chat, the answer without
      reasoning and calls (`text` is all of the reply), what came before it, the calls, and what
      began like one.
    - `speculation`: what became of candidates, where the request speculated.
    - `pieces`: with log-probabilities, the pieces of the text, each with the number of tokens up to
      its end.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    usage: Usage
    seed: int | None = None
    logprobs: tuple[Logprobs, ...] = ()
    prompt_logprobs: tuple[tuple[float, list[int], list[float]], ...] = ()
    content: str | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    malformed_calls: tuple[CallMalformed, ...] = ()
    speculation: SpecStats | None = None
    timings: Timings = field(default=Timings(), compare=False)
    pieces: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    prompt_ranks: tuple[int, ...] = ()

    def message(self) -> dict[str, Any]:
        """The reply as a message of the conversation, for the next `chat`."""
        content = self.text if self.content is None else self.content
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.message() for call in self.tool_calls]
        return message

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        """The text (shortened in the middle), the finish reason, tokens and speed."""
        text = self.text if len(self.text) <= 120 else f"{self.text[:80]} ... {self.text[-30:]}"
        calls = f", {len(self.tool_calls)} tool calls" if self.tool_calls else ""
        return (
            f"<Completion {text!r}, {self.finish_reason}{calls}, "
            f"{self.usage.prompt_tokens} + {self.usage.completion_tokens} tokens, "
            f"{self.timings.tokens_per_second:.1f} tokens/s>"
        )

    def _repr_html_(self) -> str:
        """For notebooks: the text; with log-probabilities each piece on a background that is darker
        the less likely its tokens were, and their probabilities where the mouse rests.
        """
        head = escape(
            f"{self.finish_reason}, {self.usage.prompt_tokens} + {self.usage.completion_tokens} "
            f"tokens, {self.timings.tokens_per_second:.1f} tokens/s"
        )
        body, first = "", 0
        for text, last in self.pieces:
            reports = self.logprobs[first:last]
            likely = math.exp(min(0.0, sum(each.raw for each in reports)))
            title = escape("; ".join(map(_likeliest, reports)))
            body += (
                f'<span title="{title}" style="background: rgba(255, 160, 0, {1 - likely:.2f})">'
                f"{escape(text)}</span>"
            )
            first = last
        body = body or escape(self.text)
        return f'<div style="white-space: pre-wrap">{body}</div><small>{head}</small>'


def _likeliest(report: Logprobs) -> str:
    """The probabilities of a token and of the likeliest tokens, by id."""
    others = ", ".join(
        f"{token}: {math.exp(value):.3f}" for token, value in zip(report.raw_ids, report.raw_values)
    )
    return f"token {report.token}: {math.exp(report.raw):.3f} ({others})"
