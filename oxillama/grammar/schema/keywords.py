"""What each keyword adds to a case where it must hold. `ex` is the `Expander` at work; `APPLY` is
the table of what is enforced.
"""

from collections import Counter

from oxillama._core.cases import INFINITE, Demand, Forbid, Only, Require
from oxillama._core.expansion import apply_objects, apply_required, apply_type
from oxillama._core.schemas import FALSE, IN_PLACE, REFERENCES, TRUE, canonical, escape, kind_of
from oxillama.errors import GrammarError
from oxillama.grammar.regex import parse_regex
from oxillama.grammar.schema.formats import FORMATS, LONGEST
from oxillama.grammar.schema.values import exact

# an `anyOf` of up to this many branches is split into all its subsets where `unevaluated*` looks at
# it
MAX_SUBSETS = 5
# keywords of a schema that lists values
_LISTING = frozenset(("const", "enum", "type"))
_ELSEWHERE = IN_PLACE.union(REFERENCES)
# characters, items or members: more than any text of a model has, and as far as automata count
UNCOUNTED = 1 << 30


def _least(value):
    """The count that a keyword wants at least."""
    count = int(value)
    if count >= UNCOUNTED:
        raise GrammarError(f"found at least {count}, wanted less than {UNCOUNTED}")
    return count


def _most(value):
    """The count that a keyword allows at most, None where no text reaches it."""
    count = int(value)
    return count if count < UNCOUNTED else None


def _fraction(ex, case, node, schema, value):
    case.fraction = True
    if case.integer:
        case.drop("number")


def _enum(ex, case, node, schema, value):
    if not isinstance(value, list):
        raise TypeError
    case.allow(value)


def _banned(ex, case, node, schema, value):
    for item in value:
        kind = kind_of(item)
        if kind == "null":
            case.drop("null")
        elif kind == "array":
            Demand(
                (
                    ex.document.synthetic(
                        {
                            "type": "array",
                            "prefixItems": [{"const": v} for v in item],
                            "minItems": len(item),
                            "maxItems": len(item),
                        },
                        ex.where(node),
                    ),
                    False,
                )
            )(case)
        elif kind == "object":
            Demand(
                (
                    ex.document.synthetic(
                        {
                            "type": "object",
                            "properties": {k: {"const": v} for k, v in item.items()},
                            "required": list(item),
                            "additionalProperties": False,
                        },
                        ex.where(node),
                    ),
                    False,
                )
            )(case)
        else:
            case.add("banned", item)
    if True in [b for b in case.banned if b is True] and False in [
        b for b in case.banned if b is False
    ]:
        case.drop("boolean")


def _minimum(ex, case, node, schema, value):
    case.at_least(exact(value), schema.get("exclusiveMinimum") is True)


def _maximum(ex, case, node, schema, value):
    case.at_most(exact(value), schema.get("exclusiveMaximum") is True)


def _exclusive_minimum(ex, case, node, schema, value):
    if not isinstance(value, bool):
        case.at_least(exact(value), True)


def _exclusive_maximum(ex, case, node, schema, value):
    if not isinstance(value, bool):
        case.at_most(exact(value), True)


def _multiple(ex, case, node, schema, value):
    case.add("multiples", exact(value))


def _pattern(ex, case, node, schema, value):
    parse_regex(value)
    case.add("patterns", (value, True))


def _not_pattern(ex, case, node, schema, value):
    case.add("patterns", (value, False))


def _format(ex, case, node, schema, value):
    if value in FORMATS and (value, True) not in case.formats:
        case.add("formats", (value, True))
        if value in LONGEST:
            case.length(0, LONGEST[value])


def _not_format(ex, case, node, schema, value):
    case.add("formats", (value, False))


def _arrays(ex, case, node, schema, value):
    """`items`, `prefixItems` and `additionalItems` together, when the first of them is met."""
    first = next(
        k for k in schema if k in ("prefixItems", "items", "additionalItems", "unevaluatedItems")
    )
    if schema[first] is not value:
        return
    prefix, rest = array_schemas(ex, node, schema)
    case.add("arrays", (tuple(ex.literal(s) for s in prefix), ex.literal(rest)))
    if not case.scope:
        return
    whole = "items" in schema and (
        "additionalItems" in schema or not isinstance(schema["items"], list)
    )
    whole = whole or (
        "unevaluatedItems" in schema
        and (schema["unevaluatedItems"] is True or not in_place(schema))
    )
    case.add("evaluated_items", (case.scope, INFINITE if whole else len(prefix)))


def array_schemas(ex, node, schema) -> tuple[list, object]:
    """Prefix schemas and the schema of the rest."""
    items = schema.get("items", True)
    if "prefixItems" in schema:
        rest = items if not isinstance(items, list) else schema.get("additionalItems", True)
        prefix = schema["prefixItems"]
    elif isinstance(items, list):
        prefix, rest = items, schema.get("additionalItems", True)
    else:
        prefix, rest = [], items
    if "unevaluatedItems" in schema and schema["unevaluatedItems"] is not True:
        if in_place(schema):
            pass  # judged when the case is settled
        elif "contains" in schema:
            ex.refuse(ex.where(node), "unevaluatedItems", "together with 'contains'")
        elif "items" not in schema or isinstance(items, list) and "additionalItems" not in schema:
            rest = schema["unevaluatedItems"]
    return prefix, rest


def in_place(schema: dict) -> bool:
    """Whether further schemas apply to the same value: what they evaluate is known only once a case
    is settled.
    """
    return not _ELSEWHERE.isdisjoint(schema)


def _contains(ex, case, node, schema, value):
    least, most = schema.get("minContains", 1), schema.get("maxContains")
    if case.scope:
        case.add("evaluated_items", (case.scope, -1 if ex.document.draft_of(node) >= 2020 else 0))
    if least == 0 and most is None:
        return
    most = None if most is None else _most(most)
    case.add("contains", (ex.literal(value), _least(least), most, 0))


def note_evaluated(case, schema, entry):
    """Notes the members that a schema evaluates, where a scope is open."""
    properties, patterns, _ = entry
    whole = "additionalProperties" in schema or (
        "unevaluatedProperties" in schema and not in_place(schema)
    )
    case.add(
        "evaluated_members",
        (case.scope, frozenset(properties), tuple(s for s, _ in patterns), whole),
    )


def declared(ex, node, schema) -> tuple[dict, tuple, tuple[int, bool]]:
    """What a schema says of members: by name, by patterns of names, and of all others."""
    rest = schema.get("additionalProperties", True)
    if "additionalProperties" not in schema and not in_place(schema):
        rest = schema.get("unevaluatedProperties", True)
    properties = {name: ex.literal(sub) for name, sub in schema.get("properties", {}).items()}
    patterns = []
    for source, sub in schema.get("patternProperties", {}).items():
        try:
            parse_regex(source)
        except GrammarError as error:
            ex.refuse(
                f"{ex.where(node)}/patternProperties/{escape(source)}",
                "patternProperties",
                str(error),
            )
            continue
        patterns.append((source, ex.literal(sub)))
    return properties, tuple(patterns), ex.literal(rest)


def _names(ex, case, node, schema, value):
    literal = ex.literal(value)
    if literal == FALSE:
        case.properties(0, 0)
    elif literal != TRUE:
        case.add("names", literal)


def _reference(ex, case, node, schema, value):
    Demand(ex.document.resolve(node, value))(case)


def _by_place(keyword: str):
    """A reference whose meaning may depend on where one comes from."""

    def handler(ex, case, node, schema, value):
        why = ex.document.ambiguity(keyword, value)
        if why:
            ex.refuse(ex.where(node), keyword, why)
        else:
            _reference(ex, case, node, schema, value)

    return handler


def _all_of(ex, case, node, schema, value):
    for sub in value:
        Demand(ex.literal(sub))(case)


def _constants(ex, branches):
    """The scalars that meet each of the branches, where all do nothing but list some; None else."""
    found = []
    for branch in branches:
        literal = number, sign = ex.literal(branch)
        said = ex.document.keywords(number) if number and sign else {}
        values = [said["const"]] if "const" in said else said.get("enum")
        if not isinstance(values, list) or not _LISTING.issuperset(APPLY.keys() & said.keys()):
            return None
        # no 1.0: how it is written depends on the `type` beside it
        if not all(item is None or isinstance(item, (str, int)) for item in values):
            return None
        found.append([item for item in values if ex.accepts(literal, item)])
    return found


def _any_of(ex, case, node, schema, value):
    listed = None if case.scope else _constants(ex, value)
    if listed is not None:  # one case, not one of each
        case.allow([item for items in listed for item in items])
        return
    acts = [Demand(ex.literal(sub)) for sub in value]
    if case.scope and 1 < len(value) <= MAX_SUBSETS:
        case.split(
            [
                [act for i, act in enumerate(acts) if chosen >> i & 1]
                for chosen in range(1, 1 << len(acts))
            ]
        )
    else:
        case.split([[act] for act in acts])


def _one_of(ex, case, node, schema, value):
    literals = tuple([ex.literal(sub) for sub in value])
    if len(literals) == 1:
        Demand(literals[0])(case)
        return
    listed = None if case.scope else _constants(ex, value)
    if listed is not None:
        times = Counter(key for items in listed for key in {canonical(item) for item in items})
        case.allow([item for items in listed for item in items if times[canonical(item)] == 1])
        return
    case.split(lambda context: ex.one_branches(context, literals))


def _not(ex, case, node, schema, value):
    Demand(ex.literal(value, False))(case)


def _if(ex, case, node, schema, value):
    then, otherwise = schema.get("then", True), schema.get("else", True)
    if then is True and otherwise is True and not case.scope:
        return
    case.split(
        [
            [Demand(ex.literal(value)), Demand(ex.literal(then))],
            [Demand(ex.literal(value, False)), Demand(ex.literal(otherwise))],
        ]
    )


def _dependencies(ex, case, node, schema, value):
    for name, wanted in value.items():

        def split(context, name=name, wanted=wanted):
            consequence = (
                [Require(n) for n in wanted]
                if isinstance(wanted, list)
                else [Demand(ex.literal(wanted))]
            )
            present = [Require(name), *consequence]
            if "object" not in context.types or name in context.forbidden:
                return [[]]
            if name in context.required and context.types == {"object"}:
                return [consequence]
            if (ex.loose or context.declares(name)) and all(
                isinstance(act, Require) and act.name in context.required for act in consequence
            ):
                return [[]]
            return [[Forbid(name)], [Only("object"), *present]]

        case.split(split)


def _unique(ex, case, node, schema, value):
    case.unique = case.unique or value is True


APPLY = {
    "type": apply_type,
    "enum": _enum,
    "const": lambda ex, f, n, s, v: f.allow([v]),
    "$banned": _banned,
    "$fraction": _fraction,
    "minimum": _minimum,
    "maximum": _maximum,
    "exclusiveMinimum": _exclusive_minimum,
    "exclusiveMaximum": _exclusive_maximum,
    "multipleOf": _multiple,
    "$notMultiple": lambda ex, f, n, s, v: f.add("not_multiples", exact(v)),
    "minLength": lambda ex, f, n, s, v: f.length(_least(v)),
    "maxLength": lambda ex, f, n, s, v: f.length(0, _most(v)),
    "pattern": _pattern,
    "$notPattern": _not_pattern,
    "format": _format,
    "$notFormat": _not_format,
    "prefixItems": _arrays,
    "items": _arrays,
    "additionalItems": _arrays,
    "unevaluatedItems": _arrays,
    "minItems": lambda ex, f, n, s, v: f.items(_least(v)),
    "maxItems": lambda ex, f, n, s, v: f.items(0, _most(v)),
    "contains": _contains,
    "uniqueItems": _unique,
    "properties": apply_objects,
    "patternProperties": apply_objects,
    "additionalProperties": apply_objects,
    "unevaluatedProperties": apply_objects,
    "required": apply_required,
    "propertyNames": _names,
    "minProperties": lambda ex, f, n, s, v: f.properties(_least(v)),
    "maxProperties": lambda ex, f, n, s, v: f.properties(0, _most(v)),
    "$ref": _reference,
    "$dynamicRef": _by_place("$dynamicRef"),
    "$recursiveRef": _by_place("$recursiveRef"),
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "dependencies": _dependencies,
    "dependentRequired": _dependencies,
    "dependentSchemas": _dependencies,
}
