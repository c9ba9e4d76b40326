"""Tells which rules of a schema can be written later: those that surely raise nothing.

A rule that is put off costs a look at its schema instead of its text and its network; the machine
asks for it when it first calls it. All else is written at once, so that whatever cannot be enforced
raises where the schema is compiled. Rules that can never finish a match are known before the
machine runs (`endless`), so that no text leads into one. `em` is the `Emitter` at work. A rule's
*needs* are alternatives: lists of rules of which all must finish.
"""

from collections.abc import Callable, Sequence

from oxillama.grammar.nodes import CHOICE, CLASS, FRESH, NETWORK, REGISTER, REPEAT, RULE, SEQUENCE
from oxillama.grammar.schema.arrays import item_at
from oxillama.grammar.schema.case import Facts
from oxillama.grammar.schema.document import FALSE, TRUE, TYPES
from oxillama.grammar.schema.keywords import APPLY

SCALARS = ("string", "number", "integer", "boolean", "null")
GLANCED = {
    "object": {"type", "properties", "required", "additionalProperties"},
    "array": {"type", "items"},
    **{name: {"type"} for name in SCALARS},
}
# declared properties or prefix items: more are written at once, under the limits of their networks
MANY = 2000

Needs = list[list[int]]


def survey(em, key: frozenset) -> Needs | None:
    """The needs of a rule that can be put off, or None; what it refers to gets its numbers."""
    needs = glance(em, key)
    if needs is not None:
        return needs
    out: Needs = []
    for facts in em.expander.cases(key):
        found = foresee(em, facts)
        if found is None:
            return None
        out += found
    return out or None


def glance(em, key: frozenset) -> Needs | None:
    """The needs of a plain schema (a type with properties or items, possibly behind references),
    without expanding it.
    """
    if len(key) != 1:
        return None
    ((node, sign),) = key
    document = em.document
    schema = document.keywords(node)
    for _ in range(8):
        if "$ref" not in schema:
            break
        if any(k in APPLY and k != "$ref" for k in schema):
            return None
        node, truth = document.resolve(node, schema["$ref"])
        sign = sign and truth
        if not (node and sign):
            return None
        schema = document.keywords(node)
    kind = schema.get("type")
    allowed = GLANCED.get(kind) if isinstance(kind, str) else None
    if not sign or allowed is None or any(k in APPLY and k not in allowed for k in schema):
        return None
    if kind == "object":
        return glance_object(em, schema)
    if kind == "array":
        items = schema.get("items", True)
        if not isinstance(items, (dict, bool)):
            return None
        literal = document.literal(items)
        if literal != FALSE:
            em.number(frozenset([literal] if literal != TRUE else ()))
    return [[]]


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
    return [must]


def foresee(em, facts: Facts) -> Needs | None:
    """The needs of one case; None where it has to be written to be sure."""
    if facts.values is not None:
        return [[]] if facts.values and all(_writable(v) for v in facts.values) else None
    out: Needs = []
    for kind in TYPES:
        if kind in facts.types:
            found = FORESEEN[kind](em, facts)
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


def _object(em, facts: Facts) -> Needs | None:
    if (
        facts.names
        or facts.extras
        or facts.owed
        or facts.max_properties is not None
        or facts.min_properties > len(facts.required)
        or any(patterns for _, patterns, _ in facts.objects)
    ):
        return None
    declared = dict.fromkeys(
        [*(name for properties, _, _ in facts.objects for name in properties), *facts.required]
    )
    if len(declared) > MANY or not all(_writable(name) for name in declared):
        return None
    must: list[int] = []
    for name in declared:
        literals = em.expander.property_literals(facts, name)
        if literals is None:
            if name in facts.required:
                return []
            continue
        child = em.number(literals)
        if name in facts.required:
            must.append(child)
    rest = {rest for _, _, rest in facts.objects}
    if FALSE not in rest and not any((node, not sign) in rest for node, sign in rest if node):
        em.number(frozenset(rest - {TRUE}))
    return [must]


def _array(em, facts: Facts) -> Needs | None:
    head = max((len(prefix) for prefix, _ in facts.arrays), default=0)
    if (
        facts.contains
        or (facts.unique and (facts.max_items is None or facts.max_items > 1))
        or head > MANY
    ):
        return None
    must: list[int] = []
    most = facts.max_items
    for i in range(head + 1 if most is None else min(head + 1, most)):
        item = item_at(facts, i)
        if item is None:
            return [] if facts.min_items > i else [must]
        child = em.number(item)
        if facts.min_items > i:
            must.append(child)
    return [must]


def _string(em, facts: Facts) -> Needs | None:
    if facts.patterns or any(isinstance(v, str) for v in facts.banned):
        return None
    plain = not facts.formats or (
        len(facts.formats) == 1
        and facts.formats[0][1]
        and not facts.min_length
        and facts.max_length is None
    )
    return [[]] if plain else None


def _number(em, facts: Facts) -> Needs | None:
    if (
        facts.multiples
        or facts.broken
        or facts.fraction
        or any(not isinstance(v, (str, bool)) for v in facts.banned)
    ):
        return None
    return [[]] if facts.low is None or facts.high is None or facts.high - facts.low > 2 else None


def _boolean(em, facts: Facts) -> Needs | None:
    return None if any(isinstance(v, bool) for v in facts.banned) else [[]]


FORESEEN: dict[str, Callable] = {
    "object": _object,
    "array": _array,
    "string": _string,
    "number": _number,
    "boolean": _boolean,
    "null": lambda em, facts: [[]],
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


def finishes(node: tuple, done: bytearray) -> bool:
    """Whether a node can match something, given which rules can."""
    kind = node[0]
    if kind == RULE:
        return bool(done[node[1]])
    if kind == CLASS:
        return bool(node[1])
    if kind == SEQUENCE:
        return all(finishes(part, done) for part in node[1])
    if kind == CHOICE:
        return any(finishes(part, done) for part in node[1])
    if kind == REPEAT:
        return node[2] == 0 or finishes(node[1], done)
    if kind in (REGISTER, FRESH):
        return finishes(node[1], done)
    if kind != NETWORK:
        return True
    states = node[2]
    reached, todo = {node[1]}, [node[1]]
    known: dict[int, bool] = {}
    while todo:
        accept, edges = states[todo.pop()]
        if accept:
            return True
        for part, target in edges:
            if target not in reached:
                good = known.get(id(part))
                if good is None:
                    good = known[id(part)] = finishes(part, done)
                if good:
                    reached.add(target)
                    todo.append(target)
    return False
