"""GPTQ and AWQ: integers in words of 32 bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from oxillama.convert.quantised import (
    SCALES,
    Grid,
    Quantised,
    Reader,
    Rows,
    in_range,
    method,
    packed_rows,
    unpacked,
)
from oxillama.convert.safetensors import StoredTensor, Tensor
from oxillama.errors import ConvertError


class _Words(Reader):
    """What GPTQ and AWQ share: MODULE.qweight, .qzeros and .scales instead of MODULE.weight, all of
    them transposed: inputs from top to bottom.
    """

    parts = (".qweight", ".qzeros", ".scales", ".g_idx")

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.bits = self.integer(self.said.get("bits", self.said.get("w_bit")), "bits")
        size = self.said.get("group_size", self.said.get("q_group_size"))
        self.group = None if size == -1 else self.integer(size, "group_size")

    def read(self, name: str, tensor: StoredTensor) -> Iterator[tuple[str, Tensor]]:
        if name.endswith(".qweight"):
            self.used.add(name)
            self.typed(name, tensor, "I32")
            if len(tensor.shape) != 2 or 0 in tensor.shape:
                raise ConvertError(
                    f"{self.label}: {name}: shape {list(tensor.shape)}, wanted a matrix"
                )
            module = name.removesuffix("qweight")
            yield f"{module}weight", self.weight(module, tensor)
        elif not self.is_part(name):
            yield name, tensor

    def weight(self, module: str, tensor: StoredTensor) -> Quantised:
        raise NotImplementedError

    def groups(self, name: str, columns: int) -> tuple[int, int]:
        """Groups of a row, and columns of each."""
        width = columns if self.group is None else self.group
        if columns % width:
            raise ConvertError(
                f"{self.label}: {name}: {columns} inputs, wanted a multiple of the group's {width}"
            )
        return columns // width, width


@method("gptq")
class _Gptq(_Words):
    """`gptq`: codes in words of 32 bits, those of 32 / bits inputs in a word. Version 1 stores zero
    points less one.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if self.bits not in (2, 3, 4, 8):
            raise ConvertError(
                f"{self.label}: quantization_config: bits: found {self.bits}, wanted 2, 3, 4 or 8"
            )
        self.must_be("is_marlin_format", False)
        self.must_be("pack_dtype", "int32")
        self.must_be("rotation")
        self.must_be("adapter")
        for key in ("checkpoint_format", "format"):
            self.must_be(key, "gptq", "gptq_v2")
        form = self.said.get("checkpoint_format") or self.said.get("format")
        self.stored_less = 0 if form == "gptq_v2" else 1
        for pattern in self.said.get("dynamic") or {}:
            if not str(pattern).startswith("-:"):
                raise ConvertError(
                    f"{self.label}: quantization_config: dynamic: found {pattern!r:.80}, wanted "
                    "only modules that are left as they are (-:)"
                )

    def weight(self, module: str, tensor: StoredTensor) -> Quantised:
        bits, rows = self.bits, tensor.shape[1]
        columns = tensor.shape[0] * 32 // bits
        if tensor.shape[0] % (bits if bits == 3 else 1):
            raise ConvertError(
                f"{self.label}: {module}qweight: {tensor.shape[0]} rows, wanted a multiple of 3"
            )
        count, width = self.groups(f"{module}qweight", columns)
        scale = self.part(f"{module}scales", module + "weight", *SCALES)
        self.shaped(f"{module}scales", scale, (count, rows))
        zeros = self.part(f"{module}qzeros", module + "weight", "I32")
        self.shaped(f"{module}qzeros", zeros, (count, -(-rows * bits // 32)))
        most = (1 << bits) - 1
        if self.stored_less and (unpacked(zeros.data, bits, rows) == most).any():
            raise ConvertError(
                f"{self.label}: {module}qzeros: found a zero point stored as {most}, "
                "which programs read in two ways in version 1 (checkpoint_format gptq), wanted "
                "gptq_v2"
            )
        order = None
        if f"{module}g_idx" in self.stored:
            held = self.part(f"{module}g_idx", module + "weight", "I32", "I64")
            self.shaped(f"{module}g_idx", held, (columns,))
            order = in_range(self.label, f"{module}g_idx", held.data.astype(np.int32), count)
            if np.array_equal(order, np.arange(columns) // width):
                order = None
        elif self.said.get("desc_act"):
            raise ConvertError(
                f"{self.label}: {module}weight: found no {module}g_idx, which desc_act asks for"
            )
        grid = Grid(StoredTensor(scale.dtype, scale.data.T), rows, 1, width, order)
        points, less = packed_rows(zeros.data, bits), np.float32(self.stored_less)
        zero = Grid(lambda start, stop: points(start, stop) + less, rows, 1, width, order)
        words = tensor.data

        def read(start: int, stop: int) -> np.ndarray:
            return unpacked(words[:, start:stop].T, bits, columns).astype(np.float32)

        return Quantised(self.dtype, (rows, columns), read, grid, zero, span=(0, most))


@method("awq")
class _Awq(_Words):
    """`awq`: codes of 4 bits in words of 32, those of 8 outputs in a word, even ones first."""

    _ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # the place in a word of each of its outputs

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if self.bits != 4:
            raise ConvertError(
                f"{self.label}: quantization_config: bits: found {self.bits}, wanted 4"
            )
        version = str(self.said.get("version", "gemm")).lower()
        if version != "gemm":
            raise ConvertError(
                f"{self.label}: quantization_config: version: found {version!r:.80}, wanted 'gemm'"
            )
        self.must_be("zero_point", True)

    def weight(self, module: str, tensor: StoredTensor) -> Quantised:
        columns, rows = tensor.shape[0], tensor.shape[1] * 8
        count, width = self.groups(f"{module}qweight", columns)
        scale = self.part(f"{module}scales", module + "weight", *SCALES)
        self.shaped(f"{module}scales", scale, (count, rows))
        zeros = self.part(f"{module}qzeros", module + "weight", "I32")
        self.shaped(f"{module}qzeros", zeros, (count, rows // 8))
        grid = Grid(StoredTensor(scale.dtype, scale.data.T), rows, 1, width)
        zero = Grid(self._outputs(zeros.data), rows, 1, width)
        codes = self._outputs(tensor.data)
        return Quantised(self.dtype, (rows, columns), codes, grid, zero, span=(0, 15))

    def _outputs(self, words: np.ndarray) -> Rows:
        """Reads outputs of words (inputs, words) as float32 (outputs, inputs)."""

        def read(start: int, stop: int) -> np.ndarray:
            first = start // 8
            held = words[:, first : -(-stop // 8)]
            codes = unpacked(held, 4, 8 * held.shape[1]).reshape(len(held), -1, 8)
            found = codes[:, :, self._ORDER].reshape(len(held), -1)
            return found[:, start - 8 * first : stop - 8 * first].T.astype(np.float32)

        return read
