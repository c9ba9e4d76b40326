"""Types of adapters in memory."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from typing_extensions import disjoint_base

@disjoint_base
class Adapter:
    shapes: list[tuple[Any, ...]]
    nbytes: int
    width: int
    columns: int
    def __init__(
        self,
        shapes: list[tuple[Any, ...]],
        entries: Iterable[tuple[int, int, np.ndarray, np.ndarray, float]],
    ) -> None: ...

@disjoint_base
class AdapterSet:
    adapters: tuple[Adapter, ...]
    width: int
    columns: int
    def __init__(self, pairs: Iterable[tuple[Adapter, float]]) -> None: ...
