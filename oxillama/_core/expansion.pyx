"""A conjunction of schemas as cases with no logic left in them: the loop that splits, and what saves splitting.

Conjunctions add constraints to a case; `anyOf`, `oneOf`, `if`, `dependent*` and the negation of any keyword split it; contradictions drop
it. A split is left out where a case meets one of its branches already, and a case that meets a branch which another case took at a split
before it is a part of that one. What decides so is a sufficient condition: false says that it is not known.
"""
import math

from oxillama._core.cases cimport Action, Branch, Case, Demand, Forbid, IfPresent, Member, Require, Within, branches_of, entry_of
from oxillama._core.schemas cimport Schemas, canonical

from oxillama.errors import GrammarError
from oxillama._core.schemas import ENFORCED, FALSE, TRUE, TYPES

cdef enum:
    MOST_CASES = 1500
    MOST_STEPS = 30_000     # cases looked at for one schema, those that turned out impossible included
    MOST_SUMMARISED = 64    # cases of a branch by which it is told from others
    MOST_TOLD = 15_000      # pairs of branches of strings that are told apart by what one of them is not
    FEW_TEXTS = 8           # branches of strings that are told apart like all others: automata are for many

MAX_CASES = MOST_CASES

cdef frozenset NONE = frozenset()
cdef frozenset TEXT = frozenset(("string",))
cdef frozenset OBJECT = frozenset(("object",))
cdef frozenset ALL_TYPES = frozenset(TYPES)
cdef tuple FALSE_LITERAL = FALSE, TRUE_LITERAL = TRUE
# keywords that may declare member names, by themselves or by what they refer to
cdef frozenset DECLARING = frozenset((
    "properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "dependencies", "dependentSchemas", "$ref",
    "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if"))


cdef frozenset MEMBERS = frozenset(("properties", "patternProperties", "additionalProperties", "unevaluatedProperties"))
cdef frozenset OPENING = MEMBERS - {"properties"}       # say what members without a declared name may be


cdef class Summary:
    """What is known cheaply of a case of a branch: its types here, its values, and of the members required here those of which the values
    are listed (None until they are asked for).
    """

    cdef Summary without(self, frozenset types):
        cdef Summary other = Summary.__new__(Summary)
        other.case, other.values, other.required, other.tags = self.case, self.values, self.required, self.tags
        other.types = self.types - types
        return other


cdef bint same_value(Expansion ex, Summary one, Summary other) except -1:
    """Whether a value may fit two cases."""
    cdef frozenset types = one.types & other.types
    if not types:
        return False
    if one.values is not None and other.values is not None and one.values.isdisjoint(other.values):
        return False
    if types == OBJECT:
        tags = ex._tags(other)
        for name, values in ex._tags(one).items():
            others = tags.get(name)
            if others is not None and values.isdisjoint(others):
                return False
        if not other.case.forbidden.isdisjoint(one.required) or not one.case.forbidden.isdisjoint(other.required):
            return False
    if len(types) == 1 and "number" in types and no_number(one.case, other.case):
        return False
    return True


cdef bint no_number(Case one, Case other) except -1:
    if one.integer and other.fraction or one.fraction and other.integer:
        return True
    low = max([case.low for case in (one, other) if case.low is not None], default=-math.inf)
    high = min([case.high for case in (one, other) if case.high is not None], default=math.inf)
    return low > high


cdef bint apart(Expansion ex, list one, list other) except -1:
    """Whether summaries show that no value fits both branches; None if nothing is known of one."""
    if one is None or other is None:
        return False
    for a in one:
        for b in other:
            if same_value(ex, <Summary>a, <Summary>b):
                return False
    return True


cdef frozenset taken_whole(list summary):
    """The types of which a branch takes all values but, perhaps, objects: then no other branch can have values of them."""
    if not summary:
        return NONE
    return NONE.union(*[(<Summary>part).case.whole_types() for part in summary])


cdef class Expansion:
    """Expands the literals of one document. loose: members may come in any order, and whether a name is declared changes nothing.

    What stands in a subclass: `negate` (how a schema can fail), values and texts that a schema lists, automata of strings and names,
    demands for some member, `unevaluated*`, and errors.
    """

    def __cinit__(self, Schemas document, *args, **kwargs):
        self.document = document
        self.most_steps = MOST_STEPS
        self.memo, self.working = {}, set()
        # by literals and one more, whether they imply it; by node, what it says if that is plain
        self.implied, self.plain = {}, {}
        # by node, the ways in which it can fail, the values that it lists, whether those are all that meets it and scalars, and what it says
        # of members
        self.failing, self.values, self.scalars, self.declared = {}, {}, {}, {}
        self.texts_listed_by = {}
        self.alone = {}             # by literal, what a member must satisfy that must satisfy it alone
        # by literals, types and required members, the branches of a `oneOf`; by pairs of literals, whether no value meets both
        self.told_apart, self.disjoint = {}, {}

    def __init__(self, document, dict handlers, *, loose=False):
        self.handlers, self.loose = handlers, loose

    cpdef list cases(self, frozenset literals):
        """The cases of a conjunction; no cases: nothing satisfies it."""
        known = self.memo.get(literals)
        if known is None:
            if literals in self.working:
                self.cycles += 1
                raise GrammarError(
                    f"schema {self.document.where(next(iter(literals))[0])}: depends on itself without consuming anything")
            self.working.add(literals)
            try:
                known = self.memo[literals] = self._expand(literals)
            finally:
                self.working.discard(literals)
        return known

    def forget(self, rules):
        """Forgets what only helps to expand, and all cases but those of some conjunctions: what is left may be kept for long."""
        self.memo = {literals: cases for literals, cases in self.memo.items() if literals in rules}
        for known in (self.implied, self.told_apart, self.disjoint):
            (<dict>known).clear()

    cdef list _expand(self, frozenset literals):
        cdef Case case = Case.__new__(Case), other
        cdef Branch branch
        cdef list out = [], stack, made
        cdef tuple branches
        cdef bint quiet, done
        if self.values_of(literals) is not None:
            case.allow(self.few_values(literals) or [])
            case.integer = self.wants_integers(literals)
            return [] if case.dead else [case]
        for literal in sorted(literals):
            Demand(literal).apply(case)
        stack = [case]
        # what needs no splitting is free: rules may be expanded after compilation
        self.steps -= 1
        while stack:
            case = stack.pop()
            self.steps += 1
            if self.steps > self.most_steps:
                raise self._too_many(literals, f"takes more than {MOST_STEPS} steps to split into cases")
            if len(case.pending) == 1:
                made = self._expanded(case)
                if made is not None:
                    stack.extend(made)
                    continue
            if case.pending:
                self.settle(case)
            if case.changed_members or case.member_demands:
                self._refute(case)
            if case.dead or (case.taken_branches and self._met(case, case.taken_branches)):
                continue
            if case.values is not None:
                # the rest of the case is about concrete values: ask the validator, all of the conjunction at once
                case.values = [v for v in case.values if self.meets_all(literals, v)]
                case.splits = ()
                if not case.values:
                    continue
            if case.types == TEXT and len(case.splits) > (0 if case.patterns else 1):
                self.join_texts(case)
                if case.dead:
                    continue
            if not case.splits and case.unevaluated:
                self.judge_unevaluated(case)
            if case.member_demands and "object" in case.types:
                self.choose_members(case)
            if not case.splits:
                case.taken_branches = ()    # only counts where there is more to split
                out.append(case)
                if len(out) > MOST_CASES:
                    raise self._too_many(literals, f"expands to more than {MOST_CASES} cases")
                continue
            done = True
            quiet = True
            while case.splits:
                scope, branches = case.next_split()
                # what a branch evaluates counts where a scope is open: all of them are followed
                quiet = not scope and self._silent(case, branches)
                if not (quiet and self._met(case, branches)):
                    done = False
                    break
            if done:
                stack.append(case)
                continue
            case.scope, made = scope, []
            for branch in branches:
                other = case.copy()
                for act in branch.actions:
                    if isinstance(act, Action):
                        (<Action>act).apply(other)
                    else:
                        act(other)
                    if other.dead:
                        break
                else:
                    made.append(other)
                    if quiet and not self._exclude(case, branch):
                        case.taken_branches = (*case.taken_branches, branch)
                    if case.dead:
                        break
            made.reverse()
            stack.extend(made)
            if len(stack) > MOST_CASES:
                raise self._too_many(literals, f"expands to more than {MOST_CASES} cases")
        return out

    cdef object _too_many(self, frozenset literals, str what):
        """The error of a conjunction that exceeds a limit."""
        return GrammarError(f"schema {self.document.where(min(literals)[0])}: {what}")

    def meets_all(self, frozenset literals, value):
        """Whether a value meets all of the literals."""
        for literal in literals:
            if not self.accepts(literal, value):
                return False
        return True

    cdef list _expanded(self, Case case):
        """The cases of a case that only has one literal to meet, where they are known."""
        cdef list known, out = []
        cdef Case one, other
        if isinstance((<tuple>case.pending[0])[0], tuple):     # a scope is open
            return None
        known = self.memo.get(frozenset(case.pending))
        if known is None or not case.only_pending():
            return None
        for one in reversed(known):
            if one.unevaluated:             # judged once, in the case that they are part of
                return None
            other = one.copy()
            other.taken_branches = case.taken_branches
            out.append(other)
        return out

    cpdef int settle(self, Case case) except -1:
        """Applies pending literals until only splits are left."""
        cdef tuple literal, pending
        cdef int node
        while case.pending and not case.dead:
            literal = pending = case.pending[0]
            case.pending = case.pending[1:]
            if pending in case.applied:
                continue
            scope = NONE
            if isinstance(pending[0], tuple):
                literal, scope = pending
            node, sign = literal
            case.applied = case.applied.union((pending, literal))
            if (node, not sign) in case.applied:
                case.dead = True
                return 0
            if sign:
                self._apply(case, node, self.document.keywords(node), scope)
            else:
                self._fail_to_hold(case, node, self.document.keywords(node))
        return 0

    cdef int _apply(self, Case case, int node, dict schema, frozenset scope) except -1:
        """Adds what the keywords of a schema demand."""
        case.scope = scope
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            self.open_scopes(case, node, schema, scope)
        for keyword, value in schema.items():
            handler = self.handlers.get(keyword)
            if handler is None:
                continue
            try:
                handler(self, case, node, schema, value)
            except (GrammarError, TypeError, ValueError, AttributeError) as error:
                self.fail(node, keyword, value, error)
            if case.dead:
                return 0
        return 0

    cdef int _fail_to_hold(self, Case case, int node, dict schema) except -1:
        """Splits by the ways in which a schema fails."""
        cdef tuple branches
        cdef Branch branch
        case.scope = NONE           # what fails evaluates nothing
        known = self.failing.get(node)
        if known is None:
            known = self.failing[node] = branches_of(self.negate(node, schema))
        branches = known
        for branch in branches:
            if branch.literals:
                branches = tuple([one for one in branches if not excluded(case, <Branch>one)])
                break
        if case.types == TEXT:      # no step for what is of another type: of a text there may be hundreds that must fail
            branches = tuple([one for one in branches if self._may_be_text(<Branch>one)])
        if len(branches) == 1:
            for act in (<Branch>branches[0]).actions:
                act(case)
        elif not branches:
            case.dead = True
        else:
            case.split(branches, True)
        return 0

    cdef bint _may_be_text(self, Branch branch) except -1:
        """Whether the types that a branch names leave strings."""
        if branch.types and "string" not in branch.types:
            return False
        for literal in branch.literals:
            kind = self.document.keywords(literal[0]).get("type", "string") if literal[1] else "string"
            if kind != "string" and (isinstance(kind, str) or (isinstance(kind, list) and "string" not in kind)):
                return False
        return True

    cdef bint _exclude(self, Case case, Branch branch) except -1:
        """Makes a case of an object one without what meets a branch, where one demand on a member says so; returns whether it did. Not where
        members have an order: what is said of a member would give it a place.
        """
        act = branch.sole_action
        if not self.loose or act is None or case.types != OBJECT:
            return False
        if isinstance(act, Forbid):
            case.require((<Forbid>act).name)
        elif isinstance(act, Require) or (isinstance(act, Member) and (<Member>act).literal == TRUE_LITERAL):
            if not case.declares(act.name):
                return False
            case.forbid(act.name)
        elif isinstance(act, Member) and self._lists_others((<Member>act).literal):
            self._want(case, (<Member>act).name, (<Member>act).literal)
        elif isinstance(act, IfPresent) and self._lists_others((<IfPresent>act).literal):
            case.require((<IfPresent>act).name)
            self._want(case, (<IfPresent>act).name, (<IfPresent>act).literal)
        else:
            return False
        self._refute(case)
        return True

    cdef bint _lists_others(self, tuple literal) except -1:
        """Whether all but a few listed scalars meet a literal."""
        node, sign = literal
        if sign or not node:
            return False
        known = self.scalars.get(node)
        if known is None:
            known = self.scalars[node] = self.lists_scalars(node)
        return known

    cdef int _want(self, Case case, str name, tuple literal) except -1:
        """Wants of a member what a negative literal excludes."""
        return case.constrain_member(name, entry_of(name, self.document.inverse(literal)))

    cdef int _refute(self, Case case) except -1:
        """Drops objects where a demanded member cannot be there: before its case is split further. Looked at are demands for some member, and
        those members of which more is demanded.
        """
        if "object" not in case.types:
            return 0
        for demand in case.member_demands:
            for properties, patterns, rest in case.objects:
                if rest == FALSE_LITERAL and not patterns and (<frozenset>demand[0]).issuperset(properties):
                    case.drop("object")
                    return 0
        for name in case.changed_members:
            if name in case.required and self._never(case, name):
                case.drop("object")
                break
        case.changed_members = ()
        return 0

    # ---------------------------------------------------------------- values

    cpdef dict values_of(self, literals):
        """The values of a plain `enum` or `const` among the literals, by their canonical forms: everything else then only filters them."""
        cdef int node
        cdef dict schema
        for node, sign in literals:
            if not sign or node == 0:
                continue
            node = self.document.behind(node)
            if node in self.values:
                found = self.values[node]
            else:
                schema = self.document.keywords(node)
                values = [schema["const"]] if "const" in schema else schema.get("enum")
                found = {canonical(v): v for v in values} if isinstance(values, list) else None
                self.values[node] = found
            if found is not None:
                return found
        return None

    cpdef dict texts_of(self, literals):
        """The same of a plain `pattern` that few strings match."""
        cdef int node
        for node, sign in literals:
            if not sign or node == 0:
                continue
            node = self.document.behind(node)
            if node in self.texts_listed_by:
                found = self.texts_listed_by[node]
            else:
                found = self.texts_listed_by[node] = self.texts_listed(node)
            if found is not None:
                return found
        return None

    cpdef tuple literal(self, schema, bint sign=True):
        """The literal of a schema inside the document."""
        return self.document.literal(schema, sign)

    # ---------------------------------------------------------------- members

    cpdef property_literals(self, Case case, str name):
        """What a property of this name must satisfy; None where it cannot be there."""
        cdef set out
        cdef tuple entry
        if name in case.forbidden or (case.names and not self._named(case, name)):
            return None
        only = None
        for entry in case.objects:
            if entry[1]:
                break
            literal = (<dict>entry[0]).get(name)
            if literal is None:
                literal = entry[2]
            if literal is only or literal is TRUE_LITERAL:
                continue
            if only is not None:
                break
            only = literal
        else:                               # as it mostly is: nothing to put together
            return NONE if only is None else self._one(only)
        out = set()
        for entry in case.objects:
            self._said_of(entry, name, out)
        return self._together(out)

    cdef int _said_of(self, tuple entry, str name, set out) except -1:
        """Adds what one schema says of a member."""
        literal = (<dict>entry[0]).get(name)
        if not entry[1]:
            if literal is None:
                literal = entry[2]
            if literal is not TRUE_LITERAL:
                out.add(literal)
            return 0
        matched = [] if literal is None else [literal]
        for source, one in <tuple>entry[1]:
            if self.matches(source, name):
                matched.append(one)
        out.update(matched or (entry[2],))
        return 0

    cdef bint _named(self, Case case, str name) except -1:
        """Whether a name meets what is said of names."""
        for literal in case.names:
            if not self.accepts_name(literal, name):
                return False
        return True

    def properties(self, Case case, names):
        """`property_literals` of several names: only those objects are looked at for each of them that say something of every member."""
        cdef dict said
        cdef list wide, out
        cdef set of_name
        cdef tuple entry
        if len(case.objects) < 3:
            return [self.property_literals(case, name) for name in names]
        said, wide = {}, []                 # by name: a literal, or a set of them
        for entry in case.objects:
            if entry[1] or entry[2] != TRUE_LITERAL:
                wide.append(entry)
                continue
            for name, literal in (<dict>entry[0]).items():
                found = said.get(name)
                if found is None:
                    said[name] = literal
                elif isinstance(found, set):
                    (<set>found).add(literal)
                elif found is not literal:
                    said[name] = {found, literal}
        out = []
        for name in names:
            if name in case.forbidden or (case.names and not self._named(case, name)):
                out.append(None)
                continue
            found = said.get(name)
            if found is not None and not wide and isinstance(found, tuple):
                out.append(self._one(found))
                continue
            of_name = found if isinstance(found, set) else set() if found is None else {found}
            for entry in wide:
                self._said_of(entry, name, of_name)
            out.append(self._together(of_name))
        return out

    cdef frozenset _together(self, set literals):
        """Literals of one value; None where they exclude each other at first sight."""
        literals.discard(TRUE_LITERAL)
        if not literals:
            return NONE
        if FALSE_LITERAL in literals:
            return None
        if len(literals) == 1:
            (literal,) = literals
            return self._one(literal)
        for node, sign in literals:
            if (node, not sign) in literals:
                return None
        return frozenset(literals)

    cdef frozenset _one(self, tuple literal):
        """What a value must satisfy that must satisfy one literal alone."""
        if literal == TRUE_LITERAL:
            return NONE
        if literal == FALSE_LITERAL:
            return None
        known = self.alone.get(literal)
        if known is None:
            known = self.alone[literal] = frozenset((literal,))
        return known

    # ---------------------------------------------------------------- what a case meets

    cdef bint _met(self, Case case, tuple branches) except -1:
        """Whether a case meets one of the branches as it is."""
        cdef Branch branch
        for branch in branches:
            if branch.complete and self._meets(case, branch):
                return True
        return False

    cdef bint _meets(self, Case case, Branch branch) except -1:
        cdef tuple literal
        for name in branch.names:
            if name not in case.required:
                return False
        for name in branch.absent:
            if name not in case.forbidden:
                return False
        for kind in branch.types:
            if kind not in case.types or len(case.types) > 1:
                return False
        for kinds in branch.within:
            if not case.types.issubset(kinds):
                return False
        for literal in branch.literals:
            if not (literal == TRUE_LITERAL or literal in case.applied or (literal[1] and self._plainly(case, literal[0]))):
                return False
        for name, literal in branch.optional:
            if name not in case.forbidden and not self._has(case, name, literal):
                return False
        for demand in branch.demands:
            for name in case.required:
                if self._is_some(case, name, demand):
                    break
            else:
                return False
        for name, literal in branch.members:
            if not self._has(case, name, literal):
                return False
        return True

    cdef bint _is_some(self, Case case, str name, tuple demand) except -1:
        """Whether a required member is one that is demanded, whatever its name."""
        excluded, must, must_not, literal, names = demand
        if name in excluded or must or must_not or names:
            return False
        return literal == TRUE_LITERAL or self._has(case, name, literal)

    cdef bint _silent(self, Case case, tuple branches) except -1:
        """Whether the branches declare no members that the case does not declare, or that changes nothing: the members of a closed object are
        the declared ones, and they have an order.
        """
        cdef Branch branch
        if self.loose:
            return True
        for branch in branches:
            if not branch.complete or branch.demands:
                return False
            for name in branch.names:
                if not case.declares(name):
                    return False
            for name, _ in branch.optional:
                if not case.declares(name):
                    return False
            for literal in branch.literals:
                if not self._declares_nothing(literal):
                    return False
        return True

    cdef bint _declares_nothing(self, tuple literal) except -1:
        """Whether a schema declares no members, by itself or by what it refers to."""
        if literal == TRUE_LITERAL or literal == FALSE_LITERAL:
            return True
        return literal[1] and DECLARING.isdisjoint(self.document.keywords(literal[0]))

    cdef bint _plainly(self, Case case, int node) except -1:
        """Whether a case meets a schema that only names types and required members."""
        if node not in self.plain:
            self.plain[node] = self._plain(self.document.keywords(node))
        found = self.plain[node]
        if found is None:
            return False
        types, integer, names = found
        return (case.types.issubset(types) and (case.integer or not integer or "number" not in case.types)
                and ("object" not in case.types or names.issubset(case.required)))

    cdef tuple _plain(self, dict schema):
        """The types, whether numbers are integers, and the required members of a schema that names nothing else; None for others."""
        for keyword in schema:
            if keyword in ENFORCED and keyword != "type" and keyword != "required":
                return None
        names = schema.get("type", [*TYPES])
        names = names if isinstance(names, list) else [names]
        return (frozenset(["number" if name == "integer" else name for name in names]), "integer" in names and "number" not in names,
                frozenset(schema.get("required") or ()))

    cdef bint _never(self, Case case, str name) except -1:
        """Whether a member can have no value, or none of the few that one of its schemas lists."""
        found = self.property_literals(case, name)
        return found is None or (len(<frozenset>found) > 1 and self._all_meet(found, FALSE_LITERAL))

    cdef bint _has(self, Case case, str name, tuple literal) except -1:
        """Whether all values that a member may have, few of them, meet a literal."""
        found = self.property_literals(case, name)
        if found is None or literal in <frozenset>found:
            return True
        return self._all_meet(found, literal)

    cdef bint _all_meet(self, frozenset literals, tuple literal) except -1:
        """Whether the values that meet all of the literals are few and meet another one."""
        key = (literals, literal)
        known = self.implied.get(key)
        if known is None:
            try:
                values = self.few_values(literals)
                known = values is not None
                for value in values or ():
                    if not self.accepts(literal, value):
                        known = False
                        break
            except (GrammarError, TypeError, ValueError, AttributeError):
                known = False       # what is malformed there is refused where it is demanded
            self.implied[key] = known
        return known

    # ---------------------------------------------------------------- the branches of a `oneOf`

    def one_branches(self, Case context, tuple literals):
        """For each branch: it holds, and no branch that could hold with it does."""
        cdef Py_ssize_t cycles = self.cycles
        key = (literals, context.types, context.required)
        known = self.told_apart.get(key)
        if known is None:
            known = branches_of(self._tell_apart(context, literals))
            if self.cycles == cycles:     # else more may be known next time
                self.told_apart[key] = known
        return known

    cdef list _tell_apart(self, Case context, tuple literals):
        """The actions of each branch, made of the types and the required members of the context."""
        cdef Py_ssize_t i, j, n = len(literals)
        cdef list summaries = [self._summary(literal, context) for literal in literals], out = [], actions, own
        # not where members have an order: ways to fail that are left out may have given them others
        cdef list wholes = [taken_whole(summary) if self.loose else NONE for summary in summaries]
        cdef frozenset taken
        cdef set same = set()               # pairs of branches that a value may fit both of
        cdef dict texts = self._texts_apart(literals, summaries)
        for i in range(n):
            for j in range(i):
                if i in texts and j in texts:
                    if j in <set>texts[i]:
                        same.add((i, j))
                        same.add((j, i))
                elif not apart(self, summaries[i], summaries[j]):
                    same.add((i, j))
                    same.add((j, i))
        for i in range(n):
            actions = [Demand(literals[i])]
            own = summaries[i]
            taken = NONE.union(*wholes[:i], *wholes[i + 1:])
            if taken and own is not None and any([not taken.isdisjoint((<Summary>part).types) for part in own]):
                actions.append(Within(ALL_TYPES - taken))
                own = [(<Summary>part).without(taken) for part in own]
            for j in range(n):
                if ((i, j) in same and (own is summaries[i] or not apart(self, own, summaries[j]))
                        and (i in texts and j in texts or not self._disjoint(literals[i], literals[j]))):
                    actions.append(Demand(self.document.inverse(literals[j])))
            out.append(actions)
        return out

    cdef dict _texts_apart(self, tuple literals, list summaries):
        """Of branches that are strings, where they are many: by branch, the earlier ones of them that some text meets too."""
        cdef Summary part
        cdef list texts = [], languages = []
        for i, summary in enumerate(summaries):
            cases = []
            for part in summary or ():
                if part.types != TEXT or part.values is not None or part.case.unevaluated:
                    break
                cases.append(part.case)
            else:
                if cases:
                    texts.append(i)
                    languages.append(cases)
        pairs = self.texts_meet(languages, MOST_TOLD) if len(texts) > FEW_TEXTS else None
        if pairs is None:
            return {}
        if len(pairs) > MOST_TOLD:
            raise GrammarError(
                f"schema {self.document.where(literals[0][0])}: is a branch of a 'oneOf', of which more than {MOST_TOLD} pairs have strings in "
                "common, wanted fewer")
        known = {i: set() for i in texts}
        for i, j in pairs:
            (<set>known[texts[i]]).add(texts[j])
        return known

    cdef list _summary(self, tuple literal, Case context):
        """A summary per case of a branch. None if it is not known cheaply."""
        cdef list cases, out = []
        cdef Case case
        cdef Summary part
        if literal == TRUE_LITERAL or literal == FALSE_LITERAL:
            return [] if literal == FALSE_LITERAL else None
        try:
            cases = self.cases(frozenset((literal,)))
        except GrammarError:
            return None
        if len(cases) > MOST_SUMMARISED:
            return None
        for case in cases:
            part = Summary.__new__(Summary)
            part.case, part.types = case, case.types & context.types
            part.values = None if case.values is None else {canonical(v) for v in case.values}
            part.required = {*context.required, *case.required}
            out.append(part)
        return out

    cdef dict _tags(self, Summary part):
        """The values of required members, where they are listed."""
        if part.tags is None:
            part.tags = {}
            for name in part.required:
                child = self.property_literals(part.case, name)
                if child is None:
                    continue
                found = self.values_of(child)
                if found is None:
                    found = self.texts_of(child)
                if found is not None:
                    part.tags[name] = found.keys()
        return part.tags

    cdef bint _disjoint(self, tuple one, tuple other) except -1:
        """Whether two literals provably have no value in common."""
        cdef Py_ssize_t cycles = self.cycles
        cdef frozenset both = frozenset((one, other))
        known = self.disjoint.get(both)
        if known is None:
            try:
                known = True
                for case in self.cases(both):
                    if not self._unsatisfiable(case, 2):
                        known = False
                        break
            except GrammarError as error:
                if "depends on itself" in str(error) or "cases" in str(error):
                    return False
                raise
            if self.cycles == cycles:
                self.disjoint[both] = known
        return known

    cdef bint _unsatisfiable(self, Case case, int depth) except -1:
        """Whether a case with only the type object demands a property that nothing can satisfy (looked at `depth` levels deep)."""
        if depth == 0 or case.values is not None or case.types != OBJECT:
            return False
        for name in case.required:
            child = self.property_literals(case, name)
            if child is None:
                return True
            if child:
                for inner in self.cases(child):
                    if not self._unsatisfiable(inner, depth - 1):
                        break
                else:
                    return True
        return False


cdef bint excluded(Case case, Branch branch) except -1:
    """Whether a literal of a branch is known not to hold."""
    for node, sign in branch.literals:
        if (node, not sign) in case.applied:
            return True
    return False


# ---------------------------------------------------------------- keywords that most schemas have: see `keywords.APPLY`

cdef dict ONE_TYPE = {name: frozenset((name,)) for name in TYPES}


def apply_type(Expansion ex, Case case, int node, dict schema, value):
    """`type`."""
    cdef bint integer = False, number = False
    cdef set wanted
    if isinstance(value, str) and value in ONE_TYPE:
        case.only(ONE_TYPE[value])
        return
    names = value if isinstance(value, list) else [value]
    wanted = set()
    for name in names:
        if name == "integer":
            integer = True
            wanted.add("number")
        elif name in TYPES:
            number = number or name == "number"
            wanted.add(name)
        else:
            raise GrammarError(f"schema {ex.document.where(node)}: keyword 'type': {name!r} is not a type")
    case.only(wanted)
    if integer and not number and "number" in case.types:
        case.integer = True
        if case.fraction:
            case.drop("number")


def apply_required(Expansion ex, Case case, int node, dict schema, value):
    """`required`."""
    for name in value or ():
        case.require(name)


def apply_objects(Expansion ex, Case case, int node, dict schema, value):
    """`properties`, `patternProperties`, `additionalProperties` and `unevaluatedProperties` together, when the first of them is met."""
    cdef tuple entry
    for keyword in schema:
        if keyword in MEMBERS:
            if schema[keyword] is not value:
                return
            break
    entry = ex.declared.get(node)
    if entry is None:
        entry = ex.declared[node] = ex.declare(node, schema)
    case.objects = (*case.objects, entry)
    if case.required:
        case.changed_members = case.changed_members + case.required
    case.describes_others = case.describes_others or not OPENING.isdisjoint(schema)
    if case.scope:
        ex.note_evaluated(case, schema, entry)
