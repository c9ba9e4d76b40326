"""Types of the pager."""

from collections.abc import Callable, Sequence
from typing import Self, TypedDict

from typing_extensions import Buffer, disjoint_base

from oxillama._core.panels import PackedMatrix

SOURCES: dict[str, int]
PAGE_BYTES: int
READ_BYTES: int
LEAST_SLOTS: int

class Counts(TypedDict):
    resident_bytes: int
    ring_bytes: int
    pages_read: int
    bytes_read: int
    hits: int
    waited: float

@disjoint_base
class PagedOp:
    routed: bool
    pager: object
    @property
    def nbytes(self) -> int: ...
    @property
    def resident(self) -> int: ...
    @property
    def slots(self) -> int: ...
    def kept(self) -> list[int]: ...

@disjoint_base
class Pager:
    labels: list[str]
    poll: Callable[[], None] | None
    ring_bytes: int
    page_bytes: int
    closed: bool
    ops: list[PagedOp]
    @property
    def descriptors(self) -> list[int]: ...
    def __new__(
        cls,
        files: Sequence[tuple[int, str, Buffer | None]],
        *,
        source: str = "file",
        ring_bytes: int = 0,
        page_bytes: int = 2097152,
        read_bytes: int = 1048576,
        threads: int = 4,
        poll: Callable[[], None] | None = None,
    ) -> Self: ...
    def close(self) -> None: ...
    def linear(
        self, matrices: list[PackedMatrix], step: int, gated: bool, use: int = 0
    ) -> PagedOp: ...
    def experts(
        self,
        matrices: list[PackedMatrix],
        experts: int,
        slots: int,
        use: int = 0,
    ) -> PagedOp: ...
    def follow(self, first: PagedOp, then: PagedOp) -> None: ...
    def quiesce(self) -> None: ...
    def resume(self) -> None: ...
    def shrink(self, nbytes: int) -> int: ...
    def restore(self) -> None: ...
    def counts(self) -> Counts: ...
