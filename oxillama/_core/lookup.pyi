"""Types of the compiled part of lookups."""

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import disjoint_base

@disjoint_base
class StepCosts:
    def __new__(cls, points: Mapping[int, float] | None = None) -> StepCosts: ...
    def __bool__(self) -> bool: ...
    def __call__(self, rows: int) -> float: ...
    def observe(self, rows: int, seconds: float) -> None: ...
    def scale(self, rows: int, seconds: float) -> None: ...
    def record(self, sequences: int, rows: int, seconds: float) -> None: ...
    def best(
        self,
        chances: Sequence[float],
        *,
        rows: int = 1,
        sequences: int = 1,
        each: float = 0.0,
        once: float = 0.0,
    ) -> int: ...

@disjoint_base
class TextIndex:
    tokens: int
    def __new__(cls, most: int = 1 << 17, most_texts: int = 1 << 12) -> TextIndex: ...

@disjoint_base
class IndexedText:
    streak: float
    chances: list[float]
    def __new__(cls, index: TextIndex, chances: Sequence[float]) -> IndexedText: ...
    def learn(self, tokens: list[int]) -> None: ...
    def offer(self, most: int) -> tuple[list[int], list[float]]: ...
    def close(self) -> None: ...

@disjoint_base
class Watcher:
    fallbacks: int
    since: float
    def __new__(
        cls,
        text: IndexedText,
        costs: StepCosts | None,
        most: int,
        owner: Any,
        *,
        alone: bool = False,
    ) -> Watcher: ...
    def wants(self, request: Any, sequences: int) -> bool: ...
    def close(self) -> None: ...
