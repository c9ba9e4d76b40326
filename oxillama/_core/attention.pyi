"""Types of attention: the op of the tape, and a call over arrays."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oxillama._core.pool import PageMemory as PageMemory

OPS: dict[str, type]

def attend(
    q: NDArray[np.float32],
    memory: PageMemory,
    pages: Sequence[int] | NDArray[np.int32],
    layer: int,
    *,
    first: int = 0,
    window: int = 0,
    chunk: int = 0,
    softcap: float = 0.0,
    sinks: NDArray[np.float32] | None = None,
    slopes: NDArray[np.float32] | None = None,
    num_threads: int = 1,
    isa: str | None = None,
) -> NDArray[np.float32]: ...
