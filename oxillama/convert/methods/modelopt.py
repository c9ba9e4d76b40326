"""NVIDIA's ModelOpt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from oxillama.convert.quantised import SCALES, UNREAD, Grid, Quantised, Reader, method, stored_rows
from oxillama.convert.safetensors import StoredTensor, Tensor
from oxillama.errors import ConvertError


@method("modelopt")
class _ModelOpt(Reader):
    """`modelopt`: MODULE.weight is E4M3 with a scale for all or for each row, or NVFP4: U8 of two
    codes, with E4M3 scales for each 16 columns that are multiplied by one number.
    """

    parts = (".weight_scale", ".weight_scale_2")
    _ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "W4A16_NVFP4")

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        algorithms = [self.said.get("quant_algo")]
        if algorithms == ["MIXED_PRECISION"]:
            layers = self.said.get("quantized_layers") or {}
            algorithms = [one.get("quant_algo") for one in layers.values()]
        for one in algorithms:
            if one not in self._ALGORITHMS:
                raise ConvertError(
                    f"{self.label}: quantization_config: quant_algo: found {one!r:.80}, wanted one "
                    f"of {', '.join(self._ALGORITHMS)}"
                )

    def read(self, name: str, tensor: StoredTensor) -> Iterator[tuple[str, Tensor]]:
        scale_name = f"{name}_scale"
        if self.is_part(name) or UNREAD.match(name):
            return
        if not name.endswith(".weight") or tensor.dtype not in ("F8_E4M3", "U8"):
            yield name, tensor
            return
        if len(tensor.shape) != 2 or 0 in tensor.shape:
            raise ConvertError(f"{self.label}: {name}: shape {list(tensor.shape)}, wanted a matrix")
        if tensor.dtype == "U8":
            scale = self.part(scale_name, name, "F8_E4M3")
            made = self.fp4(name, tensor, scale_name, scale, 16)
            yield name, self.by_one(made, np.multiply, f"{name}_scale_2", name)
            return
        rows, columns = tensor.shape
        scale = self.part(scale_name, name, *SCALES)
        self.shaped(scale_name, scale, (), (1,), (rows,), (rows, 1))
        height = rows if scale.data.size == 1 else 1
        grid = Grid(StoredTensor(scale.dtype, scale.data.reshape(-1, 1)), rows, height, columns)
        yield name, Quantised(self.dtype, tensor.shape, stored_rows(tensor), grid)
