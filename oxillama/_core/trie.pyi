"""Types of the token tries: see trie.pyx."""

import numpy as np
from typing_extensions import disjoint_base

from oxillama._core.cursor import Cursor

@disjoint_base
class TokenTrie:
    vocab: int
    words: int
    longest: int
    def __new__(cls, vocab_bytes: list[bytes | None] | list[bytes]) -> TokenTrie: ...
    def position(self, cursor: Cursor) -> tuple[int, int]: ...
    def fill(self, cursor: Cursor, mask: np.ndarray) -> None: ...
    def sizes(self) -> dict[str, int]: ...

def apply_bits(logits: np.ndarray, mask: np.ndarray) -> int: ...
