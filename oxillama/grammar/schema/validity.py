"""Whether a concrete value is valid, and what keeps it from being: constants of a schema and the
arguments of calls that no grammar constrained are judged here, everything else by the grammar.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

from oxillama._core.schemas import REFERENCES, canonical, kind_of
from oxillama.errors import GrammarError
from oxillama.grammar.regex import search_automaton
from oxillama.grammar.schema.document import Document
from oxillama.grammar.schema.formats import FORMATS, LONGEST, format_automaton
from oxillama.grammar.schema.values import exact

REFERRING = frozenset(REFERENCES)
OTHERS = REFERRING | {"allOf", "anyOf", "oneOf", "not", "if"}  # ask other schemas of the same value
_LISTING = frozenset({"type", "enum", "const", "title", "description"})
MAX_DEPTH = 200


class Violation(NamedTuple):
    """A keyword that a value does not meet. literal: what a part of it should have met, where the
    keyword asks something of parts (or of the same value); part: that part; step: its name or
    index, or the name of a member that is missing.
    """

    keyword: str
    literal: tuple[int, bool] | None = None
    part: Any = None
    step: str | int | None = None


def holds(document: Document, literal: tuple[int, bool], value) -> bool:
    """Whether a concrete value satisfies a literal."""
    return Judge(document).holds(literal, value)


class Judge:
    """Judges the parts of one value, each once under each schema: branches that ask the same of
    parts deep down would otherwise be followed in all their combinations. formats: whether `format`
    counts (2020-12 validation, section 7: it is a note unless a program says otherwise).
    """

    __slots__ = ("_formats", "_known", "document")

    def __init__(self, document: Document, *, formats: bool = True) -> None:
        self.document, self._formats = document, formats
        self._known: dict[tuple[int, int], bool] = {}  # by node and identity of a list or dict

    def holds(self, literal: tuple[int, bool], value, depth: int = 0) -> bool:
        """Whether a part of the value satisfies a literal."""
        node, sign = literal
        if node == 0:
            return sign
        if not isinstance(value, (list, dict)):
            return (next(self.violations(node, value, depth), None) is None) == sign
        known = self._known.get((node, id(value)))
        if known is None:
            known = next(self.violations(node, value, depth), None) is None
            self._known[node, id(value)] = known
        return known == sign

    def violations(self, node: int, value, depth: int = 0) -> Iterator[Violation]:
        """The keywords of a schema that a value does not meet, what is cheap to say first."""
        document = self.document
        if depth > MAX_DEPTH:
            raise GrammarError(
                f"schema {document.where(node)}: references recur without end on a constant"
            )
        schema, kind = document.keywords(node), kind_of(value)
        if "type" in schema:
            types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            if kind not in types and not (
                "integer" in types and kind == "number" and exact(value).denominator == 1
            ):
                yield Violation("type")
        if "enum" in schema and canonical(value) not in document.members(node, "enum"):
            yield Violation("enum")
        if "const" in schema and canonical(value) != canonical(schema["const"]):
            yield Violation("const")
        if not schema.keys() - _LISTING:
            return
        if "$banned" in schema and canonical(value) in document.members(node, "$banned"):
            yield Violation("$banned")
        if kind == "number":
            yield from map(Violation, _number_violations(schema, exact(value)))
        elif kind == "string":
            yield from map(Violation, _string_violations(schema, value))
            if self._formats and not _of_format(schema.get("format"), value):
                yield Violation("format")
        elif kind == "array":
            yield from self._array_violations(schema, value, depth + 1)
        elif kind == "object":
            yield from self._object_violations(schema, value, depth + 1)
        if not OTHERS.isdisjoint(schema):
            yield from self._logic_violations(node, schema, value, depth + 1)
        keyword = "unevaluatedItems" if kind == "array" else "unevaluatedProperties"
        if kind not in ("array", "object") or schema.get(keyword, True) is True:
            return
        literal = document.literal(schema[keyword])
        seen = self._evaluated(node, value, depth, keyword)
        for step in range(len(value)) if kind == "array" else value:
            if step not in seen and not self.holds(literal, value[step], depth + 1):
                yield Violation(keyword, literal, value[step], step)

    def _logic_violations(self, node: int, schema: dict, value, depth: int) -> Iterator[Violation]:
        """Violations of what other schemas say of the same value."""
        document, holds = self.document, self.holds
        if not REFERRING.isdisjoint(schema):
            for literal in document.referred(node, schema):
                if not holds(literal, value, depth):
                    yield Violation("$ref", literal, value)
        for sub in schema.get("allOf", ()):
            if not holds(literal := document.literal(sub), value, depth):
                yield Violation("allOf", literal, value)
        if "anyOf" in schema and not any(
            holds(literal, value, depth) for literal in document.candidates(node, "anyOf", value)
        ):
            yield Violation("anyOf")
        if (
            "oneOf" in schema
            and sum(
                holds(literal, value, depth)
                for literal in document.candidates(node, "oneOf", value)
            )
            != 1
        ):
            yield Violation("oneOf")
        if "not" in schema and holds(document.literal(schema["not"]), value, depth):
            yield Violation("not")
        if "if" in schema:
            literal = self._branch(schema, value, depth)
            if not holds(literal, value, depth):
                yield Violation("if", literal, value)

    def _branch(self, schema: dict, value, depth: int) -> tuple[int, bool]:
        """The literal of `then` or of `else`, as `if` says."""
        condition = self.document.literal(schema["if"])
        name = "then" if self.holds(condition, value, depth) else "else"
        return self.document.literal(schema.get(name, True))

    def _array_violations(self, schema: dict, value: list, depth: int) -> Iterator[Violation]:
        document = self.document
        if not schema.get("minItems", 0) <= len(value):
            yield Violation("minItems")
        if not len(value) <= schema.get("maxItems", len(value)):
            yield Violation("maxItems")
        if schema.get("uniqueItems") is True and len({canonical(v) for v in value}) < len(value):
            yield Violation("uniqueItems")
        items = schema.get("items", True)
        prefix = schema.get("prefixItems", items if isinstance(items, list) else [])
        rest = schema.get("additionalItems", True) if isinstance(items, list) else items
        literals = [document.literal(sub) for sub in prefix[: len(value)]]
        literals += [document.literal(rest)] * (len(value) - len(literals))
        for step, (literal, item) in enumerate(zip(literals, value, strict=True)):
            if not self.holds(literal, item, depth):
                yield Violation("items", literal, item, step)
        if "contains" in schema:
            literal = document.literal(schema["contains"])
            count = sum(self.holds(literal, item, depth) for item in value)
            if count < schema.get("minContains", 1):
                yield Violation("minContains" if "minContains" in schema else "contains")
            if count > schema.get("maxContains", count):
                yield Violation("maxContains")

    def _object_violations(self, schema: dict, value: dict, depth: int) -> Iterator[Violation]:
        document = self.document
        for name in schema.get("required") or ():
            if name not in value:
                yield Violation("required", step=name)
        if not schema.get("minProperties", 0) <= len(value):
            yield Violation("minProperties")
        if not len(value) <= schema.get("maxProperties", len(value)):
            yield Violation("maxProperties")
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, item in value.items():
            matched = [("properties", properties[name])] if name in properties else []
            matched += [
                ("patternProperties", sub)
                for source, sub in patterns.items()
                if search_automaton(source).accepts_text(name)
            ]
            if not matched and "additionalProperties" in schema:
                matched = [("additionalProperties", schema["additionalProperties"])]
            if "propertyNames" in schema:
                literal = document.literal(schema["propertyNames"])
                if not self.holds(literal, name, depth):
                    yield Violation("propertyNames", literal, name, name)
            for keyword, sub in matched:
                if not self.holds(literal := document.literal(sub), item, depth):
                    yield Violation(keyword, literal, item, name)
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, demand in schema.get(keyword, {}).items():
                if name not in value:
                    continue
                if isinstance(demand, list):
                    for other in demand:
                        if other not in value:
                            yield Violation("required", step=other)
                elif not self.holds(literal := document.literal(demand), value, depth):
                    yield Violation(keyword, literal, value)

    def _evaluated(self, node: int, value, depth: int, skip: str = "") -> set:
        """The property names or item indices that a schema which holds evaluates (2020-12 core,
        section 11); `skip` is left out.
        """
        document = self.document
        if node == 0 or depth > MAX_DEPTH:
            return set()
        schema = document.keywords(node)
        subs = [schema["if"]] if "if" in schema else []
        subs += [*schema.get("allOf", []), *schema.get("anyOf", []), *schema.get("oneOf", [])]
        subs += [
            sub
            for name, sub in schema.get("dependentSchemas", {}).items()
            if isinstance(value, dict) and name in value
        ]
        literals = [document.literal(sub) for sub in subs] + document.referred(node, schema)
        if "if" in schema:
            literals.append(self._branch(schema, value, depth + 1))
        out: set = set()
        for literal in literals:
            if literal[1] and self.holds(literal, value, depth + 1):
                out |= self._evaluated(literal[0], value, depth + 1)
        if isinstance(value, list):
            items = schema.get("items")
            prefix = schema.get("prefixItems", items if isinstance(items, list) else [])
            whole = (
                "items" in schema and ("additionalItems" in schema or not isinstance(items, list))
            ) or ("unevaluatedItems" in schema and skip != "unevaluatedItems")
            out |= set(range(len(value) if whole else min(len(prefix), len(value))))
            if "contains" in schema and document.draft_of(node) >= 2020:
                literal = document.literal(schema["contains"])
                out |= {i for i, item in enumerate(value) if self.holds(literal, item, depth + 1)}
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


def _number_violations(schema: dict, value: Fraction) -> Iterator[str]:
    low, high = schema.get("minimum"), schema.get("maximum")
    below, above = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if low is not None and not (value > exact(low) or (value == exact(low) and below is not True)):
        yield "minimum"
    if high is not None and not (
        value < exact(high) or (value == exact(high) and above is not True)
    ):
        yield "maximum"
    if below is not None and not isinstance(below, bool) and value <= exact(below):
        yield "exclusiveMinimum"
    if above is not None and not isinstance(above, bool) and value >= exact(above):
        yield "exclusiveMaximum"
    if schema.get("$fraction") and value.denominator == 1:
        yield "$fraction"
    if "multipleOf" in schema and (value / exact(schema["multipleOf"])).denominator != 1:
        yield "multipleOf"


def _string_violations(schema: dict, value: str) -> Iterator[str]:
    if not schema.get("minLength", 0) <= len(value):
        yield "minLength"
    if not len(value) <= schema.get("maxLength", len(value)):
        yield "maxLength"
    if "pattern" in schema and not search_automaton(schema["pattern"]).accepts_text(value):
        yield "pattern"


def _of_format(name: str | None, value: str) -> bool:
    """Whether a text is of a format; any is where the format is not known."""
    return name not in FORMATS or (
        len(value) <= LONGEST.get(name, len(value)) and format_automaton(name).accepts_text(value)
    )
