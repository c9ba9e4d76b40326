"""How a schema can fail to hold: for each keyword the ways, as lists of actions on a case. `ex` is
the `Expander` at work.

Most negations are schemas again (not `minimum` 3 is a number with `exclusiveMaximum` 3) and are
applied as made-up ones; keywords whose names begin with `$` and that no draft knows (`$banned`,
`$fraction`, `$notMultiple`, `$notPattern`, `$notFormat`) exist only there.
"""

from collections.abc import Callable

from oxillama._core.cases import (
    Case,
    Demand,
    Forbid,
    IfPresent,
    Member,
    Only,
    Require,
    SomeMember,
)
from oxillama._core.schemas import FALSE, TRUE, TYPES
from oxillama.errors import GrammarError
from oxillama.grammar.regex import parse_regex
from oxillama.grammar.schema.formats import FORMATS, LONGEST
from oxillama.grammar.schema.keywords import APPLY, array_schemas
from oxillama.grammar.schema.values import exact

Act = Callable[[Case], object]  # an action, or any function whose result is not used


def negate(ex, node: int, schema: dict) -> list[list[Act]]:
    """The ways in which a schema can fail to hold, one per keyword that can fail."""
    out: list[list[Act]] = []
    for keyword, value in schema.items():
        if keyword not in APPLY:
            continue
        handler = NEGATE.get(keyword)
        if handler is None:
            raise GrammarError(
                f"schema {ex.where(node)}: keyword {keyword!r} cannot be enforced under 'not' (or "
                f"in an 'else', or to tell the branches of a 'oneOf' apart)"
            )
        out.extend(handler(ex, node, schema, value))
    return _joined(out)


def _joined(ways: list[list[Act]]) -> list[list[Act]]:
    """The same ways to fail, where a member's absence and its bad values are one: what it must be
    if it is there.
    """
    absent = {way[1].name for way in ways if len(way) == 2 and isinstance(way[1], Forbid)}
    bad = {way[1].name for way in ways if len(way) == 2 and isinstance(way[1], Member)}
    both = absent & bad
    if not both:
        return ways
    out: list[list[Act]] = []
    for way in ways:
        act = way[1] if len(way) == 2 else None
        if isinstance(act, Member) and act.name in both:
            out.append([way[0], IfPresent(act.name, act.literal)])
        elif not (isinstance(act, Forbid) and act.name in both):
            out.append(way)
    return out


def positive(ex, node: int, schema: dict) -> list[Act]:
    """The action that applies a made-up schema."""
    return [Demand((ex.document.synthetic(schema, ex.where(node)), True))]


def _no_type(ex, node, schema, value):
    names = set(value if isinstance(value, list) else [value])
    others = [t for t in TYPES if t not in names and not (t == "number" and "integer" in names)]
    out = [positive(ex, node, {"type": others})] if others else []
    if "integer" in names and "number" not in names:
        out.append(positive(ex, node, {"type": "number", "$fraction": True}))
    return out


def _no_enum(ex, node, schema, value):
    return [positive(ex, node, {"$banned": value})]


def _no_const(ex, node, schema, value):
    return [positive(ex, node, {"$banned": [value]})]


def _no_minimum(ex, node, schema, value):
    strict = schema.get("exclusiveMinimum") is True
    return [
        positive(ex, node, {"type": "number", "maximum" if strict else "exclusiveMaximum": value})
    ]


def _no_maximum(ex, node, schema, value):
    strict = schema.get("exclusiveMaximum") is True
    return [
        positive(ex, node, {"type": "number", "minimum" if strict else "exclusiveMinimum": value})
    ]


def _no_exclusive_minimum(ex, node, schema, value):
    return (
        []
        if isinstance(value, bool)
        else [positive(ex, node, {"type": "number", "maximum": value})]
    )


def _no_exclusive_maximum(ex, node, schema, value):
    return (
        []
        if isinstance(value, bool)
        else [positive(ex, node, {"type": "number", "minimum": value})]
    )


def _no_bound(kind: str, opposite: str, step: int):
    """The negation of a length or count: one less (more) at most (least)."""

    def handler(ex, node, schema, value):
        bound = int(value) + step
        return [] if bound < 0 else [positive(ex, node, {"type": kind, opposite: bound})]

    return handler


def _no_multiple(ex, node, schema, value):
    if exact(value) == 1:
        return [positive(ex, node, {"type": "number", "$fraction": True})]
    return [positive(ex, node, {"type": "number", "$notMultiple": value})]


def _no_pattern(ex, node, schema, value):
    parse_regex(value)
    return [positive(ex, node, {"type": "string", "$notPattern": value})]


def _no_format(ex, node, schema, value):
    if value not in FORMATS:
        return []
    ways = [{"$notFormat": value}]
    if value in LONGEST:
        ways.append({"minLength": LONGEST[value] + 1})
    return [positive(ex, node, {"type": "string", **way}) for way in ways]


def _no_arrays(ex, node, schema, value):
    first = next(
        k for k in schema if k in ("prefixItems", "items", "additionalItems", "unevaluatedItems")
    )
    if schema[first] is not value:
        return []
    prefix, rest = array_schemas(ex, node, schema)
    out = []
    for i, sub in enumerate(prefix):
        literals = (TRUE,) * i + (ex.literal(sub, False),)
        if literals[i] != FALSE:
            out.append(
                [
                    Only("array"),
                    lambda f, n=i: f.items(n + 1),
                    lambda f, literals=literals: f.add("arrays", (literals, TRUE)),
                ]
            )
    violated = ex.literal(rest, False)
    if violated != FALSE:
        out.append([Only("array"), lambda f: f.add("contains", (violated, 1, None, len(prefix)))])
    return out


def _no_contains(ex, node, schema, value):
    least, most = int(schema.get("minContains", 1)), schema.get("maxContains")
    literal, out = ex.literal(value), []
    if least == 1:
        out.append(
            [
                Only("array"),
                lambda f: f.add("arrays", ((), (literal[0], not literal[1]))),
            ]
        )
    elif least > 1:
        out.append([Only("array"), lambda f: f.add("contains", (literal, 0, least - 1, 0))])
    if most is not None:
        out.append(
            [
                Only("array"),
                lambda f: f.add("contains", (literal, int(most) + 1, None, 0)),
            ]
        )
    return out


def _no_objects(ex, node, schema, value):
    first = next(
        k
        for k in schema
        if k in ("properties", "patternProperties", "additionalProperties", "unevaluatedProperties")
    )
    if schema[first] is not value:
        return []
    if schema.get("unevaluatedProperties", True) is not True:
        raise GrammarError(
            f"schema {ex.where(node)}: keyword 'unevaluatedProperties' cannot be enforced under "
            "'not'"
        )
    out = []
    for name, sub in schema.get("properties", {}).items():
        literal = ex.literal(sub, False)
        if literal != FALSE:
            out.append([Only("object"), Member(name, literal)])
    patterns = tuple(schema.get("patternProperties", {}))
    for source in patterns:
        literal = ex.literal(schema["patternProperties"][source], False)
        if literal != FALSE:
            out.append(
                [
                    Only("object"),
                    SomeMember((frozenset(), (source,), (), literal, ())),
                ]
            )
    literal = ex.literal(schema.get("additionalProperties", True), False)
    if literal != FALSE:
        declared = frozenset(schema.get("properties", {}))
        out.append(
            [
                Only("object"),
                SomeMember((declared, (), patterns, literal, ())),
            ]
        )
    return out


def _no_names(ex, node, schema, value):
    literal = ex.literal(value)
    if literal == TRUE:
        return []
    if literal == FALSE:
        return [positive(ex, node, {"type": "object", "minProperties": 1})]
    bad = (literal[0], not literal[1])
    return [[Only("object"), SomeMember((frozenset(), (), (), TRUE, (bad,)))]]


def _no_required(ex, node, schema, value):
    return [[Only("object"), Forbid(name)] for name in value or ()]


def _no_reference(ex, node, schema, value):
    target, sign = ex.document.resolve(node, value)
    return [[Demand((target, not sign))]]


def _no_all(ex, node, schema, value):
    return [[Demand(ex.literal(sub, False))] for sub in value]


def _no_any(ex, node, schema, value):
    return [[Demand(ex.literal(sub, False)) for sub in value]]


def _no_one(ex, node, schema, value):
    out = [[Demand(ex.literal(sub, False)) for sub in value]]
    for i in range(len(value)):
        out += [
            [Demand(ex.literal(value[i])), Demand(ex.literal(value[j]))]
            for j in range(i + 1, len(value))
        ]
    return out


def _no_not(ex, node, schema, value):
    return [[Demand(ex.literal(value))]]


def _no_if(ex, node, schema, value):
    then, otherwise = schema.get("then", True), schema.get("else", True)
    return [
        [Demand(ex.literal(value)), Demand(ex.literal(then, False))],
        [Demand(ex.literal(value, False)), Demand(ex.literal(otherwise, False))],
    ]


def _no_dependencies(ex, node, schema, value):
    out = []
    for name, wanted in value.items():
        here = [Only("object"), Require(name)]
        if isinstance(wanted, list):
            out += [[*here, Forbid(n)] for n in wanted]
        else:
            out.append([*here, Demand(ex.literal(wanted, False))])
    return out


def _refuse_unique(ex, node):
    raise GrammarError(
        f"schema {ex.where(node)}: keyword 'uniqueItems' cannot be enforced under 'not'"
    )


NEGATE = {
    "type": _no_type,
    "enum": _no_enum,
    "const": _no_const,
    "minimum": _no_minimum,
    "maximum": _no_maximum,
    "exclusiveMinimum": _no_exclusive_minimum,
    "exclusiveMaximum": _no_exclusive_maximum,
    "multipleOf": _no_multiple,
    "minLength": _no_bound("string", "maxLength", -1),
    "maxLength": _no_bound("string", "minLength", 1),
    "pattern": _no_pattern,
    "format": _no_format,
    "prefixItems": _no_arrays,
    "items": _no_arrays,
    "additionalItems": _no_arrays,
    "minItems": _no_bound("array", "maxItems", -1),
    "maxItems": _no_bound("array", "minItems", 1),
    "contains": _no_contains,
    "uniqueItems": lambda ex, node, schema, value: (
        [] if value is not True else _refuse_unique(ex, node)
    ),
    "properties": _no_objects,
    "patternProperties": _no_objects,
    "additionalProperties": _no_objects,
    "propertyNames": _no_names,
    "required": _no_required,
    "minProperties": _no_bound("object", "maxProperties", -1),
    "maxProperties": _no_bound("object", "minProperties", 1),
    "$ref": _no_reference,
    "allOf": _no_all,
    "anyOf": _no_any,
    "oneOf": _no_one,
    "not": _no_not,
    "if": _no_if,
    "dependencies": _no_dependencies,
    "dependentRequired": _no_dependencies,
    "dependentSchemas": _no_dependencies,
}
