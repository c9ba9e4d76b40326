"""Packed weights and the product that runs over them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oxillama._core.panels import PackedMatrix as PackedMatrix

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
