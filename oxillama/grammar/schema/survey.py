"""Decides which rules of a schema can be written later: those that certainly raise nothing.

A deferred rule costs a look at its schema instead of its text and its network; the machine asks for
it when it first calls it. All others are written at once, so that a keyword that cannot be enforced
raises when the schema is compiled. Rules that can never finish a match are known before the machine
runs (`endless`), so that no text leads into one. `em` is the `Emitter`. A rule's *needs* are
alternatives: lists of rules that must all finish.
"""

import math
from collections.abc import Callable, Sequence

from oxillama._core.cases import Case
from oxillama._core.finishing import capacity, finishes, whole
from oxillama._core.schemas import FALSE, TRUE, TYPES
from oxillama.grammar.nodes import (
    CHECK,
    CHOICE,
    NETWORK,
    NEVER,
    REGISTER,
    REPEAT,
    SEQUENCE,
    TAKE,
    choice,
    repeat,
    seq,
)
from oxillama.grammar.schema.arrays import item_at
from oxillama.grammar.schema.document import contradicts
from oxillama.grammar.schema.formats import FORMATS, LONGEST
from oxillama.grammar.schema.keywords import APPLY, UNCOUNTED

# By type, the keywords that a look at the schema is enough for.
GLANCED = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "format"},
    "number": {"minimum", "maximum"},
    "integer": {"minimum", "maximum"},
    "boolean": set(),
    "null": set(),
}
SCALARS = ("string", "number", "integer", "boolean", "null")
ALL = list(TYPES)
# declared properties or prefix items: more are written at once, under the limits of their networks
MANY = 2000
# listed values of one schema: more are written at once, so that no mask waits for them
LISTED = 100
# branches of an `anyOf` or `oneOf`, with those inside them, that are looked at one by one, and how
# deep such stand in each other
BRANCHES, NESTED = 100, 8

Needs = Sequence[Sequence[int]]
FREE: Needs = ((),)  # needs nothing: one object for the many rules of scalars


def survey(em, key: frozenset) -> Needs | None:
    """The needs of a rule that can be put off, or None; what it refers to gets its numbers."""
    needs = glance(em, key)
    if needs is not None:
        return needs
    out: list[Sequence[int]] = []
    for case in em.expander.cases(key):
        found = foresee(em, case)
        if found is None:
            return None
        out += found
    return out or None


def glance(em, key: frozenset, depth: int = 0) -> Needs | None:
    """The needs of a plain schema (a type with what is in `GLANCED`, listed strings, a choice of
    plain schemas, possibly behind references), without expanding it.
    """
    if not key:
        em.number(key)
        return FREE
    if len(key) != 1:
        return None
    ((node, sign),) = key
    node, sign = em.document.plain(node, sign)
    if not (node and sign):
        return None
    schema = em.document.keywords(node)
    applied = [k for k in schema if k in APPLY]
    if len(applied) == 1 and schema.get("type") in SCALARS:
        return FREE
    if len(applied) == 1 and applied[0] in ("anyOf", "oneOf"):
        return glance_choice(em, schema[applied[0]], applied[0] == "oneOf", depth)
    types = types_of(schema)
    if types is None:
        return None
    applied = [k for k in applied if k != "type"]
    if "enum" in schema:
        listed = schema["enum"]
        good = 0 < len(listed) <= LISTED and "string" in types
        good = good and all(isinstance(v, str) for v in listed)
        return FREE if good and len(applied) == 1 and all(map(_writable, listed)) else None
    glanced = (
        GLANCED[types[0]] if len(types) == 1 else set().union(*(GLANCED[kind] for kind in types))
    )
    if not glanced.issuperset(applied):
        return None
    out: list[Sequence[int]] = []
    for kind in types:
        needs: Needs | None = FREE
        if kind == "object":
            needs = glance_object(em, schema)
        elif kind == "array":
            needs = glance_array(em, schema)
        elif applied and not glance_scalar(kind, schema):
            return None
        if needs is None:
            return None
        out += needs
    return out


def types_of(schema: dict) -> list[str] | None:
    """The types of a schema, all of them if it names none; None if one is not a type."""
    kinds = schema.get("type", ALL)
    if isinstance(kinds, str):
        return [kinds] if kinds in GLANCED else None
    kinds = kinds if isinstance(kinds, list) else [kinds]
    good = kinds and all(isinstance(kind, str) and kind in GLANCED for kind in kinds)
    return kinds if good else None


def glance_choice(em, branches, apart: bool, depth: int) -> Needs | None:
    """The needs of plain branches; where they must be apart, each has types of its own."""
    if not isinstance(branches, list) or len(branches) > BRANCHES or depth == NESTED:
        return None
    out: list[Sequence[int]] = []
    seen: set[str] = set()
    for branch in branches:
        if not isinstance(branch, dict):
            return None
        literal = em.document.literal(branch)
        if apart:
            node, sign = em.document.plain(*literal)
            types = types_of(em.document.keywords(node)) if node and sign else None
            own = {"number" if kind == "integer" else kind for kind in types or ()}
            if not own or not own.isdisjoint(seen):
                return None
            seen |= own
        needs = glance(em, frozenset((literal,)), depth + 1)
        if needs is None:
            return None
        out += needs
        if len(out) > BRANCHES:
            return None
    return out or None


def glance_scalar(kind: str, schema: dict) -> bool:
    """Whether the bounds of a string or number are plain and leave values between them."""
    if kind == "string":
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        if schema.get("format") in FORMATS:
            return not low and high is None and schema["format"] not in LONGEST
        if type(low) is int and low >= UNCOUNTED:
            return False  # refused
    elif kind in ("number", "integer"):
        low, high = schema.get("minimum"), schema.get("maximum")
        if isinstance(schema.get("exclusiveMinimum"), bool) or isinstance(
            schema.get("exclusiveMaximum"), bool
        ):
            return False
    else:
        return True
    if not all(bound is None or type(bound) is int for bound in (low, high)):
        return False
    return low is None or high is None or high - low > 2


def glance_array(em, schema: dict) -> Needs | None:
    items, least, most = (
        schema.get("items", True),
        schema.get("minItems", 0),
        schema.get("maxItems"),
    )
    if not isinstance(items, (dict, bool)) or not (type(least) is int and type(most or 0) is int):
        return None
    if least >= UNCOUNTED:
        return None  # refused
    literal = em.document.literal(items)
    if literal == FALSE or most == 0 or (most is not None and least > most):
        return FREE if least == 0 else None
    child = em.number(frozenset([literal] if literal != TRUE else ()))
    return [[child] if least else []]


def glance_object(em, schema: dict) -> Needs | None:
    properties, required, rest = (
        schema.get("properties", {}),
        schema.get("required", []),
        schema.get("additionalProperties", True),
    )
    if not (
        isinstance(properties, dict)
        and isinstance(required, list)
        and isinstance(rest, (dict, bool))
    ):
        return None
    if len(properties) + len(required) > MANY:
        return None
    children = {}
    for name, sub in properties.items():
        if not isinstance(sub, dict) and sub is not True:
            return None
        children[name] = em.number(
            frozenset((em.document.literal(sub),) if sub is not True else ())
        )
    other = None
    if rest is not False:
        other = em.number(frozenset((em.document.literal(rest),) if rest is not True else ()))
    must = []
    for name in required:
        if not isinstance(name, str):
            return None
        child = children.get(name, other)
        if child is None:
            return None
        must.append(child)
    return [must or ()]


def foresee(em, case: Case) -> Needs | None:
    """The needs of one case; None where it has to be written to be sure."""
    if case.values is not None:
        return FREE if 0 < len(case.values) <= LISTED and all(map(_writable, case.values)) else None
    out: list[Sequence[int]] = []
    types = case.types
    for kind in TYPES if len(types) > 1 else types:
        if kind in types:
            found = FORESEEN[kind](em, case)
            if found is None:
                return None
            out += found
    return out


def _writable(value) -> bool:
    """Whether a constant has a spelling: lone surrogates have none."""
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)
    if isinstance(value, dict):
        return all(_writable(k) and _writable(v) for k, v in value.items())
    return all(_writable(v) for v in value) if isinstance(value, list) else True


def _object(em, case: Case) -> Needs | None:
    required = case.required
    if (
        case.names
        or case.member_demands
        or any(must or must_not or names for _, must, must_not, _, names in case.undeclared)
        or case.max_properties is not None
        or case.min_properties > len(required)
    ):
        return None
    declared: dict[str, object] = {}
    rest = set()
    for properties, patterns, others in case.objects:
        if patterns:
            return None
        declared.update(properties)
        rest.add(others)
    declared.update(dict.fromkeys(required))
    if len(declared) > MANY or not ("".join(declared).isascii() or all(map(_writable, declared))):
        return None
    must: list[int] = []
    number = em.number
    for name, literals in zip(declared, em.expander.properties(case, declared)):
        if literals is not None:
            child = number(literals)
            if name in required:
                must.append(child)
        elif name in required:
            return []
    if not contradicts(rest):
        em.number(frozenset(rest - {TRUE}))
    for *_, values, _ in case.undeclared:
        if contradicts(values | rest):
            return []
        must.append(em.number((values | rest) - {TRUE}))
    return [must or ()]


def _array(em, case: Case) -> Needs | None:
    head = max((len(prefix) for prefix, _ in case.arrays), default=0)
    if (
        case.contains
        or (case.unique and (case.max_items is None or case.max_items > 1))
        or head > MANY
    ):
        return None
    must: list[int] = []
    most = case.max_items
    for i in range(head + 1 if most is None else min(head + 1, most)):
        item = item_at(case, i)
        if item is None:
            return [] if case.min_items > i else [must]
        child = em.number(item)
        if case.min_items > i:
            must.append(child)
    return [must]


def _string(em, case: Case) -> Needs | None:
    if case.patterns or case.text_choices or case.banned_texts():
        return None
    plain = not case.formats or (
        len(case.formats) == 1
        and case.formats[0][1]
        and not case.min_length
        and case.max_length is None
    )
    return FREE if plain else None


def _number(em, case: Case) -> Needs | None:
    if (
        case.multiples
        or case.not_multiples
        or case.fraction
        or any(not isinstance(v, (str, bool)) for v in case.banned)
    ):
        return None
    return FREE if case.low is None or case.high is None or case.high - case.low > 2 else None


def _boolean(em, case: Case) -> Needs | None:
    return None if any(isinstance(v, bool) for v in case.banned) else FREE


FORESEEN: dict[str, Callable] = {
    "object": _object,
    "array": _array,
    "string": _string,
    "number": _number,
    "boolean": _boolean,
    "null": lambda em, case: FREE,
}


def endless(rules: list, needs: list[Needs | None]) -> list[int]:
    """The rules that cannot finish a match: by their needs where they were put off, by their nodes
    where they were written.
    """
    done = bytearray(len(rules))
    # children have higher numbers than the rule that first names them
    pending: Sequence[int] = range(len(rules) - 1, -1, -1)
    while pending:
        left = []
        for i in pending:
            alternatives = needs[i]
            if (
                finishes(rules[i], done)
                if alternatives is None
                else any(all(done[r] for r in must) for must in alternatives)
            ):
                done[i] = 1
            else:
                left.append(i)
        if len(left) == len(pending):
            break
        pending = left
    return list(pending)


def living(node: tuple, done: bytearray) -> tuple:
    """A node without what its registers cannot take; itself where they can take all."""
    return node if whole(node, done) else _living(node, done)


def _living(node: tuple, done: bytearray) -> tuple:
    kind = node[0]
    if kind == REGISTER:
        return _bounded(node, capacity(node, done)) if finishes(node, done) else NEVER
    if kind == REPEAT:
        inner = _living(node[1], done)
        most = None if node[3] < 0 else node[3]
        return node if inner is node[1] else repeat(inner, node[2], most)
    if kind in (SEQUENCE, CHOICE):
        parts = [_living(part, done) for part in node[1]]
        if all(part is old for part, old in zip(parts, node[1])):
            return node
        return seq(*parts) if kind == SEQUENCE else choice(*parts)
    if kind == NETWORK:
        states = tuple(
            (accept, tuple((_living(part, done), target) for part, target in edges))
            for accept, edges in node[2]
        )
        return node if states == node[2] else (NETWORK, node[1], states)
    return node


def _bounded(node: tuple, count: float) -> tuple:
    """A register of members with commas between them (`objects.registered`) that lets a comma come
    only if one of the members that can be taken may follow: whitespace may come between.
    """
    _, body, least, most, needed = node
    if body[0] != NETWORK or count == math.inf or 0 <= most <= count:
        return node
    first, (accept, commas) = body[2]
    if most < 0:
        commas = tuple((seq((TAKE, CHECK, None), comma), target) for comma, target in commas)
    return (REGISTER, (NETWORK, body[1], (first, (accept, commas))), least, int(count), needed)
