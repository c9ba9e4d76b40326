"""Turns left-recursive rules into loops, because the machine cannot enter a rule again before a
byte.

Rules that begin with each other form left-linear equations A = A r + B: every way of matching A is
a B that does not begin with A, then any number of r. Solved together (a Kleene star of the matrix
of the r's), each rule becomes a network: its states are the rules of the group, and state j means
that a j that is not empty has been read.
"""

from collections.abc import Callable, Sequence

from oxillama.errors import GrammarError
from oxillama.grammar.nodes import (
    CHOICE,
    EMPTY,
    LITERAL,
    NETWORK,
    NEVER,
    REPEAT,
    RULE,
    SEQUENCE,
    choice,
    repeat,
    seq,
)

Fill = Callable[[int], tuple]
Pairs = list[tuple[int | None, tuple]]
MAX_PARTS = 10_000  # alternatives of one group of rules


def without_left_recursion(rules: Sequence[tuple]) -> tuple[tuple, ...]:
    """Rules of the same languages without left recursion; more rules may be appended. GrammarError
    with the rule's number as `rule` if that needs too many alternatives.
    """
    work = list(rules)
    filled: dict[int, int] = {}  # a rule -> the rule of its matches that are not empty
    while True:
        count = len(work)
        out = _looped(work, filled)
        if len(work) == count:
            return tuple(out)


def _looped(work: list[tuple], filled: dict[int, int]) -> list[tuple]:
    """The rules with every group that begins with itself turned into networks; appends to `work`
    the rules that were missing for it.
    """
    rules = list(work)
    nullable = _nullable(rules)
    groups = _groups([_begins(body, nullable) for body in rules])
    out = list(rules)
    if not groups:
        return out

    def fill(number: int) -> tuple:
        if number not in filled:
            filled[number] = len(work)
            work.append(NEVER)
            work[filled[number]] = _filled(rules[number], nullable, fill)
        return (RULE, filled[number])

    for group in groups:
        members = {number: i for i, number in enumerate(group)}
        firsts: list[tuple[tuple, int]] = []
        edges: list[list[tuple[tuple, int]]] = [[] for _ in group]
        parts = 0
        for number in group:
            target, todo, seen = members[number] + 1, [rules[number]], set()
            while todo:
                for head, rest in _split(todo.pop(), members, nullable, fill):
                    parts += 1
                    if parts > MAX_PARTS:
                        error = GrammarError("grammar: left recursion with too many alternatives")
                        error.rule = number  # type: ignore[attr-defined]
                        raise error
                    if head is None:
                        first = _filled(rest, nullable, fill)
                        if first != NEVER:
                            firsts.append((first, target))
                        continue
                    edges[members[head]].append((rest, target))
                    if nullable[head] and rest not in seen:  # where it matches nothing
                        seen.add(rest)
                        todo.append(rest)
        for number in group:
            states = [(nullable[number], tuple(firsts))]
            states += [(i == members[number], tuple(edges[i])) for i in range(len(group))]
            out[number] = (NETWORK, 0, tuple(states))
    return out


def _nullable(rules: Sequence[tuple]) -> list[bool]:
    """Per rule whether it can match nothing."""
    known = [False] * len(rules)
    changed = True
    while changed:
        changed = False
        for i, body in enumerate(rules):
            if not known[i] and _empty(body, known):
                known[i] = changed = True
    return known


def _empty(node: tuple, nullable: list[bool]) -> bool:
    kind = node[0]
    if kind == RULE:
        return node[1] < len(nullable) and nullable[node[1]]
    if kind == LITERAL:
        return not node[1]
    if kind == SEQUENCE:
        return all(_empty(part, nullable) for part in node[1])
    if kind == CHOICE:
        return any(_empty(part, nullable) for part in node[1])
    return kind == REPEAT and (node[2] == 0 or _empty(node[1], nullable))


def _begins(node: tuple, nullable: list[bool]) -> set[int]:
    """The rules that a node can begin with."""
    kind = node[0]
    if kind == RULE:
        return {node[1]}
    if kind == REPEAT:
        return _begins(node[1], nullable)
    if kind == CHOICE:
        return set().union(*(_begins(part, nullable) for part in node[1]))
    out: set[int] = set()
    if kind == SEQUENCE:
        for part in node[1]:
            out |= _begins(part, nullable)
            if not _empty(part, nullable):
                break
    return out


def _groups(begins: list[set[int]]) -> list[list[int]]:
    """The groups of rules that begin with each other (strongly connected components with a
    cycle).
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    out = []
    for root in range(len(begins)):
        if root in index:
            continue
        path = [(root, iter(sorted(begins[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while path:
            node, rest = path[-1]
            for target in rest:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    path.append((target, iter(sorted(begins[target]))))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    group: list[int] = []
                    while not group or group[-1] != node:
                        group.append(stack.pop())
                        on_stack.discard(group[-1])
                    if len(group) > 1 or node in begins[node]:
                        out.append(sorted(group))
    return out


def _split(node: tuple, members: dict[int, int], nullable: list[bool], fill: Fill) -> Pairs:
    """(rule of the group or None, rest) for every way in which a node can begin; the rest is what
    follows, and where there is no rule it is all of it.
    """
    kind = node[0]
    if kind == RULE and node[1] in members:
        return [(node[1], EMPTY)]
    if kind == CHOICE:
        return [pair for part in node[1] for pair in _split(part, members, nullable, fill)]
    if not (_begins(node, nullable) & members.keys()):
        return [(None, node)]
    if kind == REPEAT:
        _, body, least, most = node
        more = repeat(body, max(least - 1, 0), None if most < 0 else most - 1)
        out = []
        for head, rest in _split(body, members, nullable, fill):
            if head is None and _empty(rest, nullable):
                rest = _filled(rest, nullable, fill)
            if rest != NEVER:
                out.append((head, seq(rest, more)))
        return [*out, (None, EMPTY)] if _empty(node, nullable) else out
    # a sequence whose first part may match nothing: the others begin it then
    first, others = node[1][0], seq(*node[1][1:])
    out = []
    for head, rest in _split(first, members, nullable, fill):
        if head is not None:
            out.append((head, seq(rest, others)))
            continue
        filled = _filled(rest, nullable, fill)
        if filled != NEVER:
            out.append((None, seq(filled, others)))
    if _empty(first, nullable):
        out += _split(others, members, nullable, fill)
    return out


def _filled(node: tuple, nullable: list[bool], fill: Fill) -> tuple:
    """The node without the empty match; `fill` gives the node of a rule without it."""
    if not _empty(node, nullable):
        return node
    kind = node[0]
    if kind == RULE:
        return fill(node[1])
    if kind == CHOICE:
        return choice(*(_filled(part, nullable, fill) for part in node[1]))
    if kind == REPEAT:
        _, body, _, most = node
        first = _filled(body, nullable, fill)
        return seq(first, repeat(body, 0, None if most < 0 else most - 1))
    if kind == SEQUENCE:
        # in each the parts before some part match nothing, and that part something
        return choice(
            *(
                seq(_filled(part, nullable, fill), *node[1][i + 1 :])
                for i, part in enumerate(node[1])
            )
        )
    return NEVER
