"""Weights in the file's format: rows of a tensor, or a stack of matrices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxillama._core.codecs import unpack_rows
from oxillama.gguf import GgufReader


@dataclass(frozen=True, slots=True)
class Tensor:
    """Rows `start:start + shape[0]` of a tensor; `shape` is (rows, columns). The matrices of a
    stack follow one another, so the rows are those of all of them; likewise the kernels of a
    convolution are rows of all their numbers. turned: the transpose of the tensor, which must
    consist of plain floats.
    """

    name: str
    format: str
    shape: tuple[int, int]
    start: int = 0
    turned: bool = False

    @property
    def key(self) -> tuple[str, int, int]:
        """What makes two uses the same weight."""
        return self.name, self.start, self.shape[0]

    def blocks(self, reader: GgufReader) -> np.ndarray:
        """Its rows as uint8 (rows, bytes of a row), a view of the file."""
        count = int(np.prod(reader.tensors[self.name].shape, dtype=np.int64))
        if self.turned:
            whole = reader.data(self.name).reshape(self.shape[1], self.shape[0], -1)
            return np.ascontiguousarray(whole.swapaxes(0, 1)).reshape(self.shape[0], -1)
        rows = reader.data(self.name).reshape(count // self.shape[1], -1)
        return rows[self.start : self.start + self.shape[0]]


@dataclass(frozen=True, slots=True, eq=False)
class Given(Tensor):
    """A weight of plain floats that was made of tensors of the file. values: float32, of its
    shape; its name is its own.
    """

    values: np.ndarray | None = None

    def blocks(self, reader: GgufReader) -> np.ndarray:
        """Its rows as uint8 (rows, bytes of a row)."""
        return np.ascontiguousarray(self.values).view(np.uint8)


def unpacked(reader: GgufReader, tensor: Tensor) -> np.ndarray:
    """The float32 (rows, columns) of a tensor's blocks."""
    out = np.empty(tensor.shape, np.float32)
    unpack_rows(tensor.blocks(reader), tensor.format, out)
    return out
