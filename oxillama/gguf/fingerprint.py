"""`ModelFingerprint`: which model file this is, told by what a copy keeps and an edit changes, at a
constant cost for any size.

Hashed are the first and the last `probe_size` bytes of every file of the set, and all that comes
before the tensors: hyper-parameters, tokenizer and tensor directory. Names, places and times of
files do not count. An edit in the middle of the tensors shows with `full=True` only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from blake3 import blake3

from oxillama.errors import ConfigError, GgufError, ModelFingerprintMismatch, SnapshotIncompatible
from oxillama.gguf.reader import GgufReader, read_shard
from oxillama.gguf.source import Shard, open_source

PROBE_BYTES = 8 << 20
_MEANING = {
    "file_size": "a size of",
    "probe_size": "probes of",
    "head": "the first bytes",
    "tail": "the last bytes",
    "directory": "hyper-parameters, tokenizer or tensor directory",
    "full": "the whole file",
}


@dataclass(frozen=True, slots=True)
class ModelFingerprint:
    """What identifies a model: its size in bytes, and BLAKE3 hashes in hexadecimal.

    head, tail: of the first and the last `probe_size` bytes. directory: of all before the tensors
    (None where it was not reached, in the `found` of a mismatch). full: of every byte, None unless
    asked for.
    """

    file_size: int
    probe_size: int
    head: str
    tail: str
    directory: str | None
    full: str | None = None

    @classmethod
    def compute(cls, source: Any, *, full: bool = False) -> ModelFingerprint:
        """Of a model file: a path, bytes, whatever GgufReader takes, or an open GgufReader;
        GgufError where it is no such file.
        """
        return cls.compute_with_probe(source, PROBE_BYTES, full=full)

    @classmethod
    def compute_with_probe(
        cls, source: Any, probe_size: int, *, full: bool = False
    ) -> ModelFingerprint:
        """The same with other probes than of 8 MiB."""
        if (
            isinstance(probe_size, bool)
            or not isinstance(probe_size, int)
            or not 1 <= probe_size <= 1 << 40
        ):
            raise ConfigError(f"probe_size: found {probe_size!r}, wanted 1 to {1 << 40} bytes")
        shards = source.shards if isinstance(source, GgufReader) else open_source(source)
        return replace(
            _probed(shards, probe_size),
            directory=_directory(shards),
            full=_full(shards) if full else None,
        )

    def verify(self, source: Any) -> None:
        """Raise ModelFingerprintMismatch unless the file at `source` has this fingerprint; hashes
        all of it where `full` is known.
        """
        shards = source.shards if isinstance(source, GgufReader) else open_source(source)
        found = _probed(shards, self.probe_size)
        self.check(found, ("file_size", "head", "tail"))
        try:
            found = replace(found, directory=_directory(shards))
        except GgufError as error:
            raise ModelFingerprintMismatch(
                self, found, f"model: is malformed before its tensors ({error})"
            ) from None
        self.check(replace(found, full=None if self.full is None else _full(shards)))

    def check(
        self,
        found: ModelFingerprint,
        names: Sequence[str] = ("probe_size", "file_size", "head", "tail", "directory", "full"),
    ) -> None:
        """Raise ModelFingerprintMismatch unless these fields of both are equal."""
        for name in names:
            a, b = getattr(self, name), getattr(found, name)
            if a != b:
                what = f"{_MEANING[name]} differ (BLAKE3 {str(b)[:16]} found, {str(a)[:16]} wanted)"
                if name.endswith("size"):
                    what = f"{_MEANING[name]} {b} found, {a} wanted"
                raise ModelFingerprintMismatch(
                    self, found, f"model: is another file than the one asked for: {what}"
                )

    def display(self) -> str:
        """One line for people."""
        parts = [
            f"{self.file_size:,} bytes",
            *(
                f"{name} {(getattr(self, name) or 'unknown')[:16]}"
                for name in ("head", "tail", "directory")
            ),
        ]
        if self.full is not None:
            parts.append(f"full {self.full[:16]}")
        return f"{', '.join(parts)} (BLAKE3, probes of {self.probe_size:,} bytes)"

    def __str__(self) -> str:
        return self.display()

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> ModelFingerprint:
        """A fingerprint from `to_dict`'s form; SnapshotIncompatible for anything else."""
        names = {field.name for field in fields(cls)}
        good = isinstance(values, Mapping) and set(values) == names
        good = good and all(
            type(values[name]) is int and 1 <= values[name] < 1 << 63
            for name in ("file_size", "probe_size")
        )
        good = (
            good
            and all(_is_hash(values[name]) for name in ("head", "tail", "directory"))
            and (values["full"] is None or _is_hash(values["full"]))
        )
        if not good:
            raise SnapshotIncompatible(
                f"model fingerprint: found {str(values)[:80]}, wanted {', '.join(sorted(names))}"
            )
        return cls(**values)


def _is_hash(text: Any) -> bool:
    return isinstance(text, str) and len(text) == 64 and set(text) <= set("0123456789abcdef")


def _probed(shards: Sequence[Shard], probe_size: int) -> ModelFingerprint:
    head, tail = blake3(), blake3()
    for shard in shards:
        head.update(shard.buffer[:probe_size])
        tail.update(shard.buffer[-probe_size:])
    return ModelFingerprint(
        sum(len(shard.buffer) for shard in shards),
        probe_size,
        head.hexdigest(),
        tail.hexdigest(),
        None,
    )


def _directory(shards: Sequence[Shard]) -> str:
    """Hash of what comes before the first tensor of each file: the header's bytes as they are."""
    hasher = blake3()
    for shard in shards:
        tensors = read_shard(shard).tensors.values()
        end = min((tensor.offset for tensor in tensors), default=len(shard.buffer))
        hasher.update(end.to_bytes(8, "little"))
        hasher.update(shard.buffer[:end])
    return hasher.hexdigest()


def _full(shards: Sequence[Shard]) -> str:
    hasher = blake3(max_threads=min(8, os.cpu_count() or 1))
    for shard in shards:
        hasher.update(shard.buffer)
    return hasher.hexdigest()
