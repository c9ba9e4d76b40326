"""Records an image encoder: an architecture over patches, and the projector over groups of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oxillama.errors import ModelError
from oxillama.gguf import GgufReader, TensorInfo
from oxillama.gguf.keys import REQUIRED
from oxillama.model.builder import Value
from oxillama.model.media_builder import MediaBuilder
from oxillama.model.rope import Rope
from oxillama.model.tensors import Tensor

# tables of tokens, and the axes that they have
_TABLES = {"v.class_embd": 1, "v.position_embd.weight": 2}
_RECORDERS: dict[str, Callable[[ImageBuilder], None]] = {}
_UNSIZED: set[str] = set()
_LAYERLESS = ("gemma4uv",)  # files of these kinds have no layers


@dataclass(frozen=True, slots=True)
class Window:
    """How the positions of an image are joined between two tapes of a convolutional network:
    windows of `side` x `side` around every `stride`-th position, with zeros as padding so that as
    many positions are left as there are strides ("same"). keyed: the windows at every second
    position, which become keys, then a row for each position, which become queries. seen: the rows
    unchanged, of which all attend to those that are keys. spread: each row is split into those of
    2 x 2 positions.
    """

    side: int = 1
    stride: int = 1
    keyed: bool = False
    seen: bool = False
    spread: bool = False


def encoder(*kinds: str, sized: bool = True) -> Callable:
    """Register the decorated function as the recorder of every `clip.projector_type` in `kinds`.
    sized: whether their files say the size of an image; otherwise they say 0.
    """

    def register(record: Callable[[ImageBuilder], None]) -> Callable[[ImageBuilder], None]:
        _RECORDERS.update(dict.fromkeys(kinds, record))
        _UNSIZED.update(() if sized else kinds)
        return record

    return register


def encoders() -> Mapping[str, Callable[[ImageBuilder], None]]:
    """Every registered recorder by its `clip.projector_type`."""
    return _RECORDERS


class ImageBuilder(MediaBuilder):
    """The argument of an image encoder's function, over patches: the keys `clip.vision.*`, tensors
    and ops.
    """

    medium, prefix = "vision", "v."

    def __init__(self, reader: GgufReader, kind: str) -> None:
        super().__init__(reader, kind, layerless=kind in _LAYERLESS)
        self.patch = self.keys.integer("patch_size", minimum=1, maximum=256)
        least = 0 if kind in _UNSIZED else self.patch
        self.image = self.keys.integer("image_size", minimum=least, maximum=1 << 14)
        self.windows: list[Window] = []

    def _info(self, name: str, *shape: int) -> TensorInfo:
        """The file's entry for a tensor; InternVL's tables of tokens without the leading axes of
        length 1 that converters leave.
        """
        info = super()._info(name, *shape)
        axes = _TABLES.get(name, len(info.shape))
        extra = len(info.shape) - axes
        if extra > 0 and set(info.shape[:extra]) == {1}:
            return replace(info, shape=info.shape[extra:])
        return info

    @property
    def columns(self) -> int:
        """Numbers of a patch: its three colours."""
        return 3 * self.patch * self.patch

    @property
    def merge(self) -> int:
        """Patches along a side of what becomes one feature, where images have any size."""
        return self.keys.integer("spatial_merge_size", default=2, minimum=1, maximum=16)

    @property
    def side(self) -> int:
        """Patches along a side of a square image."""
        return self.image // self.patch

    def scale_factor(self, default: Any = REQUIRED) -> int:
        """Patches along a side of the squares, each a feature, that a square image is cut into."""
        key = "projector.scale_factor"
        scale = self.keys.integer(key, default=default, minimum=1, maximum=self.side)
        if self.side % scale:
            wanted = f"a divisor of the {self.side} patches along a side"
            self.fail(self.keys.name(key), scale, wanted)
        return scale

    def kernels(self, name: str, rows: int, channels: int, side: int) -> Tensor:
        """The kernels of a convolution over squares that do not overlap, a row each."""
        shape = (rows, channels, side, side)
        info = self._info(name, *shape)
        if tuple(info.shape) != shape:
            raise ModelError(f"{name}: file has {tuple(info.shape)}, {self.kind} needs {shape}")
        return Tensor(name, info.type_name, (rows, channels * side * side))

    def convolved(
        self, x: Value, name: str, rows: int, channels: int, side: int, *, bias: bool = True
    ) -> Value:
        """x, a square of `side` x `side` channel by channel, times the kernels `name.weight`, plus
        `name.bias` if there is one (bias False: another op reads it).
        """
        weight = self.kernels(name + ".weight", rows, channels, side)
        shift = self.optional_vector(name + ".bias", rows) if bias else None
        return self.record("linear", (x,), width=rows, weight=weight, bias=shift)

    def patches(self, *, classed: bool = False) -> Value:
        """The embedding of each patch; of the two frames of a clip, where the file has kernels for
        both, the same image. classed: one of the rows is that of a class token, which stays 0.
        """
        x = self.features(0, self.columns)
        made = self.convolved(x, "v.patch_embd", self.hidden, 3, self.patch)
        if self.has("v.patch_embd.weight.1"):
            weight = self.kernels("v.patch_embd.weight.1", self.hidden, 3, self.patch)
            made = made + self.record("linear", (x,), width=self.hidden, weight=weight, bias=None)
        if classed and self.has("v.patch_embd.bias"):
            made = made + self._class_table("v.patch_embd.bias", -1.0)
        return made

    def position_embed(
        self, name: str = "v.position_embd.weight", *, classed: bool = False
    ) -> Value:
        """A learned position for each patch of a square image, after that of a class token."""
        rows, wanted = self._matrix_rows(name), self.side**2 + classed
        if rows != wanted:
            raise ModelError(
                f"{name}: file has {rows} rows, {self.kind} needs {wanted}, of an image of "
                f"{self.image} pixels in patches of {self.patch}"
            )
        return super().position_embed(name)

    def grid_positions(self) -> Value:
        """The columns that the batch brings after each patch: the file's learned positions, a
        square grid, resampled to the patches of the image.
        """
        name = "v.position_embd.weight"
        rows, width = self.shape(name, 2)
        if width != self.hidden or round(rows**0.5) ** 2 != rows:
            raise ModelError(
                f"{name}: file has {(rows, width)}, {self.kind} needs a square number of rows of "
                f"{self.hidden}"
            )
        return self.features(self.columns, self.hidden)

    def class_row(self) -> Value:
        """`v.class_embd` in the row of the class token, zeros in the others."""
        return self._class_table("v.class_embd", 1.0)

    def _class_table(self, name: str, scale: float) -> Value:
        """A vector times a number in the row of the class token, zeros in the others."""
        info = self._info(name)
        shape = tuple(info.shape)
        if shape != (self.hidden,):
            raise ModelError(f"{name}: file has {shape}, {self.kind} needs ({self.hidden},)")
        table = Tensor(name, info.type_name, (1, self.hidden))
        return self.record("embed", (), width=self.hidden, table=table, scale=scale, filler="zeros")

    def axial_rope(
        self, style: str = "halves", *, base: float = 10000.0, column_first: bool = False
    ) -> Rope:
        """The rotation by row and by column of a patch (Wang et al. 2024, Qwen2-VL, section 2.1):
        the first half of the pairs of a head by its row, the second by its column, or the other way
        round. base: where the file says none.

        halves: both with the same frequencies; "alternating": with every other one (Agrawal et al.
        2024, Pixtral 12B, section 2.2).
        """
        head = self.hidden // self.keys.integer("attention.head_count", minimum=1)
        if head % 4:
            raise ModelError(
                f"clip.vision.attention.head_count: found heads of {head}, {self.kind} needs a "
                "multiple of 4"
            )
        base, quarter = self.keys.number("rope.freq_base", default=base), head // 4
        if style == "halves":
            each = base ** (-np.arange(quarter) / quarter)
            both = np.concatenate([each, each])
        else:
            all_of_them = base ** (-np.arange(2 * quarter) / (2 * quarter))
            both = np.concatenate([all_of_them[::2], all_of_them[1::2]])
        order = np.array([1, 0] if column_first else [0, 1], np.int32)
        sections = np.repeat(order, quarter)
        return Rope(head, both.astype(np.float32), 1.0, sections=sections)
