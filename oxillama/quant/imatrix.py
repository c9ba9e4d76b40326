"""Importance matrices: how large the inputs of each column of each weight tensor are on a text.

An importance is the mean square, over the tokens of a sample, of the input that a column is
multiplied by. Two kinds of file carry them: GGUF files with `NAME.in_sum2` (sums of squares) and
`NAME.counts` (tokens summed) for every tensor NAME, and the older `.dat` files, little-endian:

    int32 entries, then per entry: int32 length, name, int32 calls, int32 values, float32[values]
    (mean * calls, or the mean itself at 0 calls);
    and, if the file goes on: int32 chunks, int32 length, name of the sample

Both are read by `read_imatrix`; `write_imatrix` writes the first.
"""

import os
import stat
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.durable import Replacement, open_without_waiting
from oxillama.errors import QuantError
from oxillama.gguf import GgufReader, GgufWriter, file_kind
from oxillama.gguf.layout import MAX_NAME_BYTES

_SUMS, _COUNTS = ".in_sum2", ".counts"
_WRITTEN_NAME = MAX_NAME_BYTES - len(_SUMS)
_MAX_NAME = 4096


def read_imatrix(
    path: str | os.PathLike[str], *more: str | os.PathLike[str]
) -> dict[str, np.ndarray]:
    """Tensor name to its importances, float32: (columns,), or (experts, columns) for a tensor with
    several matrices. Of several files, those of all their tokens, as if one had been collected over
    all samples; tensors may be in some of them alone.

    Several files are newer ones: older ones do not count tokens. Older files do not say how many
    matrices a tensor has, so all their columns are in one row. A matrix that no token used has
    importances of 1. QuantError for a file of neither kind, or one that is malformed anywhere.
    """
    sums: dict[str, np.ndarray] = {}
    tokens: dict[str, np.ndarray] = {}
    for place in map(Path, (path, *more)):
        try:
            with open(place, "rb", opener=open_without_waiting) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise QuantError(f"{place}: not a regular file, wanted an importance matrix")
                magic = file.read(4)
                older = None if magic == b"GGUF" else magic + file.read()
        except (OSError, ValueError) as error:  # or a path with a zero byte
            if isinstance(error, QuantError):
                raise
            what = getattr(error, "strerror", None) or error
            raise QuantError(f"{place}: cannot be read: {what}") from error
        if older is not None:
            if more:
                raise QuantError(
                    f"{place}: an older importance matrix, or none, together with others, wanted "
                    "GGUF files alone: they count their tokens"
                )
            return _legacy(older, place.name)
        with GgufReader(place) as reader:
            for name, (found, counts) in _modern(reader, place.name).items():
                if name in sums and sums[name].shape != found.shape:
                    raise QuantError(
                        f"{place.name}: {name}: sums of shape {found.shape}, the files before it "
                        f"have {sums[name].shape}"
                    )
                sums[name] = sums.get(name, 0) + found
                tokens[name] = tokens.get(name, 0) + counts
    label = Path(path).name if not more else "imatrix"
    means: dict[str, np.ndarray] = {}
    for name, total in sums.items():
        with np.errstate(over="ignore", invalid="ignore"):  # which are refused below
            out = np.ones_like(total)
            mean = np.divide(total, tokens[name], out=out, where=tokens[name] > 0)
            rows = mean.astype(np.float32)
        means[name] = checked(rows[0].copy() if len(rows) == 1 else rows, f"{label}: {name}")
    return means


def _modern(reader: GgufReader, label: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Tensor name to sums of squares (matrices, columns) and tokens (matrices, 1), float64."""
    kind = reader.metadata.get("general.type")
    if not isinstance(kind, str) or kind != "imatrix":
        raise QuantError(
            f"{label}: general.type is {kind!r:.60}, wanted 'imatrix': this is "
            f"{file_kind(reader.metadata)}"
        )
    found = {}
    for name, info in reader.tensors.items():
        if not name.endswith(_SUMS):
            continue
        tensor = name.removesuffix(_SUMS)
        counts = reader.tensors.get(tensor + _COUNTS)
        if (
            info.type_name != "F32"
            or counts is None
            or counts.type_name != "F32"
            or len(info.shape) not in (1, 2)
        ):
            raise QuantError(
                f"{label}: {name}: {info.type_name} {info.shape}, wanted F32 (matrices, columns) "
                f"and F32 {tensor}{_COUNTS}"
            )
        sums = reader.data(name).view(np.float32).reshape(-1, info.shape[-1])
        tokens = reader.data(counts.name).view(np.float32).reshape(-1, 1)
        if len(tokens) != len(sums):
            raise QuantError(
                f"{label}: {counts.name}: {len(tokens)} counts, {name} has {len(sums)} matrices"
            )
        checked(tokens, f"{label}: {counts.name}", "count")
        checked(sums, f"{label}: {name}", "sum")
        found[tensor] = sums.astype(np.float64), tokens.astype(np.float64)
    if not found:
        raise QuantError(f"{label}: no tensor named *{_SUMS}, wanted at least one")
    return found


def _legacy(data: bytes, label: str) -> dict[str, np.ndarray]:
    position = 0

    def take(count: int, what: str) -> bytes:
        nonlocal position
        if count < 0 or count > len(data) - position:
            raise QuantError(
                f"{label}: {what} of {count} bytes at {position}, the file ends at {len(data)}: no "
                "imatrix, or truncated"
            )
        position += count
        return data[position - count : position]

    def integer(what: str) -> int:
        return struct.unpack("<i", take(4, what))[0]

    found = {}
    entries = integer("entry count")
    if not 0 < entries <= len(data) // 16:
        raise QuantError(
            f"{label}: {entries} entries, wanted 1 to {len(data) // 16}: not an imatrix file"
        )
    for index in range(entries):
        length = integer(f"name length of entry {index}")
        if not 0 < length <= _MAX_NAME:
            raise QuantError(
                f"{label}: entry {index}: name of {length} bytes, wanted 1 to {_MAX_NAME}"
            )
        try:
            name = take(length, f"name of entry {index}").decode()
        except UnicodeDecodeError:
            raise QuantError(f"{label}: entry {index}: its name is not UTF-8") from None
        calls, count = integer(f"calls of {name}"), integer(f"value count of {name}")
        if count < 1 or calls < 0 or name in found:
            raise QuantError(
                f"{label}: {name}: appears twice"
                if name in found
                else f"{label}: {name}: found {count} values and {calls} calls, wanted at least 1 "
                "and 0"
            )
        sums = np.frombuffer(take(4 * count, f"values of {name}"), "<f4").astype(np.float32)
        checked(sums, f"{label}: {name}")
        found[name] = sums / np.float32(calls) if calls else sums
    if position < len(data):
        integer("chunk count")
        take(integer("length of the sample's name"), "sample's name")
    if position < len(data):
        raise QuantError(
            f"{label}: ends at {len(data)}, its last field at {position}: no imatrix, or damaged"
        )
    return found


def checked(values: np.ndarray, label: str, what: str = "importance") -> np.ndarray:
    """`values` themselves; raises QuantError, by the place of the first that is wrong, unless all
    are finite and at least 0.
    """
    bad = np.argwhere(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        raise QuantError(
            f"{label}: {what} {where} is {values[where]:g}, wanted a finite number of at least 0"
        )
    return values


def check_imatrix_path(path: str | os.PathLike[str]) -> None:
    """Raise QuantError where `write_imatrix` could make no file, by making one under a passing name
    and removing it.
    """
    try:
        Replacement(path).drop()
    except OSError as error:
        raise QuantError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_imatrix(
    path: str | os.PathLike[str],
    sums: Mapping[str, np.ndarray],
    counts: Mapping[str, Any],
    *,
    chunk_count: int = 0,
    chunk_size: int = 0,
    datasets: Sequence[str] = (),
) -> Path:
    """Write sums of squares, and the numbers of tokens they were summed over, as a GGUF file;
    returns its path.

    `sums`: tensor name to float32 (columns,) or (experts, columns). `counts`: tensor name to one
    number, or (experts,) of them. `chunk_count` chunks of `chunk_size` tokens of `datasets`, names
    of files, were seen; bytes of a name that are not UTF-8 are written as escapes. QuantError for
    sums or counts that are not finite and at least 0, and for names of more than 56 bytes, which
    leave no room for `.in_sum2` in a GGUF name.
    """
    for name in sums:
        length = len(name.encode(errors="surrogatepass"))
        if length > _WRITTEN_NAME:
            raise QuantError(
                f"{name}: a name of {length} bytes, wanted at most {_WRITTEN_NAME} to write its "
                "importances"
            )
    with GgufWriter(path, "imatrix") as writer:
        writer.add("general.type", "imatrix")
        writer.add(
            "imatrix.datasets",
            [name.encode(errors="backslashreplace").decode() for name in datasets],
            "array[string]",
        )
        writer.add("imatrix.chunk_count", chunk_count, "uint32")
        writer.add("imatrix.chunk_size", chunk_size, "uint32")
        for name, values in sums.items():
            rows = np.atleast_2d(np.asarray(values, np.float32))
            tokens = np.asarray(counts.get(name, ()), np.float32).reshape(-1, 1)
            if rows.ndim != 2 or len(tokens) != len(rows):
                raise QuantError(
                    f"{name}: {tokens.size} counts for sums of shape {rows.shape}, wanted one "
                    "count per matrix"
                )
            writer.add_tensor(name + _SUMS, checked(rows, name, "sum"))
            writer.add_tensor(name + _COUNTS, checked(tokens, name, "count"))
    return Path(path)
