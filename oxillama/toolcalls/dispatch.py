"""Runs the functions of tools and continues the chat with their results.

`ToolDispatcher` runs calls; an error in one becomes a `ToolResult` that describes it.
`run_until_answer` runs the tools that the model calls and returns their results to the model, until
there is an answer. `run_until_answer_async` does the same in `asyncio`, where the calls of one
reply run concurrently.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import inspect
import json
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from oxillama.arguments import whole
from oxillama.errors import ConfigError, GrammarError, RoundsExhausted
from oxillama.toolcalls.checking import ArgumentChecker
from oxillama.toolcalls.events import ToolCall, call_id
from oxillama.toolcalls.tools import (
    Tool,
    arguments_schema,
    hinted,
    object_schema,
    tool_from_function,
    tool_of,
)


@dataclasses.dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call: `content`, the text for the model, and `value`, which the function
    returned; or the `error` instead.

    kind: of an error, "unknown_tool", "bad_arguments", "failed" (the function raised) or
    "no_tools"; "" without one.
    """

    call: ToolCall
    content: str
    value: Any = None
    error: str | None = None
    kind: str = ""

    @property
    def ok(self) -> bool:
        """Whether the call succeeded."""
        return self.error is None

    def message(self) -> dict[str, Any]:
        """The result as a message of the conversation."""
        return {
            "role": "tool",
            "tool_call_id": self.call.id,
            "name": self.call.name,
            "content": self.content,
        }


def _result(call: ToolCall, value: Any) -> ToolResult:
    return ToolResult(
        call,
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_plain),
        value,
    )


def _raised(call: ToolCall, error: Exception) -> ToolResult:
    return failed(call, "failed", f"{call.name}: {type(error).__name__}: {error}")


def failed(call: ToolCall, kind: str, error: str) -> ToolResult:
    """The result of a call that did not succeed; the model reads the reason."""
    return ToolResult(call, json.dumps({"error": error}, ensure_ascii=False), None, error, kind)


def _check_call(call: Any) -> None:
    if not isinstance(call, ToolCall):
        raise ConfigError(f"call: found {type(call).__name__}, wanted a ToolCall")


class ToolDispatcher:
    """Functions by the name under which a model calls them. Arguments are checked before a function
    is called.
    """

    def __init__(
        self, functions: Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]] = ()
    ) -> None:
        self._tools: dict[str, tuple[Tool, Callable[..., Any], ArgumentChecker]] = {}
        if not isinstance(functions, Iterable):
            raise ConfigError(
                f"functions: found {type(functions).__name__}, wanted a list of functions, or a "
                "mapping of names to them"
            )
        pairs = (
            functions.items()
            if isinstance(functions, Mapping)
            else ((None, function) for function in functions)
        )
        for name, function in pairs:
            self.register(function, name=name)

    def __repr__(self) -> str:
        """The names of its functions."""
        return f"<ToolDispatcher {', '.join(self._tools) or 'empty'}>"

    def register(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | type | None = None,
    ) -> Any:
        """Registers a function, also as a decorator with or without parentheses. The schema is
        given or made from its type hints. Raises ConfigError for what is no tool, and for a schema
        that arguments cannot be checked against.
        """
        if function is None:
            return lambda function: self.register(
                function, name=name, description=description, parameters=parameters
            )
        if not callable(function):
            raise ConfigError(f"tool: found {type(function).__name__}, wanted a function")
        if parameters is None:
            tool = tool_from_function(function, name=name)
        else:
            tool = tool_of(
                {
                    "name": name or function.__name__,
                    "description": inspect.getdoc(function),
                    "parameters": parameters,
                }
            )
        if description is not None:
            tool = dataclasses.replace(tool, description=description)
        if tool.name in self._tools:
            raise ConfigError(f"tool {tool.name}: is registered already, wanted another name")
        try:
            checker = ArgumentChecker(arguments_schema(tool))
        except GrammarError as error:
            raise ConfigError(f"tool {tool.name}: {error}") from None
        self._tools[tool.name] = (tool, function, checker)
        return function

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools for `chat(tools=...)`."""
        return [tool.listed() for tool, _, _ in self._tools.values()]

    def dispatch(self, call: ToolCall) -> ToolResult:
        """Runs a call. A text returned by the function becomes the content unchanged, any other
        value as JSON.
        """
        tool, wrong = self._prepared(call)
        arguments = call.arguments
        if wrong is not None:
            return wrong
        if inspect.iscoroutinefunction(tool):
            return failed(call, "failed", f"{call.name}: has to be awaited, wanted dispatch_async")
        try:
            value = tool(**_typed(tool, arguments))
            if inspect.isawaitable(value):
                if inspect.iscoroutine(value):
                    value.close()
                return failed(
                    call, "failed", f"{call.name}: has to be awaited, wanted dispatch_async"
                )
            return _result(call, value)
        # a tool is the caller's code: any exception becomes its result
        except Exception as error:
            return _raised(call, error)

    async def dispatch_async(self, call: ToolCall) -> ToolResult:
        """The same, awaited: coroutine functions run in the event loop, ordinary ones in a
        thread.
        """
        tool, wrong = self._prepared(call)
        arguments = call.arguments
        if wrong is not None:
            return wrong
        try:
            arguments = _typed(tool, arguments)
            if inspect.iscoroutinefunction(tool):
                return _result(call, await tool(**arguments))
            value = await asyncio.to_thread(tool, **arguments)
            return _result(call, await value if inspect.isawaitable(value) else value)
        except Exception as error:
            return _raised(call, error)

    def _prepared(self, call: ToolCall) -> tuple[Callable[..., Any], ToolResult | None]:
        """(the function, the error of the call or None)."""
        _check_call(call)
        if call.name not in self._tools:
            names = ", ".join(self._tools) or "none: there are no tools"
            error = f"{call.name}: is not a tool, wanted one of {names}"
            return dict, failed(call, "unknown_tool", error)
        _, function, checker = self._tools[call.name]
        wrong = checker.faults(call.arguments)
        error = f"{call.name}: {'; '.join(wrong)}"
        return function, failed(call, "bad_arguments", error) if wrong else None


class NoOpDispatcher:
    """Runs nothing, for callers that dispatch calls themselves. `answer` is the content of every
    result; without one each result is an error.
    """

    def __init__(self, answer: str | None = None) -> None:
        self.answer = answer
        self.tools: list[dict[str, Any]] = []

    def dispatch(self, call: ToolCall) -> ToolResult:
        """The same for every call."""
        _check_call(call)
        if self.answer is None:
            return failed(call, "no_tools", f"{call.name}: tools are not run here")
        return ToolResult(call, self.answer)


def _plain(value: Any) -> Any:
    """The JSON form of a value that `json` does not support."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    return str(value)


def _typed(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in the types of the function's hints: dataclasses, models of pydantic's, enums,
    tuples, dates and UUIDs are made from their JSON form.
    """
    try:
        hints = typing.get_type_hints(hinted(function))
    except (NameError, TypeError):  # a function with a schema of its own needs no hints
        return dict(arguments)
    return {key: _as(hints.get(key), value) for key, value in arguments.items()}


_FROM_TEXT: dict[Any, Callable[[str], Any]] = {
    datetime.date: datetime.date.fromisoformat,
    datetime.datetime: datetime.datetime.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
    uuid.UUID: uuid.UUID,
}


def _as(hint: Any, value: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        hints = typing.get_type_hints(hint)
        return hint(**{key: _as(hints.get(key), inner) for key, inner in value.items()})
    if isinstance(hint, type) and callable(validate := getattr(hint, "model_validate", None)):
        return validate(value)
    if origin in (typing.Union, types.UnionType):
        return value if value is None else _of_union(args, value)
    if origin in (list, set, frozenset, tuple) and isinstance(value, list) and args:
        inner = args if origin is tuple and args[-1] is not Ellipsis else (args[0],) * len(value)
        return origin(_as(kind, item) for kind, item in zip(inner, value))
    if args and isinstance(value, list) and origin in (Sequence, Iterable):
        return [_as(args[0], item) for item in value]
    if args and isinstance(value, Mapping) and origin in (dict, Mapping):
        return {key: _as(args[1], item) for key, item in value.items()}
    if isinstance(value, str):
        return _FROM_TEXT[hint](value) if hint in _FROM_TEXT else value
    if isinstance(value, bool):
        return value
    if hint is float and isinstance(value, int):
        return float(value)
    # JSON has one kind of numbers, and 2.0 is an integer
    return int(value) if hint is int and isinstance(value, float) else value


def _of_union(kinds: Sequence[Any], value: Any) -> Any:
    """The value in the first of several types that takes it."""
    wanted = [kind for kind in kinds if kind is not type(None)]
    for kind in wanted:
        with suppress(ValueError):
            if len(wanted) == 1 or _fits(value, kind):
                return _as(kind, value)
    return value


def _fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value is one of a type."""
    schema = object_schema(dataclasses.make_dataclass("Value", [("value", kind)]))
    return not ArgumentChecker(schema).faults({"value": value})


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of `run_until_answer`. reply: the last one; messages: the whole conversation with it;
    results: of all calls; rounds: the number of replies.
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
    """Calls `chat(messages, tools=tools)` until a reply calls no tool. The list of messages is not
    changed.

    A reply has `tool_calls` (of `ToolCall`) and `content` or `text`, or is a stream of
    `ChatEvent`s, which are passed to `on_event`. tools: None for the dispatcher's. Each result is
    passed to on_result; an error in a tool is a result too. Raises RoundsExhausted if the model
    still calls tools after `max_rounds` replies; those calls are not run.
    """
    conversation = _Conversation(messages, dispatcher, max_rounds, on_result)
    tools = dispatcher.tools if tools is None else tools
    while True:
        reply = chat(conversation.asked(), tools=tools)
        if hasattr(reply, "__next__"):
            for event in reply:
                reply = _streamed(event, reply, on_event)
        calls = conversation.replied(reply)
        if not calls:
            return conversation.answer(reply)
        for call in calls:
            conversation.ran(dispatcher.dispatch(call))


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
    """`run_until_answer` for a chat, stream and tools that may be awaitable: `AsyncEngine.chat` and
    coroutine functions.

    The calls of one reply run concurrently (ordinary functions in threads); their results keep the
    order of the calls.
    """
    conversation = _Conversation(messages, dispatcher, max_rounds, on_result)
    tools = dispatcher.tools if tools is None else tools
    while True:
        reply = chat(conversation.asked(), tools=tools)
        reply = await reply if inspect.isawaitable(reply) else reply
        if hasattr(reply, "__aiter__"):
            async for event in reply:
                reply = _streamed(event, reply, on_event)
        calls = conversation.replied(reply)
        if not calls:
            return conversation.answer(reply)
        for result in await asyncio.gather(*(_dispatched(dispatcher, call) for call in calls)):
            conversation.ran(result)


async def _dispatched(dispatcher: Any, call: ToolCall) -> ToolResult:
    """The result of a call, from a dispatcher of either kind."""
    if hasattr(dispatcher, "dispatch_async"):
        return await dispatcher.dispatch_async(call)
    result = await asyncio.to_thread(dispatcher.dispatch, call)
    return await result if inspect.isawaitable(result) else result


def _streamed(event: Any, reply: Any, on_event: Callable[[Any], None] | None) -> Any:
    """Passes an event on; returns the completion at the end of the stream, before that the
    stream.
    """
    if on_event is not None:
        on_event(event)
    done = getattr(event, "completion", None)
    return reply if done is None else done


class _Conversation:
    """The conversation as it grows."""

    def __init__(
        self,
        messages: Sequence[Mapping[str, Any]],
        dispatcher: Any,
        most: int,
        on_result: Callable[[ToolResult], None] | None,
    ) -> None:
        most = whole("max_rounds", most, 1)
        if not callable(getattr(dispatcher, "dispatch", None)):
            raise ConfigError(
                f"dispatcher: found {type(dispatcher).__name__}, wanted a ToolDispatcher of the "
                "functions, or something else with dispatch(call)"
            )
        self.messages: list[dict[str, Any]] = [dict(message) for message in messages]
        self.results: list[ToolResult] = []
        self.rounds, self.most, self.on_result = 0, most, on_result
        self.used = {
            call.get("id") for message in self.messages for call in message.get("tool_calls") or ()
        }

    def asked(self) -> list[dict[str, Any]]:
        """The messages for the next reply."""
        return [dict(message) for message in self.messages]

    def replied(self, reply: Any) -> tuple[ToolCall, ...]:
        """Adds a reply; returns the calls to run, none if it is the answer."""
        self.rounds += 1
        calls = _with_new_ids(tuple(getattr(reply, "tool_calls", ()) or ()), self.used)
        self.messages.append(_message(reply, calls))
        if calls and self.rounds == self.most:
            names = ", ".join(dict.fromkeys(call.name for call in calls))
            error = RoundsExhausted(
                f"max_rounds: the model still calls {names} in reply {self.rounds}, wanted an "
                "answer by then"
            )
            error.answer = self.answer(reply)
            raise error
        return calls

    def ran(self, result: ToolResult) -> None:
        """Adds a result."""
        self.results.append(result)
        self.messages.append(result.message())
        if self.on_result is not None:
            self.on_result(result)

    def answer(self, reply: Any) -> Answer:
        """The final state."""
        return Answer(reply, tuple(self.messages), tuple(self.results), self.rounds)


def _with_new_ids(calls: tuple[ToolCall, ...], used: set) -> tuple[ToolCall, ...]:
    """The calls, with ids that are not used in the conversation yet."""
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
