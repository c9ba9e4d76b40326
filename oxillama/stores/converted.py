"""GGUF files made from Hugging Face folders, stored in the cache folder.

A file is named after its folder, the hash of the folder's path, and the hash of the names, sizes
and times of its content. If a folder was changed, it is converted again and its old file removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from glob import escape
from pathlib import Path

from blake3 import blake3

from oxillama.errors import ConvertError
from oxillama.weights.cache import cache_folder

_CONFIG = "config.json"
_VERSION = 2  # of what conversion writes; another one converts anew


def is_model_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder with a Hugging Face config.json."""
    return Path(path, _CONFIG).is_file()


def converted_folder() -> Path:
    """The folder of converted models; ConvertError for a user without a home folder."""
    folder = cache_folder()
    if folder is None:
        raise ConvertError(
            "convert: this user has no cache folder, wanted XDG_CACHE_HOME, or `oxillama convert`"
        )
    return folder / "converted"


def converted_file(
    path: str | os.PathLike[str],
    *,
    progress: Callable[[int, int, str], None] | None = None,
) -> Path:
    """The GGUF file of a Hugging Face folder, made when first needed, with the folder's own data
    types. progress(done, total, name) is called for its tensors.
    """
    from oxillama.convert import convert_folder

    source = Path(path).resolve()
    place = f"{source.name}.{_hash(str(source))[:8]}"
    target = converted_folder() / f"{place}.{_key(source)}.gguf"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    if progress is None:
        convert_folder(source, target, name=source.name)
    else:
        convert_folder(source, target, name=source.name, progress=progress)
    for old in target.parent.glob(f"{escape(place)}.*.gguf"):
        if old != target:
            old.unlink(missing_ok=True)
    return target


def converted_files() -> list[Path]:
    """Every converted model of the cache folder."""
    folder = cache_folder()
    if folder is None:
        return []
    return sorted((folder / "converted").glob("*.gguf"))


def _hash(text: str) -> str:
    return blake3(text.encode("utf-8", "surrogatepass")).hexdigest()


def _key(source: Path) -> str:
    """A hash of the names, sizes and times of a folder's content, and of its folders' (pooling,
    dense layers, chat templates).
    """
    facts = [str(_VERSION)]
    for path in sorted((*source.glob("*"), *source.glob("*/*"))):
        if path.is_file():
            status = path.stat()
            name = path.relative_to(source).as_posix()
            facts.append(f"{name}\0{status.st_size}\0{status.st_mtime_ns}")
    return _hash("\n".join(facts))[:16]
