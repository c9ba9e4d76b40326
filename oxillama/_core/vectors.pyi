"""Types of the row functions."""

from collections.abc import Sequence

import numpy as np

ACTIVATIONS: tuple[str, ...]

def instruction_sets() -> tuple[str, ...]: ...
def active_isa() -> str: ...
def activation(kind: str | None) -> int: ...
def apply(
    name: str,
    x: np.ndarray,
    *,
    isa: str | None = None,
    weight: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    eps: float = 1e-5,
    y: np.ndarray | None = None,
    value: float = 0.0,
    kind: str | None = None,
) -> np.ndarray: ...
def rope_angles(
    inv_freq: np.ndarray, positions: Sequence[int], *, scale: float = 1.0
) -> np.ndarray: ...
