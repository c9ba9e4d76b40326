"""`run_until_answer`: asks, runs the tools that the model calls, feeds their results back, and asks
again, until there is an answer.

`run_until_answer_async` is the same for `asyncio`: the chat and the tools may be awaited, and the
calls of one reply run side by side.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oxillama.errors import ConfigError, RoundsExhausted
from oxillama.toolcalls.dispatch import ToolResult
from oxillama.toolcalls.events import ToolCall, call_id


@dataclass(frozen=True, slots=True)
class Answer:
    """How it ended. reply: the last one; messages: the whole conversation with it; results: of all
    calls; rounds: replies asked for.
    """

    reply: Any
    messages: tuple[dict[str, Any], ...]
    results: tuple[ToolResult, ...]
    rounds: int

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
    on_event: Callable[[Any], None] | None = None,
) -> Answer:
    """Calls `chat(messages, tools=tools)` until its reply calls no tool; the messages given are not
    changed.

    A reply has `tool_calls` (of `ToolCall`) and `content` or `text`, or is a stream of
    `ChatEvent`s, of which `on_event` is told. tools: None for the dispatcher's own. on_result is
    told of each result; what goes wrong in a tool is a result too. Raises RoundsExhausted where the
    model still calls tools when `max_rounds` replies are used up; those last calls are not run.
    """
    talk = _Talk(messages, dispatcher, max_rounds, on_result)
    tools = dispatcher.tools if tools is None else tools
    while True:
        reply = chat(talk.asked(), tools=tools)
        if hasattr(reply, "__next__"):
            for event in reply:
                reply = _streamed(event, reply, on_event)
        calls = talk.replied(reply)
        if not calls:
            return talk.answer(reply)
        for call in calls:
            talk.ran(dispatcher.dispatch(call))


async def run_until_answer_async(
    chat: Callable[..., Any],
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None = None,
    dispatcher: Any = None,
    *,
    max_rounds: int = 8,
    on_result: Callable[[ToolResult], None] | None = None,
    on_event: Callable[[Any], None] | None = None,
) -> Answer:
    """`run_until_answer` where the chat, its stream and the tools may be awaited:
    `AsyncEngine.chat` and coroutine functions.

    The calls of one reply run side by side (in threads, where a tool is an ordinary function);
    their results keep the order of the calls.
    """
    talk = _Talk(messages, dispatcher, max_rounds, on_result)
    tools = dispatcher.tools if tools is None else tools
    while True:
        reply = chat(talk.asked(), tools=tools)
        reply = await reply if inspect.isawaitable(reply) else reply
        if hasattr(reply, "__aiter__"):
            async for event in reply:
                reply = _streamed(event, reply, on_event)
        calls = talk.replied(reply)
        if not calls:
            return talk.answer(reply)
        for result in await asyncio.gather(*(_dispatched(dispatcher, call) for call in calls)):
            talk.ran(result)


async def _dispatched(dispatcher: Any, call: ToolCall) -> ToolResult:
    """The result of a call, from a dispatcher of either kind."""
    if hasattr(dispatcher, "dispatch_async"):
        return await dispatcher.dispatch_async(call)
    result = await asyncio.to_thread(dispatcher.dispatch, call)
    return await result if inspect.isawaitable(result) else result


def _streamed(event: Any, reply: Any, on_event: Callable[[Any], None] | None) -> Any:
    """Tells of an event; the completion at the end of the stream, until then the stream."""
    if on_event is not None:
        on_event(event)
    done = getattr(event, "completion", None)
    return reply if done is None else done


class _Talk:
    """The conversation as it grows."""

    def __init__(
        self,
        messages: Sequence[Mapping[str, Any]],
        dispatcher: Any,
        most: int,
        on_result: Callable[[ToolResult], None] | None,
    ) -> None:
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ConfigError(f"max_rounds: found {most!r}, wanted an integer of 1 or more")
        if not callable(getattr(dispatcher, "dispatch", None)):
            raise ConfigError(
                f"dispatcher: found {type(dispatcher).__name__}, wanted something with dispatch(call)"
            )
        self.messages: list[dict[str, Any]] = [dict(message) for message in messages]
        self.results: list[ToolResult] = []
        self.rounds, self.most, self.on_result = 0, most, on_result
        self.used = {
            call.get("id") for message in self.messages for call in message.get("tool_calls") or ()
        }

    def asked(self) -> list[dict[str, Any]]:
        """The messages to ask with."""
        return [dict(message) for message in self.messages]

    def replied(self, reply: Any) -> tuple[ToolCall, ...]:
        """Takes a reply in; the calls to run, none where it is the answer."""
        self.rounds += 1
        calls = _with_new_ids(tuple(getattr(reply, "tool_calls", ()) or ()), self.used)
        self.messages.append(_message(reply, calls))
        if calls and self.rounds == self.most:
            names = ", ".join(dict.fromkeys(call.name for call in calls))
            error = RoundsExhausted(
                f"max_rounds: the model still calls {names} in reply {self.rounds}, wanted an answer by then"
            )
            error.answer = self.answer(reply)
            raise error
        return calls

    def ran(self, result: ToolResult) -> None:
        """Takes a result in."""
        self.results.append(result)
        self.messages.append(result.message())
        if self.on_result is not None:
            self.on_result(result)

    def answer(self, reply: Any) -> Answer:
        """What it has come to."""
        return Answer(reply, tuple(self.messages), tuple(self.results), self.rounds)


def _with_new_ids(calls: tuple[ToolCall, ...], used: set) -> tuple[ToolCall, ...]:
    """The calls, with ids that the conversation has not used before."""
    out = []
    for call in calls:
        if call.id in used:
            call = dataclasses.replace(
                call,
                id=next(name for name in map(call_id, range(len(used) + 1)) if name not in used),
            )
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
    if isinstance(reply, str):
        return reply
    content = getattr(reply, "content", None)
    return content if content is not None else getattr(reply, "text", None) or ""
