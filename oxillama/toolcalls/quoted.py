"""The grammar of arguments with bare keys and unescaped texts between the notation's own quotes
(Gemma 4): {key:<|"|>text<|"|>,n:3,list:[1,2],inner:{key:true}}.

Members come in the order of their names, as in Gemma's template. GrammarError for schemas that this
notation cannot enforce.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from oxillama.errors import GrammarError
from oxillama.grammar import GrammarLimits, JsonSchemaCompiler
from oxillama.grammar.composer import Composer
from oxillama.grammar.nodes import ANY, CLASS, choice, literal, repeat, seq, subtract
from oxillama.toolcalls.literals import types_of
from oxillama.toolcalls.tools import Tool

_NOTES = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated", "nullable"),
        *("$schema", "$id", "$comment", "$defs", "definitions"),
    }
)
_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_KNOWN = {
    "string": frozenset({"minLength", "maxLength"}),
    "integer": _NUMBERS,
    "number": _NUMBERS,
    "boolean": frozenset(),
    "null": frozenset(),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
_ALL = frozenset().union(*_KNOWN.values())
# no key may begin or end with a space, and none holds what has a meaning
_KEY = subtract(ANY, tuple(sorted((ord(char), ord(char)) for char in ' \t\r\n,:{}[]<>"')))


def quoted_arguments(
    composer: Composer,
    quote: str,
    tool: Tool,
    properties: Mapping[str, Any],
    required: Sequence[str],
    strict: bool,
    limits: GrammarLimits | None,
) -> tuple:
    """The node of a tool's arguments with their brackets."""
    return _Values(composer, quote, tool, strict, limits).members(properties, required, None)


class _Values:
    """Nodes of values; a schema that is referred to becomes a rule once."""

    def __init__(
        self,
        composer: Composer,
        quote: str,
        tool: Tool,
        strict: bool,
        limits: GrammarLimits | None,
    ) -> None:
        self._composer, self._tool, self._strict, self._limits = composer, tool, strict, limits
        self._quote = composer.spelled(quote)
        self._text = composer.until_spelled(quote)
        self._first = ord(quote[0])
        self._rules: dict[str, tuple] = {}

    def members(self, properties: Mapping[str, Any], required: Sequence[str], others: Any) -> tuple:
        """An object: its properties in the order of their names, then members under other keys of
        the schema `others`, None for none.
        """
        first = tail = literal("")  # while nothing was written; after a member
        if others is not None:
            more = seq(self._key(), literal(":"), self.value(others))
            tail = repeat(seq(literal(","), more))
            first = repeat(seq(more, tail), 0, 1)
        for key in sorted(properties, key=lambda key: (key.lower(), key), reverse=True):
            value = self._composer.rule("value", self.value(properties[key]))
            pair = seq(self._name(key), literal(":"), value)
            if key in required:
                first, tail = seq(pair, tail), seq(literal(","), pair, tail)
            else:
                first = self._composer.rule("first", choice(seq(pair, tail), first))
                tail = self._composer.rule("rest", choice(seq(literal(","), pair, tail), tail))
        return seq(literal("{"), first, literal("}"))

    def value(self, schema: Any) -> tuple:
        """The values of a schema."""
        if schema is True or schema == {}:
            return self._anything()
        if not isinstance(schema, Mapping):
            raise self._refused(f"found {schema!r}, wanted a schema with values")
        if "$ref" in schema:
            return self._referred(schema)
        for keyword in ("const", "enum"):
            if keyword in schema:
                listed = [schema["const"]] if keyword == "const" else schema["enum"]
                return choice(*map(self._constant, listed))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._alternatives(schema, keyword)
        kinds = types_of(schema)
        unknown = sorted(schema.keys() - _NOTES - _ALL - {"type"})
        if unknown and self._strict:
            raise self._refused(f"{unknown[0]!r} cannot be enforced in this notation")
        if not kinds:
            if self._strict and schema.keys() & _ALL:
                raise self._refused(f"found {sorted(schema.keys() & _ALL)[0]!r}, wanted a type")
            return self._anything()
        return choice(*(self._of_type(kind, schema) for kind in sorted(kinds)))

    def _of_type(self, kind: str, schema: Mapping[str, Any]) -> tuple:
        if kind == "string":
            least, most = schema.get("minLength", 0), schema.get("maxLength")
            if not least and most is None:
                return seq(self._quote, self._text)
            # of bounded length: without the character that its end begins with
            char = (CLASS, subtract(ANY, ((self._first, self._first),)))
            return seq(self._quote, repeat(char, least, most), self._quote)
        if kind == "array":
            item = self.value(schema.get("items", True))
            least, most = schema.get("minItems", 0), schema.get("maxItems")
            if most == 0:
                return literal("[]")
            rest = repeat(
                seq(literal(","), item), max(least - 1, 0), None if most is None else most - 1
            )
            some = seq(item, rest)
            return seq(literal("["), some if least else repeat(some, 0, 1), literal("]"))
        if kind == "object":
            properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
            if others is None:
                others = None if properties else True
            required = schema.get("required") or ()
            missing = [key for key in required if key not in properties]
            if missing:
                raise self._refused(f"required {missing[0]!r} is not a property, wanted its schema")
            if others is not False and others is not None and properties and self._strict:
                raise self._refused(
                    "additionalProperties together with properties cannot be enforced"
                )
            return self.members(properties, required, None if others is False else others)
        numbers = {key: value for key, value in schema.items() if key in _NUMBERS}
        return self._json({"type": kind, **numbers})

    def _alternatives(self, schema: Mapping[str, Any], keyword: str) -> tuple:
        parts = schema[keyword]
        others = sorted(schema.keys() - _NOTES - {keyword, "type"})
        if others and self._strict:
            raise self._refused(f"{others[0]!r} together with {keyword} cannot be enforced")
        kinds = [types_of(part) for part in parts]
        apart = all(kinds) and sum(map(len, kinds)) == len(frozenset().union(*kinds))
        if keyword == "oneOf" and self._strict and not apart:
            raise self._refused("oneOf of values of one type cannot be enforced, wanted anyOf")
        return choice(*map(self.value, parts))

    def _referred(self, schema: Mapping[str, Any]) -> tuple:
        place = schema["$ref"]
        if self._strict and schema.keys() - _NOTES - {"$ref"}:
            raise self._refused(f"keywords next to $ref {place!r} cannot be enforced")
        if place not in self._rules:
            found: Any = self._tool.parameters
            for step in str(place).removeprefix("#").strip("/").split("/"):
                step = step.replace("~1", "/").replace("~0", "~")
                found = found.get(step) if isinstance(found, Mapping) else None
            if found is None or not str(place).startswith("#/"):
                raise self._refused(f"$ref {place!r} leads nowhere, wanted a place of the schema")
            self._rules[place] = self._composer.reserve("schema")
            self._composer.define(self._rules[place], self.value(found))
        return self._rules[place]

    def _anything(self) -> tuple:
        """Any value of the notation."""
        if "" not in self._rules:
            rule = self._rules[""] = self._composer.reserve("anything")
            plain = self._json({"type": ["number", "boolean", "null"]})
            text, pair = seq(self._quote, self._text), seq(self._key(), literal(":"), rule)
            array, members = (
                seq(
                    literal(open),
                    repeat(seq(item, repeat(seq(literal(","), item))), 0, 1),
                    literal(close),
                )
                for open, item, close in (("[", rule, "]"), ("{", pair, "}"))
            )
            self._composer.define(rule, choice(text, plain, array, members))
        return self._rules[""]

    def _constant(self, value: Any) -> tuple:
        """One value in the notation."""
        if isinstance(value, str):
            return seq(self._quote, literal(value), self._quote)
        if isinstance(value, list):
            items = [self._constant(item) for item in value]
            return seq(literal("["), *_separated(items), literal("]"))
        if isinstance(value, Mapping):
            pairs = [
                seq(self._name(key), literal(":"), self._constant(value[key]))
                for key in sorted(value, key=lambda key: (key.lower(), key))
            ]
            return seq(literal("{"), *_separated(pairs), literal("}"))
        return literal(json.dumps(value))

    def _json(self, schema: Mapping[str, Any]) -> tuple:
        """Values that are spelled as in JSON."""
        try:
            compiled = JsonSchemaCompiler(limits=self._limits).compile(schema, strict=self._strict)
        except GrammarError as error:
            raise self._refused(str(error)) from None
        return self._composer.include(compiled, "plain")

    def _name(self, key: str) -> tuple:
        if not key or any(char in ' \t\r\n,:{}[]<>"' for char in key):
            raise self._refused(f"property {key!r} cannot be written bare, wanted a plain name")
        return literal(key)

    def _key(self) -> tuple:
        return repeat((CLASS, _KEY), 1, 64)

    def _refused(self, why: str) -> GrammarError:
        return GrammarError(f"tool {self._tool.name}: schema: {why}")


def _separated(nodes: Sequence[tuple]) -> list[tuple]:
    return [part for node in nodes for part in (literal(","), node)][1:]
