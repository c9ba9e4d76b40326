"""The GGUF container: reading, writing, and typed access to what its keys say.

`reader` opens files, `writer` makes them, `keys` asks for hyper-parameters with bounds, `types` is the table of tensor types,
`source` finds the bytes, `values` (with `strings`, its large part) and `layout` are the format itself.
"""
from oxillama.gguf.keys import REQUIRED, Keys, architecture
from oxillama.gguf.layout import TensorInfo
from oxillama.gguf.reader import GgufReader, Metadata
from oxillama.gguf.types import TENSOR_TYPES, TensorType, type_by_id, type_by_name
from oxillama.gguf.writer import GgufWriter

__all__ = [
    "REQUIRED",
    "TENSOR_TYPES",
    "GgufReader",
    "GgufWriter",
    "Keys",
    "Metadata",
    "TensorInfo",
    "TensorType",
    "architecture",
    "type_by_id",
    "type_by_name",
]
