"""Checks bodies against JSON Schema: the part of it that the routes' descriptions use, so that the
checks and the OpenAPI document use the same table.

Supported: type (also a list), enum, const, minimum, maximum, exclusiveMinimum, minLength,
maxLength, pattern, items, prefixItems, minItems, maxItems, properties, required,
additionalProperties, propertyNames (pattern), anyOf. A property that is null counts as missing,
unless it is required; one that is not known too, since nothing is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from oxillama.server.errors import ApiError, bad, missing, shown, unknown
from oxillama.server.hints import of_value

Schema = Mapping[str, Any]

_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}


def check_body(body: Mapping[str, Any], schema: Schema) -> None:
    """Raise ApiError (400, `param` names the field) for the first thing that does not fit."""
    try:
        _check_object(body, schema, "")
    except ApiError as error:
        error.message += of_value(error.param, schema.get("properties", {}))
        raise


def check(value: Any, schema: Schema, path: str) -> None:
    """The same for one value; `path` is its name in messages."""
    variants = schema.get("anyOf")
    if variants is not None:
        _check_variants(value, variants, path, schema)
        return
    kinds = schema.get("type")
    if kinds is not None:
        kinds = (kinds,) if isinstance(kinds, str) else kinds
        if not any(_is(value, kind) for kind in kinds):
            raise bad(path, value, _wanted(schema))
    if "const" in schema and (value != schema["const"] or type(value) is not type(schema["const"])):
        raise bad(path, value, shown(schema["const"]))
    if "enum" in schema and value not in schema["enum"]:
        raise bad(path, value, _listed(schema["enum"]))
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, (int, float)):
        low, high = schema.get("minimum"), schema.get("maximum")
        if (low is not None and value < low) or (high is not None and value > high):
            raise bad(path, value, _wanted(schema))
        if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
            raise bad(path, value, _wanted(schema))
    elif isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            raise bad(path, value, f"{schema['minLength']} or more characters")
        if len(value) > schema.get("maxLength", len(value)):
            raise ApiError(
                400,
                f"{path}: found {_count(value, 'character')}, wanted at most {schema['maxLength']}",
                param=path,
            )
        if "pattern" in schema and not _fits(value, schema["pattern"]):
            raise bad(path, value, f"a text like {schema['pattern']}")
    elif isinstance(value, list):
        if len(value) < schema.get("minItems", 0) or len(value) > schema.get(
            "maxItems", len(value)
        ):
            low, high = schema.get("minItems", 0), schema.get("maxItems", "any number of")
            wanted = (high or "none") if low == high else f"{low} to {high}"
            raise ApiError(
                400, f"{path}: found {_count(value, 'item')}, wanted {wanted}", param=path
            )
        first, items = schema.get("prefixItems", ()), schema.get("items")
        for at, (each, one) in enumerate(zip(value, first)):
            check(each, one, f"{path}[{at}]")
        if items and not _plain_integers(value, items):
            for at, each in enumerate(value[len(first) :], len(first)):
                check(each, items, f"{path}[{at}]")
    elif isinstance(value, dict):
        _check_object(value, schema, path)


def _count(value: Any, of: str) -> str:
    return f"{len(value)} {of}{'' if len(value) == 1 else 's'}"


def _fits(text: str, pattern: str) -> bool:
    """Whether a pattern is found in a text; `$` is the end of the text, as in JSON Schema."""
    return re.search(pattern.replace("$", r"\Z"), text) is not None


def _plain_integers(value: list[Any], items: Schema) -> bool:
    """Whether all members are integers in range, checked quickly: prompts of token ids are long."""
    return (
        items.keys() == {"type", "minimum", "maximum"}
        and items["type"] == "integer"
        and bool(value)
        and all(type(each) is int for each in value)
        and items["minimum"] <= min(value)
        and max(value) <= items["maximum"]
    )


def _check_object(value: Mapping[str, Any], schema: Schema, path: str) -> None:
    properties, more = schema.get("properties", {}), schema.get("additionalProperties", True)
    required = schema.get("required", ())
    names = schema.get("propertyNames", {}).get("pattern")
    if len(value) > schema.get("maxProperties", len(value)):
        raise ApiError(
            400,
            f"{path}: found {_count(value, 'member')}, wanted at most {schema['maxProperties']}",
            param=path,
        )
    for tag in ("type", "role"):  # says which kind of object it is: what is missing follows from it
        if value.get(tag) is not None and tag in properties:
            check(value[tag], properties[tag], f"{path}.{tag}" if path else tag)
    for name in required:
        if value.get(name) is None and not (
            name in value and _allows_null(properties.get(name, {}))
        ):
            where = f"{path}.{name}" if path else name
            raise missing(where)
    for name, each in value.items():
        where = f"{path}.{name}" if path else name
        if names is not None and not _fits(name, names):
            raise bad(path, name, f"keys like {names}")
        inner = properties.get(name)
        if inner is not None:
            if each is not None:
                check(each, inner, where)
        elif more is False:
            if each is not None:
                raise unknown(where, properties)
        elif isinstance(more, Mapping):
            try:
                check(each, more, where)
            except ApiError as error:
                # a member of a table is no field: the table is
                error.param = path or where
                raise


def _check_variants(value: Any, variants: Any, path: str, schema: Schema) -> None:
    """The first variant that fits; the error is that of the variant whose type is the value's, of
    several that of the one that fits more items of an array, or more of the item that does not fit.
    """
    close: ApiError | None = None
    fitting = (-1, False)
    for variant in variants:
        try:
            check(value, variant, path)
            return
        except ApiError as error:
            kinds = variant.get("type")
            kinds = (kinds,) if isinstance(kinds, str) else kinds or ()
            if not any(_is(value, kind) for kind in kinds) or not _tagged(value, variant):
                continue
            item = re.match(r"\[(\d+)\]", (error.param or "").removeprefix(path))
            fits = (-1, False)
            if item:
                fits = int(item[1]), _takes(value[int(item[1])], variant.get("items", {}))
            if close is None or fits > fitting:
                close, fitting = error, fits
    raise close or _untagged(value, variants, path) or bad(path, value, _wanted(schema))


def _takes(value: Any, schema: Schema) -> bool:
    """Whether a value has a type that a schema names."""
    kinds = schema.get("type", ())
    return any(_takes(value, each) for each in schema.get("anyOf", ())) or any(
        _is(value, kind) for kind in ((kinds,) if isinstance(kinds, str) else kinds)
    )


def _untagged(value: Any, variants: Any, path: str) -> ApiError | None:
    """The error for an object whose `type` or `role` matches no variant; None if the variants do
    not differ in it.
    """
    if not isinstance(value, dict):
        return None
    objects = [each["properties"] for each in variants if "properties" in each]
    for name in ("type", "role"):
        tags = [each.get(name, {}) for each in objects]
        known = list(dict.fromkeys(kind for tag in tags for kind in tag.get("enum", ())))
        if not known or not all("enum" in tag for tag in tags):
            continue
        where, found = f"{path}.{name}", value.get(name)
        if found is None:
            return missing(where)
        return bad(where, found, _listed(known)) if found not in known else None
    return None


def _tagged(value: Any, variant: Schema) -> bool:
    """Whether an object's `type` is the one that the variant is of."""
    if not isinstance(value, dict):
        return True
    for name in ("type", "role"):
        if value.get(name) is None and name not in variant.get("required", ()):
            continue  # where it is left out, this variant is meant
        tag = variant.get("properties", {}).get(name, {})
        if "enum" in tag or "const" in tag:
            known = tag.get("enum", [tag.get("const")])
            return value.get(name) in known
    return True


def _is(value: Any, kind: str) -> bool:
    if kind == "integer":
        if isinstance(value, bool):
            return False
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, _TYPES[kind])


def _allows_null(schema: Schema) -> bool:
    kinds = schema.get("type", ())
    return "null" in ((kinds,) if isinstance(kinds, str) else kinds) or any(
        _allows_null(each) for each in schema.get("anyOf", ())
    )


_ARTICLES = {
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def _listed(values: Iterable[str]) -> str:
    """The values of an enum, as text; one that is empty would not be seen."""
    return f"one of {', '.join(each or 'an empty string' for each in values)}"


def _wanted(schema: Schema) -> str:
    """What a schema asks for, as text."""
    variants = schema.get("anyOf")
    if variants is not None:
        return " or ".join(dict.fromkeys(map(_wanted, variants)))
    if "enum" in schema:
        return _listed(schema["enum"])
    if "const" in schema:
        return shown(schema["const"])
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    words = " or ".join(_ARTICLES[kind] for kind in kinds) or "another value"
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    if low is not None and low == schema.get("maximum"):
        return str(low)
    if "exclusiveMinimum" in schema:
        most = f" and at most {schema['maximum']}" if "maximum" in schema else ""
        return f"{words} above {low}{most}"
    if low is not None and "maximum" in schema:
        return f"{words} in [{low}, {schema['maximum']}]"
    return f"{words} of {low} or more" if low is not None else words


# ---- pieces that many routes share


def integer(low: int, high: int = 2**31 - 1, **more: Any) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high, **more}


def number(low: float, high: float, **more: Any) -> dict[str, Any]:
    return {"type": "number", "minimum": low, "maximum": high, **more}


def array(items: Schema | None = None, low: int = 0, high: int = 65536, **more: Any) -> dict:
    made: dict[str, Any] = {"type": "array", "minItems": low, "maxItems": high, **more}
    if items is not None:
        made["items"] = items
    return made


def obj(properties: Mapping[str, Any], required: tuple[str, ...] = (), **more: Any) -> dict:
    """An object with these members and no others."""
    made: dict[str, Any] = {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
        **more,
    }
    if required:
        made["required"] = list(required)
    return made


def one_of(*variants: Schema) -> dict[str, Any]:
    return {"anyOf": list(variants)}


def enum(*values: Any) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


STRING: dict[str, Any] = {"type": "string"}
NAME: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 256}
BOOLEAN: dict[str, Any] = {"type": "boolean"}
TRUE: dict[str, Any] = {"type": "boolean", "const": True}
FALSE: dict[str, Any] = {"type": "boolean", "const": False}
OBJECT: dict[str, Any] = {"type": "object"}
