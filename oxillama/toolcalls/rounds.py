"""`run_until_answer`: asks, runs the tools that the model calls, feeds their results back, and asks again, until there is an answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oxillama.errors import ConfigError
from oxillama.toolcalls.dispatch import ToolResult
from oxillama.toolcalls.events import ToolCall, call_id


@dataclass(frozen=True, slots=True)
class Answer:
    """How it ended. reply: the last one; messages: the whole conversation with it; results: of all calls; rounds: replies asked for.

    finished: False where the model still called tools when `max_rounds` replies were used up; those last calls were not run.
    """

    reply: Any
    messages: tuple[dict[str, Any], ...]
    results: tuple[ToolResult, ...]
    rounds: int
    finished: bool

    @property
    def content(self) -> str:
        """The text of the last reply."""
        return _content(self.reply)


def run_until_answer(
    chat: Callable[..., Any],
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None = None,
    dispatcher: Any = None,
    *,
    max_rounds: int = 8,
    on_result: Callable[[ToolResult], None] | None = None,
) -> Answer:
    """Calls `chat(messages, tools=tools)` until its reply calls no tool; the messages given are not changed.

    A reply has `tool_calls` (of `ToolCall`) and `content` or `text`. tools: None for the dispatcher's own.
    on_result is told of each result.
    """
    if isinstance(max_rounds, bool) or not isinstance(max_rounds, int) or max_rounds < 1:
        raise ConfigError(f"max_rounds: found {max_rounds!r}, wanted an integer of 1 or more")
    if not callable(getattr(dispatcher, "dispatch", None)):
        raise ConfigError(f"dispatcher: found {type(dispatcher).__name__}, wanted something with dispatch(call)")
    tools = dispatcher.tools if tools is None else tools
    talk: list[dict[str, Any]] = [dict(message) for message in messages]
    results: list[ToolResult] = []
    used = {call.get("id") for message in talk for call in message.get("tool_calls") or ()}
    for number in range(1, max_rounds + 1):
        reply = chat([dict(message) for message in talk], tools=tools)
        calls = _with_new_ids(tuple(getattr(reply, "tool_calls", ()) or ()), used)
        talk.append(_message(reply, calls))
        if not calls or number == max_rounds:
            break
        for call in calls:
            result = dispatcher.dispatch(call)
            results.append(result)
            talk.append(result.message())
            if on_result is not None:
                on_result(result)
    return Answer(reply, tuple(talk), tuple(results), number, not calls)


def _with_new_ids(calls: tuple[ToolCall, ...], used: set) -> tuple[ToolCall, ...]:
    """The calls, with ids that the conversation has not used before."""
    out = []
    for call in calls:
        if call.id in used:
            call = dataclasses.replace(call, id=next(name for name in map(call_id, range(len(used) + 1)) if name not in used))
        used.add(call.id)
        out.append(call)
    return tuple(out)


def _message(reply: Any, calls: tuple[ToolCall, ...]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _content(reply)}
    if getattr(reply, "reasoning", ""):
        message["reasoning_content"] = reply.reasoning
    if calls:
        message["tool_calls"] = [call.message() for call in calls]
    return message


def _content(reply: Any) -> str:
    return reply if isinstance(reply, str) else getattr(reply, "content", None) or getattr(reply, "text", None) or ""
