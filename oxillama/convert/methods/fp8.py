"""fp8: DeepSeek V3 and V4, Qwen 3, Ministral and others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from oxillama.convert.quantised import UNREAD, Grid, Quantised, Reader, method, stored_rows
from oxillama.convert.safetensors import StoredTensor, Tensor
from oxillama.errors import ConvertError


@method("fbgemm_fp8")
@method("fp8")
class _Fp8(Reader):
    """`fp8`: weights of E4M3 with a scale for each block of `weight_block_size`, or one for all;
    `fbgemm_fp8`: one for each row.

    The scale of NAME is NAME_scale_inv (a factor in spite of its name), NAME_scale, or for
    MODULE.weight MODULE.scale. DeepSeek V4's experts (`expert_dtype` fp4) are E2M1 codes, two in a
    byte of I8, with a scale for each 32 columns.
    """

    parts = ("_scale_inv", ".weight_scale")

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.must_be("fmt", "e4m3", "float8_e4m3fn")
        self.must_be("scale_fmt", "float", "ue8m0")
        self.must_be("activation_scheme", "dynamic", "static")
        self.block: tuple[int, int] | None = None
        size = self.said.get("weight_block_size")
        if size is not None:
            if not isinstance(size, list) or len(size) != 2:
                raise ConvertError(
                    f"{self.label}: quantization_config: weight_block_size: found {size!r:.80}, "
                    "wanted two integers"
                )
            height, width = (self.integer(one, "weight_block_size") for one in size)
            self.block = height, width
        self.scale_types = ["F32", "BF16", "F16", "F8_E8M0"]
        if self.said.get("scale_fmt") == "ue8m0":
            self.scale_types.append("U8")
        expert = self.said.get("expert_dtype") or self.config.get("expert_dtype")
        self.quantised = ("F8_E4M3", "I8") if expert == "fp4" else ("F8_E4M3",)

    def read(self, name: str, tensor: StoredTensor) -> Iterator[tuple[str, Tensor]]:
        if self.is_part(name) or UNREAD.match(name) or self._scales(name):
            return
        if tensor.dtype not in self.quantised:
            yield name, tensor
            return
        names = [f"{name}_scale_inv", f"{name}_scale"]
        if name.endswith(".weight"):
            names.append(name.removesuffix("weight") + "scale")
        scale = next((one for one in names if one in self.stored), names[0])
        found = self.part(scale, name, *self.scale_types)
        if found.dtype == "U8":
            found = StoredTensor("F8_E8M0", found.data)
        if tensor.dtype == "I8":
            yield name, self.fp4(name, tensor, scale, found, 32)
        else:
            yield name, self._fp8(name, tensor, scale, found)

    def _scales(self, name: str) -> bool:
        """Whether a tensor MODULE.scale is that of a quantised MODULE.weight."""
        weight = self.stored.get(name.removesuffix("scale") + "weight")
        return name.endswith(".scale") and weight is not None and weight.dtype in self.quantised

    def _fp8(self, name: str, tensor: StoredTensor, at: str, scale: StoredTensor) -> Quantised:
        if len(tensor.shape) not in (2, 3) or 0 in tensor.shape:
            raise ConvertError(
                f"{self.label}: {name}: shape {list(tensor.shape)}, wanted a matrix or a stack"
            )
        *outer, rows, columns = tensor.shape
        experts = tuple(outer)
        fused = "gate_up_proj" in name and bool(outer)  # two matrices, one under the other
        high = rows  # of the matrices that blocks are counted in
        if self.block is not None and at != f"{name}_scale":
            height, width = self.block
            across = -(-columns // width)
            down = -(-rows // height)
            if fused and rows // 2 % height:
                halves = 2 * -(-(rows // 2) // height)
                if halves == down or rows % 2:
                    raise ConvertError(
                        f"{self.label}: {name}: halves of {rows / 2:g} rows in blocks of {height}, "
                        "wanted a multiple: which block a row is in cannot be told"
                    )
                if scale.shape == (*experts, halves, across):
                    down, high = halves, rows // 2
            self.shaped(at, scale, (*experts, down, across))
        else:
            one: list[tuple[int, ...]] = [(), (1,), (1, 1), experts, (*experts, 1, 1)]
            each = [(rows,), (rows, 1)] if not outer and at == f"{name}_scale" else []
            both = [(*experts, 2, 1)] if fused and rows % 2 == 0 else []
            self.shaped(at, scale, *one, *each, *both)
            height, width, across = rows, columns, 1
            if scale.shape in both:
                height = rows // 2
            elif scale.data.size == 1:
                whole = np.broadcast_to(scale.data.reshape(1, 1), (*experts, 1, 1))
                scale = StoredTensor(scale.dtype, whole)
            elif scale.shape in each:
                height = 1
        grid = Grid(StoredTensor(scale.dtype, scale.data.reshape(-1, across)), high, height, width)
        return Quantised(self.dtype, tensor.shape, stored_rows(tensor), grid)
