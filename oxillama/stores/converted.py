"""GGUF files made from Hugging Face folders, stored in the cache folder.

A file is named after its folder, the hash of the folder's path, and the hash of the names, sizes
and times of its content and of the converter itself. If either was changed, the folder is converted
again and its old file removed.
The file of its encoders has `mmproj-` before the same name. A note beside them
(`NAME.HASH.folder`) says where the folder is, so that the encoders can be made when an image or a
clip comes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from glob import escape
from pathlib import Path
from typing import Any

from blake3 import blake3

from oxillama.errors import ConvertError
from oxillama.weights.cache import cache_folder

_CONFIG = "config.json"
Progress = Callable[[int, int, str], None]


def is_model_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder with a Hugging Face config.json."""
    return os.path.isfile(Path(path, _CONFIG))


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
    progress: Progress | None = None,
) -> Path:
    """The GGUF file of a Hugging Face folder, made when first needed, with the folder's own data
    types. progress(done, total, name) is called for its tensors.
    """
    from oxillama.convert import convert_folder

    source = Path(path).resolve()
    target = _made(source, "", convert_folder, progress)
    note = _note(target)
    with suppress(OSError, UnicodeError):  # without it there are no images unless asked for
        if not note.is_file() or note.read_text("utf-8") != str(source):
            note.write_text(str(source), "utf-8")
    return target


def converted_encoder(
    path: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> Path:
    """The GGUF file (mmproj) of the encoders of a Hugging Face folder, made when first needed, with
    the folder's own data types.
    """
    from oxillama.convert import convert_encoder

    return _made(Path(path).resolve(), "mmproj-", convert_encoder, progress)


def stored_file(path: str | os.PathLike[str], *, encoder: bool = False) -> Path | None:
    """The GGUF file of a Hugging Face folder, or of its image encoder, if there is one already."""
    folder = cache_folder()
    if folder is None or not is_model_folder(path):
        return None
    target = _target(Path(path).resolve(), "mmproj-" if encoder else "")
    return target if target.is_file() else None


def encoder_folder(model: Any) -> Path | None:
    """The Hugging Face folder that a converted model was made of, if it is still there and has an
    image encoder that can be converted; None for every other model.
    """
    if not isinstance(model, (str, os.PathLike)):
        return None
    path, folder = Path(model), cache_folder()
    if folder is None or path.parent != folder / "converted":
        return None
    try:
        source = Path(_note(path).read_text("utf-8"))
    except (OSError, UnicodeError):
        return None
    if not is_model_folder(source):
        return None
    from oxillama.convert import has_encoder

    try:
        return source if has_encoder(source) else None
    except ConvertError:
        return None


def _made(
    source: Path, prefix: str, convert: Callable[..., Any], progress: Progress | None
) -> Path:
    """The converted file of a folder, made if there is none of its content as it is."""
    target = _target(source, prefix)
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConvertError(
            f"convert: {target.parent} cannot be made: {error.strerror}, wanted another "
            "XDG_CACHE_HOME, or `oxillama convert`"
        ) from error
    convert(
        source, target, name=source.name, **({} if progress is None else {"progress": progress})
    )
    place = target.name.rsplit(".", 2)[0]
    for old in target.parent.glob(f"{escape(place)}.*.gguf"):
        if old != target:
            old.unlink(missing_ok=True)
    return target


def _target(source: Path, prefix: str) -> Path:
    """The converted file of a folder as it is."""
    place = f"{prefix}{source.name}.{_hash(str(source))[:8]}"
    return converted_folder() / f"{place}.{_key(source)}.gguf"


def _note(target: Path) -> Path:
    """The note beside a converted model."""
    return target.with_name(f"{target.name.rsplit('.', 2)[0]}.folder")


def remove_converted(name: str) -> int | None:
    """Remove a converted file; returns the bytes freed, None if there is no file of this name."""
    for path in converted_files():
        if path.name == name:
            freed = path.stat().st_size
            path.unlink()
            _note(path).unlink(missing_ok=True)
            return freed
    return None


def converted_files() -> list[Path]:
    """Every converted model of the cache folder."""
    folder = cache_folder()
    if folder is None or not os.access(folder / "converted", os.R_OK | os.X_OK):
        return []
    return sorted((folder / "converted").glob("*.gguf"))


def _hash(text: str) -> str:
    return blake3(text.encode("utf-8", "surrogatepass")).hexdigest()


def _key(source: Path) -> str:
    """A hash of the converter, and of the names, sizes and times of a folder's content, and of its
    folders' (pooling, dense layers, chat templates). Archives give files times of their own choice:
    only the inode's change time is set by no program.
    """
    facts = [_converter()]
    for path in sorted((*source.glob("*"), *source.glob("*/*"))):
        if path.is_file():
            status = path.stat()
            name = path.relative_to(source).as_posix()
            times = f"{status.st_mtime_ns}\0{status.st_ctime_ns}"
            facts.append(f"{name}\0{status.st_size}\0{times}")
    return _hash("\n".join(facts))[:16]


@cache
def _converter() -> str:
    """A hash of the sources of conversion: what another version writes may differ."""
    root, found = Path(__file__).parents[1], blake3()
    for part in ("convert", "gguf", "tokenizer"):
        for path in sorted((root / part).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()
