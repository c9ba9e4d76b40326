"""Types of the automata tables: see automata.pyx."""

from typing import Any

import numpy as np
from typing_extensions import disjoint_base

UNREACHABLE: int

def product(
    a: np.ndarray,
    accept_a: np.ndarray,
    start_a: int,
    b: np.ndarray,
    accept_b: np.ndarray,
    start_b: int,
    left: np.ndarray,
    right: np.ndarray,
    keep: int,
    limit: int,
) -> tuple[np.ndarray, np.ndarray] | None: ...
def tagged(
    a: np.ndarray,
    tags: np.ndarray,
    start_a: int,
    b: np.ndarray,
    accept_b: np.ndarray,
    start_b: int,
    left: np.ndarray,
    right: np.ndarray,
    limit: int,
) -> tuple[np.ndarray, np.ndarray]: ...
def overlapping(
    tables: list[np.ndarray],
    accepts: list[np.ndarray],
    starts: np.ndarray,
    most: int,
    enough: int,
) -> set[tuple[int, int]]: ...
def trimmed(
    table: np.ndarray, accepts: np.ndarray, start: int
) -> tuple[np.ndarray, np.ndarray, int] | None: ...
def size(
    table: np.ndarray, accepts: np.ndarray, start: int, widths: np.ndarray, most: int
) -> int: ...
def trie(words: list[str], most: int) -> tuple[list[int], np.ndarray, np.ndarray] | None: ...
def merged(table: np.ndarray, accepts: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...
def determinise(
    skips: list[Any],
    eats: list[Any],
    members: list[Any],
    final: int,
    classes: int,
    limit: int,
    moves: int,
    work: int,
) -> tuple[np.ndarray, np.ndarray]: ...
def refined(
    a: list[tuple[tuple[int, int], ...]], b: list[tuple[tuple[int, int], ...]]
) -> tuple[list[tuple[tuple[int, int], ...]], np.ndarray, np.ndarray]: ...
def nearest(table: np.ndarray, accepts: np.ndarray) -> np.ndarray: ...
def longest(table: np.ndarray, accepts: np.ndarray, without_end: int) -> np.ndarray: ...
def spans(
    table: np.ndarray, accepts: np.ndarray, least: int, most: int
) -> list[tuple[tuple[int, int], ...]]: ...
def grouped(table: np.ndarray) -> list[list[tuple[int, tuple[int, ...]]]]: ...

@disjoint_base
class Reader:
    def __new__(
        cls,
        table: np.ndarray,
        accepts: np.ndarray,
        start: int,
        symbols: list[tuple[tuple[int, int], ...]],
    ) -> Reader: ...
    def reads(self, text: str) -> bool: ...

@disjoint_base
class Moves:
    def __new__(cls, table: np.ndarray) -> Moves: ...

@disjoint_base
class Partition:
    def __new__(cls, n: int) -> Partition: ...

@disjoint_base
class Subsets:
    def __new__(cls, skips: list[Any], eats: list[Any]) -> Subsets: ...
