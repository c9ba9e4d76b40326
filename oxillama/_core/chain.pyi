"""Types of the compiled chain of sampler stages."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from typing_extensions import disjoint_base

@disjoint_base
class Chain:
    vocab: int
    keep: int
    names: tuple[str, ...]
    callables: tuple[tuple[str, Callable[..., Any]], ...]
    def __new__(
        cls,
        vocab: int,
        ops: Sequence[tuple[Any, ...]],
        *,
        bans: Sequence[int] = (),
        late: Sequence[int] = (),
        min_tokens: int = 0,
        bias: Mapping[int, float] | None = None,
        allow: Sequence[int] | None = None,
        special: Sequence[int] = (),
        breakers: Sequence[Sequence[int]] = (),
    ) -> Self: ...
