"""Types of the tape."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from typing_extensions import disjoint_base

from oxillama._core.batch import Batch as Batch
from oxillama._core.batch import CancelFlag as CancelFlag
from oxillama._core.elementwise import EmbeddingTable as EmbeddingTable
from oxillama._core.filemap import FileMap
from oxillama._core.pool import PageMemory as PageMemory

OPS: dict[str, type]

@disjoint_base
class Program:
    max_rows: int
    num_threads: int
    vocab_size: int
    hidden_size: int
    outputs: int
    representative: bool
    busy: bool
    steps: int
    adaptable: list[tuple[Any, ...]]
    causal: bool
    positions: int
    sections: int
    embed_columns: int
    by_token: bool
    served: int
    kv_layers: list[tuple[int, int, int]]
    slot_layers: list[tuple[int, ...]]
    files: tuple[FileMap, ...]
    def __init__(
        self,
        ops: Sequence[tuple[str, dict[str, Any]]],
        slots: Sequence[int],
        *,
        kv_layers: Sequence[tuple[int, int, int]],
        vocab_size: int,
        hidden_size: int,
        slot_layers: Sequence[Sequence[int]] = (),
        hidden: int | None = None,
        carried: int | None = None,
        max_rows: int = 512,
        num_threads: int = 0,
        isa: str | None = None,
        packing: object | None = None,
        beside: Program | None = None,
        outputs: int | None = None,
        files: Sequence[FileMap] = (),
    ) -> None: ...
    @property
    def carries(self) -> bool: ...
    @property
    def workers(self) -> int: ...
    def __len__(self) -> int: ...
    def step(
        self,
        batch: Batch,
        memory: PageMemory,
        *,
        output: str = "logits",
        cancel: CancelFlag | None = None,
    ) -> np.ndarray: ...
    def carried(self) -> np.ndarray: ...
    def run_until(
        self,
        batch: Batch,
        memory: PageMemory,
        op_index: int,
        *,
        first: int = 0,
        cancel: CancelFlag | None = None,
    ) -> None: ...
    def slot(self, index: int, rows: int) -> np.ndarray: ...
    def parts(self, op_index: int) -> int: ...
    def profile(
        self, batch: Batch, memory: PageMemory, *, repeat: int = 1
    ) -> list[tuple[str, float]]: ...
