"""Writes the objects of a case: declared members in order (or in any order), demanded ones, and
undeclared ones by classes of names.

`em` is the `Emitter`. Free order and counted demands use a register of the machine (see `nodes`):
which members have been written, how many, and under which undeclared names. A name written twice
counts once, and its last value counts. So if undeclared members are counted, or a demand must be
met by one of them, their names are distinct.
"""

import functools
import json
import math
from collections.abc import Callable, Sequence, Set

from oxillama._core.cases import Case
from oxillama._core.finishing import capacity
from oxillama._core.schemas import FALSE, TRUE
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
    rule,
    seq,
)
from oxillama.grammar.regex import few_matches, parse_regex, search_automaton
from oxillama.grammar.regular import MAX_NETWORK, Dfa, split
from oxillama.grammar.remembered import remembered
from oxillama.grammar.schema.document import contradicts
from oxillama.grammar.schema.expander import MAX_NAMES
from oxillama.grammar.schema.spelling import lone

MAX_KINDS = 64  # kinds of names that the patterns of one object tell apart


def object_(em, case: Case) -> tuple:
    space = em.spelling.space
    inner = members(em, case)
    parts = []
    if not case.required and case.min_properties == 0 and not case.undeclared:
        parts.append(seq(literal("{"), space, space, literal("}")))
    if inner != NEVER:
        parts.append(seq(literal("{"), space, inner, space, literal("}")))
    return choice(*parts)


def members(em, case: Case) -> tuple:
    """One or more members with their commas. A declared one is a pair of nodes: first of all, or
    after a comma.
    """
    named_by_schema = dict.fromkeys(
        [name for properties, _, _ in case.objects for name in properties]
    )
    declared = dict.fromkeys([*named_by_schema, *case.required])
    known = {*declared, *case.forbidden}
    # loose: demanded, but not declared: these come last, in any order
    named, loose = [], []
    for name, literals in zip(declared, em.expander.properties(case, declared), strict=True):
        if literals is None or (name in case.forbidden):
            if name in case.required:
                return NEVER
            continue
        entry = em.member(name, literals)
        if name in named_by_schema:
            named.append((entry, name in case.required))
        else:
            loose.append(entry)
    undeclared = UndeclaredMembers(em, case, known)
    if NEVER in undeclared.demanded:
        return NEVER
    most, least = case.max_properties, case.min_properties
    if em.free_order and (named or loose or undeclared.demanded):
        return registered(
            em, [*named, *((entry, True) for entry in loose)], undeclared, least, most
        )
    return ordered(em, named, undeclared, least, most, loose)


class UndeclaredMembers:
    """The members of an object without a declared name: `extra`, any of them; `demanded`, one node
    for each demand for some member; `distinct`, like `extra` with distinct names.
    """

    def __init__(self, em, case: Case, known: set[str]):
        self._further = lambda demand=None, distinct=False: further(
            em, case, known, demand, distinct
        )
        declared = {name for properties, _, _ in case.objects for name in properties}
        shut = em.closed and declared and not case.describes_others
        if shut and case.min_properties <= len(declared):
            self.extra = NEVER
        else:
            self.extra = em.guard("additionalProperties", self._further, NEVER)
        self.demanded = [
            em.guard("not", lambda e=e: self._further(e, True), NEVER) for e in case.undeclared
        ]
        self._em = em

    @functools.cached_property
    def distinct(self) -> tuple:
        """The node of any further member under a name that was not written yet."""
        if self.extra == NEVER:
            return NEVER
        return self._em.guard("minProperties", lambda: self._further(distinct=True), self.extra)


def ordered(em, named, undeclared: UndeclaredMembers, least: int, most: int | None, loose) -> tuple:
    """Members in declared order, then further ones: a network over (index, members so far up to
    what must be counted).
    """
    demanded = len(loose) + len(undeclared.demanded)
    required = sum(needed for _, needed in named) + demanded
    if most is not None and undeclared.extra == NEVER and len(named) + demanded <= most:
        most = None
    cap = max(least, (most or 0) if most is not None else 0, 1)
    if required >= least and most is None:
        cap, least = 1, min(least, 1)
    if (len(named) + 2) * (cap + 1) > MAX_NETWORK:
        raise GrammarError(
            f"schema {em.where}: keyword 'minProperties': counting needs more than {MAX_NETWORK} "
            "states"
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
            edges.append((tail(em, undeclared, count, least, most, loose), state(index + 1, count)))
        else:
            accept = True
        out.append((accept, tuple((node, target) for node, target in edges if node != NEVER)))
    return (NETWORK, 0, tuple(out))


def tail(
    em, undeclared: UndeclaredMembers, count: int, least: int, most: int | None, loose
) -> tuple:
    """What may follow after `count` declared members: nothing, if that is enough and not empty."""
    missing = max(least - count, 0)
    remaining = None if most is None else most - count
    if loose or undeclared.demanded or missing > 1:
        node = registered(em, [(entry, True) for entry in loose], undeclared, missing, remaining)
        if count and node != NEVER:
            node = seq(em.comma, node)
        return node if loose or undeclared.demanded or missing or not count else choice(EMPTY, node)
    if undeclared.extra == NEVER or remaining == 0:
        return EMPTY if missing == 0 and count else NEVER
    some = seq(
        undeclared.extra,
        repeat(seq(em.comma, undeclared.extra), 0, None if remaining is None else remaining - 1),
    )
    if count:
        some = seq(em.comma, some)
    return some if missing or not count else choice(EMPTY, some)


def registered(em, named, undeclared: UndeclaredMembers, least: int, most: int | None) -> tuple:
    """One or more members in any order: a register holds which of the named and demanded ones have
    been written, how many members there are, and, where they are counted, the further names. Where
    names run out, there are at most as many members as leave one for each demand.
    """
    needed = [i for i, (_, must) in enumerate(named) if must]
    needed += range(len(named), len(named) + len(undeclared.demanded))
    extra = undeclared.extra
    if least > max(1, len(needed)) or undeclared.demanded:
        extra = undeclared.distinct
    least = 0 if least <= max(1, len(needed)) else least
    edges = [(seq((TAKE, i, None), node[0]), 1) for i, (node, _) in enumerate(named)]
    edges += [
        (seq((TAKE, i + len(named), None), node), 1) for i, node in enumerate(undeclared.demanded)
    ]
    if extra != NEVER:
        edges.append((seq((TAKE, ONE, None), extra), 1))

    def register(comma: tuple, most: int | None) -> tuple:
        network = (NETWORK, 0, ((False, tuple(edges)), (True, ((comma, 0),))))
        return (REGISTER, network, least, -1 if most is None else most, tuple(needed))

    limit = capacity(register(em.comma, None))
    if limit < (math.inf if most is None else most):
        most = int(limit)
    if most is None:
        return register(em.comma, None)
    if most < max(least, 1) or most < len(needed):
        return NEVER
    return register(seq((TAKE, CHECK, None), em.comma), most)


def further(em, case: Case, known: set[str], demand=None, distinct: bool = False) -> tuple:
    """A member with a name that is not among the known ones: a choice over the classes of names
    that rules distinguish.
    """
    excluded, must, must_not, values, names = demand or (frozenset(), (), (), frozenset(), ())
    sources = list(
        dict.fromkeys(
            [s for _, patterns, _ in case.objects for s, _ in patterns]
            + list(must)
            + list(must_not)
        )
    )
    out: list[tuple] = []
    for matched, make in name_classes(
        em, case, known | excluded, sources, (*case.names, *names), distinct
    ):
        if any(s not in matched for s in must) or any(s in matched for s in must_not):
            continue
        child = set(values)
        for _, patterns, rest in case.objects:
            child.update([lit for source, lit in patterns if source in matched] or [rest])
        if contradicts(child):
            continue
        quoted = make()
        if quoted is not None:
            out.append(seq(quoted, em.colon, em.ref(frozenset(child - {TRUE}))))
    return choice(*out)


def name_classes(
    em, case: Case, known: set[str], sources: list[str], names: tuple, distinct: bool
) -> list[tuple[frozenset, Callable[[], tuple | None]]]:
    """Classes that split all names but the known ones: which patterns they match, and what makes
    the node of their quoted names (None where there are no such names).
    """
    quote = literal('"')
    closed = any(rest == FALSE for _, _, rest in case.objects)
    if not sources and not names:
        if closed:
            return []

        def any_name() -> tuple:
            node = rule(em.number(("names", frozenset(known))))
            if not distinct:
                return node
            return em.fresh(
                node, lambda em, used: em.inlined(names_but(em, known | texts(used))), None
            )

        return [(frozenset(), any_name)]
    if (
        len(sources) == 1
        and not names
        and closed
        and not distinct
        and not any(search_automaton(sources[0]).accepts_text(n) for n in known)
    ):
        found = parse_regex(sources[0]).search_node(em.spell, repeat(em.block("key-char")))
        if found is not None:
            return [(frozenset(sources), lambda: seq(quote, found, quote))]

    def of_class(matched: frozenset, names_dfa: Dfa) -> tuple | None:
        key = (frozenset(known), matched, tuple(sources), frozenset(names))
        if key not in em.classes:
            dfa = without_words(names_dfa, known)
            em.classes[key] = None if dfa.empty else (dfa, em.language_block(dfa))
        if em.classes[key] is None:
            return None
        dfa, node = em.classes[key]
        if not distinct:
            return node
        return em.fresh(node, lambda em, used: em.language_without(dfa, texts(used)), dfa.size())

    key = (tuple(sources), frozenset(names))
    if key not in em.splits:
        em.splits[key] = split_names(em, sources, names)
    return [(matched, functools.partial(of_class, matched, dfa)) for matched, dfa in em.splits[key]]


def texts(words: frozenset[bytes]) -> frozenset[str]:
    """The strings that JSON texts spell."""
    return frozenset(json.loads(word) for word in words)


def split_names(em, sources: list[str], demanded: tuple) -> list[tuple[frozenset, Dfa]]:
    """All names, split by the patterns they match. The names of patterns that few match are asked
    one by one.
    """
    start = em.expander.strings(frozenset(demanded)) if demanded else None
    listed = {source: found for source in sources if (found := few_names(source)) is not None}
    others = [source for source in sources if source not in listed]
    groups: dict[frozenset, list[str]] = {}
    for name in dict.fromkeys(name for names in listed.values() for name in names):
        if start is None or start.accepts_text(name):
            kind = {source for source, names in listed.items() if name in names}
            kind.update(s for s in others if search_automaton(s).accepts_text(name))
            groups.setdefault(frozenset(kind), []).append(name)
    if groups:
        named = Dfa.words([name for names in groups.values() for name in names])
        start = (start or Dfa.everything()).without(named)
    classes = None
    if len(groups) <= MAX_KINDS:
        classes = kinds(tuple(others)) if start is None else kinds_of(start, others)
    if classes is None or len(classes) + len(groups) > MAX_KINDS:
        raise GrammarError(f"more than {MAX_KINDS} kinds of names")
    return [*((kind, Dfa.words(own)) for kind, own in groups.items()), *classes]


def kinds_of(start: Dfa, sources: Sequence[str]) -> list[tuple[frozenset, Dfa]] | None:
    """The texts of an automaton by the patterns that they match; None: of too many kinds."""
    found = split(start, [search_automaton(source) for source in sources], MAX_KINDS)
    if found is None:
        return None
    return [(frozenset(sources[i] for i in matched), dfa) for matched, dfa in found]


def _size(found: list[tuple[frozenset, Dfa]] | None, sources: tuple[str, ...]) -> int:
    """Bytes of what `kinds` gives, and of the patterns."""
    return 512 + 8 * sum(map(len, sources)) + sum(dfa.nbytes for _, dfa in found or ())


@remembered(64 << 20, weigh=_size)
def kinds(sources: tuple[str, ...]) -> list[tuple[frozenset, Dfa]] | None:
    """`kinds_of` all texts, remembered."""
    return kinds_of(Dfa.everything(), sources)


def few_names(source: str) -> list[str] | None:
    """The names that match a pattern, if they are at most `MAX_NAMES` and all can be written."""
    found = few_matches(source, MAX_NAMES)
    return found if found is not None and not any(map(lone, "".join(found))) else None


def without_words(dfa: Dfa, words: Set[str]) -> Dfa:
    """The texts of an automaton but these."""
    held = [word for word in words if dfa.accepts_text(word)]
    return dfa.without(Dfa.words(held)) if held else dfa


def names_but(em, known: Set[str]) -> tuple:
    """Any quoted name that is not known, as a network along the known names' letters."""
    if not known:
        return seq(literal('"'), repeat(em.block("key-char")), literal('"'))
    # a trie: in the order of the names the first child of a state is always the next state
    letters: list[str] = [""]  # by state the letter of that child; none where there is no child
    further: dict[int, list[tuple[str, int]]] = {}  # of some states: their other children
    ends, path, before = set(), [0], ""
    for name in sorted(known):
        shared = 0
        for old, new in zip(before, name):
            if old != new:
                break
            shared += 1
        before = name
        del path[shared + 1 :]
        if shared < len(name):
            at, fresh = path[shared], len(letters)
            if letters[at]:
                further.setdefault(at, []).append((name[shared], fresh))
            else:
                letters[at] = name[shared]
            letters += name[shared + 1 :]
            letters.append("")
            path += range(fresh, len(letters))
        ends.add(path[-1])
    last = len(letters)
    split = {letter: em.spell_split(letter) for letter in set(letters) if letter}
    leave = {letter: (others, last) for letter, (_, others) in split.items()}
    states: list[tuple] = []
    edges: tuple[tuple[tuple, int], ...]
    for at, letter in enumerate(letters):
        if letter and at not in further:
            own = split[letter][0]
            edges = ((own, at + 1), leave[letter]) if own else (leave[letter],)
        else:
            follow = [(letter, at + 1), *further.get(at, ())] if letter else []
            edges = (
                # a surrogate alone has no spelling
                *((em.spell_letter(c), target) for c, target in follow if not lone(c)),
                (em.spell_others(tuple([c for c, _ in follow])), last),
            )
        states.append((at not in ends, edges))
    states.append((True, ((em.block("key-char"), last),)))
    return seq(literal('"'), (NETWORK, 0, tuple(states)), literal('"'))
