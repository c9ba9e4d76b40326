"""`ArgumentChecker`: the errors in the arguments of a call that no grammar constrained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from oxillama._core.schemas import DEFINITIONS, FALSE, LISTS, MAPS, SINGLES, TRUE
from oxillama.errors import GrammarError
from oxillama.grammar.regex import search_automaton
from oxillama.grammar.schema.document import Document
from oxillama.grammar.schema.validity import Judge, Violation
from oxillama.grammar.schema.values import load

_MOST = 5  # faults that are named
_FINAL = ("type", "enum", "const")  # beside one of these nothing else is worth saying


class ArgumentChecker:
    """Checks values under one JSON Schema, with all its keywords but `format`, which models do not
    keep to (times without a zone) and functions parse, and says in words what is wrong.
    Raises GrammarError for a schema that cannot be read, refers to what is not in it or to itself
    at the same place, or has a pattern that is not regular.
    """

    def __init__(self, schema: Any) -> None:
        self._document = document = Document(load(schema))
        document.prepare()
        todo, seen = [document.root], {0}
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            keywords = document.keywords(node)
            if isinstance(keywords, bool):
                continue
            todo += [found for found, _ in document.referred(node, keywords)]
            todo += [document.literal(sub)[0] for sub in _inner(keywords)]
            try:
                for source in (*keywords.get("patternProperties", ()), keywords.get("pattern", "")):
                    search_automaton(source)
            except GrammarError as error:
                raise GrammarError(f"schema {document.where(node)}: {error}") from None

    def faults(self, value: Any) -> list[str]:
        """The errors in a value, as a few sentences; empty if it is valid."""
        try:
            value = load(json.dumps(value, allow_nan=False))
            judge = Judge(self._document, formats=False)
            if judge.holds(self._literal, value):
                return []
            return _Report(judge).of(self._literal, value, "")
        except (GrammarError, RecursionError):
            return ["arguments: nested too deeply to be checked"]
        except (TypeError, ValueError) as error:
            return [f"arguments: not JSON ({error})"]

    @property
    def _literal(self) -> tuple[int, bool]:
        """What the whole schema asks."""
        root = self._document.schemas[self._document.root]
        return TRUE if root is True else FALSE if root is False else (self._document.root, True)


def _inner(keywords: dict[str, Any]) -> Iterator[Any]:
    """The schemas that a schema holds, definitions aside."""
    for keyword, value in keywords.items():
        if keyword in SINGLES and isinstance(value, (dict, bool)):
            yield value
        elif keyword in LISTS and isinstance(value, list):
            yield from value
        elif keyword in MAPS.difference(DEFINITIONS) and isinstance(value, dict):
            yield from (each for each in value.values() if isinstance(each, (dict, bool)))


class _Report:
    """What is wrong with one value; the same place under the same schema is described once."""

    def __init__(self, judge: Judge) -> None:
        self._judge, self._document = judge, judge.document
        self._told: dict[tuple[int, str], list[str]] = {}

    def of(self, literal: tuple[int, bool], value: Any, where: str) -> list[str]:
        """The faults of a part that does not hold."""
        node, sign = literal
        if not node or not sign:
            return [f"{where or 'arguments'}: nothing is allowed here"]
        found = self._told.get((node, where))
        if found is None:
            found = []
            for violation in self._judge.violations(node, value):
                found += self._words(node, violation, value, where)
                if violation.keyword in _FINAL or len(found) >= _MOST:
                    break
            self._told[node, where] = found = found[:_MOST]
        return found

    def _words(self, node: int, violation: Violation, value: Any, where: str) -> list[str]:
        keyword, literal, part, step = violation
        schema, place = self._document.keywords(node), _place(where, step)
        here = where or "arguments"
        found = f"{here}: found {_shown(value)}"
        if keyword == "required":
            return [f"{place}: is missing"]
        if keyword in ("additionalProperties", "unevaluatedProperties") and literal == FALSE:
            names = ", ".join(schema.get("properties") or {}) or "none"
            return [f"{place}: is not a parameter, wanted {names}"]
        if literal is not None:
            named = f"{here}: the name {part!r:.60}" if keyword == "propertyNames" else place
            return self.of(literal, part, named)
        if keyword in ("anyOf", "oneOf"):
            return self._of_branches(schema[keyword], keyword, value, where)
        if keyword == "type":
            kinds = schema["type"]
            wanted = kinds if isinstance(kinds, str) else " or ".join(kinds)
            return [f"{found}, wanted {wanted}"]
        if keyword == "enum":
            return [f"{found}, wanted one of {', '.join(map(_shown, schema['enum']))}"]
        if keyword == "const":
            return [f"{found}, wanted {_shown(schema['const'])}"]
        if keyword == "not":
            return [f"{found}, which `not` excludes"]
        if keyword == "contains":
            return [f"{found}, wanted an item that fits `contains`"]
        return [f"{found}, {keyword} is {json.dumps(_plain(schema[keyword]), ensure_ascii=False)}"]

    def _of_branches(self, subs: list, keyword: str, value: Any, where: str) -> list[str]:
        """The faults of the branch that has fewest, or how many fit."""
        literals = [self._document.literal(sub) for sub in subs]
        fitting = sum(self._judge.holds(literal, value) for literal in literals)
        if fitting:
            found = f"{where or 'arguments'}: found {_shown(value)}"
            return [f"{found}, which fits {fitting} of {keyword}, wanted one"]
        return min((self.of(literal, value, where) for literal in literals), key=len)


def _place(where: str, step: str | int | None) -> str:
    if step is None:
        return where
    return f"{where}[{step}]" if isinstance(step, int) else f"{where}.{step}".lstrip(".")


def _plain(value: Any) -> Any:
    """A JSON value with numbers as they are usually written."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _shown(value: Any) -> str:
    text = repr(_plain(value))
    return text if len(text) <= 60 else f"{text[:57]}..."
