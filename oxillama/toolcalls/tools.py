"""`Tool`: a tool's name, description and parameters, in whatever form it was given (as a chat
message lists it, bare, or as a Python function), and `faults`: the errors in the arguments of a
call that no grammar constrained.
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
            _object_schema(parameters) if isinstance(parameters, type) else parameters,
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
    parameters = _object_schema(dataclasses.make_dataclass("Arguments", fields, kw_only=True))
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


def fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value is one of a type."""
    return not faults(
        {"value": value}, _object_schema(dataclasses.make_dataclass("Value", [("value", kind)]))
    )


def _object_schema(kind: type) -> dict[str, Any]:
    """The schema of a dataclass (or of a Pydantic model) with the object itself at its root."""
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
_TYPES = {"string": str, "boolean": bool, "null": type(None), "object": Mapping, "array": list}
_MOST = 5  # faults that are named
_DEEPEST = 64
_SHALLOW = 8  # a schema that refers to itself is not followed further


def faults(
    value: Any, schema: Any, *, root: Any = None, where: str = "", depth: int = 0
) -> list[str]:
    """The errors in arguments, as a few sentences; empty for valid arguments. Judged are the
    keywords that schemas of functions have, and bounds; `pattern`, `not`, `if` and the like are
    left to the function.
    """
    root = schema if root is None else root
    if schema is True or schema == {} or depth > _DEEPEST:
        return []
    if schema is False:
        return [f"{where or 'arguments'}: nothing is allowed here"]
    found: list[str] = []
    if "$ref" in schema:
        found += faults(
            value, _resolved(schema["$ref"], root), root=root, where=where, depth=depth + 1
        )
    found += _own(value, schema, where or "arguments")
    if isinstance(value, Mapping):
        found += _members(value, schema, root, where, depth)
    if isinstance(value, list):
        first, items = schema.get("prefixItems") or (), schema.get("items")
        items = items if isinstance(items, (Mapping, bool)) else True
        for at, item in enumerate(value):
            inner = first[at] if at < len(first) else items
            found += faults(item, inner, root=root, where=f"{where}[{at}]", depth=depth + 1)
    for part in schema.get("allOf", ()):
        found += faults(value, part, root=root, where=where, depth=depth + 1)
    for keyword in ("anyOf", "oneOf"):
        parts: list[list[str]] = [
            faults(value, part, root=root, where=where, depth=depth + 1)
            for part in schema.get(keyword, ())
        ]
        fitting = sum(not part for part in parts)
        if parts and not fitting:
            found += sorted(parts, key=len)[0]
        elif (
            keyword == "oneOf"
            and fitting > 1
            and all(_judged(part, root) for part in schema["oneOf"])
        ):
            found.append(
                f"{where or 'arguments'}: found {_shown(value)}, which fits {fitting} of oneOf, "
                "wanted one"
            )
    return found[:_MOST]


# keywords that leave nothing to the function
_PARTS = ("prefixItems", "allOf", "anyOf", "oneOf")
_SIZES = ("imum", "Length", "Items", "Properties")
_JUDGED = (
    ANNOTATIONS
    | {"type", "enum", "const", "uniqueItems", "required", "$ref", *_PARTS}
    | {"properties", "additionalProperties", "items", "exclusiveMinimum", "exclusiveMaximum"}
    | {f"{side}{size}" for side in ("min", "max") for size in _SIZES}
)


def _judged(schema: Any, root: Any, depth: int = 0) -> bool:
    """Whether nothing in a schema is left to the function, so that a value without faults fits."""
    if isinstance(schema, bool):
        return True
    if depth > _SHALLOW or not isinstance(schema, Mapping) or not schema.keys() <= _JUDGED:
        return False
    inner = [*(schema.get("properties") or {}).values(), schema.get("items", True)]
    inner.append(schema.get("additionalProperties", True))
    for keyword in _PARTS:
        inner += schema.get(keyword) or ()
    if "$ref" in schema:
        if not str(schema["$ref"]).startswith("#"):
            return False
        inner.append(_resolved(schema["$ref"], root))
    return all(_judged(each, root, depth + 1) for each in inner)


def _own(value: Any, schema: Mapping[str, Any], where: str) -> list[str]:
    """Errors of the value itself."""
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        return [f"{where}: found {_shown(value)}, wanted {' or '.join(kinds)}"]
    if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
        return [
            f"{where}: found {_shown(value)}, wanted one of "
            f"{', '.join(map(_shown, schema['enum']))}"
        ]
    if "const" in schema and not _same(value, schema["const"]):
        return [f"{where}: found {_shown(value)}, wanted {_shown(schema['const'])}"]
    out = []
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    size = len(value) if isinstance(value, (str, list, Mapping)) else None
    listed = "Items" if isinstance(value, list) else "Properties"
    kind = "Length" if isinstance(value, str) else listed
    for keyword, measured, fits in (
        ("minimum", value if number else None, lambda a, b: a >= b),
        ("maximum", value if number else None, lambda a, b: a <= b),
        ("exclusiveMinimum", value if number else None, lambda a, b: a > b),
        ("exclusiveMaximum", value if number else None, lambda a, b: a < b),
        (f"min{kind}", size, lambda a, b: a >= b),
        (f"max{kind}", size, lambda a, b: a <= b),
    ):
        bound = schema.get(keyword)
        if (
            measured is not None
            and isinstance(bound, (int, float))
            and not isinstance(bound, bool)
            and not fits(measured, bound)
        ):
            out.append(f"{where}: found {_shown(value)}, {keyword} is {bound}")
    if schema.get("uniqueItems") is True and isinstance(value, list):
        texts = {json.dumps(_keyed(item), sort_keys=True) for item in value}
        if len(texts) < len(value):
            out.append(f"{where}: found {_shown(value)}, uniqueItems is true")
    return out


def _members(
    value: Mapping[str, Any], schema: Mapping[str, Any], root: Any, where: str, depth: int
) -> list[str]:
    found = [
        f"{where}.{key}".lstrip(".") + ": is missing"
        for key in schema.get("required", ())
        if key not in value
    ]
    properties, others = schema.get("properties") or {}, schema.get("additionalProperties", True)
    if schema.get("patternProperties"):
        others = True
    for key, inner in value.items():
        place = f"{where}.{key}".lstrip(".")
        if key in properties:
            found += faults(inner, properties[key], root=root, where=place, depth=depth + 1)
        elif others is False:
            found.append(f"{place}: is not a parameter, wanted {', '.join(properties) or 'none'}")
        else:
            found += faults(inner, others, root=root, where=place, depth=depth + 1)
    return found


def _resolved(reference: str, root: Any) -> Any:
    """The schema of a reference inside the root; an unrestricted one for other references."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return True
    found = root
    for step in filter(None, reference[1:].split("/")):
        step = step.replace("~1", "/").replace("~0", "~")
        found = found.get(step, True) if isinstance(found, Mapping) else True
    return found


def _is(value: Any, kind: str) -> bool:
    if kind in ("integer", "number"):
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return not isinstance(value, bool) and (
            whole if kind == "integer" else isinstance(value, (int, float))
        )
    return isinstance(value, _TYPES.get(kind, object))


def _same(a: Any, b: Any) -> bool:
    """Equality in JSON, where true is not 1."""
    return _keyed(a) == _keyed(b)


def _keyed(value: Any) -> Any:
    """What is equal, and spelled alike, for values that are equal in JSON."""
    if isinstance(value, bool):
        return (value,)  # no list of keyed values holds a bare boolean
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, (list, tuple)):
        return [_keyed(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _keyed(item) for key, item in value.items()}
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
