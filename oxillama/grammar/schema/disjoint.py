"""Tells the branches of a `oneOf` apart, so that only those that could hold together are forbidden
for each other. `ex` is the `Expander`.
"""

import math

from oxillama.errors import GrammarError
from oxillama.grammar.schema.case import Action, Branch, Case, Demand, Within, branches_of
from oxillama.grammar.schema.document import FALSE, TRUE, TYPES
from oxillama.grammar.schema.values import canonical


def one_branches(ex, context: Case, literals: tuple) -> tuple[Branch, ...]:
    """For each branch: it holds, and no branch that could hold with it does."""
    key = (literals, context.types, context.required)
    known = ex.apart.get(key)
    if known is None:
        circles = ex.circles
        known = branches_of(_told_apart(ex, context, literals))
        if ex.circles == circles:  # else more may be known next time
            ex.apart[key] = known
    return known


def _told_apart(ex, context: Case, literals: tuple) -> list[list[Action]]:
    """The actions of each branch, made of the types and the required members of the context."""
    summaries = [_summary(ex, literal, context) for literal in literals]
    # not where members have an order: ways to fail that are left out may have given them others
    whole = [_whole(summary) if ex.loose else frozenset() for summary in summaries]
    out = []
    for i, literal in enumerate(literals):
        actions: list[Action] = [Demand(literal)]
        taken = frozenset().union(*whole[:i], *whole[i + 1 :])
        own = summaries[i]
        if own is not None and any(types & taken for types, *_ in own):
            actions.append(Within(frozenset(TYPES) - taken))
            own = [(types - taken, *rest) for types, *rest in own]
        for j, other in enumerate(literals):
            if j != i and not _apart(own, summaries[j]) and not _disjoint(ex, literal, other):
                actions.append(Demand((other[0], not other[1])))
        out.append(actions)
    return out


def _whole(summary) -> frozenset[str]:
    """The types of which a branch takes all values but, perhaps, objects: then no other branch can
    have values of them.
    """
    return frozenset().union(*(case.whole_types() for *_, case in summary or ()))


def _summary(ex, literal, context: Case):
    """Per case of a branch: types, values, and the values that properties may have which the branch
    or its context requires. None if it is not known cheaply.
    """
    if literal in (TRUE, FALSE):
        return [] if literal == FALSE else None
    try:
        cases = ex.cases(frozenset([literal]))
    except GrammarError:
        return None
    out = []
    for case in cases[:64]:
        values = None if case.values is None else {canonical(v) for v in case.values}
        tags = {}
        required = dict.fromkeys((*context.required, *case.required))
        for name in required:
            child = ex.property_literals(case, name)
            if child is None:
                continue
            found = ex.values_of(child)
            if found is None:
                found = ex.texts_of(child)
            if found is not None:
                tags[name] = found.keys()
        out.append((case.types & context.types, values, tags, set(required), case))
    return out if len(cases) <= 64 else None


def _disjoint(ex, a, b) -> bool:
    """Whether two literals provably have no value in common."""
    both = frozenset((a, b))
    known = ex.disjoint.get(both)
    if known is None:
        circles = ex.circles
        try:
            known = all(_hopeless(ex, case, 2) for case in ex.cases(both))
        except GrammarError as error:
            if "depends on itself" in str(error) or "cases" in str(error):
                return False
            raise
        if ex.circles == circles:
            ex.disjoint[both] = known
    return known


def _hopeless(ex, case: Case, depth: int) -> bool:
    """Whether a case with only the type object demands a property that nothing can satisfy (looked
    at `depth` levels deep).
    """
    if depth == 0 or case.values is not None or case.types != {"object"}:
        return False
    for name in case.required:
        child = ex.property_literals(case, name)
        if child is None:
            return True
        if child and all(_hopeless(ex, f, depth - 1) for f in ex.cases(child)):
            return True
    return False


def _apart(a, b) -> bool:
    """Whether two summaries show that no value fits both branches."""
    if a is None or b is None:
        return False
    for types, values, tags, required, case in a:
        for other_types, other_values, other_tags, other_required, other in b:
            shared = types & other_types
            if not shared:
                continue
            if values is not None and other_values is not None and not values & other_values:
                continue
            if shared <= {"object"} and (
                any(not tags[name] & other_tags[name] for name in tags if name in other_tags)
                or required & other.forbidden
                or other_required & case.forbidden
            ):
                continue
            if shared <= {"number"} and _no_number(case, other):
                continue
            return False
    return True


def _no_number(a: Case, b: Case) -> bool:
    if a.integer and b.fraction or a.fraction and b.integer:
        return True
    low, high = (
        max((f.low for f in (a, b) if f.low is not None), default=-math.inf),
        min((f.high for f in (a, b) if f.high is not None), default=math.inf),
    )
    return low > high
