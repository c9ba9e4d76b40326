"""`ToolDispatcher`: runs the functions behind tools. What goes wrong in a call becomes a
`ToolResult` that says so.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from oxillama.errors import ConfigError
from oxillama.toolcalls.constraint import arguments_schema
from oxillama.toolcalls.events import ToolCall
from oxillama.toolcalls.tools import Tool, tool_from_function, tool_of
from oxillama.toolcalls.validate import faults


@dataclasses.dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call came to: `content`, the text for the model, and `value`, what the function
    returned; or the `error` that stands instead.

    kind: of an error, "unknown_tool", "bad_arguments", "failed" (the function raised) or
    "no_tools"; "" where there is none.
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
        """The result as a conversation holds it."""
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
    """The result of a call that did not succeed; the model is told why."""
    return ToolResult(call, json.dumps({"error": error}, ensure_ascii=False), None, error, kind)


class ToolDispatcher:
    """Functions by the name under which a model calls them. Arguments are checked before a function
    is called.
    """

    def __init__(self, functions: Mapping[str, Callable] | typing.Iterable[Callable] = ()) -> None:
        self._tools: dict[str, tuple[Tool, Callable]] = {}
        pairs = (
            functions.items()
            if isinstance(functions, Mapping)
            else ((None, function) for function in functions)
        )
        for name, function in pairs:
            self.register(function, name=name)

    def register(
        self,
        function: Callable | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | type | None = None,
    ) -> Any:
        """Registers a function, also as a decorator, with or without parentheses; the schema is
        given or comes from its type hints.
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
        self._tools[tool.name] = (tool, function)
        return function

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools as chat lists them: what goes into `chat(tools=...)`."""
        return [tool.listed() for tool, _ in self._tools.values()]

    def dispatch(self, call: ToolCall) -> ToolResult:
        """Runs a call. A text that the function returns is the content as it is, anything else goes
        as JSON.
        """
        tool, arguments, wrong = self._prepared(call)
        if wrong is not None:
            return wrong
        if inspect.iscoroutinefunction(tool):
            return failed(call, "failed", f"{call.name}: has to be awaited, wanted dispatch_async")
        try:
            return _result(call, tool(**_typed(tool, arguments)))
        # a tool is somebody else's code: whatever it raises is its answer
        except Exception as error:
            return _raised(call, error)

    async def dispatch_async(self, call: ToolCall) -> ToolResult:
        """The same, awaited: a coroutine function runs in the event loop, an ordinary one in a
        thread.
        """
        tool, arguments, wrong = self._prepared(call)
        if wrong is not None:
            return wrong
        try:
            arguments = _typed(tool, arguments)
            if inspect.iscoroutinefunction(tool):
                return _result(call, await tool(**arguments))
            return _result(call, await asyncio.to_thread(tool, **arguments))
        except Exception as error:
            return _raised(call, error)

    def _prepared(
        self, call: ToolCall
    ) -> tuple[Callable | None, Mapping[str, Any], ToolResult | None]:
        """(the function, its arguments as JSON values, what is wrong with the call)."""
        if call.name not in self._tools:
            names = ", ".join(self._tools) or "none: there are no tools"
            return (
                None,
                {},
                failed(call, "unknown_tool", f"{call.name}: is no tool, wanted one of {names}"),
            )
        tool, function = self._tools[call.name]
        wrong = faults(call.arguments, arguments_schema(tool))
        return (
            function,
            call.arguments,
            failed(call, "bad_arguments", f"{call.name}: {'; '.join(wrong)}") if wrong else None,
        )


class NoOpDispatcher:
    """Runs nothing: for callers who dispatch themselves. `answer` is the content of every result;
    without one each result is an error.
    """

    def __init__(self, answer: str | None = None) -> None:
        self.answer = answer
        self.tools: list[dict[str, Any]] = []

    def dispatch(self, call: ToolCall) -> ToolResult:
        """The same for every call."""
        if self.answer is None:
            return failed(call, "no_tools", f"{call.name}: tools are not run here")
        return ToolResult(call, self.answer)


def _plain(value: Any) -> Any:
    """The JSON form of what `json` does not know."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    return str(value)


def _typed(function: Callable, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the function's hints want them: dataclasses, enums and tuples made from
    their JSON form.
    """
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):  # a function with a schema of its own needs no hints
        return dict(arguments)
    return {key: _as(hints.get(key), value) for key, value in arguments.items()}


def _as(hint: Any, value: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        hints = typing.get_type_hints(hint)
        return hint(**{key: _as(hints.get(key), inner) for key, inner in value.items()})
    if origin in (typing.Union, types.UnionType):
        wanted = [arg for arg in args if arg is not type(None)]
        return value if value is None or len(wanted) != 1 else _as(wanted[0], value)
    if origin in (list, set, frozenset, tuple) and isinstance(value, list) and args:
        inner = args if origin is tuple and args[-1] is not Ellipsis else (args[0],) * len(value)
        return origin(_as(kind, item) for kind, item in zip(inner, value))
    return (
        float(value)
        if hint is float and isinstance(value, int) and not isinstance(value, bool)
        else value
    )
