"""What is wrong with a tool's arguments, named by where it stands: the check of calls that no
grammar constrained.

Checked are type, enum, const, required, properties, additionalProperties, items, bounds of numbers
and lengths, anyOf, oneOf, allOf and references inside the schema. Other keywords are the tool's own
to check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = {"string": str, "boolean": bool, "null": type(None), "object": Mapping, "array": list}
_MOST = 5  # faults that are told
_DEEPEST = 64


def faults(
    value: Any, schema: Any, *, root: Any = None, where: str = "", depth: int = 0
) -> list[str]:
    """At most a few sentences, none for valid arguments."""
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
    items = schema.get("items")
    if isinstance(value, list) and isinstance(items, (Mapping, bool)):
        skip = len(schema.get("prefixItems", ()))
        for at, item in enumerate(value[skip:], skip):
            found += faults(item, items, root=root, where=f"{where}[{at}]", depth=depth + 1)
    for part in schema.get("allOf", ()):
        found += faults(value, part, root=root, where=where, depth=depth + 1)
    for keyword in ("anyOf", "oneOf"):
        parts = [
            faults(value, part, root=root, where=where, depth=depth + 1)
            for part in schema.get(keyword, ())
        ]
        if parts and all(parts):
            found += min(parts, key=len)
    return found[:_MOST]


def _own(value: Any, schema: Mapping[str, Any], where: str) -> list[str]:
    """Faults of the value itself."""
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        return [f"{where}: found {_shown(value)}, wanted {' or '.join(kinds)}"]
    if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
        return [
            f"{where}: found {_shown(value)}, wanted one of {', '.join(map(_shown, schema['enum']))}"
        ]
    if "const" in schema and not _same(value, schema["const"]):
        return [f"{where}: found {_shown(value)}, wanted {_shown(schema['const'])}"]
    out = []
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    size = len(value) if isinstance(value, (str, list)) else None
    kind = "Length" if isinstance(value, str) else "Items"
    for keyword, measured, fits in (
        ("minimum", value if number else None, lambda a, b: a >= b),
        ("maximum", value if number else None, lambda a, b: a <= b),
        (f"min{kind}", size, lambda a, b: a >= b),
        (f"max{kind}", size, lambda a, b: a <= b),
    ):
        bound = schema.get(keyword)
        if measured is not None and isinstance(bound, (int, float)) and not fits(measured, bound):
            out.append(f"{where}: found {_shown(value)}, {keyword} is {bound}")
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
            found.append(f"{place}: is no parameter, wanted {', '.join(properties) or 'none'}")
        else:
            found += faults(inner, others, root=root, where=place, depth=depth + 1)
    return found


def _resolved(reference: str, root: Any) -> Any:
    """The schema that a reference inside the root names; anything for one that leads elsewhere."""
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
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
