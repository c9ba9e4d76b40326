"""Records an audio encoder: an architecture over frames of a spectrogram, and the projector over
groups of what it leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from oxillama.errors import ModelError
from oxillama.gguf import GgufReader
from oxillama.model.attention import Heads
from oxillama.model.builder import Value
from oxillama.model.media_builder import MediaBuilder
from oxillama.model.tensors import Tensor

_RECORDERS: dict[str, Callable[[AudioBuilder], None]] = {}
_LAYERLESS = ("gemma4ua",)  # files of these kinds have no layers


def encoder(*kinds: str) -> Callable:
    """Register the decorated function as the recorder of every `clip.audio.projector_type` in
    `kinds`.
    """

    def register(record: Callable[[AudioBuilder], None]) -> Callable[[AudioBuilder], None]:
        _RECORDERS.update(dict.fromkeys(kinds, record))
        return record

    return register


def encoders() -> Mapping[str, Callable[[AudioBuilder], None]]:
    """Every registered recorder by its `clip.audio.projector_type`."""
    return _RECORDERS


class AudioBuilder(MediaBuilder):
    """The argument of an audio encoder's function: the keys `clip.audio.*`, tensors and ops. mels:
    numbers of a frame.
    """

    medium, prefix = "audio", "a."

    def __init__(self, reader: GgufReader, kind: str) -> None:
        super().__init__(reader, kind, layerless=kind in _LAYERLESS)
        self.mels = self.keys.integer("num_mel_bins", minimum=1, maximum=1024)

    @property
    def side_by_side(self) -> int:
        """Rows that are side by side in what becomes a feature."""
        return self.keys.integer("projector.stack_factor", minimum=1, maximum=64)

    def attend_turned(
        self, q: Value, k: Value, v: Value, turn: Value, *, heads: Heads, **options: Any
    ) -> Value:
        """Attention whose scores have a part that is a sum of waves over distances (`waves`), whose
        heights are what q has behind the columns of k: these are rotated by `turn`, and `turn`
        itself is further columns of k. options: as of `attend`.
        """
        return self.attend(
            self.op("turn", q, turn, heads=heads.query, start=heads.key_dim, style="neox"),
            self.concat(k, self.repeat(turn, heads.query), heads=heads.query),
            v,
            heads=replace(heads, kv=heads.query, key_dim=heads.key_dim + turn.width),
            rope=None,
            style="neox",
            **options,
        )

    def convolved(
        self, x: Value, name: str, rows: int, channels: int, *sides: int, bias: bool = True
    ) -> Value:
        """x, neighbouring rows of `channels` numbers channel by channel, times the kernels
        `name.weight` (rows, channels, *sides), plus `name.bias` (bias False: there is none).
        """
        shape = (rows, channels, *sides)
        info = self._info(name + ".weight", *shape)
        if tuple(info.shape) != shape:
            raise ModelError(
                f"{name}.weight: file has {tuple(info.shape)}, {self.kind} needs {shape}"
            )
        weight = Tensor(name + ".weight", info.type_name, (rows, x.width))
        shift = self.channels(name, rows) if bias else None
        return self.record("linear", (x,), width=rows, weight=weight, bias=shift)

    def channels(self, name: str, count: int) -> np.ndarray:
        """The bias of a convolution, `name.bias`, float32 (count,), beside whose axis files leave
        others of length 1.
        """
        shape = tuple(self._info(name + ".bias", count).shape)
        return self.array(
            name + ".bias", *(shape if math.prod(shape) == count else (count,))
        ).reshape(-1)

    def positions(self, start: int) -> Value:
        """The learned position of each row, which the batch brings from column `start` on."""
        name = "a.position_embd.weight"
        rows, width = self.shape(name, 2)
        if width != self.hidden:
            raise ModelError(f"{name}: file has {(rows, width)}, {self.kind} needs {self.hidden}")
        return self.features(start, self.hidden)
