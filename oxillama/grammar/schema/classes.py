"""The JSON Schema of a Python class: Pydantic's own for its models and dataclasses; of a dataclass
or TypedDict the fields as properties, those without a default (or not marked as such) required,
nothing else allowed; and of types made of these (`list[Model]`, `Literal`, a union, an enum).
"""

import dataclasses
import datetime
import enum
import sys
import types
import typing
import uuid
from typing import Any

from oxillama.errors import GrammarError

SCALARS = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.time: {"type": "string", "format": "time"},
    uuid.UUID: {"type": "string", "format": "uuid"},
    dict: {"type": "object"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    typing.Any: {},
    object: {},
}
BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
    "pattern": "pattern",
    "min_length": {"string": "minLength", "array": "minItems", "object": "minProperties"},
    "max_length": {"string": "maxLength", "array": "maxItems", "object": "maxProperties"},
}


def class_schema(kind: Any) -> dict:
    """The schema of a type and of all classes that it mentions. Raises `GrammarError` for one that
    has no JSON form.
    """
    definitions: dict[str, dict] = {}
    root = _schema(kind, definitions, getattr(kind, "__name__", None) or str(kind))
    return {**root, "$defs": definitions}


def _schema(kind, definitions: dict, where: str) -> dict:
    """The schema of one type annotation."""
    if kind in SCALARS:
        return SCALARS[kind]
    if isinstance(kind, type) and (
        _is_pydantic(kind) or dataclasses.is_dataclass(kind) or typing.is_typeddict(kind)
    ):
        return _reference(kind, definitions)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Required, typing.NotRequired):
        return _schema(args[0], definitions, where)
    if origin is typing.Annotated:
        return _bounded(_schema(args[0], definitions, where), args[1:], where)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(arg, definitions, where) for arg in args]}
    if origin is typing.Literal:
        return {"enum": list(args)}
    mapping = origin is dict or getattr(origin, "__name__", "") == "Mapping"
    if kind is typing.Tuple or not args and origin not in (None, tuple):  # noqa: UP006 (of tuple[()] nothing is left open)
        args = (str, typing.Any) if mapping else (typing.Any, ...)
    if origin in (list, typing.Sequence) or getattr(origin, "__name__", "") in (
        "Sequence",
        "Iterable",
    ):
        return {"type": "array", "items": _schema(args[0], definitions, where)}
    if origin in (set, frozenset):
        return {"type": "array", "items": _schema(args[0], definitions, where), "uniqueItems": True}
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return {"type": "array", "items": _schema(args[0], definitions, where)}
        items = [_schema(arg, definitions, where) for arg in args]
        return {
            "type": "array",
            "prefixItems": items,
            "minItems": len(items),
            "maxItems": len(items),
        }
    if mapping:
        if args[0] is not str:
            raise GrammarError(
                f"{where}: a mapping has no JSON form: found {args[0]} keys, wanted str"
            )
        return {"type": "object", "additionalProperties": _schema(args[1], definitions, where)}
    raise GrammarError(f"{where}: type {kind!r} has no JSON form")


def _bounded(schema: dict, notes, where: str) -> dict:
    """The schema under what is noted of it in `Annotated`: objects with bounds as attributes (as
    annotated_types has them); others say nothing.
    """
    found: dict = {}
    for note in notes:
        for part in (note, *(getattr(note, "metadata", None) or ())):
            for name, found_in in BOUNDS.items():
                keyword: typing.Any = found_in
                value = getattr(part, name, None)
                if value is None or isinstance(part, str):
                    continue
                if isinstance(keyword, dict):
                    keyword = keyword.get(schema.get("type"))
                elif schema.get("type") not in (
                    ("string",) if name == "pattern" else ("integer", "number")
                ):
                    keyword = None
                if keyword is None:
                    raise GrammarError(f"{where}: {name}={value!r} cannot be enforced on {schema}")
                found[keyword] = getattr(value, "pattern", value)
    return {**schema, **found}


def _reference(kind: type, definitions: dict) -> dict:
    """A reference to a class's definition, made on first use (so that recursion ends)."""
    name = f"{kind.__module__}.{kind.__qualname__}".replace("/", "_").replace("~", "_")
    if name not in definitions and _is_pydantic(kind):
        inner = f"#/$defs/{name}/$defs/".replace("{", "{{").replace("}", "}}")
        definitions[name] = _pydantic_schema(kind, ref_template=inner + "{model}")
    elif name not in definitions:
        definitions[name] = {}
        try:
            hints = typing.get_type_hints(kind, include_extras=True)
        except NameError as error:
            raise GrammarError(f"{kind.__qualname__}: {error}") from None
        properties, required = {}, []
        if typing.is_typeddict(kind):
            for key, hint in hints.items():
                properties[key] = _schema(hint, definitions, f"{kind.__qualname__}.{key}")
            required = [key for key in hints if key in getattr(kind, "__required_keys__")]  # noqa: B009
        for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
            if not field.init:
                continue
            where = f"{kind.__qualname__}.{field.name}"
            made = _schema(hints[field.name], definitions, where)
            needed = (
                field.default is dataclasses.MISSING
                and field.default_factory is dataclasses.MISSING
            )
            # bounds, where the default is a `Field` of pydantic's, which may be without a default
            if callable(is_required := getattr(field.default, "is_required", None)):
                made, needed = _bounded(made, (field.default,), where), is_required()
            properties[field.name] = made
            if needed:
                required.append(field.name)
        definitions[name].update(
            {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            }
        )
    return {"$ref": f"#/$defs/{name}"}


def _is_pydantic(kind: type) -> bool:
    """Whether a class is a model or a dataclass of pydantic's, which is loaded then."""
    return callable(getattr(kind, "model_json_schema", None)) or hasattr(
        kind, "__pydantic_core_schema__"
    )


def _pydantic_schema(kind: Any, **options: str) -> dict:
    """Pydantic's own schema of one of its classes."""
    describe = getattr(kind, "model_json_schema", None)
    if not callable(describe):
        describe = sys.modules["pydantic"].TypeAdapter(kind).json_schema
    return describe(**options)


class ClosedSchema(dict):
    """A schema whose objects have the members that they list and no others, unless they say what
    others may be (`additionalProperties`, `patternProperties`, `unevaluatedProperties`), as the
    strict mode of hosted APIs and llama.cpp read schemas.
    """

    def __repr__(self) -> str:
        return f"ClosedSchema({super().__repr__()})"


def schema_of(source: Any) -> Any:
    """The schema of a Pydantic model, a dataclass, a TypedDict or a type made of these, closed;
    anything else as it is.
    """
    if isinstance(source, type) and _is_pydantic(source):
        return ClosedSchema(_pydantic_schema(source))
    if isinstance(source, type) or typing.get_origin(source) is not None:
        return ClosedSchema(class_schema(source))
    # a TypeAdapter of pydantic's
    if callable(describe := getattr(source, "json_schema", None)):
        return ClosedSchema(describe())
    return source
