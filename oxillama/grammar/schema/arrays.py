"""Writes the arrays of a case: prefix and further items, counted (`contains`) and distinct
(`uniqueItems`) ones. `em` is the `Emitter`.
"""

from fractions import Fraction

from oxillama._core.cases import Case
from oxillama._core.schemas import TRUE, canonical, kind_of
from oxillama.errors import GrammarError
from oxillama.grammar.nodes import (
    CHECK,
    EMPTY,
    NETWORK,
    NEVER,
    ONE,
    REGISTER,
    TAKE,
    choice,
    literal,
    repeat,
    seq,
)
from oxillama.grammar.regular import MANY, MAX_NETWORK
from oxillama.grammar.schema.document import contradicts
from oxillama.grammar.schema.numbers import bounded
from oxillama.grammar.schema.validity import holds
from oxillama.grammar.schema.values import exact, load

# Integers of an enum, from which on they are one automaton: alternatives of numbers go on side by
# side for long, and each token then takes time in proportion to more than their number.
MANY_INTEGERS = 64
MAX_LISTED = 4096  # numbers tried one by one to know how many different items there are


def array(em, case: Case) -> tuple:
    space = em.spelling.space
    inner = elements(em, case)
    return choice(
        *([seq(literal("["), space, space, literal("]"))] if may_be_empty(case) else []),
        seq(literal("["), space, inner, space, literal("]")) if inner != NEVER else NEVER,
    )


def may_be_empty(case: Case) -> bool:
    return case.min_items == 0 and all(least == 0 for _, least, _, _ in case.contains)


def item_at(case: Case, index: int, *more) -> frozenset | None:
    """What the item at an index must satisfy, with further literals; None where there can be
    none.
    """
    out = {prefix[index] if index < len(prefix) else rest for prefix, rest in case.arrays} | set(
        more
    )
    if contradicts(out):
        return None
    return frozenset(out - {TRUE})


def elements(em, case: Case) -> tuple:
    """One or more items with their commas; NEVER where there can be none."""
    comma = seq(em.spelling.space, literal(","), em.spelling.space)
    if case.unique and (case.max_items is None or case.max_items > 1):
        return em.guard(
            "uniqueItems", lambda: distinct(em, case, comma), elements(em, _loose(case))
        )
    head = max((len(prefix) for prefix, _ in case.arrays), default=0)
    if case.contains:
        return em.guard(
            "contains",
            lambda: counted(em, case, head, comma),
            elements(em, _without_contains(case)),
        )
    most = case.max_items
    # items of the prefix, up to the first that cannot be
    fixed = []
    for i in range(head if most is None else min(head, most)):
        item = item_at(case, i)
        if item is None:
            most = i
            break
        fixed.append(item)
    rest = item_at(case, head) if len(fixed) == head else None
    if rest is None:
        most = len(fixed) if most is None else min(most, len(fixed))
    if most is not None and (most == 0 or most < case.min_items):
        return NEVER
    if not fixed:
        return seq(
            em.ref(rest),
            repeat(
                seq(comma, em.ref(rest)),
                max(case.min_items - 1, 0),
                None if most is None else most - 1,
            ),
        )
    tail = EMPTY
    if rest is not None and (most is None or most > head):
        tail = repeat(
            seq(comma, em.ref(rest)),
            max(case.min_items - head, 0),
            None if most is None else most - head,
        )
    for i in range(len(fixed) - 1, -1, -1):
        node = seq(comma if i else EMPTY, em.ref(fixed[i]), tail)
        tail = choice(node, EMPTY) if i and case.min_items <= i else node
    return tail


def counted(em, case: Case, head: int, comma: tuple) -> tuple:
    """Items where some must be counted (`contains`): a network over (index, counts)."""
    kinds = case.contains
    caps = [least if most is None else most + 1 for _, least, most, _ in kinds]
    last = max(1, head, case.min_items, max(start for *_, start in kinds))
    if case.max_items is not None:
        last = max(last, case.max_items)
    total = last + 2
    for cap in caps:
        total *= cap + 1
    if total > MAX_NETWORK:
        raise GrammarError(f"counting items needs more than {MAX_NETWORK} states")
    if len(kinds) > 4:
        raise GrammarError("more than 4 'contains' on one array")
    ids: dict[tuple, int] = {(0, *(0 for _ in kinds)): 0}
    todo, out = list(ids), []
    for state in todo:
        index, counts = state[0], state[1:]
        accept = (
            index > 0
            and index >= case.min_items
            and all(
                c >= least and (most is None or c <= most)
                for c, (_, least, most, _) in zip(counts, kinds, strict=True)
            )
        )
        edges = []
        if case.max_items is None or index < case.max_items:
            for item, after in steps(em, case, index, counts, caps, head):
                target = (min(index + 1, last + 1), *after)
                if case.max_items is None:
                    target = (min(index + 1, last), *after)
                if target not in ids:
                    ids[target] = len(ids)
                    todo.append(target)
                node = em.ref(item)
                edges.append((seq(comma, node) if index else node, ids[target]))
        out.append((accept, tuple(edges)))
    return (NETWORK, 0, tuple(out))


def steps(em, case: Case, index: int, counts, caps, head: int):
    """The choices for one item: which counters it feeds. A counter with an upper bound needs to
    know that others do not feed it.
    """
    options: list[tuple[tuple, list[int]]] = [((), list(counts))]
    for k, (wanted, _, most, start) in enumerate(case.contains):
        grown: list[tuple[tuple, list[int]]] = []
        for literals, after in options:
            if index < start:
                grown.append((literals, after))
                continue
            if counts[k] < caps[k]:
                fed = after.copy()
                fed[k] += 1
                if most is None or fed[k] <= most:
                    grown.append(((*literals, wanted), fed))
            unfed = (*literals, (wanted[0], not wanted[1])) if most is not None else literals
            grown.append((unfed, after))
        options = grown
    for literals, after in options:
        item = item_at(case, min(index, head), *literals)
        if item is not None:
            yield item, tuple(after)


def distinct(em, case: Case, comma: tuple) -> tuple:
    """Arrays without repetition: a register holds the listed values used, or the scalars
    written.
    """
    if case.contains:
        raise GrammarError("together with 'contains'")
    head = max((len(prefix) for prefix, _ in case.arrays), default=0)
    if head:
        return distinct_prefix(em, case, comma, head)
    item = item_at(case, 0)
    values = [] if item is None else finite(em, item)
    most = case.max_items
    if item is None:
        return NEVER
    if values is not None and not (
        len(values) > MANY_INTEGERS and all(type(value) is int for value in values)
    ):
        values = list({canonical(v): v for v in values}.values())
        most = len(values) if most is None else min(most, len(values))
        edges = [
            (seq((TAKE, i, None), em.spelling.value(value)), 1) for i, value in enumerate(values)
        ]
    else:
        node = fresh(em, item)
        edges = [(seq((TAKE, ONE, None), node), 1)]
        if node[3] is not None:
            most = node[3] if most is None else min(most, node[3])
    if most is not None and most < max(case.min_items, 1):
        return NEVER
    comma = seq((TAKE, CHECK, None), comma) if most is not None else comma
    network = (NETWORK, 0, ((False, tuple(edges)), (True, ((comma, 0),))))
    return (REGISTER, network, case.min_items, -1 if most is None else most, ())


def fresh(em, item: frozenset) -> tuple:
    """A scalar item that was not written yet; raises where items may be arrays or objects, of
    which different texts can be equal.
    """
    cases = em.expander.cases(item)
    for case in cases:
        kinds = case.types if case.values is None else set(map(kind_of, case.values))
        if not kinds.isdisjoint(("array", "object")):
            raise GrammarError("items must be scalars, or have few possible values (an enum)")
        if case.values is None and (case.multiples or case.not_multiples):
            bounded(em, case, [Fraction(0)])  # raises where numbers cannot be left out

    def without(em, words: frozenset[bytes]) -> tuple | None:
        left = [without_values(case, list(map(load, words))) for case in cases]
        node = choice(*(em.case_node(case) for case in left if case is not None))
        return None if node == NEVER else em.inlined(node)

    return em.fresh(choice(*map(em.case_node, cases)), without, scalars(em, item, cases))


def scalars(em, item: frozenset, cases: list[Case]) -> int | None:
    """How many scalars satisfy the literals that expand to these cases; None: more than a text
    holds. Of numbers with more than `MAX_LISTED` steps in their bounds at most so many.
    """
    plain = [c for c in cases if c.values is None and "string" in c.types]
    if any(
        not (c.patterns or c.formats or c.text_choices) and c.max_length not in (0, 1)
        for c in plain
    ):
        return None
    try:
        texts = em.expander.strings(item).size()
    except GrammarError:  # too large an automaton: the count is not known
        return None
    if texts is None:
        return None
    found: set = set()
    more = 0
    for case in cases:
        if case.values is not None:
            found.update(canonical(v) for v in case.values if not isinstance(v, str))
            continue
        found.update(canonical(v) for v in plain_values(case))
        if "number" in case.types:
            steps = [Fraction(1)] if case.integer else [exact(v) for v in case.multiples]
            if case.low is None or case.high is None or not (steps or case.low == case.high):
                return None
            step = steps[0] if steps else case.low or Fraction(1)
            first, last = -(-case.low // step), case.high // step
            if last - first >= MAX_LISTED:
                more += last - first + 1
                continue
            numbers = (k * step for k in range(first, last + 1))
            found.update(
                canonical(v)
                for v in numbers
                if all(holds(em.document, literal, v) for literal in item)
            )
    total = texts + len(found) + more
    return total if total <= MANY else None


def plain_values(case: Case) -> list:
    """What a case allows of null, true and false."""
    return [
        value
        for value, kind in ((None, "null"), (True, "boolean"), (False, "boolean"))
        if kind in case.types and not any(value is banned for banned in case.banned)
    ]


def without_values(case: Case, values: list) -> Case | None:
    """A case of scalars but some values; None where nothing is left."""
    case = case.copy()
    if case.values is not None:
        used = {canonical(value) for value in values}
        case.values = [v for v in case.values if canonical(v) not in used]
        return case if case.values else None
    case.banned = (*case.banned, *(v for v in values if v is not None))
    if None in values:
        case.types = case.types - {"null"}
    return case if case.types else None


def distinct_prefix(em, case: Case, comma: tuple, head: int) -> tuple:
    """Arrays without repetition whose first items have schemas of their own, and few values: a
    network over the set of values used.
    """
    pools: list = []
    for i in range(head + 1):
        item = item_at(case, i)
        pools.append([] if item is None else finite(em, item))
    if any(pool is None for pool in pools):
        raise GrammarError("items after 'prefixItems' must have few possible values (an enum)")
    values = list({canonical(v): v for pool in pools for v in pool}.values())
    keys = [canonical(v) for v in values]
    if len(values) > 10:
        raise GrammarError(f"found {len(values)} possible values, wanted at most 10")
    allowed = [{keys.index(canonical(v)) for v in pool} for pool in pools]
    nodes = [em.spelling.value(v) for v in values]
    start: frozenset[int] = frozenset()
    ids, todo, out = {start: 0}, [start], []
    for used in todo:
        index = len(used)
        edges = []
        if case.max_items is None or index < case.max_items:
            for k in sorted(allowed[min(index, head)] - used):
                target = used | {k}
                if target not in ids:
                    ids[target] = len(ids)
                    todo.append(target)
                edges.append((seq(comma, nodes[k]) if index else nodes[k], ids[target]))
        out.append((index > 0 and index >= case.min_items, tuple(edges)))
    return (NETWORK, 0, tuple(out))


def finite(em, literals: frozenset) -> list | None:
    """All values of a set of literals if they are few and scalar or listed, else None."""
    out = []
    for case in em.expander.cases(literals):
        if case.values is not None:
            out += case.values
            continue
        if case.types - {"null", "boolean"}:
            return None
        out += plain_values(case)
    return out


def _loose(case: Case) -> Case:
    other = case.copy()
    other.unique = False
    return other


def _without_contains(case: Case) -> Case:
    other = case.copy()
    other.contains = ()
    return other
