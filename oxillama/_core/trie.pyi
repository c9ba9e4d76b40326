"""Types of the token tries: see trie.pyx."""

import numpy as np

from oxillama._core.cursor import Cursor

class TokenTrie:
    vocab: int
    words: int
    longest: int
    def __init__(self, vocab_bytes: list[bytes | None]) -> None: ...
    def fill(self, cursor: Cursor, mask: np.ndarray) -> None: ...
    def sizes(self) -> dict[str, int]: ...

def apply_bits(logits: np.ndarray, mask: np.ndarray) -> int: ...
