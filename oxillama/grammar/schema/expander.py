"""Turns a conjunction of schemas into a list of cases with no logic left in them.

`Expander.cases(literals)` turns a set of literals (schema nodes that must or must not hold) into a
disjunction of `Case`; how it splits is `_core.expansion`'s. Sub-schemas of items and properties
stay literals, so recursion needs no unrolling: a grammar rule is a set of literals, and there are
finitely many. `keywords` defines what a keyword adds to a case, `negation` how it can fail. Here
is the rest: values and texts that schemas list, demands for some member, and `unevaluated*`.
"""

import contextlib
import functools
from collections.abc import Callable

from oxillama._core.cases import INFINITE, Branch, Case, Member, branches_of
from oxillama._core.expansion import Expansion
from oxillama._core.schemas import FALSE, TRUE, canonical
from oxillama.errors import GrammarError
from oxillama.grammar.regex import few_matches, search_automaton
from oxillama.grammar.regular import Dfa, meet, overlapping
from oxillama.grammar.schema.document import Document, contradicts
from oxillama.grammar.schema.formats import LONGEST, format_automaton, shorter_automaton
from oxillama.grammar.schema.keywords import APPLY, declared, in_place, note_evaluated
from oxillama.grammar.schema.negation import Act, negate
from oxillama.grammar.schema.validity import holds

MAX_TEXTS = 8  # combinations of what a string may be that are cases of their own
TEXT = frozenset(["string"])
MAX_SHARED = 3  # demands for members without a declared name, up to which one may meet several
MAX_NAMES = 16  # names tried one by one for a demand that some member must meet, texts of a pattern


class Expander(Expansion):
    """Expands literals of one document. `refuse(pointer, keyword, why)` is called for a keyword
    that cannot be enforced (it raises, or warns). loose: members may come in any order, and
    whether a name is declared changes nothing.
    """

    document: Document

    def __init__(
        self,
        document: Document,
        refuse: Callable[[str, str, str], None],
        *,
        loose: bool = False,
    ):
        super().__init__(document, APPLY, loose=loose)
        self.refuse = refuse
        self.few: dict[frozenset, list | None] = {}  # by literals, their values
        self.listed: dict[int, tuple[set, bool] | None] = {}
        # by branches, the strings that meet them
        self.texts: dict[tuple[Branch, ...], tuple[Case, ...] | None] = {}
        # by rules for names, the names that they leave, where those are few
        self.names: dict[tuple, list[str] | None] = {}
        # by literal, the values of which it is known whether they meet it, and those that do
        self.verdicts: dict[tuple[int, bool], tuple[set, set]] = {}
        # by pattern and name, whether it matches
        self.matched: dict[tuple[str, str], bool] = {}
        self.scopes = 0

    def strings(self, literals: frozenset) -> Dfa:
        """The strings that satisfy a conjunction."""
        out = Dfa.nothing()
        for case in self.cases(literals):
            if case.values is not None:
                out = out.either(Dfa.words([v for v in case.values if isinstance(v, str)]))
            elif "string" in case.types:
                out = out.either(language(case))
        return out

    def where(self, node: int) -> str:
        return self.document.where(node)

    def lists_scalars(self, node: int) -> bool:
        """Whether a few listed scalars are all that meets a node."""
        schema = self.document.keywords(self.document.behind(node))
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list):
            return not any(isinstance(v, (dict, list)) for v in values)
        return self.texts_of(((node, True),)) is not None

    def wants_integers(self, literals) -> bool:
        """Whether one of the literals, or what it refers to or is made of, wants its numbers to be
        integers.
        """
        todo, seen = [node for node, sign in literals if sign], {0}
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            schema = self.document.keywords(node)
            names = schema.get("type", ())
            names = names if isinstance(names, list) else [names]
            if "integer" in names and "number" not in names:
                return True
            inside = [
                self.literal(sub) for sub in schema.get("allOf", ())
            ] + self.document.referred(node, schema)
            todo += [other for other, sign in inside if sign]
        return False

    def texts_listed(self, node: int) -> dict | None:
        """The strings that meet a plain `pattern`, by their canonical forms; None where it is none,
        or more than `MAX_NAMES` match.
        """
        schema = self.document.keywords(node)
        if "pattern" in schema and schema.get("type") == "string":
            with contextlib.suppress(GrammarError):  # raised where it is demanded
                found = few_matches(schema["pattern"], MAX_NAMES)
                if found is not None:
                    return {canonical(text): text for text in found}
        return None

    def few_values(self, literals: frozenset) -> list | None:
        """The values that meet all of the literals, where one of them lists values or is a pattern
        that few strings match.
        """
        if literals not in self.few:
            left = self.values_of(literals)
            if left is None:
                left = self.texts_of(literals)
            values = left or {}
            keys = set(values)
            for literal in literals:
                if not keys:
                    break
                node, sign = literal
                listed = self._listed(node)
                if listed is None:
                    judged, met = self.verdicts.setdefault(literal, (set(), set()))
                    for key in values if not keys <= judged else ():
                        if key in keys and key not in judged:
                            if holds(self.document, literal, values[key]):
                                met.add(key)
                            judged.add(key)
                    keys &= met
                elif listed[1] == sign:
                    keys &= listed[0]
                else:
                    keys -= listed[0]
            self.few[literals] = None if left is None else [v for k, v in left.items() if k in keys]
        return self.few[literals]

    def accepts(self, literal: tuple[int, bool], value) -> bool:
        """Whether a value meets a literal. Where the schema lists values, those are judged once."""
        node, sign = literal
        found = self._listed(node)
        if found is None:
            return holds(self.document, literal, value)
        values, inside = found
        return ((canonical(value) in values) == inside) == sign

    def _listed(self, node: int) -> tuple[set, bool] | None:
        if node not in self.listed:
            self.listed[node] = self._values_listed(node)
        return self.listed[node]

    def _values_listed(self, node: int) -> tuple[set, bool] | None:
        """The only values that meet a schema (and True), or the only ones that do not (and False);
        None where it lists neither.
        """
        schema = self.document.keywords(node) if node else {}
        if schema.keys() == {"$banned"}:
            return self.document.members(node, "$banned"), False
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if not isinstance(values, list):
            return None
        words = schema.keys() <= {"enum", "type"} and schema.get("type") in (None, "string")
        if words and all(type(v) is str for v in values):  # of which there may be thousands
            return set(map(canonical, values)), True
        return {canonical(v) for v in values if holds(self.document, (node, True), v)}, True

    def texts_meet(self, branches: list[list[Case]], enough: int) -> set[tuple[int, int]] | None:
        """The pairs (i, j), i > j, of branches, each its cases of strings, that some text meets
        both of, as `overlapping` has them; None: an automaton is too large.
        """
        try:
            return overlapping(
                [functools.reduce(Dfa.either, map(language, cases)) for cases in branches], enough
            )
        except GrammarError:
            return None

    def join_texts(self, case: Case) -> None:
        """Of a string, splits that would make many combinations are kept as they are: one automaton
        is the intersection of their unions, however many combinations there are.
        """
        joined, left, combinations = [], [], 1
        for scope, branches, failing in case.splits:
            if callable(branches):
                branches = branches_of(branches(case))
            if branches not in self.texts:
                self.texts[branches] = self._texts(branches)
            texts = self.texts[branches]
            if texts is None:
                left.append((scope, branches, failing))
            else:
                joined.append(texts)
                combinations *= sum(text.combinations() for text in texts)
        if combinations == 0:
            case.dead = True
        elif combinations > MAX_TEXTS:
            case.text_choices += tuple(joined)
            case.splits = tuple(left)

    def _texts(self, branches: tuple[Branch, ...]) -> tuple[Case, ...] | None:
        """The branches that a string can meet, a case each; None where one lists values."""
        out = []
        for branch in branches:
            case = Case()
            case.types = TEXT
            for act in branch.actions:
                act(case)
            self.settle(case)
            for _, inner, _ in case.splits if not case.dead else ():
                texts = self._texts(branches_of(inner(case)) if callable(inner) else inner)
                if texts is None:
                    return None
                case.text_choices += (texts,)
            case.splits = ()
            if case.values is not None and not case.dead:
                return None
            if not case.dead and () not in case.text_choices:
                out.append(case)
        return tuple(out)

    def _candidates(self, case: Case, demand) -> list[list[Act]]:
        """The members that can meet a demand for some member: each that fits of those declared and
        of the few other names there are, or one without a declared name.
        """
        excluded, must, must_not, literal, names = demand
        out: list[list[Act]] = []
        few = self._names_for(case, demand)
        declared = (n for properties, _, _ in case.objects for n in properties)
        for name in dict.fromkeys([*declared, *case.required, *(few or ())]):
            if (
                name not in excluded
                and all(search_automaton(s).accepts_text(name) for s in must)
                and not any(search_automaton(s).accepts_text(name) for s in must_not)
                and all(holds(self.document, n, name) for n in names)
            ):
                out.append([Member(name, literal)])
        if few is None:
            out += _undeclared_branches(
                case, (excluded, must, must_not, frozenset((literal,)), names)
            )
        return out

    def _names_for(self, case: Case, demand) -> list[str] | None:
        """The names that can meet a demand for some member but those declared; None: too many."""
        _, must, _, _, names = demand
        try:
            return [] if _closed(case) else self._few_names(case, must, names)
        except GrammarError:
            return None  # an automaton is too large: who writes the members says so

    def _few_names(self, case: Case, must, names) -> list[str] | None:
        """The names that these patterns, these literals and the objects of a case allow, if those
        rules leave at most `MAX_NAMES`, else None.
        """
        only = [patterns for _, patterns, rest in case.objects if rest == FALSE]
        if not (only or must or names or case.names):
            return None
        rules = frozenset((*case.names, *names))
        closed = frozenset(frozenset(source for source, _ in patterns) for patterns in only)
        key = rules, tuple(must), closed
        if key not in self.names:
            allowed = self.strings(rules) if rules else None
            for source in must:
                allowed = meet(allowed, search_automaton(source), True)
            for sources in closed:
                some = Dfa.nothing()
                for source in sources:
                    some = some.either(search_automaton(source))
                allowed = meet(allowed, some, True)
            self.names[key] = None if allowed is None else allowed.finite(MAX_NAMES)
        return self.names[key]

    def choose_members(self, case: Case) -> None:
        """Splits by the members that can meet demands for some member: at once in a closed object,
        where no more will be declared, else one by one when nothing else is left to split. In
        any order those that few names can meet come first: they declare names.
        """
        left = len(case.member_demands) if _closed(case) else 0 if case.splits else 1
        case.scope = frozenset()
        while left:
            demands = case.member_demands
            at = len(demands) - 1
            if self.loose and len(demands) > 1:
                few = [i for i, e in enumerate(demands) if self._names_for(case, e) is not None]
                at = few[-1] if few else at
            case.member_demands = demands[:at] + demands[at + 1 :]
            case.split(self._candidates(case, demands[at]), failing=True)
            left -= 1

    def open_scopes(self, case: Case, node: int, schema: dict, scope) -> None:
        """Starts to note what is evaluated where a schema restricts what is not."""
        for keyword in ("unevaluatedProperties", "unevaluatedItems"):
            if keyword in schema and in_place(schema) and schema.get(keyword, True) is not True:
                self.scopes += 1
                case.scope = case.scope | {self.scopes}
                case.add(
                    "unevaluated",
                    (self.scopes, keyword, self.literal(schema[keyword]), scope, node),
                )

    def judge_unevaluated(self, case: Case) -> None:
        """Once a case is settled, what is left unevaluated in it is known: a constraint like
        `additionalProperties` or `items`.
        """
        for number, keyword, literal, _, node in case.unevaluated:
            nested = any(
                number in outer and other == keyword for _, other, _, outer, _ in case.unevaluated
            )
            if keyword == "unevaluatedProperties":
                seen = [entry for entry in case.evaluated_members if number in entry[0]]
                if nested or any(everything for *_, everything in seen):
                    continue
                names = {name: TRUE for _, declared, _, _ in seen for name in declared}
                patterns = dict.fromkeys(source for _, _, sources, _ in seen for source in sources)
                rules = names, tuple((source, TRUE) for source in patterns), literal
                if rules not in case.objects:  # known of a case whose members were chosen since
                    case.add("objects", rules)
            else:
                spans = [span for scopes, span in case.evaluated_items if number in scopes]
                if nested or INFINITE in spans:
                    continue
                if -1 in spans:
                    self.refuse(self.where(node), keyword, "together with 'contains'")
                    continue
                case.add("arrays", ((TRUE,) * max(spans, default=0), literal))

    # ------------------------------------------------------------------ keywords that must hold

    def fail(self, node: int, keyword: str, value, error: Exception) -> None:
        """Refuses a keyword that cannot be enforced; raises for a value that it cannot have."""
        if not isinstance(error, GrammarError):
            raise GrammarError(
                f"schema {self.where(node)}: keyword {keyword!r}: malformed value "
                f"{str(value)[:80]!r}"
            ) from None
        if str(error).startswith("schema "):
            raise error
        self.refuse(self.where(node), keyword, str(error))

    def negate(self, node: int, schema: dict) -> list[list[Act]]:
        return negate(self, node, schema)

    def declare(self, node: int, schema: dict) -> tuple[dict, tuple, tuple[int, bool]]:
        return declared(self, node, schema)

    def note_evaluated(self, case: Case, schema: dict, entry: tuple) -> None:
        note_evaluated(case, schema, entry)

    def matches(self, source: str, name: str) -> bool:
        """Whether a pattern matches a name."""
        known = self.matched.get((source, name))
        if known is None:
            known = self.matched[source, name] = search_automaton(source).accepts_text(name)
        return known

    def accepts_name(self, literal: tuple[int, bool], name: str) -> bool:
        """Whether a name meets what is said of names."""
        return holds(self.document, literal, name)


def language(case: Case) -> Dfa:
    """The automaton of a string's content."""
    dfa, longest = None, case.max_length
    for source, sign in case.patterns:
        dfa = meet(dfa, search_automaton(source), sign)
    for name, sign in case.formats:
        if sign and name in LONGEST and longest is not None:
            dfa = meet(dfa, shorter_automaton(name), True)
            longest = None if longest == LONGEST[name] else longest
        else:
            dfa = meet(dfa, format_automaton(name), sign)
    for cases in case.text_choices:
        dfa = meet(dfa, functools.reduce(Dfa.either, map(language, cases)).minimal(), True)
    if case.min_length or longest is not None:
        dfa = meet(dfa, Dfa.lengths(case.min_length, longest), True)
    if banned := case.banned_texts():
        dfa = meet(dfa, Dfa.words(banned), False)
    return dfa if dfa is not None else Dfa.everything()


def _undeclared_branches(case: Case, demand: tuple) -> list[list[Act]]:
    """The ways to meet a demand by a member without a declared name: one of its own, or one that
    another such demand has.
    """
    alone: list[Act] = [lambda f: f.add("undeclared", demand)]
    if sum(len(values) for *_, values, _ in case.undeclared) >= MAX_SHARED:
        return [alone]
    out = [alone]
    for at, other in enumerate(case.undeclared):
        both = _joined(other, demand)
        if both == other:  # whatever meets the other one meets this one
            return [[]]
        if not contradicts(both[3]):
            undeclared = (*case.undeclared[:at], both, *case.undeclared[at + 1 :])
            out.append([functools.partial(_set_undeclared, undeclared=undeclared)])
    return out


def _joined(one: tuple, other: tuple) -> tuple:
    """The demand that a member meets which meets two."""

    def listed(at: int) -> tuple:
        return tuple(dict.fromkeys((*one[at], *other[at])))

    return one[0] | other[0], listed(1), listed(2), one[3] | other[3], listed(4)


def _set_undeclared(case: Case, undeclared: tuple) -> None:
    case.undeclared = undeclared


def _closed(case: Case) -> bool:
    """Whether no member is allowed but those of a list of names."""
    return any(rest == FALSE and not patterns for _, patterns, rest in case.objects)
