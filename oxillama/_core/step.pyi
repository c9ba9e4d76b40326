"""Types of what checks an op while a program is built."""

from collections.abc import Sequence

from typing_extensions import disjoint_base

ACT_NAMES: tuple[str, ...]
MAX_COLUMNS: int

@disjoint_base
class Op:
    name: str
    wanted: bool
    output: bool

@disjoint_base
class Plan:
    widths: list[int]
    kv_layers: list[tuple[int, int, int]]
    def __init__(
        self,
        widths: Sequence[int],
        kv_layers: Sequence[tuple[int, int, int]],
        slot_layers: Sequence[Sequence[int]],
        *,
        vocab_size: int,
        max_rows: int,
        num_threads: int,
        isa: str | None,
    ) -> None: ...
