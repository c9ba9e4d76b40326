"""bitsandbytes: 4 bits by a table (NF4, FP4) and 8 bits by row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from oxillama.convert.quantised import Grid, Quantised, Reader, method, stored_rows
from oxillama.convert.safetensors import StoredTensor, Tensor
from oxillama.errors import ConvertError

_STATE = ".quant_state.bitsandbytes__"
_KINDS = ("nf4", "fp4")


@method("bitsandbytes")
class _BitsAndBytes(Reader):
    """`bitsandbytes`: a weight of U8 holds two codes in a byte, high bits first, row after row.
    NAME.quant_map has the number of each code, NAME.absmax the scale of each `blocksize` codes,
    which may begin in one row and end in the next. Those scales may be codes themselves (double
    quantisation). NAME.quant_state.bitsandbytes__nf4 is JSON. A weight of I8 has a scale for each
    row, MODULE.SCB, of 127ths.
    """

    parts = (
        *(".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", ".SCB", ".weight_format"),
        *(_STATE + kind for kind in _KINDS),
    )

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.must_be("bnb_4bit_quant_storage", "uint8")

    def read(self, name: str, tensor: StoredTensor) -> Iterator[tuple[str, Tensor]]:
        if self.is_part(name):
            return
        if tensor.dtype == "U8":
            yield name, self._four(name, tensor)
        elif tensor.dtype == "I8":
            yield name, self._eight(name, tensor)
        else:
            yield name, tensor

    def _eight(self, name: str, tensor: StoredTensor) -> Quantised:
        if len(tensor.shape) != 2 or 0 in tensor.shape:
            raise ConvertError(f"{self.label}: {name}: shape {list(tensor.shape)}, wanted a matrix")
        module = name.removesuffix("weight")
        scale = self.part(f"{module}SCB", name, "F32")
        self.shaped(f"{module}SCB", scale, tensor.shape[:1])
        if f"{module}weight_format" in self.stored:
            form = self.part(f"{module}weight_format", name, "U8").data
            if form.any():
                raise ConvertError(
                    f"{self.label}: {module}weight_format: found {form.max()}, wanted 0 (rows)"
                )
        rows, columns = tensor.shape
        grid = Grid(StoredTensor("F32", scale.data[:, None] / np.float32(127)), rows, 1, columns)
        return Quantised(
            self.dtype, tensor.shape, stored_rows(tensor), grid, span=(-128, 127), name=name
        )

    def _four(self, name: str, tensor: StoredTensor) -> Quantised:
        names = [f"{name}{_STATE}{kind}" for kind in _KINDS]
        state = next((one for one in names if one in self.stored), names[0])
        said = json.loads(self.part(state, name, "U8").data.tobytes())
        shape, size = said["shape"], self.integer(said["blocksize"], f"{state}: blocksize")
        if not isinstance(shape, list) or len(shape) != 2:
            raise ConvertError(
                f"{self.label}: {state}: shape: found {shape!r:.80}, wanted a matrix"
            )
        rows, columns = (self.integer(one, f"{state}: shape") for one in shape)
        count = -(-rows * columns // 2)
        self.shaped(name, tensor, (count, 1), (1, count))
        numbers = self.part(f"{name}.quant_map", name, "F32")
        self.shaped(f"{name}.quant_map", numbers, (16,))
        scales = self._scales(name, said, -(-rows * columns // size))
        codes, table = tensor.data.reshape(-1), numbers.data

        def read(start: int, stop: int) -> np.ndarray:
            first, last = start * columns, stop * columns
            held = codes[first // 2 : -(-last // 2)]
            both = np.stack((held >> 4, held & 15), axis=1).reshape(-1)
            return table[both[first % 2 :][: last - first]].reshape(-1, columns)

        # where a row is whole blocks, one number for each of these, else for each column
        width = size if columns % size == 0 else 1

        def scale(start: int, stop: int) -> np.ndarray:
            at = np.arange(start * columns, stop * columns, width) // size
            return scales[at].reshape(stop - start, -1)

        return Quantised(self.dtype, (rows, columns), read, Grid(scale, rows, 1, width), name=name)

    def _scales(self, name: str, said: dict[str, Any], count: int) -> np.ndarray:
        """The scales of the blocks, float32."""
        held = self.part(f"{name}.absmax", name, "F32", "U8")
        self.shaped(f"{name}.absmax", held, (count,))
        if held.dtype == "F32":
            return held.data
        size = self.integer(said["nested_blocksize"], f"{name}: nested_blocksize")
        outer = self.part(f"{name}.nested_absmax", name, "F32")
        self.shaped(f"{name}.nested_absmax", outer, (-(-count // size),))
        numbers = self.part(f"{name}.nested_quant_map", name, "F32")
        self.shaped(f"{name}.nested_quant_map", numbers, (256,))
        made = numbers.data[held.data] * np.repeat(outer.data, size)[:count]
        return made + np.float32(said["nested_offset"])
