"""The GGUF container: reading, writing, and typed access to its keys.

`reader` opens files, `writer` makes them, `keys` reads hyper-parameters with bounds, `types` is the
table of tensor types, `source` finds the bytes, `fingerprint` identifies a file, and `values` (with
`strings`, its largest part) and `layout` are the format itself.
"""

from oxillama.gguf.fingerprint import PROBE_BYTES, ModelFingerprint
from oxillama.gguf.keys import REQUIRED, Keys, architecture, file_kind
from oxillama.gguf.layout import TensorInfo
from oxillama.gguf.reader import GgufReader, Metadata
from oxillama.gguf.source import check_apart, is_among
from oxillama.gguf.types import TENSOR_TYPES, TensorType, type_by_id, type_by_name
from oxillama.gguf.writer import GgufWriter

__all__ = [
    "PROBE_BYTES",
    "REQUIRED",
    "TENSOR_TYPES",
    "GgufReader",
    "GgufWriter",
    "Keys",
    "Metadata",
    "ModelFingerprint",
    "TensorInfo",
    "TensorType",
    "architecture",
    "check_apart",
    "file_kind",
    "is_among",
    "type_by_id",
    "type_by_name",
]
