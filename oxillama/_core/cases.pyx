"""One case of a schema: constraints that must all hold for a value, with no logic left in them.

`expansion` collects a case, `oxillama.grammar.schema.emit` writes it as rules. An *action* adds a constraint to a case, which may make it
contradictory (`dead`); `expansion` also asks whether a case meets one already. A *literal* is a node of a schema and whether it must hold,
see `schemas`.
"""
import math

cimport cython

from oxillama._core.schemas cimport canonical, kind_of

from oxillama._core.schemas import FALSE, TRUE, TYPES

INFINITE = 1 << 60
cdef frozenset NONE = frozenset()
cdef tuple FALSE_LITERAL = FALSE, TRUE_LITERAL = TRUE


cdef class Case:
    """One case: all of it must hold at once. Collections are tuples and frozensets, so that copies share them.

    - not_multiples: numbers that are multiples of none of these.
    - text_choices: each a tuple of cases of strings, of which one must hold.
    - objects: (literals by declared name, (pattern, literal) pairs, literal of all other members), one for each schema that says so.
    - describes_others: whether some schema says what members without a declared name may be.
    - changed_members: members of which more was demanded since it was last looked at whether they can be there.
    - member_demands, undeclared: demands for some member, whatever its name: (names not excluded, patterns the name must and must not
      match, value literal, name literals). First any member may meet them; once every declared member was tried, those in `undeclared`
      (with several value literals) are for members without a declared name, a member for each.
    - pending, applied: literals; where a scope is open, (literal, scope) is pending, and both that and the literal are applied.
    - splits: (scope, branches or what makes them of the case, whether they are ways to fail).
    - taken_branches: branches that other cases follow; a case that meets one of them is a part of those.
    - scope, evaluated_members, evaluated_items, unevaluated: for `unevaluated*`, the scopes (numbers of schemas that hold such a keyword) that
      are open, and what each scope evaluated.
    """

    def __cinit__(self):
        self.types = ALL_TYPES
        self.forbidden = self.applied = self.scope = NONE
        self.min_length = self.min_items = self.min_properties = 0
        self.multiples = self.not_multiples = self.banned = self.patterns = self.formats = ()
        self.arrays = self.contains = self.objects = self.required = self.names = self.member_demands = self.text_choices = self.changed_members = ()
        self.pending = self.splits = self.taken_branches = self.evaluated_members = self.evaluated_items = self.unevaluated = self.undeclared = ()

    cpdef Case copy(self):
        """A copy to continue with."""
        cdef Case other = Case.__new__(Case)
        other.types, other.forbidden, other.applied, other.scope = self.types, self.forbidden, self.applied, self.scope
        other.integer, other.fraction, other.unique, other.dead = self.integer, self.fraction, self.unique, self.dead
        other.describes_others, other.low_strict, other.high_strict = self.describes_others, self.low_strict, self.high_strict
        other.low, other.high, other.values = self.low, self.high, self.values
        other.max_length, other.max_items, other.max_properties = self.max_length, self.max_items, self.max_properties
        other.min_length, other.min_items, other.min_properties = self.min_length, self.min_items, self.min_properties
        other.multiples, other.not_multiples, other.banned = self.multiples, self.not_multiples, self.banned
        other.patterns, other.formats, other.text_choices = self.patterns, self.formats, self.text_choices
        other.arrays, other.contains, other.objects = self.arrays, self.contains, self.objects
        other.required, other.names, other.member_demands, other.changed_members = self.required, self.names, self.member_demands, self.changed_members
        other.pending, other.splits, other.taken_branches, other.undeclared = self.pending, self.splits, self.taken_branches, self.undeclared
        other.evaluated_members, other.evaluated_items, other.unevaluated = self.evaluated_members, self.evaluated_items, self.unevaluated
        return other

    cdef tuple _said(self):
        """All that it says but what is to do."""
        return (
            self.types, self.forbidden, self.scope, self.integer, self.fraction, self.unique, self.dead, self.describes_others, self.low_strict,
            self.high_strict, self.low, self.high, self.values, self.max_length, self.max_items, self.max_properties, self.min_length,
            self.min_items, self.min_properties, self.multiples, self.not_multiples, self.banned, self.patterns, self.formats, self.text_choices,
            self.arrays, self.contains, self.objects, self.required, self.names, self.member_demands, self.changed_members, self.splits, self.undeclared, self.evaluated_members,
            self.evaluated_items, self.unevaluated)

    cdef bint only_pending(self) except -1:
        """Whether it says nothing yet but what is to do."""
        return self._said() == BLANK_SAID

    def add(self, str name, item):
        """One more item in one of the tuples."""
        setattr(self, name, (*getattr(self, name), item))

    cpdef int split(self, branches, bint failing=False) except -1:
        """Goes on as one of these lists of actions each (or of those that a function of the case makes). failing: they are the ways in which
        a schema fails.
        """
        self.splits = (*self.splits, (self.scope, branches if callable(branches) else branches_of(branches), failing))
        return 0

    def banned_texts(self):
        """The strings it must not be."""
        return [v for v in self.banned if isinstance(v, str)]

    cpdef frozenset whole_types(self):
        """The types of which it allows all values but, perhaps, objects."""
        if self.values is not None or self.pending or self.splits or self.unevaluated:
            return NONE
        bound = {"object"}
        for value in self.banned:
            bound.add(kind_of(value))
        if self.patterns or self.formats or self.text_choices or self.min_length or self.max_length is not None:
            bound.add("string")
        if self.integer or self.fraction or self.multiples or self.not_multiples or self.low is not None or self.high is not None:
            bound.add("number")
        if self.arrays or self.contains or self.unique or self.min_items or self.max_items is not None:
            bound.add("array")
        return self.types - bound

    def text_key(self):
        """All that it says of strings: equal keys are equal languages."""
        return (
            self.patterns, self.formats, self.min_length, self.max_length, tuple(sorted(self.banned_texts())),
            tuple([tuple([case.text_key() for case in cases]) for cases in self.text_choices]))

    def combinations(self):
        """In how many ways one of each of `either` can be chosen."""
        return math.prod([sum([case.combinations() for case in cases]) for cases in self.text_choices])

    def meet_texts(self, Case other):
        """Adds all that another case says of strings."""
        self.patterns += other.patterns
        self.formats += other.formats
        self.banned += other.banned
        self.text_choices += other.text_choices
        self.length(other.min_length, other.max_length)

    cdef tuple next_split(self):
        """Takes a split out: (scope, branches). Of the ways to fail the fewest come first, which may be ways for others to fail too; all else
        comes in its order.
        """
        cdef Py_ssize_t at = 0, i, least = 1 << 60
        cdef tuple split
        if self.splits[0][2]:
            for i in range(len(self.splits)):
                split = self.splits[i]
                if split[2] and len(<tuple>split[1]) < least:
                    at, least = i, len(<tuple>split[1])
                    if least == 2:          # of fewer none is a split
                        break
        split = self.splits[at]
        self.splits = self.splits[:at] + self.splits[at + 1:]
        return split[0], branches_of(split[1](self)) if callable(split[1]) else split[1]

    cpdef int only(self, types) except -1:
        """Of these types."""
        self.types = self.types.intersection(types)
        self.dead = self.dead or not self.types
        return 0

    cpdef int drop(self, str kind) except -1:
        """This type has become impossible."""
        self.types = self.types.difference((kind,))
        self.dead = self.dead or not self.types
        return 0

    def at_least(self, value, bint strict):
        """Numbers from a bound (a fraction) on. strict: without it."""
        if self.low is None or value > self.low or (value == self.low and strict):
            self.low, self.low_strict = value, strict
        self._check_bounds()

    def at_most(self, value, bint strict):
        """Numbers up to a bound (a fraction). strict: without it."""
        if self.high is None or value < self.high or (value == self.high and strict):
            self.high, self.high_strict = value, strict
        self._check_bounds()

    cdef int _check_bounds(self) except -1:
        if self.low is None or self.high is None:
            return 0
        if self.low > self.high or (self.low == self.high and (self.low_strict or self.high_strict)):
            self.drop("number")
        return 0

    def length(self, least=0, most=None):
        """Strings of at least and at most so many characters."""
        self.min_length = max(self.min_length, least)
        self.max_length = _least(self.max_length, most)
        if self.max_length is not None and self.min_length > self.max_length:
            self.drop("string")

    def items(self, least=0, most=None):
        """Arrays of at least and at most so many items."""
        self.min_items = max(self.min_items, least)
        self.max_items = _least(self.max_items, most)
        if self.max_items is not None and self.min_items > self.max_items:
            self.drop("array")

    cpdef int properties(self, least=0, most=None) except -1:
        """Objects of at least and at most so many members."""
        self.min_properties = max(self.min_properties, least)
        self.max_properties = _least(self.max_properties, most)
        if self.max_properties is not None and max(self.min_properties, len(self.required)) > self.max_properties:
            self.drop("object")
        return 0

    cpdef int require(self, str name) except -1:
        """Objects with this member."""
        if name not in self.required:
            self.required = (*self.required, name)
            self.changed_members = (*self.changed_members, name)
        if name in self.forbidden:
            self.drop("object")
        if self.max_properties is not None:
            self.properties()
        return 0

    cdef int constrain_member(self, str name, tuple entry) except -1:
        """A member of this name must meet a literal, where there is one. entry: what `entry_of` makes of both."""
        self.objects = (*self.objects, entry)
        self.changed_members = (*self.changed_members, name)
        return 0

    cpdef bint declares(self, str name) except -1:
        """Whether a member of this name is declared or required."""
        if name in self.required:
            return True
        for entry in self.objects:
            if name in <dict>(<tuple>entry)[0]:
                return True
        return False

    cpdef int forbid(self, str name) except -1:
        """Objects without this member."""
        self.forbidden = self.forbidden.union((name,))
        if name in self.required:
            self.drop("object")
        return 0

    def allow(self, list values):
        """One of these values."""
        if self.values is None:
            self.values = values
        else:
            keys = {canonical(v) for v in values}
            self.values = [v for v in self.values if canonical(v) in keys]
        self.only([kind_of(v) for v in self.values])


cdef frozenset ALL_TYPES = frozenset(TYPES)
cdef tuple BLANK_SAID = Case()._said()


cdef _least(a, b):
    return b if a is None else a if b is None else min(a, b)


@cython.no_gc
cdef class Action:
    """What adds a constraint to a case. Actions hold names and literals, so that the garbage collector need not look at them."""

    cdef int apply(self, Case case) except -1:
        """Each kind of action has its own."""
        raise NotImplementedError

    def __call__(self, Case case):
        self.apply(case)


@cython.no_gc
cdef class Demand(Action):
    """The action that adds a literal."""

    def __cinit__(self, tuple literal):
        self.literal = literal

    cdef int apply(self, Case case) except -1:
        if self.literal == FALSE_LITERAL or (self.literal[0], not self.literal[1]) in case.applied:
            case.dead = True
        elif self.literal != TRUE_LITERAL:
            case.pending = (*case.pending, (self.literal, case.scope) if case.scope else self.literal)
        return 0


@cython.no_gc
cdef class Only(Action):
    """The action that leaves one type."""

    def __cinit__(self, str kind):
        self.kind = kind

    cdef int apply(self, Case case) except -1:
        return case.only((self.kind,))


@cython.no_gc
cdef class Within(Action):
    """The action that leaves some types."""

    def __cinit__(self, frozenset kinds):
        self.kinds = kinds

    cdef int apply(self, Case case) except -1:
        return case.only(self.kinds)


@cython.no_gc
cdef class Require(Action):
    """The action that requires a member."""

    def __cinit__(self, str name):
        self.name = name

    cdef int apply(self, Case case) except -1:
        return case.require(self.name)


@cython.no_gc
cdef class Forbid(Action):
    """The action that forbids a member."""

    def __cinit__(self, str name):
        self.name = name

    cdef int apply(self, Case case) except -1:
        return case.forbid(self.name)


cdef tuple entry_of(str name, tuple literal):
    """What a schema says of members that says something of one."""
    return {name: literal}, (), TRUE_LITERAL


@cython.no_gc
cdef class Member(Action):
    """The action that requires a member whose value meets a literal."""

    def __cinit__(self, str name, tuple literal):
        self.name, self.literal, self.entry = name, literal, entry_of(name, literal)

    cdef int apply(self, Case case) except -1:
        case.require(self.name)
        return case.constrain_member(self.name, self.entry)


@cython.no_gc
cdef class IfPresent(Action):
    """The action that wants a literal of a member, where there is such a member."""

    def __cinit__(self, str name, tuple literal):
        self.name, self.literal, self.entry = name, literal, entry_of(name, literal)

    cdef int apply(self, Case case) except -1:
        return case.constrain_member(self.name, self.entry)


@cython.no_gc
cdef class SomeMember(Action):
    """The action that demands some member: see `Case`."""

    def __cinit__(self, tuple demand):
        self.demand = demand

    cdef int apply(self, Case case) except -1:
        case.member_demands = (*case.member_demands, self.demand)
        return 0


cdef class Branch:
    """A branch of a split: its actions, and by kind what they ask for. complete: whether that is all they do; other actions are functions of
    the case. sole_action: that of a branch with no other (but the one that leaves objects).
    """

    def __cinit__(self, list actions):
        cdef int others = 0
        self.actions = actions
        self.complete = True
        self.types = self.within = self.names = self.absent = self.members = self.optional = self.demands = self.literals = ()
        for act in actions:
            if isinstance(act, Demand):
                self.literals = (*self.literals, (<Demand>act).literal)
            elif isinstance(act, Only):
                self.types = (*self.types, (<Only>act).kind)
                if (<Only>act).kind == "object":
                    continue
            elif isinstance(act, Member):
                self.names = (*self.names, (<Member>act).name)
                self.members = (*self.members, ((<Member>act).name, (<Member>act).literal))
            elif isinstance(act, Require):
                self.names = (*self.names, (<Require>act).name)
            elif isinstance(act, Forbid):
                self.absent = (*self.absent, (<Forbid>act).name)
            elif isinstance(act, IfPresent):
                self.optional = (*self.optional, ((<IfPresent>act).name, (<IfPresent>act).literal))
            elif isinstance(act, Within):
                self.within = (*self.within, (<Within>act).kinds)
            elif isinstance(act, SomeMember):
                self.demands = (*self.demands, (<SomeMember>act).demand)
            else:
                self.complete = False
            others += 1
            self.sole_action = act if others == 1 else None


cpdef tuple branches_of(branches):
    """Branches, from lists of actions; those of a tuple are branches."""
    if isinstance(branches, tuple):
        return branches
    return tuple([Branch(actions) for actions in <list>branches])
