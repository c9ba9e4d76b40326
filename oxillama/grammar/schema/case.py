"""One case of a schema: constraints that must all hold for a value, with no logic left in them.

`schema/expander.py` collects a case, `schema/emit.py` writes it as rules. An *action* adds a
constraint to a case, which may make it contradictory (`dead`); `schema/entailment.py` asks whether
a case meets it already.
"""

import math
from collections.abc import Callable
from fractions import Fraction

from oxillama.grammar.schema.document import FALSE, TRUE, TYPES
from oxillama.grammar.schema.values import canonical, kind_of

INFINITE = 1 << 60


class Case:
    """One case: all of it must hold at once."""

    def __init__(self):
        self.types = frozenset(TYPES)
        self.integer = self.fraction = self.unique = self.dead = False
        # whether some schema says what members without a declared name may be
        self.opened = False
        self.low = self.high = None
        self.low_strict = self.high_strict = False
        self.values = self.max_length = self.max_items = self.max_properties = None
        self.min_length = self.min_items = self.min_properties = 0
        # broken: no multiples of these
        self.multiples = self.broken = self.banned = self.patterns = self.formats = ()
        self.arrays = self.contains = self.objects = self.required = self.names = self.extras = ()
        # each a tuple of cases of strings, of which one must hold
        self.either: tuple[tuple[Case, ...], ...] = ()
        self.forbidden: frozenset[str] = frozenset()
        # members of which more was demanded since it was last looked at whether they can be there
        self.touched: tuple[str, ...] = ()
        self.todo = self.splits = ()
        # branches that stand in a case's way: one with all of this and one of them is a case too
        self.past: tuple[Branch, ...] = ()
        self.done: frozenset = frozenset()
        # For `unevaluated*`: the scopes (numbers of schemas that hold such a keyword) being worked
        # in, and what each scope evaluated.
        self.scope: frozenset[int] = frozenset()
        self.seen = self.spans = self.unevaluated = ()
        # Demands for some member (names not excluded, patterns the name must and must not match,
        # value literal, name literals): first any member may meet them; once every declared member
        # was tried, those in `owed` (with several value literals) are for members without a
        # declared name, a member for each.
        self.owed = ()

    def copy(self) -> "Case":
        """A copy to continue with. All collections are tuples or frozensets, so they can be
        shared.
        """
        other = object.__new__(Case)
        other.__dict__ = self.__dict__.copy()
        return other

    def only_todo(self) -> bool:
        """Whether it says nothing yet but what is to do."""
        blank = BLANK.__dict__
        for name, value in self.__dict__.items():
            same = value is blank[name] or value == blank[name]
            if not same and name not in ("todo", "done", "past"):
                return False
        return True

    def add(self, name: str, item) -> None:
        """One more item in one of the tuples."""
        setattr(self, name, (*getattr(self, name), item))

    def split(self, branches, *, failing: bool = False) -> None:
        """Goes on as one of these lists of actions each (or of those that a function of the case
        makes). failing: they are the ways in which a schema fails.
        """
        made = branches if callable(branches) else branches_of(branches)
        self.add("splits", (self.scope, made, failing))

    def banned_texts(self) -> list[str]:
        """The strings it must not be."""
        return [v for v in self.banned if isinstance(v, str)]

    def whole_types(self) -> frozenset[str]:
        """The types of which it allows all values but, perhaps, objects."""
        if self.values is not None or self.todo or self.splits or self.unevaluated:
            return frozenset()
        bound = {"object", *map(kind_of, self.banned)}
        if any((self.patterns, self.formats, self.either, self.min_length)) or (
            self.max_length is not None
        ):
            bound.add("string")
        if any((self.integer, self.fraction, self.multiples, self.broken)) or (
            (self.low, self.high) != (None, None)
        ):
            bound.add("number")
        if any((self.arrays, self.contains, self.unique, self.min_items)) or (
            self.max_items is not None
        ):
            bound.add("array")
        return self.types - bound

    def text_key(self) -> tuple:
        """All that it says of strings: equal keys are equal languages."""
        return (
            self.patterns,
            self.formats,
            self.min_length,
            self.max_length,
            tuple(sorted(self.banned_texts())),
            tuple(tuple(case.text_key() for case in cases) for cases in self.either),
        )

    def combinations(self) -> int:
        """In how many ways one of each of `either` can be chosen."""
        return math.prod(sum(case.combinations() for case in cases) for cases in self.either)

    def meet_texts(self, other: "Case") -> None:
        """Adds all that another case says of strings."""
        self.patterns += other.patterns
        self.formats += other.formats
        self.banned += other.banned
        self.either += other.either
        self.length(other.min_length, other.max_length)

    def next_split(self) -> tuple[frozenset[int], tuple["Branch", ...]]:
        """Takes a split out: scope and branches. Of the ways to fail the fewest come first, which
        may be ways for others to fail too; all else comes in its order.
        """
        at = 0
        if self.splits[0][2]:
            least = INFINITE
            for i, (_, branches, failing) in enumerate(self.splits):
                if failing and len(branches) < least:
                    at, least = i, len(branches)
                    if least == 2:  # of fewer none is a split
                        break
        scope, branches, _ = self.splits[at]
        self.splits = self.splits[:at] + self.splits[at + 1 :]
        return scope, branches_of(branches(self)) if callable(branches) else branches

    def only(self, *types: str) -> None:
        self.types = self.types.intersection(types)
        if not self.types:
            self.dead = True

    def drop(self, kind: str) -> None:
        """This type has become impossible."""
        self.types -= {kind}
        if not self.types:
            self.dead = True

    def at_least(self, value: Fraction, strict: bool) -> None:
        if self.low is None or value > self.low or (value == self.low and strict):
            self.low, self.low_strict = value, strict
        self._check_bounds()

    def at_most(self, value: Fraction, strict: bool) -> None:
        if self.high is None or value < self.high or (value == self.high and strict):
            self.high, self.high_strict = value, strict
        self._check_bounds()

    def _check_bounds(self) -> None:
        if (
            self.low is not None
            and self.high is not None
            and (
                self.low > self.high
                or (self.low == self.high and (self.low_strict or self.high_strict))
            )
        ):
            self.drop("number")

    def length(self, least: int = 0, most: int | None = None) -> None:
        self.min_length = max(self.min_length, least)
        self.max_length = _least(self.max_length, most)
        if self.max_length is not None and self.min_length > self.max_length:
            self.drop("string")

    def items(self, least: int = 0, most: int | None = None) -> None:
        self.min_items = max(self.min_items, least)
        self.max_items = _least(self.max_items, most)
        if self.max_items is not None and self.min_items > self.max_items:
            self.drop("array")

    def properties(self, least: int = 0, most: int | None = None) -> None:
        self.min_properties = max(self.min_properties, least)
        self.max_properties = _least(self.max_properties, most)
        if (
            self.max_properties is not None
            and max(self.min_properties, len(self.required)) > self.max_properties
        ):
            self.drop("object")

    def require(self, name: str) -> None:
        if name not in self.required:
            self.required += (name,)
            self.touched += (name,)
        if name in self.forbidden:
            self.drop("object")
        self.properties()

    def want(self, name: str, literal: tuple[int, bool]) -> None:
        """A member of this name must meet a literal, where there is one."""
        self.objects += (({name: literal}, (), TRUE),)
        self.touched += (name,)

    def declares(self, name: str) -> bool:
        """Whether a member of this name is declared or required."""
        return name in self.required or any(name in properties for properties, _, _ in self.objects)

    def forbid(self, name: str) -> None:
        self.forbidden |= {name}
        if name in self.required:
            self.drop("object")

    def allow(self, values: list) -> None:
        """One of these values."""
        if self.values is None:
            self.values = values
        else:
            keys = {canonical(v) for v in values}
            self.values = [v for v in self.values if canonical(v) in keys]
        self.only(*{kind_of(v) for v in self.values})


BLANK = Case()  # to be copied


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


class Demand:
    """The action that adds a literal."""

    __slots__ = ("literal",)

    def __init__(self, literal: tuple[int, bool]):
        self.literal = literal

    def __call__(self, case: Case) -> None:
        node, sign = self.literal
        if self.literal == FALSE or (node, not sign) in case.done:
            case.dead = True
        elif self.literal != TRUE:
            case.add("todo", (self.literal, case.scope))


class Only:
    """The action that leaves one type."""

    __slots__ = ("kind",)

    def __init__(self, kind: str):
        self.kind = kind

    def __call__(self, case: Case) -> None:
        case.only(self.kind)


class Within:
    """The action that leaves some types."""

    __slots__ = ("kinds",)

    def __init__(self, kinds: frozenset[str]):
        self.kinds = kinds

    def __call__(self, case: Case) -> None:
        case.only(*self.kinds)


class Require:
    """The action that requires a member."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name

    def __call__(self, case: Case) -> None:
        case.require(self.name)


class Forbid:
    """The action that forbids a member."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name

    def __call__(self, case: Case) -> None:
        case.forbid(self.name)


class Member:
    """The action that requires a member whose value meets a literal."""

    __slots__ = ("name", "literal")

    def __init__(self, name: str, literal: tuple[int, bool]):
        self.name, self.literal = name, literal

    def __call__(self, case: Case) -> None:
        case.require(self.name)
        case.want(self.name, self.literal)


class IfThere:
    """The action that wants a literal of a member, where there is such a member."""

    __slots__ = ("name", "literal")

    def __init__(self, name: str, literal: tuple[int, bool]):
        self.name, self.literal = name, literal

    def __call__(self, case: Case) -> None:
        case.want(self.name, self.literal)


class SomeMember:
    """The action that demands some member: see `Case.owed`."""

    __slots__ = ("extra",)

    def __init__(self, extra: tuple):
        self.extra = extra

    def __call__(self, case: Case) -> None:
        case.add("extras", self.extra)


Action = Callable[[Case], None]  # those above, and functions where nobody asks what they do


class Branch:
    """A branch of a split: its actions, and by kind what they ask for. known: whether that is all
    they do. alone: the action of a branch with no other (but the one that leaves objects).
    """

    __slots__ = (
        "actions",
        "known",
        "alone",
        "types",
        "within",
        "names",
        "absent",
        "members",
        "optional",
        "some",
        "literals",
    )

    def __init__(self, actions: list[Action]):
        self.actions = actions
        self.known = True
        # most branches ask for one or two things: nothing is made for the other kinds
        self.types: tuple[str, ...] = ()
        self.within: tuple[frozenset[str], ...] = ()
        self.names: tuple[str, ...] = ()
        self.absent: tuple[str, ...] = ()
        self.members: tuple[tuple[str, tuple[int, bool]], ...] = ()
        self.optional: tuple[tuple[str, tuple[int, bool]], ...] = ()
        self.some: tuple[tuple, ...] = ()
        self.literals: tuple[tuple[int, bool], ...] = ()
        self.alone: Action | None = None
        others = 0
        for act in actions:
            if isinstance(act, Only):
                self.types += (act.kind,)
                if act.kind == "object":
                    continue
            elif isinstance(act, Demand):
                self.literals += (act.literal,)
            elif isinstance(act, Member):
                self.names += (act.name,)
                self.members += ((act.name, act.literal),)
            elif isinstance(act, Require):
                self.names += (act.name,)
            elif isinstance(act, Forbid):
                self.absent += (act.name,)
            elif isinstance(act, IfThere):
                self.optional += ((act.name, act.literal),)
            elif isinstance(act, Within):
                self.within += (act.kinds,)
            elif isinstance(act, SomeMember):
                self.some += (act.extra,)
            else:
                self.known = False
            others += 1
            self.alone = act if others == 1 else None


def branches_of(branches: "tuple[Branch, ...] | list[list[Action]]") -> tuple["Branch", ...]:
    """Branches, from lists of actions; those of a tuple are branches."""
    if isinstance(branches, tuple):
        return branches
    return tuple(Branch(actions) for actions in branches)
