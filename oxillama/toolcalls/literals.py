"""Values in the notations of calls: JSON, Python literals, and bare text whose type a schema
gives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from oxillama.grammar.schema.values import nests_deeply


class Malformed(Exception):
    """A call cannot be read; caught by the readers of replies."""


CLOSES = {")": "(", "]": "[", "}": "{"}
WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_SPACES = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[^\W\d]\w*")
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "/": "/",
    "\n": "",
}
_WIDTHS = {"x": 2, "u": 4, "U": 8}
DEEPEST = 100


def json_value(text: str) -> Any:
    """The value of a JSON text. Control characters inside strings are accepted; `Malformed` for
    anything else that is not JSON.
    """
    try:
        value = json.loads(text, strict=False, object_pairs_hook=_members, parse_constant=_constant)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        deep = nests_deeply(value)
    except UnicodeEncodeError:
        raise Malformed("a string holds half a surrogate pair") from None
    except RecursionError:
        deep = True
    except ValueError as error:
        raise Malformed(str(error)) from None
    if deep:
        raise Malformed("brackets are nested too deeply")
    return value


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return members


def _constant(name: str) -> None:
    raise ValueError(f"found {name}, which is not JSON")


def keywords(text: str) -> dict[str, Any]:
    """The keyword arguments in the text between a call's parentheses, as JSON values; `Malformed`
    for anything else.
    """
    found: dict[str, Any] = {}
    at = skip_space(text, 0)
    while at < len(text):
        match = _WORD.match(text, at)
        if not match:
            raise Malformed(f"found {text[at : at + 20]!r}, wanted a keyword and '='")
        at = skip_space(text, match.end())
        if text[at : at + 1] != "=":
            raise Malformed(f"{match.group()}: found {text[at : at + 1]!r}, wanted '=' and a value")
        if match.group() in found:
            raise Malformed(f"{match.group()}: appears twice")
        found[match.group()], at = _value(text, skip_space(text, at + 1), 0)
        at = next_item(text, at, "")
    try:
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise Malformed("a string holds half a surrogate pair") from None
    except ValueError as error:
        raise Malformed(str(error)) from None
    return found


def skip_space(text: str, at: int) -> int:
    found = _SPACES.match(text, at)
    return found.end() if found else at


def next_item(text: str, at: int, close: str) -> int:
    """The index of the item after a comma, or of the closing bracket (or end) in its place."""
    at = skip_space(text, at)
    if text[at : at + 1] == ",":
        return skip_space(text, at + 1)
    if text[at : at + 1] != close:
        raise Malformed(
            f"found {text[at : at + 20]!r}, wanted ','{f' or {close!r}' if close else ''}"
        )
    return at


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """(the value of a literal, where it ends)."""
    char = text[at : at + 1]
    if depth > DEEPEST:
        raise Malformed(f"brackets are nested deeper than {DEEPEST}")
    if char and char in "'\"":
        value = ""
        while text[at : at + 1] and text[at] in "'\"":  # adjacent strings are joined, as in Python
            piece, end = _string(text, at)
            value, at = value + piece, skip_space(text, end)
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass"), at
    if char and char in "[(":
        return _list(text, at, depth)
    if char == "{":
        return _dict(text, at, depth)
    match = _WORD.match(text, at)
    if match and match.group() in WORDS:
        return WORDS[match.group()], match.end()
    match = _NUMBER.match(text, at)
    if match:
        try:
            spelled = match.group()
            return (
                int(spelled) if re.fullmatch(r"[+-]?[\d_]+", spelled) else float(spelled)
            ), match.end()
        except ValueError:
            raise Malformed(f"found {match.group()[:20]!r}, wanted a number") from None
    raise Malformed(f"found {text[at : at + 20]!r}, wanted a literal value")


def _list(text: str, at: int, depth: int) -> tuple[list, int]:
    close = "]" if text[at] == "[" else ")"
    items, at = [], skip_space(text, at + 1)
    while text[at : at + 1] != close:
        item, at = _value(text, at, depth + 1)
        items.append(item)
        at = next_item(text, at, close)
    return items, at + 1


def _dict(text: str, at: int, depth: int) -> tuple[dict, int]:
    members, at = {}, skip_space(text, at + 1)
    while text[at : at + 1] != "}":
        key, at = _value(text, at, depth + 1)
        at = skip_space(text, at)
        if not isinstance(key, str) or key in members or text[at : at + 1] != ":":
            raise Malformed(
                f"found {text[at : at + 20]!r} after key {key!r}, wanted ':' after a text that "
                "appears once"
            )
        members[key], at = _value(text, skip_space(text, at + 1), depth + 1)
        at = next_item(text, at, "}")
    return members, at + 1


def _string(text: str, at: int) -> tuple[str, int]:
    """(the value of a quoted string, where it ends). Escapes are those of Python and JSON; unknown
    ones are kept as written.
    """
    quote, out, at = text[at], [], at + 1
    while at < len(text) and text[at] != quote:
        if text[at] != "\\":
            out.append(text[at])
            at += 1
            continue
        char = text[at + 1 : at + 2]
        at += 2
        if char in _ESCAPES:
            out.append(_ESCAPES[char])
        elif (
            char in _WIDTHS
            and re.fullmatch(
                rf"[0-9A-Fa-f]{{{_WIDTHS[char]}}}", digits := text[at : at + _WIDTHS[char]]
            )
            and int(digits, 16) < 0x110000
        ):
            out.append(chr(int(digits, 16)))
            at += _WIDTHS[char]
        else:
            out.append("\\" + char)
    if at >= len(text):
        raise Malformed("a text has no closing quote")
    return "".join(out), at + 1


_PYTHON_WORDS = {"True": True, "False": False, "None": None}
_KINDS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
}


def read_value(text: str, schema: Any = None) -> Any:
    """The value of an argument written without quotes: JSON (or Python's True, False, None) if that
    has a type that the schema allows, otherwise the text itself. Without a type in the schema, JSON
    strings are text too.
    """
    kinds = types_of(schema)
    if kinds == {"string"}:
        return text
    try:
        value = json_value(text.strip())
    except Malformed:
        value = _PYTHON_WORDS.get(text.strip(), text)
    if isinstance(value, str) or (kinds and not any(_KINDS[kind](value) for kind in kinds)):
        return text
    return value


def types_of(schema: Any) -> frozenset[str]:
    """The JSON types that a schema gives its values; empty if it gives none."""
    if not isinstance(schema, Mapping):
        return frozenset()
    given = schema.get("type")
    if isinstance(given, str) and given in _KINDS:
        return frozenset({given})
    if isinstance(given, list):
        return frozenset(kind for kind in given if kind in _KINDS)
    values = schema["enum"] if isinstance(schema.get("enum"), list) else []
    values = [*values, schema["const"]] if "const" in schema else values
    found = {kind for value in values for kind, fits in _KINDS.items() if fits(value)}
    for keyword in ("anyOf", "oneOf"):
        parts = [types_of(part) for part in schema.get(keyword) or ()]
        found |= frozenset().union(*parts) if all(parts) else frozenset()
    return frozenset(found)
