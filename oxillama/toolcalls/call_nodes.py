"""`CallNodes`: the grammar nodes of tool calls in the notation of one format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from oxillama.errors import GrammarError
from oxillama.grammar import Grammar, GrammarLimits, JsonSchemaCompiler
from oxillama.grammar.composer import Composer
from oxillama.grammar.nodes import ANY, CLASS, choice, literal, repeat, seq, subtract
from oxillama.grammar.schema.spelling import whitespace
from oxillama.toolcalls.formats import (
    ARGS,
    CDATA,
    DIGITS,
    IDENTIFIER,
    KEY,
    STRING,
    ToolCallFormat,
)
from oxillama.toolcalls.literals import types_of
from oxillama.toolcalls.quoted import quoted_arguments
from oxillama.toolcalls.tools import ANNOTATIONS, Tool, arguments_schema

SPACES = whitespace()  # bounded, so that a model cannot go on with spaces forever
_NONE = literal("")
_TEXT_KEYWORDS = {"pattern", "format", "allOf", "not"}  # which a text in tags cannot be held to
_NOT_TEXT = ["number", "boolean", "null", "object", "array"]
_NOT_A_WORD = ["string", "number", "object", "array"]  # but for True, False and None in Python


class CallNodes:
    """Makes the nodes of calls for one composer.

    closed: an object whose schema lists properties has no others unless the schema says so. strict:
    as in `JsonSchemaCompiler.compile`. Every method raises GrammarError, naming the tool, for a
    schema that cannot be enforced.
    """

    def __init__(
        self,
        composer: Composer,
        format: ToolCallFormat,
        *,
        closed: bool,
        strict: bool,
        limits: GrammarLimits | None,
    ) -> None:
        self._composer, self._format = composer, format
        self._closed, self._strict, self._limits = closed, strict, limits

    def call(self, tool: Tool) -> tuple:
        """One call of a tool, without its block."""
        makers = {
            "python": self._python_call,
            "named": self._named_call,
            "headed": self._headed_call,
            "tags": self._tag_call,
        }
        return makers.get(self._format.style, self._object_call)(tool)

    def blocks(self, call: tuple, *, parallel: bool) -> tuple:
        """One call, or with `parallel` one or more, with the blocks around them."""
        composer, format = self._composer, self._format
        open, close = composer.spelled(format.open), composer.spelled(format.close)
        more = repeat(seq(literal(","), SPACES, call)) if parallel else _NONE
        if format.style == "python":
            return seq(open, literal("["), SPACES, call, more, literal("]"), close)
        if format.style == "array":
            return seq(
                open,
                SPACES,
                literal("["),
                SPACES,
                call,
                more,
                SPACES,
                literal("]"),
                SPACES if format.close else _NONE,
                close,
            )
        if format.style == "headed" and format.lead:
            return seq(open, call, repeat(seq(SPACES, call)) if parallel else _NONE, close)
        if format.style == "headed":
            block = seq(open, call, close)
            return seq(block, repeat(seq(SPACES, block))) if parallel else block
        if format.together:
            calls = seq(call, repeat(seq(SPACES, call))) if parallel else call
            return seq(open, SPACES, calls, SPACES, close)
        if format.style == "named":
            block = seq(open, call)
            return seq(block, repeat(block)) if parallel else block
        if not format.close:
            calls = seq(call, repeat(seq(SPACES, literal(";"), SPACES, call))) if parallel else call
            return seq(repeat(open, 0, 1) if format.bare else open, SPACES, calls)
        block = seq(open, SPACES, call, SPACES, close)
        return seq(block, repeat(seq(SPACES, block))) if parallel else block

    def arguments(self, tool: Tool) -> tuple:
        """The arguments of a tool as a JSON object."""
        return self._composer.include(
            self._compiled(tool, arguments_schema(tool, closed=self._closed)),
            f"arguments-{_rule_name(tool.name)}",
        )

    # ---- notations
    # ----------------------------------------------------------------------------------------------

    def _object_call(self, tool: Tool) -> tuple:
        """{"name": "f", "arguments": {...}} under the format's keys, or {"f": {...}} if it has no
        key for the name.
        """
        format = self._format
        if not format.name_key:
            return seq(
                literal("{"),
                SPACES,
                literal(json.dumps(tool.name)),
                literal(":"),
                SPACES,
                self.arguments(tool),
                SPACES,
                literal("}"),
            )
        key, arguments = (
            json.dumps(format.name_key, ensure_ascii=False),
            json.dumps(format.arguments_keys[0], ensure_ascii=False),
        )
        colon, comma = (seq(repeat(literal(" "), 0, 1), literal(mark), SPACES) for mark in ":,")
        head = (
            repeat(seq(literal('"type"'), colon, literal('"function"'), comma), 0, 1)
            if format.bare
            else _NONE
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
            self.arguments(tool),
            SPACES,
            literal("}"),
        )

    def _named_call(self, tool: Tool) -> tuple:
        """name[ARGS]{...}."""
        return seq(literal(tool.name), self._composer.delimiter(ARGS), self.arguments(tool))

    def _headed_call(self, tool: Tool) -> tuple:
        """The lead, name, the middle, {...}, the tail."""
        if self._format.quote:
            properties, required = _keywords(tool)
            arguments = quoted_arguments(
                self._composer,
                self._format.quote,
                tool,
                properties,
                required,
                self._strict,
                self._limits,
            )
        else:
            arguments = self.arguments(tool)
        return seq(
            self._lead(),
            literal(tool.name),
            self._middle(),
            arguments,
            self._composer.spelled(self._format.tail),
        )

    def _lead(self) -> tuple:
        """The text before a name, with an identifier if the format has one."""
        before, identifier, after = self._format.lead.partition(IDENTIFIER)
        if not identifier:
            return self._composer.spelled(self._format.lead)
        chars = (CLASS, ((ord("0"), ord("9")), (ord("a"), ord("z"))))
        return seq(
            self._composer.spelled(before), repeat(chars, 10, 10), self._composer.spelled(after)
        )

    def _middle(self) -> tuple:
        """The text between a name and its arguments, with a number if the format has one."""
        before, number, after = self._format.middle.partition(DIGITS)
        if not number:
            return self._composer.spelled(self._format.middle)
        digit = (CLASS, ((ord("0"), ord("9")),))
        return seq(
            self._composer.spelled(before), repeat(digit, 1, 4), self._composer.spelled(after)
        )

    def _tag_call(self, tool: Tool) -> tuple:
        """The lead, name, the middle, the arguments as tags in the order of the properties, the
        tail.
        """
        composer, format = self._composer, self._format
        properties, required = _keywords(tool)
        arguments = []
        for key, schema in properties.items():
            pair = self._tag(tool, key, schema)
            arguments.append(pair if key in required else repeat(pair, 0, 1))
        return seq(
            composer.spelled(format.lead),
            literal(tool.name),
            composer.spelled(format.middle),
            *arguments,
            SPACES,
            composer.spelled(format.tail),
        )

    def _tag(self, tool: Tool, key: str, schema: Any) -> tuple:
        """One argument in tags: its key, then a text as it is or any other value as JSON."""
        composer, format = self._composer, self._format
        line = "\n" if format.lines else ""
        end = line + format.value_tail.replace(KEY, key)
        lead = seq(SPACES, composer.spelled(format.key_lead), literal(key))
        types = types_of(schema)
        text, others = "string" in types or not types, types != {"string"}
        typed = STRING in format.key_tail  # the notation tells text from other values
        values = []
        for is_text, allowed in (("true", text), ("false", others)):
            if not allowed:
                continue
            between = seq(
                composer.spelled(format.key_tail.replace(STRING, is_text)),
                SPACES if format.value_lead else _NONE,
                composer.spelled(format.value_lead),
                literal(line),
            )
            if is_text == "true":
                listed = _listed(schema, text_only=typed)
                values.append(seq(between, self._text(tool, key, end, listed)))
            elif typed or not text:
                value = self._json_value(tool, key, but_text=text)
                values.append(seq(between, value, composer.spelled(end)))
        return seq(lead, choice(*values))

    def _python_call(self, tool: Tool) -> tuple:
        """name(key=value, ...): the arguments in the order of the properties, values as JSON except
        that True, False and None alone are Python's.
        """
        composer = self._composer
        properties, required = _keywords(tool)
        for key in properties:
            if not key.isidentifier():
                raise GrammarError(
                    f"tool {tool.name}: schema /properties: {key!r} is not a keyword, wanted a name"
                )
        first = tail = _NONE  # what may come before any argument, and after one
        for key in reversed(properties):
            pair = seq(literal(f"{key}="), composer.rule("value", self._python_value(tool, key)))
            later = seq(literal(","), repeat(literal(" "), 0, 1), pair, tail)
            if key in required:
                first, tail = seq(pair, tail), composer.rule("rest", later)
            else:
                first, tail = (
                    composer.rule("first", choice(seq(pair, tail), first)),
                    composer.rule("rest", choice(later, tail)),
                )
        return seq(literal(f"{tool.name}("), first, literal(")"))

    # ---- values
    # ----------------------------------------------------------------------------------------------

    def _text(self, tool: Tool, key: str, end: str, listed: list[str] | None) -> tuple:
        """An argument that is written as it is, and its end; listed: the only values, None for
        any text that the schema allows.
        """
        composer = self._composer
        if listed is not None:
            return seq(choice(*map(literal, listed)), composer.spelled(end))
        schema = tool.parameters["properties"][key]
        given: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
        bounded = sorted(_TEXT_KEYWORDS & given.keys())
        if bounded and self._strict:
            raise GrammarError(
                f"tool {tool.name}: schema /properties/{key}/{bounded[0]}: cannot be enforced over "
                "a text in tags"
            )
        least, most = given.get("minLength", 0), given.get("maxLength")
        # of bounded length: without the character that its end begins with
        other = (CLASS, subtract(ANY, ((ord(end[0]), ord(end[0])),)))
        if least or most is not None:
            return seq(repeat(other, least, most), composer.spelled(end))
        if not self._format.cdata:
            return composer.until_spelled(end)
        section = seq(literal(CDATA[0]), composer.until_spelled(CDATA[1] + end))
        return choice(section, composer.spelled(end), seq(other, composer.until_spelled(end)))

    def _json_value(self, tool: Tool, key: str, *, but_text: bool) -> tuple:
        """An argument that is written as JSON; but_text: leave out strings, which are written
        differently.
        """
        compiled = self._property(tool, key, _NOT_TEXT if but_text else None)
        return self._composer.include(compiled, f"value-{_rule_name(key)}")

    def _python_value(self, tool: Tool, key: str) -> tuple:
        """The value of one keyword argument."""
        everything = self._property(tool, key)
        words = [
            literal(python)
            for text, python in ((b"true", "True"), (b"false", "False"), (b"null", "None"))
            if everything.matches(text)
        ]
        name = f"value-{_rule_name(key)}"
        if not words:
            return self._composer.include(everything, name)
        try:
            rest = self._property(tool, key, _NOT_A_WORD)
        except GrammarError:
            return choice(*words)  # nothing else is valid
        return choice(self._composer.include(rest, name), *words)

    def _property(self, tool: Tool, key: str, types: list[str] | None = None) -> Grammar:
        """The grammar of one property of a tool; types: the JSON types that it may have."""
        base = "urn:oxillama:tool"
        place = {"$ref": f"{base}#/properties/{key.replace('~', '~0').replace('/', '~1')}"}
        schema: Any = place if types is None else {"allOf": [place, {"type": types}]}
        return self._compiled(tool, schema, {base: {**tool.parameters, "$id": base}})

    def _compiled(
        self, tool: Tool, schema: Any, resources: Mapping[str, Any] | None = None
    ) -> Grammar:
        try:
            made = JsonSchemaCompiler(
                whitespace="flexible", limits=self._limits, resources=resources
            ).compile(schema, strict=self._strict)
            _ = made.rules  # all are written here, where an error names the tool
            return made
        except GrammarError as error:
            raise GrammarError(f"tool {tool.name}: {error}") from None


def _listed(schema: Any, *, text_only: bool) -> list[str] | None:
    """The values that a schema lists, as they are written without quotes; None if it lists none."""
    given: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
    listed = given["enum"] if isinstance(given.get("enum"), list) else None
    listed = [given["const"]] if "const" in given else listed
    if listed is None:
        return None
    return [
        each if isinstance(each, str) else json.dumps(each, ensure_ascii=False)
        for each in listed
        if isinstance(each, str) or not text_only
    ]


def _keywords(tool: Tool) -> tuple[dict[str, Any], list[str]]:
    """(properties, names of the required ones) of a tool whose arguments are written one by one;
    GrammarError for keywords that cannot be enforced then.
    """
    schema = dict(tool.parameters)
    known = ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
    for keyword in schema:
        if keyword not in known:
            raise GrammarError(
                f"tool {tool.name}: schema /{keyword}: cannot be enforced over keyword arguments, "
                "wanted properties and required"
            )
    properties, required = dict(schema.get("properties") or {}), list(schema.get("required") or ())
    for key in required:
        if key not in properties:
            raise GrammarError(
                f"tool {tool.name}: schema /required: {key!r} is not a property, wanted its schema"
            )
    return properties, required


def _rule_name(name: str) -> str:
    """A name with the characters that the name of a rule may have."""
    return "".join(
        char if char.isascii() and (char.isalnum() or char == "-") else "-" for char in name
    )
