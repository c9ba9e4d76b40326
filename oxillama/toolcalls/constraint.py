"""`ToolCallGrammar`: the texts of one or several calls of the given tools, with arguments that
follow each tool's schema.

For `tool_choice` "required" or a named tool the grammar is that of the entire reply; for "auto",
`triggered` applies it from the opening on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from oxillama.errors import ConfigError, GrammarError
from oxillama.grammar import Grammar, GrammarLimits, JsonSchemaCompiler
from oxillama.grammar.nodes import choice, literal, repeat, seq
from oxillama.toolcalls.compose import SPACES, Composer
from oxillama.toolcalls.formats import ARGS, ToolCallFormat, format_of
from oxillama.toolcalls.harmony import harmony_grammar
from oxillama.toolcalls.tools import Tool, tools_of

_ANNOTATIONS = {
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


def ToolCallGrammar(
    format: str | ToolCallFormat,
    tools: Iterable[Any],
    *,
    name: str | None = None,
    parallel: bool = True,  # noqa: N802 (it makes a Grammar)
    closed: bool = True,
    strict: bool = True,
    token_ids: Mapping[str, int] | None = None,
    limits: GrammarLimits | None = None,
) -> Grammar:
    """The grammar of a reply that is one call, or with `parallel` one or more.

    name: only this tool may be called. closed: where a schema lists properties and says nothing
    about others, there are no others. strict: as `JsonSchemaCompiler.compile`'s. token_ids: ids of
    delimiters that are control tokens of the vocabulary, by their text. Raises ConfigError for no
    tools or an unknown name, GrammarError for a schema that cannot be enforced, naming the tool.
    """
    kind, tools = format_of(format), tools_of(tools)
    if name is not None and name not in [tool.name for tool in tools]:
        raise ConfigError(
            f"tool_choice: found {name!r}, wanted one of {', '.join(tool.name for tool in tools) or 'no tools'}"
        )
    chosen = [tool for tool in tools if name in (None, tool.name)]
    if not chosen:
        raise ConfigError("tools: found none, wanted at least one to call")
    composer = Composer(token_ids=token_ids)
    if kind.style == "harmony":
        return ReplyGrammar(
            chosen, closed=closed, strict=strict, token_ids=token_ids, limits=limits
        )
    make = {"python": _python_call, "named": _named_call, "headed": _headed_call}.get(
        kind.style, _object_call
    )
    call = composer.rule(
        "call", choice(*(make(composer, kind, tool, closed, strict, limits) for tool in chosen))
    )
    return composer.grammar(_reply(composer, kind, call, parallel), limits=limits)


def ReplyGrammar(
    tools: Iterable[Any],
    *,
    answered: bool = False,
    answer: Grammar | None = None,
    closed: bool = True,
    strict: bool = True,  # noqa: N802 (it makes a Grammar)
    token_ids: Mapping[str, int] | None = None,
    limits: GrammarLimits | None = None,
) -> Grammar:
    """The grammar of a whole reply in the harmony notation: reasoning, then one call of the tools.

    answered: an answer may come instead of a call, held to `answer`; any text where that is None.
    Other arguments as `ToolCallGrammar`'s.
    """
    composer = Composer(token_ids=token_ids)
    calls = [
        (tool.name, _arguments(composer, tool, closed, strict, limits)) for tool in tools_of(tools)
    ]
    return harmony_grammar(composer, calls, answered=answered, answer=answer, limits=limits)


def _reply(composer: Composer, kind: ToolCallFormat, call: tuple, parallel: bool) -> tuple:
    """The blocks of a reply around its calls."""
    open, close = composer.delimiter(kind.open), composer.delimiter(kind.close)
    more = repeat(seq(literal(","), SPACES, call)) if parallel else literal("")
    if kind.style == "python":
        return seq(literal("["), SPACES, call, more, literal("]"))
    if kind.style == "array":
        return seq(
            open,
            SPACES,
            literal("["),
            SPACES,
            call,
            more,
            SPACES,
            literal("]"),
            SPACES if kind.close else literal(""),
            close,
        )
    if kind.style == "headed" and kind.lead:
        return seq(open, call, repeat(seq(SPACES, call)) if parallel else literal(""), close)
    if kind.style == "headed":
        block = seq(open, call, close)
        return seq(block, repeat(seq(SPACES, block))) if parallel else block
    if kind.style == "named":
        block = seq(open, call)
        return seq(block, repeat(block)) if parallel else block
    if not kind.close:
        calls = seq(call, repeat(seq(SPACES, literal(";"), SPACES, call))) if parallel else call
        return seq(repeat(open, 0, 1) if kind.bare else open, SPACES, calls)
    block = seq(open, SPACES, call, SPACES, close)
    return seq(block, repeat(seq(SPACES, block))) if parallel else block


def _arguments(
    composer: Composer, tool: Tool, closed: bool, strict: bool, limits: GrammarLimits | None
) -> tuple:
    """The node of a tool's arguments as a JSON object."""
    return composer.include(
        _compiled(tool, arguments_schema(tool, closed=closed), strict, limits),
        f"arguments-{_plain(tool.name)}",
    )


def _compiled(
    tool: Tool,
    schema: Any,
    strict: bool,
    limits: GrammarLimits | None,
    resources: Mapping[str, Any] | None = None,
) -> Grammar:
    try:
        return JsonSchemaCompiler(
            whitespace="flexible", limits=limits, resources=resources
        ).compile(schema, strict=strict)
    except GrammarError as error:
        raise GrammarError(f"tool {tool.name}: {error}") from None


def arguments_schema(tool: Tool, *, closed: bool = True) -> dict[str, Any]:
    """The schema of a tool's arguments: an object, and one without further properties where its
    schema leaves that open.
    """
    schema = {"type": "object", **tool.parameters}
    return (
        {**schema, "additionalProperties": False}
        if closed and not _OPEN_ENDED & schema.keys()
        else schema
    )


def _object_call(
    composer: Composer,
    kind: ToolCallFormat,
    tool: Tool,
    closed: bool,
    strict: bool,
    limits: GrammarLimits | None,
) -> tuple:
    """{"name": "f", "arguments": {...}}, or with whatever keys the format has."""
    key, arguments = (
        json.dumps(kind.name_key, ensure_ascii=False),
        json.dumps(kind.arguments_keys[0], ensure_ascii=False),
    )
    colon, comma = (seq(repeat(literal(" "), 0, 1), literal(mark), SPACES) for mark in ":,")
    head = (
        repeat(seq(literal('"type"'), colon, literal('"function"'), comma), 0, 1)
        if kind.bare
        else literal("")
    )
    return seq(
        literal("{"),
        SPACES,
        head,
        literal(key),
        colon,
        literal(json.dumps(tool.name)),
        comma,
        literal(arguments),
        colon,
        _arguments(composer, tool, closed, strict, limits),
        SPACES,
        literal("}"),
    )


def _named_call(
    composer: Composer,
    kind: ToolCallFormat,
    tool: Tool,
    closed: bool,
    strict: bool,
    limits: GrammarLimits | None,
) -> tuple:
    """name[ARGS]{...}."""
    return seq(
        literal(tool.name),
        composer.delimiter(ARGS),
        _arguments(composer, tool, closed, strict, limits),
    )


def _headed_call(
    composer: Composer,
    kind: ToolCallFormat,
    tool: Tool,
    closed: bool,
    strict: bool,
    limits: GrammarLimits | None,
) -> tuple:
    """The lead, name, the middle, {...}, the tail."""
    arguments = _arguments(composer, tool, closed, strict, limits)
    return seq(
        composer.spelled(kind.lead),
        literal(tool.name),
        composer.spelled(kind.middle),
        arguments,
        composer.spelled(kind.tail),
    )


def _python_call(
    composer: Composer,
    kind: ToolCallFormat,
    tool: Tool,
    closed: bool,
    strict: bool,
    limits: GrammarLimits | None,
) -> tuple:
    """name(key=value, ...): the properties in their order, values as JSON but for True, False and
    None at the outside.
    """
    schema = dict(tool.parameters)
    known = _ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
    for keyword in schema:
        if keyword not in known:
            raise GrammarError(
                f"tool {tool.name}: schema /{keyword}: cannot be enforced over keyword arguments, wanted properties and required"
            )
    properties, required = dict(schema.get("properties") or {}), list(schema.get("required") or ())
    for key in required:
        if key not in properties:
            raise GrammarError(
                f"tool {tool.name}: schema /required: {key!r} is no property, wanted its schema"
            )
    for key in properties:
        if not key.isidentifier():
            raise GrammarError(
                f"tool {tool.name}: schema /properties: {key!r} is no keyword, wanted a name"
            )
    first = tail = literal("")  # what may come while nothing was written, and what follows a pair
    for key in reversed(properties):
        pair = seq(
            literal(f"{key}="),
            composer.rule("value", _python_value(composer, tool, key, strict, limits)),
        )
        later = seq(literal(","), repeat(literal(" "), 0, 1), pair, tail)
        if key in required:
            first, tail = seq(pair, tail), composer.rule("rest", later)
        else:
            first, tail = (
                composer.rule("first", choice(seq(pair, tail), first)),
                composer.rule("rest", choice(later, tail)),
            )
    return seq(literal(f"{tool.name}("), first, literal(")"))


def _python_value(
    composer: Composer, tool: Tool, key: str, strict: bool, limits: GrammarLimits | None
) -> tuple:
    """The node of one parameter's values."""
    base = "urn:oxillama:tool"
    resources = {base: {**tool.parameters, "$id": base}}
    place = {"$ref": f"{base}#/properties/{key.replace('~', '~0').replace('/', '~1')}"}
    everything = _compiled(tool, place, strict, limits, resources)
    words = [
        literal(python)
        for text, python in ((b"true", "True"), (b"false", "False"), (b"null", "None"))
        if everything.matches(text)
    ]
    if not words:
        return composer.include(everything, f"value-{_plain(key)}")
    try:
        rest = JsonSchemaCompiler(
            whitespace="flexible", limits=limits, resources=resources
        ).compile(
            {"allOf": [place, {"type": ["string", "number", "object", "array"]}]}, strict=strict
        )
    except GrammarError:
        return choice(*words)  # nothing else is valid
    return choice(composer.include(rest, f"value-{_plain(key)}"), *words)


def _plain(name: str) -> str:
    """A name that a rule may have."""
    return "".join(
        char if char.isascii() and (char.isalnum() or char == "-") else "-" for char in name
    )
