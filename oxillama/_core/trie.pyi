"""Types of the token tries: see trie.pyx."""

from typing import Protocol, type_check_only

import numpy as np
from typing_extensions import disjoint_base

from oxillama._core.cursor import Cursor

@type_check_only
class Known(Protocol):
    def get(self, key: tuple[int, ...]) -> np.ndarray | None: ...
    def put(self, key: tuple[int, ...], mask: np.ndarray) -> None: ...

@disjoint_base
class TokenTrie:
    vocab: int
    words: int
    longest: int
    def __new__(cls, vocab_bytes: list[bytes | None] | list[bytes]) -> TokenTrie: ...
    def position(self, cursor: Cursor) -> tuple[int, ...]: ...
    def fill(
        self, cursor: Cursor, mask: np.ndarray, known: Known | None = None
    ) -> tuple[int, ...]: ...
    def sizes(self) -> dict[str, int]: ...

def apply_bits(logits: np.ndarray, mask: np.ndarray) -> int: ...
