"""Types of the embedding table."""

from typing import Self

import numpy as np
from typing_extensions import disjoint_base

from oxillama._core.pager import Pager

OPS: dict[str, type]

@disjoint_base
class EmbeddingTable:
    format: str
    rows: int
    cols: int
    def __init__(
        self, raw: bytes | memoryview | np.ndarray, format: str, rows: int, cols: int
    ) -> None: ...
    pager: Pager | None
    name: str
    @classmethod
    def paged(
        cls, pager: Pager, name: str, file: int, offset: int, format: str, rows: int, cols: int
    ) -> Self: ...
    def row(self, index: int) -> np.ndarray: ...
