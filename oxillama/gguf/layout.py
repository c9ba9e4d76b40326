"""The container's own facts, shared by reader and writer: magic, versions, limits, names and the
place of a tensor.

A GGUF file is, little-endian throughout:

    "GGUF" | u32 version | u64 tensor count | u64 key count | keys | tensor infos | padding
    | tensor data

    key          string name, u32 kind, value
    tensor info  string name, u32 dims, u64 dims[], innermost first, u32 type,
                 u64 offset into the data
    string       u64 length, UTF-8 bytes
    array        u32 kind of the items, u64 count, items

Tensor data starts at the next multiple of `general.alignment` (32 where the key is absent), and so
does every tensor in it.
"""

from dataclasses import dataclass

from oxillama.errors import GgufError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
HEADER_BYTES = 24
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
MAX_NAME_BYTES = 64  # tensor names, as the format's specification says
MAX_KEY_BYTES = 65535  # the same
MAX_KEYS = 65536  # ours: files have some dozens; bounds what a hostile header can make us hold
MAX_TENSORS = 65536  # ours: the largest models have some thousands
MAX_DEPTH = 4  # ours: of arrays within arrays
MIN_KEY_BYTES = 8 + 1 + 4 + 1
MIN_INFO_BYTES = 8 + 1 + 4 + 4 + 8


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What the header says about one tensor.

    `shape` is in numpy's order: rows outermost, the contiguous columns last. `offset` counts bytes
    from the start of the file that holds the tensor, which is file number `shard` of the set (0
    where there is one).
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    type_name: str
    offset: int
    nbytes: int
    shard: int = 0


def checked_name(raw: bytes | str, what: str, limit: int) -> str:
    """The text of a key or tensor name; raises GgufError unless it is 1 to `limit` bytes of
    printable UTF-8.
    """
    try:
        data = raw.encode() if isinstance(raw, str) else bytes(raw)
        name = data.decode()
    except UnicodeError:
        raise GgufError(f"{what}: name {raw[:40]!r} of {len(raw)} bytes is not UTF-8") from None
    if not 1 <= len(data) <= limit:
        raise GgufError(f"{what}: name {name[:40]!r} of {len(data)} bytes, wanted 1 to {limit}")
    if not name.isprintable():
        raise GgufError(f"{what}: name {name[:200]!r} holds an unprintable character")
    return name


def checked_alignment(value: object, what: str = "general.alignment") -> int:
    """`value` as an alignment in bytes; raises GgufError unless it is an integer and a power of
    two.
    """
    if type(value) is not int or value < 1 or value & (value - 1):
        raise GgufError(f"{what}: found {value!r:.60}, wanted a power of two")
    return value


def aligned(position: int, alignment: int) -> int:
    """The first multiple of `alignment` at or after `position`."""
    return -(-position // alignment) * alignment
