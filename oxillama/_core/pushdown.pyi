"""Types of the pushdown machine: see pushdown.pyx."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import disjoint_base

from oxillama._core.dstates import Dstates

@disjoint_base
class Machine(Dstates):
    removed_states: int
    epoch: int
    serial: int
    def __init__(
        self,
        rules: list[tuple[Any, ...]],
        *,
        symbols: int = 0,
        names: Sequence[str] | None = None,
        max_states: int = ...,
        max_depth: int = ...,
        max_items: int = ...,
        max_configs: int = ...,
        deferred: object = None,
    ) -> None: ...
    def sizes(self) -> dict[str, int]: ...
