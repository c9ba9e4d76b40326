"""Writes the objects of a case: declared members in order (or free), demanded ones, and further
ones by classes of names.

`em` is the `Emitter` at work. A name written twice counts once, and its last value counts: members
that are demanded without a declared name therefore come last, and at most one of them can be
counted.
"""

import functools

from oxillama.errors import GrammarError
from oxillama.grammar.nodes import (
    EMPTY,
    NETWORK,
    NEVER,
    Ranges,
    choice,
    complement,
    literal,
    merge,
    repeat,
    rule,
    seq,
)
from oxillama.grammar.regex import parse_regex, search_automaton
from oxillama.grammar.regular import MAX_NETWORK, Dfa, meet
from oxillama.grammar.schema_case import Facts
from oxillama.grammar.schema_document import FALSE, TRUE

# members that are required but not declared: more come in the order of `required`
MAX_LOOSE = 6
MAX_FREE = 9  # properties in free order: a state per subset


def object_(em, facts: Facts) -> tuple:
    space = em.spelling.space
    inner = members(em, facts)
    parts = []
    if not facts.required and facts.min_properties == 0 and not facts.owed:
        parts.append(seq(literal("{"), space, space, literal("}")))
    if inner != NEVER:
        parts.append(seq(literal("{"), space, inner, space, literal("}")))
    return choice(*parts)


def members(em, facts: Facts) -> tuple:
    """One or more members with their commas. A declared one is a pair of nodes: first of all, or
    after a comma.
    """
    declared = list(
        dict.fromkeys(
            [*(name for properties, _, _ in facts.objects for name in properties), *facts.required]
        )
    )
    known = set(declared) | facts.forbidden
    # loose: demanded, but not declared: these come last, in any order
    named, loose = [], []
    for name in declared:
        literals = em.expander.property_literals(facts, name)
        if literals is None or (name in facts.forbidden):
            if name in facts.required:
                return NEVER
            continue
        entry = em.member(name, literals)
        if any(name in properties for properties, _, _ in facts.objects):
            named.append((entry, name in facts.required))
        else:
            loose.append(entry)
    if (
        len(loose) > MAX_LOOSE
        or facts.max_properties is not None
        or facts.min_properties > 1
        or facts.owed
    ):
        named += [(entry, True) for entry in loose]
        loose = []
    extra = em.guard("additionalProperties", lambda: further(em, facts, known), NEVER)
    owed = [em.guard("not", lambda e=e: further(em, facts, known, e), NEVER) for e in facts.owed]
    if NEVER in owed:
        return NEVER
    most, least = facts.max_properties, facts.min_properties
    if em.free_order and len(named) > 1:
        return shuffled(em, facts, named + [(entry, True) for entry in loose], extra, owed)
    return ordered(em, named, extra, owed, least, most, loose)


def ordered(em, named, extra, owed, least: int, most: int | None, loose) -> tuple:
    """Members in declared order, then further ones: a network over (index, members so far up to
    what must be counted).
    """
    required = sum(needed for _, needed in named)
    if most is not None and extra == NEVER and not owed and len(named) <= most:
        most = None
    cap = max(least, (most or 0) if most is not None else 0, 1)
    if required + (1 if owed else 0) >= least and most is None:
        cap, least = 1, min(least, 1)
    if (len(named) + 2) * (cap + 1) * (len(owed) + 1) > MAX_NETWORK:
        raise GrammarError(
            f"schema {em.where}: keyword 'minProperties': counting needs more than {MAX_NETWORK} states"
        )
    ids: dict[tuple[int, int], int] = {(0, 0): 0}
    todo, out = [(0, 0)], []

    def state(index: int, count: int) -> int:
        if (index, count) not in ids:
            ids[(index, count)] = len(ids)
            todo.append((index, count))
        return ids[(index, count)]

    for index, count in todo:
        edges = []
        accept = False
        if index < len(named):
            node, needed = named[index]
            if most is None or count < most:
                edges.append((node[count > 0], state(index + 1, min(count + 1, cap))))
            if not needed:
                edges.append((EMPTY, state(index + 1, count)))
        elif index == len(named):
            edges.append(
                (tail(em, extra, owed, count, least, most, loose), state(index + 1, count))
            )
        else:
            accept = True
        out.append((accept, tuple((node, target) for node, target in edges if node != NEVER)))
    return (NETWORK, 0, tuple(out))


def tail(em, extra, owed, count: int, least: int, most: int | None, loose) -> tuple:
    """What may follow the declared members when `count` of them are there: nothing only if that is
    enough and not nothing at all.
    """
    if loose:
        return subset(em, [(entry, True) for entry in loose], extra, bool(count))
    missing = max(least - count, 0)
    room = None if most is None else most - count
    if owed:
        if len(owed) > 1 or missing > 1 or (most is not None):
            raise GrammarError(
                f"schema {em.where}: several members of which only the kind is known cannot be enforced at once"
            )
        # last, because a later member of the same name would replace it
        node = seq(repeat(seq(extra, em.comma)) if extra != NEVER else EMPTY, owed[0])
        return seq(em.comma, node) if count else node
    if extra == NEVER or room == 0:
        return EMPTY if missing == 0 and count else NEVER
    if missing > 1:
        # the same name twice would count once: two unnamed members cannot be told apart
        raise GrammarError(
            f"schema {em.where}: keyword 'minProperties': {least} members need {missing} without a declared name"
        )
    some = seq(extra, repeat(seq(em.comma, extra), 0, None if room is None else room - 1))
    if count:
        some = seq(em.comma, some)
    return some if missing or not count else choice(EMPTY, some)


def shuffled(em, facts: Facts, named, extra, owed) -> tuple:
    """Members in any order: a network over the set of declared members written so far."""
    if len(named) > MAX_FREE:
        raise GrammarError(
            f"schema {em.where}: {len(named)} properties in free order, at most {MAX_FREE} are supported"
        )
    if (
        owed
        or facts.max_properties is not None
        or facts.min_properties > max(1, sum(needed for _, needed in named))
    ):
        raise GrammarError(
            f"schema {em.where}: keyword 'minProperties' or 'maxProperties' in free order is not supported"
        )
    return subset(em, named, extra, False)


def subset(em, named, extra, started: bool) -> tuple:
    """Members in any order, further ones between: a network over the set of members written so far
    (`started`: a comma is due).
    """
    full = 1 << len(named)
    needed = sum(1 << i for i, (_, must) in enumerate(named) if must)
    states = []
    for state in range(full + 1):  # 0: nothing yet; 1 + set: something written
        used = max(state - 1, 0)
        edges = []
        for i, (node, _) in enumerate(named):
            if not used >> i & 1:
                edges.append((node[bool(state) or started], 1 + (used | 1 << i)))
        if extra != NEVER:
            edges.append((seq(em.comma, extra) if state or started else extra, 1 + used))
        states.append((bool(state) and used & needed == needed, tuple(edges)))
    return (NETWORK, 0, tuple(states))


def further(em, facts: Facts, known: set[str], demand=None) -> tuple:
    """A member whose name is not one of the known ones: a choice over the classes of names that
    rules tell apart.
    """
    excluded, must, must_not, value, names = demand or (frozenset(), (), (), TRUE, ())
    sources = list(
        dict.fromkeys(
            [s for _, patterns, _ in facts.objects for s, _ in patterns]
            + list(must)
            + list(must_not)
        )
    )
    out = []
    for matched, quoted in name_classes(
        em, facts, known | excluded, sources, (*facts.names, *names)
    ):
        if any(s not in matched for s in must) or any(s in matched for s in must_not):
            continue
        child = {value}
        for _, patterns, rest in facts.objects:
            child.update([lit for source, lit in patterns if source in matched] or [rest])
        if FALSE in child or any((node, not sign) in child for node, sign in child if node):
            continue
        out.append(seq(quoted, em.colon, em.ref(frozenset(child - {TRUE}))))
    return choice(*out)


def name_classes(em, facts: Facts, known: set[str], sources: list[str], names: tuple):
    """Pairs of (patterns matched, node of the quoted names) that split all names but the known
    ones.
    """
    quote = literal('"')
    if not sources and not names:
        if any(rest == FALSE for _, _, rest in facts.objects):
            return []
        return [(frozenset(), rule(em.number(("names", frozenset(known)))))]
    closed = any(rest == FALSE for _, _, rest in facts.objects)
    if (
        len(sources) == 1
        and not names
        and closed
        and not any(search_automaton(sources[0]).accepts_text(n) for n in known)
    ):
        node = parse_regex(sources[0]).search_node(em.spell, repeat(em.block("key-char")))
        if node is not None:
            return [(frozenset(sources), seq(quote, node, quote))]
    key = (frozenset(known), tuple(sources), frozenset(names))
    if key not in em.classes:
        em.classes[key] = [
            (matched, em.language_block(names))
            for matched, names in split_names(em, known, sources, names)
        ]
    return em.classes[key]


def split_names(
    em, known: set[str], sources: list[str], demanded: tuple
) -> list[tuple[frozenset, Dfa]]:
    """All names but the known ones, split by the patterns they match."""
    start = Dfa.words(known).inverse() if known else Dfa.everything()
    if demanded:
        start = start.both(names_language(em, frozenset(demanded)))
    classes = [(frozenset(), start)]
    for source in sources:
        dfa = search_automaton(source)
        split = []
        for matched, names in classes:
            for sign in (True, False):
                part = meet(names, dfa, sign)
                if not part.empty:
                    split.append((matched | {source} if sign else matched, part))
        classes = split
        if len(classes) > 64:
            raise GrammarError("more than 64 kinds of names")
    return classes


def names_language(em, literals: frozenset) -> Dfa:
    """The names a `propertyNames` allows."""
    out = Dfa.nothing()
    for facts in em.expander.cases(literals):
        if facts.values is not None:
            out = out.either(Dfa.words([v for v in facts.values if isinstance(v, str)]))
        elif "string" in facts.types:
            out = out.either(em.language(facts, [v for v in facts.banned if isinstance(v, str)]))
    return out


def names_but(em, known: frozenset[str]) -> tuple:
    """Any quoted name that is not known, as a network along the known names' letters."""
    if not known:
        return seq(literal('"'), repeat(em.block("key-char")), literal('"'))
    children: list[dict[str, int]] = [{}]
    ends = {0: "" in known}
    for name in sorted(known):
        at = 0
        for c in name:
            if c not in children[at]:
                children[at][c] = len(children)
                children.append({})
            at = children[at][c]
        ends[at] = True
    # own: a letter's node; others: that of all letters but these
    states, own, others = [], {}, {}
    last = len(children)
    for at, follow in enumerate(children):
        letters = tuple(follow) if len(follow) == 1 else tuple(sorted(follow))
        if letters not in others:
            others[letters] = em.spell(_all_but(letters))
            own.update(
                (c, em.spell(((ord(c), ord(c)),)))
                for c in letters
                if c not in own and not "\ud800" <= c <= "\udfff"
            )
        # a surrogate alone has no spelling
        edges = [(own[c], target) for c, target in follow.items() if c in own]
        edges.append((others[letters], last))
        states.append((not ends.get(at, False), tuple(edges)))
    states.append((True, ((em.block("key-char"), last),)))
    return seq(literal('"'), (NETWORK, 0, tuple(states)), literal('"'))


@functools.lru_cache(maxsize=1 << 12)
def _all_but(letters: tuple[str, ...]) -> Ranges:
    return complement(merge((ord(c), ord(c)) for c in letters))
