"""Parses untrusted JSON: bounded in depth, without NaN, infinities, repeated names and lone
surrogates.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from oxillama.server.errors import ApiError

_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_BRACKETS = re.compile(rb"[\[{\]}]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def loads(data: bytes, *, depth: int, kind: type = dict) -> Any:
    """The object (or, kind=list, the array) of a request's body; ApiError (400) for anything
    else.
    """
    if not data.strip():
        raise _error("found an empty body, wanted a JSON object")
    if _deepest(data, depth) > depth:
        raise ApiError(
            400, f"body: JSON nested deeper than {depth} levels, wanted less", code="json_too_deep"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _error(f"byte {error.start} is not UTF-8") from None
    try:
        value = json.loads(
            text, parse_constant=_constant, parse_float=_float, object_pairs_hook=_object
        )
    except RecursionError:
        raise ApiError(400, "body: JSON nested too deeply", code="json_too_deep") from None
    except json.JSONDecodeError as error:
        raise _error(f"is not JSON: {error}") from None
    except ValueError as error:
        why = str(error)
        if "integer string conversion" in why:
            why = "found a number of more digits than are read"
        raise _error(why) from None
    if not isinstance(value, kind):
        wanted = "a JSON object" if kind is dict else "a JSON array"
        raise _error(f"found {_kind(value)}, wanted {wanted}")
    if _SURROGATE.search(data):
        _check_text(value)
    return value


def _error(why: str) -> ApiError:
    return ApiError(400, f"body: {why}", code="invalid_json")


def _kind(value: Any) -> str:
    return {
        list: "an array",
        dict: "an object",
        str: "a string",
        bool: "a boolean",
        type(None): "null",
    }.get(type(value), "a number")


def _deepest(data: bytes, most: int) -> int:
    """How deeply arrays and objects nest; stops counting beyond `most`."""
    if data.count(b"[") + data.count(b"{") <= most:
        return 0
    now = deepest = 0
    for match in _BRACKETS.finditer(_STRINGS.sub(b"", data)):
        if match.group() in b"[{":
            now += 1
            if now > deepest:
                deepest = now
                if deepest > most:
                    break
        else:
            now -= 1
    return deepest


def _constant(name: str) -> Any:
    raise ValueError(f"found {name}, which is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"found {text[:30]}, which is out of range")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()  # a count of each name would take hours for a large object
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"found the name {name[:50]!r} twice in one object")
            seen.add(name)
    return made


def _check_text(value: Any) -> None:
    """Raise for a string with half of a surrogate pair, which is not valid text."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            try:
                one.encode()
            except UnicodeEncodeError:
                raise _error("found a lone surrogate in a string, wanted valid Unicode") from None
        elif isinstance(one, dict):
            waiting.extend(one)
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
