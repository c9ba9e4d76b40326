"""`ModelFingerprint`: identifies a model file. A copy has the same fingerprint, an edited file
another, and the cost is bounded for any size.

Hashed are the first and the last `probe_size` bytes of every file of the set, everything before the
tensors (hyper-parameters, tokenizer and tensor directory), and samples over the whole file: every
byte of a file of up to 256 MiB, and 4,096 pieces of 16 KiB at equal distances of a larger one.
Names, paths and times of files do not matter. In a file above 256 MiB, an edit between two samples
is found only with `full=True`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from blake3 import blake3

from oxillama._core.threads import default_threads
from oxillama.errors import ConfigError, GgufError, ModelFingerprintMismatch, SnapshotIncompatible
from oxillama.gguf.reader import GgufReader, read_shard
from oxillama.gguf.source import Shard, open_source

PROBE_BYTES = 8 << 20
# samples of a file, bytes of each, and the size up to which a file is hashed whole instead
SAMPLES, SAMPLE_BYTES, HASHED_WHOLE = 4096, 16 << 10, 256 << 20
_MEANING = {
    "file_size": "a size of",
    "probe_size": "probes of",
    "head": "the first bytes",
    "tail": "the last bytes",
    "directory": "hyper-parameters, tokenizer or tensor directory",
    "sampled": "samples of the whole file",
    "full": "the whole file",
}


@dataclass(frozen=True, slots=True)
class ModelFingerprint:
    """The identity of a model: its size in bytes, and BLAKE3 hashes in hexadecimal.

    head, tail: of the first and the last `probe_size` bytes. directory: of everything before the
    tensors (None if it was not reached, in the `found` of a mismatch). full: of every byte, None
    unless asked for. sampled: of samples over the whole file, None in fingerprints of earlier
    releases.
    """

    file_size: int
    probe_size: int
    head: str
    tail: str
    directory: str | None
    full: str | None = None
    sampled: str | None = None

    @classmethod
    def compute(cls, source: Any, *, full: bool = False) -> ModelFingerprint:
        """The fingerprint of a model file: a path, bytes, any other source of GgufReader, or an
        open GgufReader; GgufError for anything else.
        """
        shards = _shards(source)
        try:
            made = cls.compute_with_probe(shards, PROBE_BYTES, full=full)
            return replace(made, sampled=_sampled(shards))
        finally:
            for shard in shards:
                shard.check()

    @classmethod
    def compute_with_probe(
        cls, source: Any, probe_size: int, *, full: bool = False
    ) -> ModelFingerprint:
        """The same with probes of another size and without samples: an edit between the probes is
        found only with `full=True`.
        """
        if (
            isinstance(probe_size, bool)
            or not isinstance(probe_size, int)
            or not 1 <= probe_size <= 1 << 40
        ):
            raise ConfigError(f"probe_size: found {probe_size!r}, wanted 1 to {1 << 40} bytes")
        shards = _shards(source)
        return replace(
            _probed(shards, probe_size),
            directory=_directory(shards),
            full=_full(shards) if full else None,
        )

    def verify(self, source: Any) -> None:
        """Raise ModelFingerprintMismatch unless the file at `source` has this fingerprint; hashes
        all of it if `full` is set.
        """
        shards = _shards(source)
        found = _probed(shards, self.probe_size)
        self.check(found, ("file_size", "head", "tail"))
        try:
            found = replace(found, directory=_directory(shards))
        except GgufError as error:
            raise ModelFingerprintMismatch(
                self, found, f"model: is malformed before its tensors ({error})"
            ) from None
        self.check(
            replace(
                found,
                full=None if self.full is None else _full(shards),
                sampled=None if self.sampled is None else _sampled(shards),
            )
        )

    def check(
        self,
        found: ModelFingerprint,
        names: Sequence[str] = tuple(_MEANING),
    ) -> None:
        """Raise ModelFingerprintMismatch unless these fields are equal in both. Samples are
        compared if both have them.
        """
        for name in names:
            a, b = getattr(self, name), getattr(found, name)
            if name == "sampled" and (a is None or b is None):
                continue
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
                for name in ("head", "tail", "directory", "sampled")
            ),
        ]
        if self.full is not None:
            parts.append(f"full {self.full[:16]}")
        return f"{', '.join(parts)} (BLAKE3, probes of {self.probe_size:,} bytes)"

    def __str__(self) -> str:
        return self.display()

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values; without `sampled` where it is None, as releases before it."""
        values = asdict(self)
        if self.sampled is None:
            del values["sampled"]
        return values

    @classmethod
    def from_dict(cls, values: Any) -> ModelFingerprint:
        """A fingerprint from `to_dict`'s form; SnapshotIncompatible for anything else."""
        names = {field.name for field in fields(cls)}
        good = isinstance(values, Mapping) and set(values) | {"sampled"} == names
        good = good and all(
            type(values[name]) is int and 1 <= values[name] < 1 << 63
            for name in ("file_size", "probe_size")
        )
        good = (
            good
            and all(_is_hash(values[name]) for name in ("head", "tail", "directory"))
            and (values["full"] is None or _is_hash(values["full"]))
            and ("sampled" not in values or _is_hash(values["sampled"]))
        )
        if not good:
            raise SnapshotIncompatible(
                f"model fingerprint: found {str(values)[:80]}, wanted {', '.join(sorted(names))}"
            )
        return cls(**values)


def _shards(source: Any) -> Sequence[Shard]:
    if isinstance(source, tuple) and source and all(isinstance(one, Shard) for one in source):
        return source
    return source.shards if isinstance(source, GgufReader) else open_source(source)


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


def _sampled(shards: Sequence[Shard]) -> str:
    """Hash of samples at equal distances, the first at the beginning and the last at the end."""
    hasher = blake3(max_threads=min(8, default_threads()))
    for shard in shards:
        size = len(shard.buffer)
        if size <= HASHED_WHOLE:
            hasher.update(shard.buffer)
            continue
        for i in range(SAMPLES):
            at = (size - SAMPLE_BYTES) * i // (SAMPLES - 1)
            hasher.update(shard.buffer[at : at + SAMPLE_BYTES])
    return hasher.hexdigest()


def _full(shards: Sequence[Shard]) -> str:
    hasher = blake3(max_threads=min(8, default_threads()))
    for shard in shards:
        hasher.update(shard.buffer)
    return hasher.hexdigest()
