"""What a layer keeps of the tokens before: data that ops record, and memory, prefix tree,
preemption, speculation and snapshots ask.
"""

from __future__ import annotations

from dataclasses import dataclass

from oxillama._core.pool import LATENT


@dataclass(frozen=True, slots=True)
class Pages:
    """A key and a value a token and KV head, in pages; `window` tokens are looked back at, 0 =
    all.
    """

    heads: int
    key: int
    value: int
    window: int = 0

    @property
    def dims(self) -> tuple[int, int, int]:
        """(kv_heads, k_dim, v_dim) as page memory is asked for them."""
        return self.heads, self.key, self.value


@dataclass(frozen=True, slots=True)
class Latent:
    """One row of `width` floats a token, in pages, for all heads; its first `value` floats are the
    value too (multi-head latent attention, DeepSeek-AI 2024, section 2.1).
    """

    width: int
    value: int

    @property
    def dims(self) -> tuple[int, int, int]:
        """(LATENT, k_dim, v_dim) as page memory is asked for it."""
        return LATENT, self.width, self.value


@dataclass(frozen=True, slots=True)
class Slot:
    """Recurrent or convolution state: float32 of one shape, whatever the number of tokens."""

    shape: tuple[int, ...]


LayerState = Pages | Latent | Slot
