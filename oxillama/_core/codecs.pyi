"""Types of the codecs."""

import numpy as np

ISA_NUMBERS: dict[str, int]

def codec_table() -> tuple[tuple[str, int, int, int], ...]: ...
def unpack_rows(
    blocks: np.ndarray, name: str, out: np.ndarray, num_threads: int = 0, *, isa: str | None = None
) -> None: ...
def quantise_rows(
    rows: np.ndarray,
    name: str,
    weights: np.ndarray | None,
    out: np.ndarray,
    num_threads: int = 0,
    *,
    isa: str | None = None,
) -> None: ...
def first_beyond(rows: np.ndarray, limit: float) -> tuple[int, int] | None: ...
