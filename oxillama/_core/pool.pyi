"""Types of page memory."""

from collections.abc import Sequence
from typing import Self

import numpy as np
from typing_extensions import disjoint_base

KV_TYPES: dict[str, int]
KV_BLOCK: dict[str, int]
LATENT: int

def available_bytes(proc: str = "/proc", root: str = "/sys/fs/cgroup") -> int | None: ...

@disjoint_base
class PageMemory:
    page_size: int
    capacity: int
    page_bytes: int
    n_layers: int
    slot_layers: tuple[tuple[int, ...], ...]
    slot_bytes: int
    slot_capacity: int
    def __new__(
        cls,
        kv_layers: Sequence[tuple[int, int, int]],
        kv_type: str = "f16",
        page_size: int = 16,
        slot_layers: Sequence[Sequence[int]] = (),
    ) -> Self: ...
    @property
    def kv_type(self) -> str: ...
    @property
    def kv_layers(self) -> list[tuple[int, int, int]]: ...
    @property
    def memory_bytes(self) -> int: ...
    def ensure(self, n_pages: int) -> None: ...
    def release(self, keep_pages: int) -> None: ...
    def copy(
        self, src: int, dst: int, *, tokens: int | None = None, num_threads: int = 1
    ) -> None: ...
    def export(self, page: int, *, num_threads: int = 1) -> bytes: ...
    def load(self, page: int, data: bytes | np.ndarray, *, num_threads: int = 1) -> None: ...
    def write(
        self,
        pages: Sequence[int] | np.ndarray,
        layer: int,
        first: int,
        k: np.ndarray,
        v: np.ndarray | None = None,
        *,
        num_threads: int = 1,
        isa: str | None = None,
    ) -> None: ...
    def ensure_slots(self, n_slots: int) -> None: ...
    def save_slot(self, slot: int) -> bytes: ...
    def load_slot(self, slot: int, data: bytes | np.ndarray) -> None: ...
    def read(self, page: int, layer: int) -> tuple[np.ndarray, np.ndarray]: ...
