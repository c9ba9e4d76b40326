"""`Tool`: a tool's name, description and parameters, in whatever form it was given (as a chat
message lists it, bare, or as a Python function).
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from oxillama.arguments import listable
from oxillama.errors import ConfigError
from oxillama.grammar.schema.classes import schema_of

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")


@dataclasses.dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a model may call; `parameters` is the JSON Schema of its arguments, an object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = dataclasses.field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"tool: name {self.name!r} found, wanted letters, digits, '_', '-' and '.'"
            )
        if (
            not isinstance(self.parameters, Mapping)
            or self.parameters.get("type", "object") != "object"
        ):
            raise ConfigError(f"tool {self.name}: parameters: wanted the JSON Schema of an object")

    def listed(self) -> dict[str, Any]:
        """The tool as chat templates and requests list it."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }


def tool_of(given: Tool | Mapping[str, Any] | Callable) -> Tool:
    """A tool given as a `Tool`, as {"type": "function", "function": {...}}, as the inner dict
    alone, or as a function with type hints.
    """
    if isinstance(given, Tool):
        return given
    if isinstance(given, Mapping):
        inside = given.get("function", given)
        if not isinstance(inside, Mapping) or "name" not in inside:
            raise ConfigError(f"tool: found {str(given)[:60]}, wanted a mapping with a name")
        parameters = inside.get("parameters") or {"type": "object", "properties": {}}
        return Tool(
            inside["name"],
            inside.get("description") or "",
            object_schema(parameters) if isinstance(parameters, type) else parameters,
        )
    if callable(given):
        return tool_from_function(given)
    raise ConfigError(f"tool: found {type(given).__name__}, wanted a Tool, a mapping or a function")


def tools_of(given: Iterable[Any]) -> tuple[Tool, ...]:
    """The tools of a list; ConfigError if a name appears twice."""
    if isinstance(given, (str, bytes, Mapping)) or not listable(given):
        raise ConfigError(f"tools: found {type(given).__name__}, wanted a list of tools")
    tools = tuple(map(tool_of, given))
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"tool {name}: found {names.count(name)} times, wanted once")
    return tools


def tool_from_function(function: Callable, *, name: str | None = None) -> Tool:
    """A tool made from a Python function: parameters from its signature and type hints,
    descriptions from its docstring.

    The first paragraph describes the tool. Lines `name: text` under `Args:`, or a text in
    `Annotated`, describe parameters.
    """
    name = name or getattr(function, "__name__", None)
    if name is None:
        raise ConfigError(
            f"tool: found a {type(function).__name__} without a name, wanted a function, or a name "
            "for it (ToolDispatcher.register)"
        )
    try:
        hints = typing.get_type_hints(hinted(function), include_extras=True)
    except NameError as error:
        raise ConfigError(f"tool {name}: {error}") from None
    fields = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
            parameter.POSITIONAL_ONLY,
        ):
            raise ConfigError(
                f"tool {name}: parameter {parameter} cannot be named in a call, wanted named "
                "parameters"
            )
        hint = hints.get(parameter.name, Any)
        default = (
            dataclasses.field()
            if parameter.default is parameter.empty
            else dataclasses.field(default_factory=lambda: None)
        )
        fields.append((parameter.name, hint, default))
    described, about = _described(inspect.getdoc(function) or "")
    parameters = object_schema(dataclasses.make_dataclass("Arguments", fields, kw_only=True))
    parameters["properties"] = {
        key: _with_description(value, hints.get(key), about.get(key))
        for key, value in parameters["properties"].items()
    }
    return Tool(name, described, parameters)


def hinted(function: Callable) -> Callable:
    """The function that has the type hints of one: that of a partial, the `__call__` of an
    object.
    """
    while isinstance(function, partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    return type(function).__call__


def object_schema(kind: type) -> dict[str, Any]:
    """The JSON Schema of a dataclass (or of a Pydantic model), with the object at its root."""
    schema = dict(schema_of(kind))
    if "$ref" not in schema:
        return schema
    name = schema["$ref"].removeprefix("#/$defs/")
    # a class that mentions itself stays among the definitions
    used = json.dumps(schema["$defs"]).count(f'"#/$defs/{name}"')
    definitions = {key: value for key, value in schema["$defs"].items() if key != name or used}
    return {**schema["$defs"][name], **({"$defs": definitions} if definitions else {})}


def _with_description(schema: Mapping[str, Any], hint: Any, about: str | None) -> dict[str, Any]:
    texts = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, str)]
    text = texts[0] if texts else about
    return {**schema, "description": text} if text else dict(schema)


def _described(doc: str) -> tuple[str, dict[str, str]]:
    """(the first paragraph of a docstring, what its `Args:` say)."""
    about: dict[str, str] = {}
    match = re.search(
        r"^(?:Args|Arguments|Parameters):[ \t]*\n((?:[ \t]+.*\n?|\n)*)", doc, re.MULTILINE
    )
    last = None
    for line in match.group(1).splitlines() if match else ():
        entry = re.match(r"[ \t]+(\w+)(?:[ \t]*\([^)]*\))?:[ \t]*(.*)", line)
        if entry:
            last = entry.group(1)
            about[last] = entry.group(2)
        elif last and line.strip():
            about[last] = f"{about[last]} {line.strip()}"
    return " ".join(doc.split("\n\n")[0].split()) if doc and not doc.startswith(
        "Args:"
    ) else "", about


_OPEN_ENDED = {
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
    "propertyNames",
    "allOf",
    "anyOf",
    "oneOf",
    "if",
    "$ref",
    "not",
    "dependentSchemas",
    "minProperties",
}


def arguments_schema(tool: Tool, *, closed: bool = True) -> dict[str, Any]:
    """The schema of a tool's arguments: an object, closed if its schema does not say whether it is
    open.
    """
    schema = {"type": "object", **tool.parameters}
    return (
        {**schema, "additionalProperties": False}
        if closed and not _OPEN_ENDED & schema.keys()
        else schema
    )


# keywords of schemas that say nothing of a value
ANNOTATIONS = {
    "title",
    "description",
    "default",
    "examples",
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "deprecated",
}
