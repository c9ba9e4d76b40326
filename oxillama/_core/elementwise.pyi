"""Types of the embedding table."""

import numpy as np
from typing_extensions import disjoint_base

OPS: dict[str, type]

@disjoint_base
class EmbeddingTable:
    format: str
    rows: int
    cols: int
    def __init__(
        self, raw: bytes | memoryview | np.ndarray, format: str, rows: int, cols: int
    ) -> None: ...
    def row(self, index: int) -> np.ndarray: ...
