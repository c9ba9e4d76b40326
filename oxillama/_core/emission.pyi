"""Types of the emission of rule networks: see emission.pyx."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from typing_extensions import disjoint_base

from oxillama._core.networks import Networks

LITERAL: int
CLASS: int
SEQUENCE: int
CHOICE: int
REPEAT: int
RULE: int
SYMBOL: int
NETWORK: int
REGISTER: int
TAKE: int
FRESH: int
_Kept = TypeVar("_Kept", bound=Callable[..., Any])

def kept_by_ranges(function: _Kept) -> _Kept: ...
def utf8_sequences(ranges: Sequence[tuple[int, int]]) -> list[tuple[tuple[int, int], ...]]: ...
def count_bounds(body: tuple[Any, ...], least: int, most: int) -> set[int]: ...

@disjoint_base
class Emission(Networks):
    symbols: int
    width: int
