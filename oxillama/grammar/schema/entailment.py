"""Whether a case already meets a branch of a split. Then the split adds nothing to it, and the case
goes on as it is instead of once per branch; and a case that meets a branch which another case took
at a split before it is a part of that one. `ex` is the `Expander`.

Everything here is a sufficient condition: False says that it is not known.
"""

from collections.abc import Iterable

from oxillama.errors import GrammarError
from oxillama.grammar.schema.case import Branch, Case
from oxillama.grammar.schema.document import FALSE, TRUE, TYPES
from oxillama.grammar.schema.keywords import APPLY

# keywords that declare no member names, by themselves or by what they refer to
SILENT = frozenset(APPLY) - {
    "properties",
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
    "dependencies",
    "dependentSchemas",
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
}


def met(ex, case: Case, branches: Iterable[Branch]) -> bool:
    """Whether a case meets one of the branches as it is."""
    required = case.required
    for branch in branches:
        if branch.known:
            for name in branch.names:
                if name not in required:
                    break
            else:
                if _meets(ex, case, branch):
                    return True
    return False


def _meets(ex, case: Case, branch: Branch) -> bool:
    """Whether a case that has the members that a branch requires meets all else of it."""
    for name in branch.absent:
        if name not in case.forbidden:
            return False
    for kind in branch.types:
        if kind not in case.types or len(case.types) > 1:
            return False
    for kinds in branch.within:
        if not case.types <= kinds:
            return False
    for literal in branch.literals:
        known = literal == TRUE or literal in case.done
        if not (known or (literal[1] and _plainly(ex, case, literal[0]))):
            return False
    for name, literal in branch.optional:
        if name not in case.forbidden and not _has(ex, case, name, literal):
            return False
    for extra in branch.some:
        if not any(_is_some(ex, case, name, extra) for name in case.required):
            return False
    return all(_has(ex, case, name, literal) for name, literal in branch.members)


def _is_some(ex, case: Case, name: str, extra: tuple) -> bool:
    """Whether a required member is one that is demanded, whatever its name."""
    excluded, must, must_not, literal, names = extra
    if name in excluded or must or must_not or names:
        return False
    return literal == TRUE or _has(ex, case, name, literal)


def silent(ex, case: Case, branches: Iterable[Branch]) -> bool:
    """Whether the branches declare no members that the case does not declare, or that changes
    nothing: the members of a closed object are the declared ones, and they have an order.
    """
    return ex.loose or all(
        branch.known
        and not branch.some
        and all(map(case.declares, branch.names))
        and all(case.declares(name) for name, _ in branch.optional)
        and all(_silent(ex, literal) for literal in branch.literals)
        for branch in branches
    )


def _silent(ex, literal: tuple[int, bool]) -> bool:
    if literal in (TRUE, FALSE):
        return True
    return literal[1] and all(
        k in SILENT or k not in APPLY for k in ex.document.keywords(literal[0])
    )


def _plainly(ex, case: Case, node: int) -> bool:
    """Whether a case meets a schema that only names types and required members."""
    if node not in ex.plain:
        ex.plain[node] = _plain(ex.document.keywords(node))
    found = ex.plain[node]
    if found is None:
        return False
    types, integer, names = found
    return (
        case.types <= types
        and (case.integer or not integer or "number" not in case.types)
        and ("object" not in case.types or names.issubset(case.required))
    )


def _plain(schema: dict) -> tuple[frozenset, bool, frozenset] | None:
    """The types, whether numbers are integers, and the required members of a schema that names
    nothing else; None for others.
    """
    if any(keyword in APPLY and keyword not in ("type", "required") for keyword in schema):
        return None
    names = schema.get("type", [*TYPES])
    names = names if isinstance(names, list) else [names]
    return (
        frozenset("number" if name == "integer" else name for name in names),
        "integer" in names and "number" not in names,
        frozenset(schema.get("required") or ()),
    )


def never(ex, case: Case, name: str) -> bool:
    """Whether a member can have no value, or none of the few that one of its schemas lists."""
    found = ex.property_literals(case, name)
    return found is None or (len(found) > 1 and _all_meet(ex, found, FALSE))


def _has(ex, case: Case, name: str, literal: tuple[int, bool]) -> bool:
    """Whether all values that a member may have, few of them, meet a literal."""
    found = ex.property_literals(case, name)
    if found is None or literal in found:
        return True
    return _all_meet(ex, found, literal)


def _all_meet(ex, literals: frozenset, literal: tuple[int, bool]) -> bool:
    """`_implied`, asked once."""
    known = ex.implied.get((literals, literal))
    if known is None:
        known = ex.implied[(literals, literal)] = _implied(ex, literals, literal)
    return known


def _implied(ex, literals: frozenset, literal: tuple[int, bool]) -> bool:
    """Whether the values that meet all of the literals are few and meet another one."""
    try:
        values = ex.few_values(literals)
        return values is not None and all(ex.accepts(literal, v) for v in values)
    except (GrammarError, TypeError, ValueError, AttributeError):
        return False  # what is malformed there is refused where it is demanded
