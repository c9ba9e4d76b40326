"""Turns what the user named into the bytes to read: a path, bytes, a set of shards, or a file of
the Hugging Face hub.

`open_source` maps files read-only and copies nothing. `NAME-00001-of-00003.gguf` opens every file
of its set. `hf://owner/name/file.gguf` and `owner/name:file.gguf` are fetched through
`huggingface_hub`, an optional extra.
"""

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oxillama._core.filemap import FileMap
from oxillama.durable import open_without_waiting
from oxillama.errors import ConfigError, GgufError, GgufNotFound, MissingExtra

_SHARD = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$", re.DOTALL)
_HUB = re.compile(
    r"^(?:hf://(?P<repo>[\w.-]+/[\w.-]+)/|(?P<short>[\w.-]+/[\w.-]+):)(?P<file>[\w./ -]+\.gguf)$"
)


@dataclass(frozen=True, slots=True)
class Shard:
    """The bytes of one file of a set, read-only, with the file's name; `path` and `status` (of the
    mapped file) are None for bytes in memory.
    """

    buffer: memoryview
    label: str
    path: Path | None
    status: os.stat_result | None = None

    @property
    def place(self) -> str:
        """What messages about its content call it: the path, or the name of bytes in memory."""
        return self.label if self.path is None else str(self.path)

    @property
    def map(self) -> FileMap | None:
        """The mapping of its file; None for bytes in memory."""
        return self.buffer.obj if isinstance(self.buffer.obj, FileMap) else None

    def check(self) -> None:
        """Raise GgufError if the file was changed after it was mapped; what was read may be wrong
        then.
        """
        change = None if self.map is None else self.map.change()
        if change is not None:
            raise GgufError(change)


def shard_names(name: str) -> tuple[str, ...] | None:
    """The file names of the whole set of `name`, or None if it does not match the pattern of
    shards.
    """
    match = _SHARD.match(name)
    if match is None:
        return None
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count:
        raise GgufError(f"{name}: shard {number} of {count}, wanted 1 to {count}")
    return tuple(
        f"{match['stem']}-{index:05d}-of-{count:05d}.gguf" for index in range(1, count + 1)
    )


def open_source(source: Any) -> tuple[Shard, ...]:
    """The files of `source`, in order of shard.

    `source` is a path (str or Path; of any shard of a set), a hub name, a bytes-like object, or a
    list of paths or bytes-like objects with the shards. GgufError if it cannot be read, ConfigError
    if the hub's extra is missing.
    """
    if isinstance(source, str) and (source.startswith("hf://") or _is_hub(source)):
        source = _from_hub(source)
    if isinstance(source, (str, os.PathLike)):
        path = Path(os.fspath(source))
        names = shard_names(path.name)
        return (
            (_map(path),) if names is None else tuple(_map(path.with_name(name)) for name in names)
        )
    if isinstance(source, (list, tuple)):
        if not source:
            raise GgufError("source: an empty list, wanted at least one file")
        return tuple(
            _map(Path(os.fspath(one))) if isinstance(one, (str, os.PathLike)) else _view(one)
            for one in source
        )
    return (_view(source),)


def is_among(path: str | os.PathLike[str], files: Iterable[str | os.PathLike[str]]) -> bool:
    """Whether `path` leads to one of `files`, under any name, so that writing to it would replace
    that file.
    """
    return os.path.exists(path) and any(
        os.path.exists(file) and os.path.samefile(path, file) for file in files
    )


def check_apart(
    name: str, path: str | os.PathLike[str], files: Iterable[str | os.PathLike[str]]
) -> None:
    """Raise ConfigError, naming what is to be written, if `path` is none, or leads to one of a
    model's files.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"{name}: found {type(path).__name__}, wanted a path")
    if is_among(path, files):
        raise ConfigError(f"{name}: {path} is the model itself, wanted another file")


def _view(source: Any) -> Shard:
    try:
        view = memoryview(source)
        return Shard(view.cast("B").toreadonly(), "bytes", None)
    except TypeError:
        raise GgufError(
            f"source: found {type(source).__name__}, wanted a path or a contiguous bytes-like "
            "object"
        ) from None


def _map(path: Path) -> Shard:
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise GgufError(f"{path}: not a regular file")
            if not status.st_size:
                raise GgufError(f"{path}: an empty file, wanted a GGUF file")
            return Shard(
                memoryview(FileMap(file.fileno(), path.name)),
                path.name,
                path,
                status,
            )
    except FileNotFoundError:
        raise GgufNotFound(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        if isinstance(error, GgufError):
            raise
        raise GgufError(
            f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error


def _is_hub(source: str) -> bool:
    return _HUB.match(source) is not None and not os.path.exists(source)


def hub_package(what: str) -> Any:
    """The module `huggingface_hub`. MissingExtra, and ConfigError for a user without a home folder,
    say what needs it.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtra(what, error, "hub") from None
    named = (os.environ.get(name) for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"))
    if os.path.expanduser(next(filter(None, named), "~")).startswith("~"):  # it would be made
        raise ConfigError(f"{what}: found no home folder of this user, wanted HF_HOME or HOME set")
    return huggingface_hub


def _from_hub(source: str) -> Path:
    match = _HUB.match(source)
    if match is None:
        raise GgufError(f"{source}: wanted hf://owner/name/file.gguf")
    hub = hub_package(source)
    repo, file = match["repo"] or match["short"], match["file"]
    folder, _, name = file.rpartition("/")
    paths = []
    for one in shard_names(name) or (name,):
        try:
            paths.append(hub.hf_hub_download(repo, f"{folder}/{one}" if folder else one))
        # the hub's own errors have no common root; each one means: this file did not come
        except Exception as error:
            raise GgufError(
                f"{source}: {one} could not be fetched: {str(error).splitlines()[0]}"
            ) from error
    return Path(paths[0])
