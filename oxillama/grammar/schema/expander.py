"""Turns a conjunction of schemas into a list of cases with no logic left in them.

`Expander.cases(literals)` turns a set of literals (schema nodes that must or must not hold) into a
disjunction of `Case`. Conjunctions add constraints to a case; `anyOf`, `oneOf`, `if`, `dependent*`
and the negation of any keyword split it; contradictions drop it. Sub-schemas of items and
properties stay literals, so recursion needs no unrolling: a grammar rule is a set of literals, and
there are finitely many. `keywords` defines what a keyword adds to a case, `negation` how it can
fail, and `disjoint` what distinguishes the branches of a `oneOf`.
"""

import contextlib
import functools
from collections.abc import Callable, Collection

from oxillama.errors import GrammarError
from oxillama.grammar.regex import few_matches, search_automaton
from oxillama.grammar.regular import Dfa, meet
from oxillama.grammar.schema.case import (
    BLANK,
    INFINITE,
    Action,
    Branch,
    Case,
    Demand,
    Forbid,
    IfThere,
    Member,
    Require,
    branches_of,
)
from oxillama.grammar.schema.document import FALSE, MAX_HOPS, TRUE, Document, contradicts
from oxillama.grammar.schema.entailment import met, never, silent
from oxillama.grammar.schema.formats import format_automaton
from oxillama.grammar.schema.keywords import APPLY, in_place
from oxillama.grammar.schema.negation import negate
from oxillama.grammar.schema.validity import holds
from oxillama.grammar.schema.values import canonical

MAX_CASES = 1500
MAX_TEXTS = 8  # combinations of what a string may be that are cases of their own
TEXT = frozenset(["string"])
OBJECT = frozenset(["object"])
MAX_SHARED = 3  # demands for members without a declared name, up to which one may meet several
MAX_NAMES = 16  # names tried one by one for a demand that some member must meet, texts of a pattern
MAX_STEPS = 30_000  # cases looked at for one schema, those that turned out impossible included


class Expander:
    """Expands literals of one document. `refuse(pointer, keyword, why)` is called for a keyword
    that cannot be enforced (it raises, or warns). loose: members may come in any order, and
    whether a name is declared changes nothing.
    """

    def __init__(
        self,
        document: Document,
        refuse: Callable[[str, str, str], None],
        *,
        loose: bool = False,
    ):
        self.document, self.refuse, self.loose = document, refuse, loose
        self.memo: dict[frozenset, list[Case]] = {}
        # for `entailment`: by literals and one more, whether they imply it; by literals, their
        # values; by node, the values that it lists; by node, what it says if that is plain
        self.implied: dict[tuple[frozenset, tuple[int, bool]], bool] = {}
        self.few: dict[frozenset, list | None] = {}
        self.values: dict[int, dict | None] = {}
        self.scalars: dict[int, bool] = {}
        self.listed: dict[int, tuple[set, bool] | None] = {}
        self.plain: dict[int, tuple | None] = {}
        # by node, the ways in which it can fail, the keywords that it applies, and what it says of
        # members; by branches, the strings that meet them
        self.failing: dict[int, tuple[Branch, ...]] = {}
        self.applied: dict[int, list[tuple]] = {}
        self.declared: dict[int, tuple[dict, tuple, tuple[int, bool]]] = {}
        # by literal, what a member must satisfy that must satisfy it alone
        self.alone: dict[tuple[int, bool], frozenset | None] = {}
        self.texts: dict[tuple[Branch, ...], tuple[Case, ...] | None] = {}
        # by rules for names, the names that they leave, where those are few
        self.names: dict[tuple, list[str] | None] = {}
        # for `disjoint`: by literals, types and required members, the branches of a `oneOf`
        self.apart: dict[tuple, tuple[Branch, ...]] = {}
        self.disjoint: dict[frozenset, bool] = {}  # pairs of literals
        # by literal and value, whether the value meets it
        self.verdicts: dict[tuple[int, bool], dict] = {}
        self.working: set[frozenset] = set()
        self.circles = 0  # how often an expansion has come back to itself
        self.scopes = self.steps = 0
        self.most_steps = MAX_STEPS

    def cases(self, literals: frozenset) -> list[Case]:
        """The cases of a conjunction; no cases: nothing satisfies it."""
        known = self.memo.get(literals)
        if known is None:
            if literals in self.working:
                self.circles += 1
                raise GrammarError(
                    f"schema {self.where(next(iter(literals))[0])}: depends on itself without "
                    "consuming anything"
                )
            self.working.add(literals)
            try:
                known = self.memo[literals] = self._expand(literals)
            finally:
                self.working.discard(literals)
        return known

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
        return self.document.pointers[node] or "/"

    def _expand(self, literals: frozenset) -> list[Case]:
        start = BLANK.copy()
        if self.values_of(literals) is not None:
            start.allow(self.few_values(literals) or [])
            start.integer = self._whole(literals)
            return [] if start.dead else [start]
        for literal in sorted(literals):
            Demand(literal)(start)
        out, stack = [], [start]
        # what needs no splitting is free: rules may be expanded after compilation
        self.steps -= 1
        while stack:
            case = stack.pop()
            self.steps += 1
            if self.steps > self.most_steps:
                raise GrammarError(
                    f"schema {self.where(min(literals)[0])}: takes more than {MAX_STEPS} steps to "
                    "split into cases"
                )
            if len(case.todo) == 1 and (known := self._expanded(case)) is not None:
                stack.extend(known)
                continue
            if case.todo:
                self._settle(case)
            if case.touched or case.extras:
                self._refute(case)
            if case.dead or (case.past and met(self, case, case.past)):
                continue
            if case.values is not None:
                # the rest of the case is about concrete values: ask the validator, all of the
                # conjunction at once
                case.values = [
                    v for v in case.values if all(self.accepts(one, v) for one in literals)
                ]
                case.splits = ()
                if not case.values:
                    continue
            if case.types == TEXT and len(case.splits) > (0 if case.patterns else 1):
                self._join_texts(case)
                if case.dead:
                    continue
            if not case.splits:
                self._judge_unevaluated(case)
            if case.extras and "object" in case.types:
                self._choose_members(case)
            if not case.splits:
                out.append(case)
                if len(out) > MAX_CASES:
                    raise GrammarError(
                        f"schema {self.where(min(literals)[0])}: expands to more than {MAX_CASES} "
                        "cases"
                    )
                continue
            quiet = True
            while case.splits:
                scope, branches = case.next_split()
                # what a branch evaluates counts where a scope is open: all of them are followed
                quiet = not scope and silent(self, case, branches)
                if not (quiet and met(self, case, branches)):
                    break
            else:
                stack.append(case)
                continue
            case.scope, made = scope, []
            for branch in branches:
                other = case.copy()
                for act in branch.actions:
                    act(other)
                    if other.dead:
                        break
                else:
                    made.append(other)
                    if quiet and not self._exclude(case, branch):
                        case.past += (branch,)
                    if case.dead:
                        break
            stack.extend(reversed(made))
            if len(stack) > MAX_CASES:
                raise GrammarError(
                    f"schema {self.where(min(literals)[0])}: expands to more than {MAX_CASES} cases"
                )
        return out

    def _exclude(self, case: Case, branch: Branch) -> bool:
        """Makes a case of an object one without what meets a branch, where one demand on a member
        says so; returns whether it did. Not where members have an order: what is said of a member
        would give it a place.
        """
        act = branch.alone
        if not self.loose or case.types != OBJECT:
            return False
        if isinstance(act, Forbid):
            case.require(act.name)
        elif isinstance(act, Require) or (isinstance(act, Member) and act.literal == TRUE):
            if not case.declares(act.name):
                return False
            case.forbid(act.name)
        elif isinstance(act, (Member, IfThere)) and self._lists_others(act.literal):
            other = IfThere if isinstance(act, Member) else Member
            other(act.name, (act.literal[0], True))(case)
        else:
            return False
        self._refute(case)
        return True

    def _lists_others(self, literal: tuple[int, bool]) -> bool:
        """Whether all but a few listed scalars meet a literal."""
        node, sign = literal
        if sign or not node:
            return False
        if node not in self.scalars:
            schema = self.document.keywords(self._referred((node, True)))
            values = [schema["const"]] if "const" in schema else schema.get("enum")
            self.scalars[node] = (
                not any(isinstance(v, (dict, list)) for v in values)
                if isinstance(values, list)
                else self.texts_of([(node, True)]) is not None
            )
        return self.scalars[node]

    def _expanded(self, case: Case) -> list[Case] | None:
        """The cases of a case that only has one literal to meet, where they are known."""
        ((literal, scope),) = case.todo
        known = self.memo.get(frozenset((literal,)))
        if known is None or scope or not case.only_todo():
            return None
        if any(one.unevaluated for one in known):  # judged once, in the case that they are part of
            return None
        out = []
        for one in reversed(known):
            other = one.copy()
            other.past = case.past
            out.append(other)
        return out

    def _whole(self, literals) -> bool:
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

    def values_of(self, literals) -> dict | None:
        """The values of a plain `enum` or `const` among the literals, by their canonical forms:
        everything else then only filters them.
        """
        for literal in literals:
            node = self._referred(literal)
            if node not in self.values:
                schema = self.document.keywords(node) if node else {}
                values = [schema["const"]] if "const" in schema else schema.get("enum")
                listed = isinstance(values, list)
                self.values[node] = {canonical(v): v for v in values or ()} if listed else None
            if self.values[node] is not None:
                return self.values[node]
        return None

    def texts_of(self, literals) -> dict | None:
        """The same of a plain `pattern` that at most `MAX_NAMES` strings match."""
        for literal in literals:
            node = self._referred(literal)
            schema = self.document.keywords(node) if node else {}
            if "pattern" in schema and schema.get("type") == "string":
                with contextlib.suppress(GrammarError):  # raised where it is demanded
                    found = few_matches(schema["pattern"], MAX_NAMES)
                    if found is not None:
                        return {canonical(text): text for text in found}
        return None

    def _referred(self, literal: tuple[int, bool]) -> int:
        """The node of a literal, behind references; 0 where it must not hold."""
        node, sign = literal
        if not sign:
            return 0
        for _ in range(MAX_HOPS):
            schema = self.document.keywords(node) if node else {}
            if "$ref" not in schema:
                break
            target, truth = self.document.resolve(node, schema["$ref"])
            if not (truth and target):
                break
            node = target
        return node

    def few_values(self, literals: frozenset) -> list | None:
        """The values that meet all of the literals, where one of them lists values or is a pattern
        that few strings match.
        """
        if literals not in self.few:
            left = self.values_of(literals)
            if left is None:
                left = self.texts_of(literals)
            for literal in literals:
                if not left:
                    break
                node, sign = literal
                listed = self._listed(node)
                if listed is None:
                    verdicts = self.verdicts.setdefault(literal, {})
                    for k, v in left.items():
                        if k not in verdicts:
                            verdicts[k] = holds(self.document, literal, v)
                    left = {k: v for k, v in left.items() if verdicts[k]}
                else:
                    values, inside = listed
                    left = {k: v for k, v in left.items() if (k in values) == (inside == sign)}
            self.few[literals] = None if left is None else list(left.values())
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
        return {canonical(v) for v in values if holds(self.document, (node, True), v)}, True

    def _settle(self, case: Case) -> None:
        """Applies pending literals until only splits are left."""
        while case.todo and not case.dead:
            (literal, scope), case.todo = case.todo[0], case.todo[1:]
            node, sign = literal
            if (literal, scope) in case.done:
                continue
            case.done |= {(literal, scope), literal}
            if (node, not sign) in case.done:
                case.dead = True
                return
            schema = self.document.keywords(node)
            if sign:
                case.scope = scope
                applied = self.applied.get(node)
                if applied is None:
                    applied = [(k, value, APPLY[k]) for k, value in schema.items() if k in APPLY]
                    self.applied[node] = applied
                if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
                    self._open_scopes(case, node, schema, scope)
                for keyword, value, handler in applied:
                    try:
                        handler(self, case, node, schema, value)
                    except (GrammarError, TypeError, ValueError, AttributeError) as error:
                        self._fail(node, keyword, value, error)
                    if case.dead:
                        return
            else:
                case.scope = frozenset()  # what fails evaluates nothing
                branches = self.failing.get(node)
                if branches is None:
                    branches = self.failing[node] = branches_of(negate(self, node, schema))
                if any(branch.literals for branch in branches):
                    done = case.done
                    branches = tuple(
                        branch
                        for branch in branches
                        if not any((n, not truth) in done for n, truth in branch.literals)
                    )
                if len(branches) == 1:
                    for act in branches[0].actions:
                        act(case)
                elif not branches:
                    case.dead = True
                else:
                    case.split(branches, failing=True)

    def _join_texts(self, case: Case) -> None:
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
            case.either += tuple(joined)
            case.splits = tuple(left)

    def _texts(self, branches: tuple[Branch, ...]) -> tuple[Case, ...] | None:
        """The branches that a string can meet, a case each; None where one lists values."""
        out = []
        for branch in branches:
            case = Case()
            case.types = TEXT
            for act in branch.actions:
                act(case)
            self._settle(case)
            for _, inner, _ in case.splits if not case.dead else ():
                texts = self._texts(branches_of(inner(case)) if callable(inner) else inner)
                if texts is None:
                    return None
                case.either += (texts,)
            case.splits = ()
            if case.values is not None and not case.dead:
                return None
            if not case.dead and () not in case.either:
                out.append(case)
        return tuple(out)

    def _candidates(self, case: Case, extra) -> list[list[Action]]:
        """The members that can meet a demand for some member: each that fits of those declared and
        of the few other names there are, or one without a declared name.
        """
        excluded, must, must_not, literal, names = extra
        out: list[list[Action]] = []
        few = self._names_for(case, extra)
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
            out += _owing(case, (excluded, must, must_not, frozenset((literal,)), names))
        return out

    def _names_for(self, case: Case, extra) -> list[str] | None:
        """The names that can meet a demand for some member but those declared; None: too many."""
        _, must, _, _, names = extra
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

    def _choose_members(self, case: Case) -> None:
        """Splits by the members that can meet demands for some member: at once in a closed object,
        where no more will be declared, else one by one when nothing else is left to split. In
        any order those that few names can meet come first: they declare names.
        """
        left = len(case.extras) if _closed(case) else 0 if case.splits else 1
        case.scope = frozenset()
        while left:
            extras = case.extras
            at = len(extras) - 1
            if self.loose and len(extras) > 1:
                few = [i for i, e in enumerate(extras) if self._names_for(case, e) is not None]
                at = few[-1] if few else at
            case.extras = extras[:at] + extras[at + 1 :]
            case.split(self._candidates(case, extras[at]), failing=True)
            left -= 1

    def _refute(self, case: Case) -> None:
        """Drops objects where a demanded member cannot be there: before its case is split further.
        Looked at are demands for some member, and those members of which more is demanded.
        """
        if "object" not in case.types:
            return
        for excluded, *_ in case.extras:
            for properties, patterns, rest in case.objects:
                if rest == FALSE and not patterns and excluded.issuperset(properties):
                    case.drop("object")
                    return
        for name in case.touched:
            if name in case.required and never(self, case, name):
                case.drop("object")
                break
        case.touched = ()

    def _open_scopes(self, case: Case, node: int, schema: dict, scope) -> None:
        """Starts to note what is evaluated where a schema restricts what is not."""
        for keyword in ("unevaluatedProperties", "unevaluatedItems"):
            if keyword in schema and in_place(schema) and schema.get(keyword, True) is not True:
                self.scopes += 1
                case.scope = case.scope | {self.scopes}
                case.add(
                    "unevaluated",
                    (self.scopes, keyword, self.literal(schema[keyword]), scope, node),
                )

    def _judge_unevaluated(self, case: Case) -> None:
        """Once a case is settled, what is left unevaluated in it is known: a constraint like
        `additionalProperties` or `items`.
        """
        for number, keyword, literal, _, node in case.unevaluated:
            nested = any(
                number in outer and other == keyword for _, other, _, outer, _ in case.unevaluated
            )
            if keyword == "unevaluatedProperties":
                seen = [entry for entry in case.seen if number in entry[0]]
                if nested or any(everything for *_, everything in seen):
                    continue
                names = {name: TRUE for _, declared, _, _ in seen for name in declared}
                patterns = dict.fromkeys(source for _, _, sources, _ in seen for source in sources)
                rules = names, tuple((source, TRUE) for source in patterns), literal
                if rules not in case.objects:  # known of a case whose members were chosen since
                    case.add("objects", rules)
            else:
                spans = [span for scopes, span in case.spans if number in scopes]
                if nested or INFINITE in spans:
                    continue
                if -1 in spans:
                    self.refuse(self.where(node), keyword, "together with 'contains'")
                    continue
                case.add("arrays", ((TRUE,) * max(spans, default=0), literal))

    # ------------------------------------------------------------------ keywords that must hold

    def _fail(self, node: int, keyword: str, value, error: Exception) -> None:
        """Refuses a keyword that cannot be enforced; raises for a value that it cannot have."""
        if not isinstance(error, GrammarError):
            raise GrammarError(
                f"schema {self.where(node)}: keyword {keyword!r}: malformed value "
                f"{str(value)[:80]!r}"
            ) from None
        if str(error).startswith("schema "):
            raise error
        self.refuse(self.where(node), keyword, str(error))

    def literal(self, schema, sign: bool = True):
        return self.document.literal(schema, sign)

    def property_literals(self, case: Case, name: str) -> frozenset | None:
        """What a property of this name must satisfy; None where it cannot be there."""
        if name in case.forbidden or (
            case.names and not all(holds(self.document, literal, name) for literal in case.names)
        ):
            return None
        out = set()
        for properties, patterns, rest in case.objects:
            literal = properties.get(name)
            if not patterns:
                out.add(rest if literal is None else literal)
                continue
            matched = [] if literal is None else [literal]
            matched += [
                one for source, one in patterns if search_automaton(source).accepts_text(name)
            ]
            out.update(matched or [rest])
        return self._together(out)

    def properties(self, case: Case, names: Collection[str]) -> list[frozenset | None]:
        """`property_literals` of several names: only those objects are looked at for each of them
        that say something of every member.
        """
        objects = case.objects
        if len(objects) < 3:
            return [self.property_literals(case, name) for name in names]
        said: dict[str, set] = {name: set() for name in names}
        wide = []
        for entry in objects:
            properties, patterns, rest = entry
            if patterns or rest != TRUE:
                wide.append(entry)
                continue
            for name, literal in properties.items():
                if name in said:
                    said[name].add(literal)
        if wide or case.names:
            part = case.copy()
            part.objects = tuple(wide)
            for name, out in said.items():
                found = self.property_literals(part, name)
                out.update((FALSE,) if found is None else found)
        return [
            None if name in case.forbidden else self._together(out) for name, out in said.items()
        ]

    def _together(self, literals: set) -> frozenset | None:
        """Literals of one value; None where they exclude each other at first sight."""
        if len(literals) == 1:
            (literal,) = literals
            if literal not in self.alone:
                one = frozenset() if literal == TRUE else frozenset(literals)
                self.alone[literal] = None if literal == FALSE else one
            return self.alone[literal]
        if FALSE in literals:
            return None
        literals.discard(TRUE)
        if len(literals) > 1 and any((node, not sign) in literals for node, sign in literals):
            return None
        return frozenset(literals)


def language(case: Case) -> Dfa:
    """The automaton of a string's content."""
    dfa = None
    for source, sign in case.patterns:
        dfa = meet(dfa, search_automaton(source), sign)
    for name, sign in case.formats:
        dfa = meet(dfa, format_automaton(name), sign)
    for cases in case.either:
        dfa = meet(dfa, functools.reduce(Dfa.either, map(language, cases)).minimal(), True)
    if case.min_length or case.max_length is not None:
        dfa = meet(dfa, Dfa.lengths(case.min_length, case.max_length), True)
    if banned := case.banned_texts():
        dfa = meet(dfa, Dfa.words(banned), False)
    return dfa if dfa is not None else Dfa.everything()


def _owing(case: Case, demand: tuple) -> list[list[Action]]:
    """The ways to meet a demand by a member without a declared name: one of its own, or one that
    another such demand has.
    """
    alone: list[Action] = [lambda f: f.add("owed", demand)]
    if sum(len(values) for *_, values, _ in case.owed) >= MAX_SHARED:
        return [alone]
    out = [alone]
    for at, other in enumerate(case.owed):
        both = _both(other, demand)
        if both == other:  # whatever meets the other one meets this one
            return [[]]
        if not contradicts(both[3]):
            owed = (*case.owed[:at], both, *case.owed[at + 1 :])
            out.append([functools.partial(_owe, owed=owed)])
    return out


def _both(one: tuple, other: tuple) -> tuple:
    """The demand that a member meets which meets two."""

    def listed(at: int) -> tuple:
        return tuple(dict.fromkeys((*one[at], *other[at])))

    return one[0] | other[0], listed(1), listed(2), one[3] | other[3], listed(4)


def _owe(case: Case, owed: tuple) -> None:
    case.owed = owed


def _closed(case: Case) -> bool:
    """Whether no member is allowed but those of a list of names."""
    return any(rest == FALSE and not patterns for _, patterns, rest in case.objects)
