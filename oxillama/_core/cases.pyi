"""Types of one case of a schema: see cases.pyx."""

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from typing_extensions import disjoint_base

INFINITE: int
_Literal = tuple[int, bool]

@disjoint_base
class Case:
    types: frozenset[str]
    forbidden: frozenset[str]
    applied: frozenset[Any]
    scope: frozenset[int]
    integer: bool
    fraction: bool
    unique: bool
    dead: bool
    describes_others: bool
    low: Any
    high: Any
    low_strict: bool
    high_strict: bool
    values: list[Any] | None
    min_length: int
    min_items: int
    min_properties: int
    max_length: int | None
    max_items: int | None
    max_properties: int | None
    multiples: tuple[Fraction, ...]
    not_multiples: tuple[Fraction, ...]
    banned: tuple[Any, ...]
    patterns: tuple[Any, ...]
    formats: tuple[Any, ...]
    arrays: tuple[Any, ...]
    contains: tuple[Any, ...]
    objects: tuple[tuple[dict[str, _Literal], tuple[tuple[str, _Literal], ...], _Literal], ...]
    required: tuple[str, ...]
    names: tuple[_Literal, ...]
    member_demands: tuple[Any, ...]
    undeclared: tuple[Any, ...]
    text_choices: tuple[tuple[Case, ...], ...]
    changed_members: tuple[str, ...]
    pending: tuple[Any, ...]
    splits: tuple[Any, ...]
    taken_branches: tuple[Branch, ...]
    evaluated_members: tuple[Any, ...]
    evaluated_items: tuple[Any, ...]
    unevaluated: tuple[Any, ...]
    def __new__(cls) -> Case: ...
    def copy(self) -> Case: ...
    def add(self, name: str, item: object) -> None: ...
    def split(self, branches: Any, failing: bool = False) -> int: ...
    def banned_texts(self) -> list[str]: ...
    def whole_types(self) -> frozenset[str]: ...
    def text_key(self) -> tuple[Any, ...]: ...
    def combinations(self) -> int: ...
    def meet_texts(self, other: Case) -> None: ...
    def only(self, types: Iterable[str]) -> int: ...
    def drop(self, kind: str) -> int: ...
    def at_least(self, value: Fraction, strict: bool) -> None: ...
    def at_most(self, value: Fraction, strict: bool) -> None: ...
    def length(self, least: int = 0, most: int | None = None) -> None: ...
    def items(self, least: int = 0, most: int | None = None) -> None: ...
    def properties(self, least: int = 0, most: int | None = None) -> int: ...
    def require(self, name: str) -> int: ...
    def declares(self, name: str) -> bool: ...
    def forbid(self, name: str) -> int: ...
    def allow(self, values: list[Any]) -> None: ...

@disjoint_base
class Action:
    def __call__(self, case: Case) -> None: ...

@disjoint_base
class Demand(Action):
    literal: _Literal
    def __new__(cls, literal: _Literal) -> Demand: ...

@disjoint_base
class Only(Action):
    kind: str
    def __new__(cls, kind: str) -> Only: ...

@disjoint_base
class Within(Action):
    kinds: frozenset[str]
    def __new__(cls, kinds: frozenset[str]) -> Within: ...

@disjoint_base
class Require(Action):
    name: str
    def __new__(cls, name: str) -> Require: ...

@disjoint_base
class Forbid(Action):
    name: str
    def __new__(cls, name: str) -> Forbid: ...

@disjoint_base
class Member(Action):
    name: str
    literal: _Literal
    def __new__(cls, name: str, literal: _Literal) -> Member: ...

@disjoint_base
class IfPresent(Action):
    name: str
    literal: _Literal
    def __new__(cls, name: str, literal: _Literal) -> IfPresent: ...

@disjoint_base
class SomeMember(Action):
    demand: tuple[Any, ...]
    def __new__(cls, demand: tuple[Any, ...]) -> SomeMember: ...

@disjoint_base
class Branch:
    actions: list[Callable[[Case], object]]
    complete: bool
    sole_action: Callable[[Case], object] | None
    types: tuple[str, ...]
    within: tuple[frozenset[str], ...]
    names: tuple[str, ...]
    absent: tuple[str, ...]
    members: tuple[tuple[str, _Literal], ...]
    optional: tuple[tuple[str, _Literal], ...]
    demands: tuple[Any, ...]
    literals: tuple[_Literal, ...]
    def __new__(cls, actions: Sequence[Callable[[Case], object]]) -> Branch: ...

def branches_of(branches: Any) -> tuple[Branch, ...]: ...
