"""Whether a concrete value is valid: constants of a schema are judged here, everything else by the
grammar.
"""

from fractions import Fraction

from oxillama._core.schemas import REFERENCES, canonical, kind_of
from oxillama.errors import GrammarError
from oxillama.grammar.regex import search_automaton
from oxillama.grammar.schema.document import Document
from oxillama.grammar.schema.formats import FORMATS, LONGEST, format_automaton
from oxillama.grammar.schema.values import exact

REFERRING = frozenset(REFERENCES)


def holds(document: Document, literal: tuple[int, bool], value, depth: int = 0) -> bool:
    """Whether a concrete value satisfies a literal."""
    node, sign = literal
    return (node == 0 or _valid(document, node, value, depth)) == sign


def _valid(document: Document, node: int, value, depth: int) -> bool:
    if depth > 200:
        raise GrammarError(
            f"schema {document.where(node)}: references recur without end on a constant"
        )
    schema, kind = document.keywords(node), kind_of(value)

    def fits(sub, item=value):
        return holds(document, document.literal(sub), item, depth + 1)

    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if kind not in types and not (
            "integer" in types and kind == "number" and exact(value).denominator == 1
        ):
            return False
    if "enum" in schema and canonical(value) not in document.members(node, "enum"):
        return False
    if "const" in schema and canonical(value) != canonical(schema["const"]):
        return False
    if "$banned" in schema and canonical(value) in document.members(node, "$banned"):
        return False
    if not REFERRING.isdisjoint(schema) and any(
        not holds(document, literal, value, depth + 1)
        for literal in document.referred(node, schema)
    ):
        return False
    if "allOf" in schema and not all(fits(sub) for sub in schema["allOf"]):
        return False
    if "anyOf" in schema and not any(
        holds(document, literal, value, depth + 1)
        for literal in document.candidates(node, "anyOf", value)
    ):
        return False
    if (
        "oneOf" in schema
        and sum(
            holds(document, literal, value, depth + 1)
            for literal in document.candidates(node, "oneOf", value)
        )
        != 1
    ):
        return False
    if "not" in schema and fits(schema["not"]):
        return False
    if "if" in schema:
        branch = schema.get("then" if fits(schema["if"]) else "else", True)
        if not fits(branch):
            return False
    if kind == "number":
        return _valid_number(schema, exact(value))
    if kind == "string":
        return _valid_string(schema, value)
    if kind not in ("array", "object"):
        return True
    if not (_valid_array if kind == "array" else _valid_object)(schema, value, fits):
        return False
    keyword = "unevaluatedItems" if kind == "array" else "unevaluatedProperties"
    if schema.get(keyword, True) is True:
        return True
    seen = _evaluated(document, node, value, depth, keyword)
    return all(
        fits(schema[keyword], value[key])
        for key in (range(len(value)) if kind == "array" else value)
        if key not in seen
    )


def _evaluated(document: Document, node: int, value, depth: int, skip: str = "") -> set:
    """The property names or item indices that a schema which holds evaluates (2020-12 core, section
    11); `skip` is left out.
    """
    if node == 0 or depth > 200:
        return set()
    schema = document.keywords(node)
    subs = [schema["if"]] if "if" in schema else []
    subs += [*schema.get("allOf", []), *schema.get("anyOf", []), *schema.get("oneOf", [])]
    if "if" in schema:
        subs.append(
            schema.get(
                "then"
                if holds(document, document.literal(schema["if"]), value, depth + 1)
                else "else",
                True,
            )
        )
    subs += [
        sub
        for name, sub in schema.get("dependentSchemas", {}).items()
        if isinstance(value, dict) and name in value
    ]
    literals = [document.literal(sub) for sub in subs] + document.referred(node, schema)
    out: set = set()
    for literal in literals:
        if literal[1] and holds(document, literal, value, depth + 1):
            out |= _evaluated(document, literal[0], value, depth + 1)
    if isinstance(value, list):
        items = schema.get("items")
        prefix = schema.get("prefixItems", items if isinstance(items, list) else [])
        whole = (
            "items" in schema and ("additionalItems" in schema or not isinstance(items, list))
        ) or ("unevaluatedItems" in schema and skip != "unevaluatedItems")
        out |= set(range(len(value) if whole else min(len(prefix), len(value))))
        if "contains" in schema and document.draft_of(node) >= 2020:
            out |= {
                i
                for i, item in enumerate(value)
                if holds(document, document.literal(schema["contains"]), item, depth + 1)
            }
    elif isinstance(value, dict):
        if "additionalProperties" in schema or (
            "unevaluatedProperties" in schema and skip != "unevaluatedProperties"
        ):
            return set(value)
        out |= {
            name
            for name in value
            if name in schema.get("properties", {})
            or any(
                search_automaton(source).accepts_text(name)
                for source in schema.get("patternProperties", {})
            )
        }
    return out


def _valid_array(schema, value, fits) -> bool:
    prefix = schema.get(
        "prefixItems", schema["items"] if isinstance(schema.get("items"), list) else []
    )
    rest = (
        schema.get("additionalItems", True)
        if isinstance(schema.get("items"), list)
        else schema.get("items", True)
    )
    if any(not fits(sub, item) for sub, item in zip(prefix, value, strict=False)):
        return False
    if any(not fits(rest, item) for item in value[len(prefix) :]):
        return False
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        return False
    if schema.get("uniqueItems") is True and len({canonical(v) for v in value}) < len(value):
        return False
    if "contains" in schema:
        count = sum(fits(schema["contains"], item) for item in value)
        if not schema.get("minContains", 1) <= count <= schema.get("maxContains", count):
            return False
    return True


def _valid_object(schema, value, fits) -> bool:
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, item in value.items():
        matched = [properties[name]] if name in properties else []
        matched += [
            sub for source, sub in patterns.items() if search_automaton(source).accepts_text(name)
        ]
        if any(
            not fits(sub, item) for sub in matched or [schema.get("additionalProperties", True)]
        ):
            return False
        if "propertyNames" in schema and not fits(schema["propertyNames"], name):
            return False
    if any(name not in value for name in schema.get("required") or ()):
        return False
    if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value)):
        return False
    wanted = [
        pair
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas")
        for pair in schema.get(keyword, {}).items()
    ]
    return all(
        all(n in value for n in demand) if isinstance(demand, list) else fits(demand)
        for name, demand in wanted
        if name in value
    )


def _valid_number(schema, value: Fraction) -> bool:
    low, high = schema.get("minimum"), schema.get("maximum")
    below, above = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if low is not None and not (value > exact(low) or (value == exact(low) and below is not True)):
        return False
    if high is not None and not (
        value < exact(high) or (value == exact(high) and above is not True)
    ):
        return False
    if below is not None and not isinstance(below, bool) and value <= exact(below):
        return False
    if above is not None and not isinstance(above, bool) and value >= exact(above):
        return False
    if schema.get("$fraction") and value.denominator == 1:
        return False
    return "multipleOf" not in schema or (value / exact(schema["multipleOf"])).denominator == 1


def _valid_string(schema, value: str) -> bool:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        return False
    if "pattern" in schema and not search_automaton(schema["pattern"]).accepts_text(value):
        return False
    format_ = schema.get("format")
    return format_ not in FORMATS or (
        len(value) <= LONGEST.get(format_, len(value))
        and format_automaton(format_).accepts_text(value)
    )
