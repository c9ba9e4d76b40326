"""compressed-tensors, the formats of llm-compressor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from oxillama.convert.quantised import (
    SCALES,
    UNREAD,
    Grid,
    Quantised,
    Reader,
    in_range,
    method,
    packed_rows,
    stored_rows,
    unpacked,
)
from oxillama.convert.safetensors import StoredTensor, Tensor
from oxillama.errors import ConvertError, GrammarError
from oxillama.grammar.regex import search_automaton


@method("compressed-tensors")
class _CompressedTensors(Reader):
    """`compressed-tensors`: each module has the format of the group whose targets name it."""

    parts = (
        *(".weight_scale", ".weight_zero_point", ".weight_global_scale", ".weight_shape"),
        *(".weight_g_idx", ".weight_packed"),
    )

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        sparse = self.said.get("sparsity_config") or {}
        if sparse and sparse.get("format") != "dense":
            raise ConvertError(
                f"{self.label}: quantization_config: sparsity_config: found "
                f"{sparse.get('format')!r:.80}, wanted none"
            )
        self.must_be("transform_config", {})  # rotations, whose inverse the layers' inputs need
        self.must_be("moe_sparsity_config", {})
        groups = self.said.get("config_groups")
        if not isinstance(groups, dict) or not groups:
            raise ConvertError(
                f"{self.label}: quantization_config: config_groups: found {groups!r:.80}, wanted "
                "an object of groups"
            )
        self.schemes: dict[str, tuple[str, Mapping[str, Any]]] = {}  # by target, in order
        for group, scheme in groups.items():
            targets = scheme.get("targets") if isinstance(scheme, dict) else None
            weights = scheme.get("weights") if isinstance(scheme, dict) else None
            if not isinstance(targets, list) or not isinstance(weights, dict):
                raise ConvertError(
                    f"{self.label}: quantization_config: config_groups: {group}: found "
                    f"{scheme!r:.80}, wanted targets and weights"
                )
            form = scheme.get("format") or self.said.get("format")
            if form not in self._forms:
                raise ConvertError(
                    f"{self.label}: quantization_config: config_groups: {group}: format: found "
                    f"{form!r:.80}, wanted {', '.join(self._forms)}"
                )
            for target in targets:
                self.schemes[str(target)] = form, weights
        self.count = len(groups)

    def read(self, name: str, tensor: StoredTensor) -> Iterator[tuple[str, Tensor]]:
        weight = name.removesuffix("_packed")
        if name.endswith(".weight_packed") or (
            name.endswith(".weight") and tensor.dtype in ("F8_E4M3", "I8")
        ):
            self.used.add(name)
            form, scheme = self._scheme(weight.removesuffix(".weight"))
            packed, make = self._forms[form]
            if packed != (weight != name):
                raise ConvertError(
                    f"{self.label}: {name}: found with the format {form}, wanted "
                    f"{weight}{'_packed' if packed else ''}"
                )
            if len(tensor.shape) != 2 or 0 in tensor.shape:
                raise ConvertError(
                    f"{self.label}: {name}: shape {list(tensor.shape)}, wanted a matrix"
                )
            yield weight, make(self, weight, tensor, scheme)
        elif not self.is_part(name) and not UNREAD.match(name):
            yield name, tensor

    def _scheme(self, module: str) -> tuple[str, Mapping[str, Any]]:
        """What a module's group says: of several targets that match, the first that is its name,
        then the first expression, then the class of all matrices.
        """
        if self.count == 1:
            return next(iter(self.schemes.values()))
        for target in sorted(self.schemes, key=lambda one: (one.startswith("re:"), one)):
            if target == module or self._matches(target, module):
                return self.schemes[target]
        if "Linear" in self.schemes:
            return self.schemes["Linear"]
        raise ConvertError(
            f"{self.label}: {module}: found in no group of quantization_config, wanted one of "
            f"{', '.join(self.schemes):.80}"
        )

    def _matches(self, target: str, module: str) -> bool:
        """Whether a target is an expression that the beginning of a module's name matches. An
        automaton takes a time in proportion to the name, whatever the expression.
        """
        if not target.startswith("re:"):
            return False
        try:
            return search_automaton(f"^(?:{target.removeprefix('re:')})").accepts_text(module)
        except GrammarError as error:
            raise ConvertError(
                f"{self.label}: quantization_config: config_groups: targets: found {target!r:.80}, "
                f"which is no regular expression, or none that is read: {error}"
            ) from None

    def _says(self, weight: str, scheme: Mapping[str, Any], key: str, *wanted: Any) -> Any:
        value = scheme.get(key)
        if value not in wanted:
            raise ConvertError(
                f"{self.label}: {weight}: {key} of its group: found {value!r:.80}, wanted "
                f"{' or '.join(map(repr, wanted))}"
            )
        return value

    def _layout(
        self, weight: str, scheme: Mapping[str, Any], rows: int, columns: int
    ) -> tuple[int, int, list[tuple[int, ...]]]:
        """Rows and columns of a block that has a scale, and the shapes that the scales may have."""
        strategy = self._says(
            weight, scheme, "strategy", "tensor", "channel", "group", "tensor_group", "block"
        )
        if strategy == "tensor":
            return rows, columns, [(1,), (), (1, 1)]
        if strategy == "channel":
            return 1, columns, [(rows, 1), (rows,)]
        if strategy == "block":
            size = scheme.get("block_structure")
            if not isinstance(size, list) or len(size) != 2:
                raise ConvertError(
                    f"{self.label}: {weight}: block_structure of its group: found {size!r:.80}, "
                    "wanted two integers"
                )
            height, width = (self.integer(one, "block_structure") for one in size)
        else:
            height, width = 1, self.integer(scheme.get("group_size"), "group_size")
            if columns % width:
                raise ConvertError(
                    f"{self.label}: {weight}: {columns} columns, wanted a multiple of the group's "
                    f"{width}"
                )
        return height, width, [(-(-rows // height), -(-columns // width))]

    def _grid(
        self,
        weight: str,
        scheme: Mapping[str, Any],
        rows: int,
        columns: int,
        *dtypes: str,
    ) -> Grid:
        """The scales of a matrix."""
        height, width, shapes = self._layout(weight, scheme, rows, columns)
        scale = self.part(f"{weight}_scale", weight, *dtypes)
        self.shaped(f"{weight}_scale", scale, *shapes)
        across = -(-columns // width)
        if scale.dtype == "U8":
            scale = StoredTensor("F8_E8M0", scale.data)
        scale = StoredTensor(scale.dtype, scale.data.reshape(-1, across))
        return Grid(scale, rows, height, width, self._order(weight, columns, across))

    def _order(self, weight: str, columns: int, across: int) -> np.ndarray | None:
        """The group of each column, where they are not in order."""
        name = f"{weight}_g_idx"
        if name not in self.stored:
            return None
        found = self.part(name, weight, "I32", "I64")
        self.shaped(name, found, (columns,))
        order = found.data.astype(np.int64)
        if (order == -1).all():
            return None
        return in_range(self.label, name, order, across)

    def _numbers(
        self, weight: str, tensor: StoredTensor, scheme: Mapping[str, Any], *scales: str
    ) -> Quantised:
        """Codes that are stored as numbers of 8 bits."""
        kind = self._says(weight, scheme, "type", "float", "int")
        self.typed(weight, tensor, "F8_E4M3" if kind == "float" else "I8")
        bits = self.integer(scheme.get("num_bits"), "num_bits")
        if bits > 8 or (kind == "float" and bits != 8):
            raise ConvertError(
                f"{self.label}: {weight}: num_bits of its group: found {bits}, wanted 8"
            )
        rows, columns = tensor.shape
        grid = self._grid(weight, scheme, rows, columns, *scales)
        zero = None
        name = f"{weight}_zero_point"
        if name in self.stored or not scheme.get("symmetric", True):
            found = self.part(name, weight, "I8", "F8_E4M3", *SCALES)
            self.shaped(name, found, self.stored[f"{weight}_scale"].shape)
            found = StoredTensor(found.dtype, found.data.reshape(-1, -(-columns // grid.width)))
            zero = Grid(found, rows, grid.height, grid.width, grid.columns)
        span = None if kind == "float" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        codes = stored_rows(tensor)
        return Quantised(self.dtype, tensor.shape, codes, grid, zero, span=span, name=weight)

    def _quantized(self, weight: str, tensor: StoredTensor, scheme: Mapping[str, Any]) -> Quantised:
        return self._numbers(weight, tensor, scheme, *SCALES)

    def _mxfp8(self, weight: str, tensor: StoredTensor, scheme: Mapping[str, Any]) -> Quantised:
        self._says(weight, scheme, "group_size", 32)
        return self._numbers(weight, tensor, scheme, "U8", "F8_E8M0")

    def _packed(self, weight: str, tensor: StoredTensor, scheme: Mapping[str, Any]) -> Quantised:
        """Integers in words of 32 bits, offset so that none is negative."""
        name = f"{weight}_packed"
        self._says(weight, scheme, "type", "int")
        self.typed(name, tensor, "I32")
        shape = self.part(f"{weight}_shape", weight, "I64", "I32")
        self.shaped(f"{weight}_shape", shape, (2,))
        rows, columns = (int(one) for one in shape.data)
        bits = self.integer(scheme.get("num_bits"), "num_bits")
        if bits > 8:
            raise ConvertError(
                f"{self.label}: {weight}: num_bits of its group: found {bits}, wanted 1 to 8"
            )
        self.shaped(name, tensor, (rows, -(-columns * bits // 32)))
        grid = self._grid(weight, scheme, rows, columns, *SCALES)
        middle = 1 << (bits - 1)
        zero = None
        named = f"{weight}_zero_point"
        if named in self.stored or not scheme.get("symmetric", True):
            found = self.part(named, weight, "I32")
            across = -(-columns // grid.width)
            self.shaped(named, found, (-(-rows * bits // 32), across))
            zero = Grid(packed_rows(found.data.T, bits), rows, 1, grid.width, grid.columns)
        words, offset = tensor.data, np.float32(0 if zero else middle)

        def read(start: int, stop: int) -> np.ndarray:
            return unpacked(words[start:stop], bits, columns).astype(np.float32) - offset

        span = (0, 2 * middle - 1) if zero else (-middle, middle - 1)
        return Quantised(self.dtype, (rows, columns), read, grid, zero, span=span)

    def _fp4(self, weight: str, tensor: StoredTensor, scheme: Mapping[str, Any]) -> Quantised:
        """MXFP4: powers of two for each 32 columns."""
        self._says(weight, scheme, "group_size", 32)
        scale = self.part(f"{weight}_scale", weight, "U8", "F8_E8M0")
        scale = StoredTensor("F8_E8M0", scale.data)
        self.typed(f"{weight}_packed", tensor, "U8")
        self._plain_fp4(weight, scheme)
        return self.fp4(weight, tensor, f"{weight}_scale", scale, 32)

    def _nvfp4(self, weight: str, tensor: StoredTensor, scheme: Mapping[str, Any]) -> Quantised:
        """E4M3 scales for each 16 columns, divided by one number."""
        self._says(weight, scheme, "group_size", 16)
        scale = self.part(f"{weight}_scale", weight, "F8_E4M3")
        self.typed(f"{weight}_packed", tensor, "U8")
        self._plain_fp4(weight, scheme)
        made = self.fp4(weight, tensor, f"{weight}_scale", scale, 16)
        return self.by_one(made, np.divide, f"{weight}_global_scale", weight)

    def _plain_fp4(self, weight: str, scheme: Mapping[str, Any]) -> None:
        self._says(weight, scheme, "type", "float")
        self._says(weight, scheme, "num_bits", 4)
        self._says(weight, scheme, "symmetric", True, None)

    # by format: whether the weight is called MODULE.weight_packed, and how it is read
    _forms: ClassVar[dict[str, tuple[bool, Callable[..., Quantised]]]] = {
        "float-quantized": (False, _quantized),
        "int-quantized": (False, _quantized),
        "naive-quantized": (False, _quantized),
        "mxfp8-quantized": (False, _mxfp8),
        "pack-quantized": (True, _packed),
        "mxfp4-pack-quantized": (True, _fp4),
        "nvfp4-pack-quantized": (True, _nvfp4),
    }
