"""Types of what a step is given."""

from collections.abc import Sequence
from typing import Self

import numpy as np
from typing_extensions import disjoint_base

MAX_ROWS: int

@disjoint_base
class CancelFlag:
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def __bool__(self) -> bool: ...

@disjoint_base
class Batch:
    rows: int
    wanted_rows: int
    kept_rows: int
    def __new__(
        cls,
        tokens: Sequence[int] | np.ndarray,
        positions: Sequence[int] | np.ndarray,
        tables: Sequence[Sequence[int] | np.ndarray],
        row_table: Sequence[int] | np.ndarray,
        wanted: Sequence[int] | np.ndarray,
        *,
        embeds: np.ndarray | None = None,
        rope: Sequence[int] | np.ndarray | None = None,
        visible: Sequence[int] | np.ndarray | None = None,
        slots: Sequence[int] | np.ndarray | None = None,
        adapters: Sequence[object | None] | None = None,
        spans: np.ndarray | None = None,
        kept: Sequence[int] | np.ndarray | None = None,
        spares: Sequence[int] | np.ndarray | None = None,
    ) -> Self: ...
