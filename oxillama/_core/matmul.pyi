"""Packed weights and the product that runs over them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

class PackedMatrix:
    """The weights of one matrix (rows, cols) in lane panels, 64-byte aligned; `act` says which activation rows it multiplies."""

    rows: int
    cols: int
    format: str
    act: str
    nbytes: int

    def __init__(
        self, raw: Buffer, format: str, rows: int, cols: int, num_threads: int = 0
    ) -> None: ...
    def panels(self) -> NDArray[np.uint8]: ...

def act_bytes(act: str, cols: int) -> int: ...
def quantise_rows(
    x: NDArray[np.float32], act: str, isa: str | None = None
) -> NDArray[np.uint8]: ...
def matmul(
    weights: PackedMatrix | Sequence[PackedMatrix],
    x: NDArray[np.float32],
    *,
    num_threads: int = 1,
    isa: str | None = None,
    bias: NDArray[np.float32] | None = None,
    gate: str | None = None,
) -> NDArray[np.float32]: ...
def matmul_acts(
    segments: list[PackedMatrix],
    acts: NDArray[np.uint8],
    *,
    num_threads: int = 1,
    isa: str | None = None,
    bias: NDArray[np.float32] | None = None,
    gate: str | None = None,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]: ...
