"""What a layer keeps of earlier tokens: data that ops record, and that memory, prefix tree,
preemption, speculation and snapshots read.
"""

from __future__ import annotations

from dataclasses import dataclass

from oxillama._core.pool import LATENT, ROWS


@dataclass(frozen=True, slots=True)
class Pages:
    """A key and a value per token and KV head, in pages; `window` is how many tokens are looked
    back at, 0 for all.
    """

    heads: int
    key: int
    value: int
    window: int = 0

    @property
    def dims(self) -> tuple[int, int, int]:
        """(kv_heads, k_dim, v_dim) for page memory."""
        return self.heads, self.key, self.value


@dataclass(frozen=True, slots=True)
class Latent:
    """One row of `width` floats per token, in pages, for all heads; its first `value` floats are
    also the value (multi-head latent attention, DeepSeek-AI 2024, section 2.1). window: as of
    `Pages`.
    """

    width: int
    value: int
    window: int = 0

    @property
    def dims(self) -> tuple[int, int, int]:
        """(LATENT, k_dim, v_dim) for page memory."""
        return LATENT, self.width, self.value


@dataclass(frozen=True, slots=True)
class Rows:
    """One row of `width` float32 (or int32) per token, in pages: an indexer's key, what keys of
    blocks of tokens are made of, a share of such a key, or which adapter is in force. window: as of
    `Pages`.
    """

    width: int
    window: int = 0

    @property
    def dims(self) -> tuple[int, int, int]:
        """(ROWS, width, width) for page memory."""
        return ROWS, self.width, self.width


@dataclass(frozen=True, slots=True)
class Slot:
    """Recurrent or convolution state, or the last tokens: float32 or int32 of one shape, whatever
    the number of tokens.
    """

    shape: tuple[int, ...]


LayerState = Pages | Latent | Rows | Slot
