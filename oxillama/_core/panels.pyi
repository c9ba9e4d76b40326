"""Types of packed weights."""

from collections.abc import Sequence
from typing import Self

import numpy as np
from typing_extensions import Buffer, disjoint_base

from oxillama._core.batch import CancelFlag

ACTS: tuple[str, ...]

@disjoint_base
class PanelMemory:
    nbytes: int
    used: int
    def __new__(cls, nbytes: int) -> Self: ...

@disjoint_base
class PackedMatrix:
    rows: int
    cols: int
    format: str
    act: str
    nbytes: int
    pager: object
    paged_name: str
    paged_file: int
    paged_offset: int
    paged_slots: int
    paged_fixed: bool
    def __init__(
        self,
        raw: Buffer | np.ndarray,
        format: str,
        rows: int,
        cols: int,
        num_threads: int = 0,
        tight: bool = True,
    ) -> None: ...
    @property
    def form(self) -> str: ...
    @classmethod
    def over(cls, panels: Buffer | np.ndarray, format: str, rows: int, cols: int) -> Self: ...
    @classmethod
    def paged(
        cls,
        pager: object,
        name: str,
        file: int,
        offset: int,
        row_bytes: int,
        format: str,
        rows: int,
        cols: int,
        home: PanelMemory | None = None,
        slots: int = 0,
        fixed: bool = False,
    ) -> Self: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def panels(self) -> np.ndarray: ...

@disjoint_base
class Units:
    count: int
    nbytes: int
    done: int
    def __new__(
        cls, matrices: list[PackedMatrix], *, mapped: Sequence[bool] = (), unit: int = 2097152
    ) -> Self: ...
    @property
    def whole(self) -> bool: ...
    def pack(self, most: int, *, num_threads: int = 0, flag: CancelFlag | None = None) -> None: ...
    def expect(self) -> None: ...

def packed_bytes(format: str, rows: int, cols: int) -> int: ...
def reserve_all(
    wanted: Sequence[tuple[Buffer | np.ndarray, str, int, int]],
) -> list[PackedMatrix]: ...
def pack_all(matrices: list[PackedMatrix], *, num_threads: int = 0) -> None: ...
def fault_in(view: memoryview, *, num_threads: int = 0) -> None: ...
