"""Finds models: turns what a user names into the file that is opened.

`located` is the interface, `located_draft` that of drafts, `located_encoder` and `own_encoder`
those of image encoders. `converted` makes GGUF files of Hugging Face folders, `hub` downloads from
the Hugging Face hub, `others` finds the models of Ollama and LM Studio.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from oxillama.errors import ConfigError, GgufError, GgufNotFound
from oxillama.stores.converted import (
    converted_encoder,
    converted_file,
    converted_files,
    encoder_folder,
    is_model_folder,
    remove_converted,
)
from oxillama.stores.hub import (
    cached_encoder,
    cached_files,
    cached_folder,
    choose,
    choose_encoder,
    fetch,
    fetch_encoder,
    remove_cached,
)
from oxillama.stores.others import (
    lm_studio_encoder,
    lm_studio_file,
    lm_studio_files,
    ollama_encoder,
    ollama_file,
    ollama_files,
)

__all__ = [
    "an_address",
    "cached_files",
    "cached_folder",
    "choose",
    "choose_encoder",
    "converted_encoder",
    "converted_file",
    "converted_files",
    "fetch",
    "fetch_encoder",
    "lm_studio_file",
    "lm_studio_files",
    "located",
    "located_draft",
    "located_encoder",
    "ollama_file",
    "ollama_files",
    "own_encoder",
    "remove_cached",
    "remove_converted",
]

# owner/name, and the file or the quantisation after a colon
_REPO = re.compile(
    r"^(?:hf://|hf\.co/|huggingface\.co/)?(?P<repo>\w[\w.-]*/[\w.-]+)(?::(?P<file>[^:]+))?$"
)
# a page or a file of the hub, as a browser or huggingface_hub shows it
_PAGE = re.compile(
    r"^(?:(?:https?://(?:www\.)?)?(?:hf\.co|huggingface\.co)|hf:/)/(?P<repo>\w[\w.-]*/[\w.-]+)"
    r"(?:@[^/]+)?(?:/(?:resolve|blob)/[^/]+/(?P<file>[^?#]+)|/tree/.*|/(?P<direct>[^?#]+\.gguf))?"
    r"/?(?:[?#].*)?$"
)
_EXPLICIT = ("hf://", "hf.co/", "huggingface.co/")


def located(
    source: Any,
    *,
    file: str | None = None,
    encoder: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> Any:
    """The file of a model's name; a value that is not a name (bytes, a list of shards) is returned
    unchanged.

    Names are tried in this order: a file or folder (`~` is the home folder); a prefix that names a
    store (`ollama:`, `lmstudio:`, `hf://`); for `owner/name` a folder of LM Studio, a model of
    Ollama, then the hub; for any other name a model of Ollama. A Hugging Face folder is converted
    once into the cache folder. A folder with one GGUF model stands for that model.

    file: the file of a hub repository or folder, as a pattern ("*Q4_K_M.gguf") or a quantisation
    ("Q4_K_M"); without it the only one, otherwise a common quantisation (`hub.PREFERRED`).
    encoder: what is fetched from the hub comes with the image encoder that belongs to it.
    progress(done, total, name) is called for the tensors of a conversion. ConfigError if several
    files match, GgufNotFound if none does or nothing has this name. The path of a .gguf file that
    is missing is returned unchanged.
    """
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if not isinstance(source, str):
        if file is not None:
            raise ConfigError(
                f"file: found {file!r} and a model of type {type(source).__name__}, wanted a "
                "folder or a name on the hub"
            )
        return source
    if not source:  # a Path of no characters is the current folder
        raise ConfigError("model: found '', wanted a file, a folder or a name")
    if source.startswith("~"):
        source = os.path.expanduser(source)
    path = Path(source)
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # it is another name
        pass
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise _unreadable(path, error) from error
    if os.path.isdir(path):
        return _in_folder(path, file, progress)
    if re.match("https?://", source):
        raise an_address(source)
    match = _REPO.match(source)
    file_of_store = match is not None and match["file"] is not None
    here = os.path.exists(path)
    if match is None and not here and source.startswith(("file:", *_EXPLICIT)):
        raise an_address(source)
    if here or (source.endswith(".gguf") and not file_of_store):
        if file is not None:
            raise ConfigError(f"file: found {file!r} and the file {source}, wanted one of them")
        made = [] if here else [one for one in converted_files() if one.name == source]
        return made[0] if made else source
    return _named(source, file, encoder, progress)


def an_address(source: str) -> GgufNotFound:
    """The error for an address in a model's place, with the name of what is there: on the hub, or
    on this machine.
    """
    if source.startswith("file:"):
        path = unquote(urlsplit(source).path) or "a file"
        return GgufNotFound(f"{source}: found an address, wanted the path alone: {path}")
    page = _PAGE.match(source)
    name = "OWNER/NAME[:FILE]" if page is None else ":".join(filter(None, page.groups()))
    kind = "a web address" if source.startswith("http") else "an address"
    return GgufNotFound(
        f"{source}: found {kind}, wanted {name} of the Hugging Face hub, or a file that has been "
        "downloaded"
    )


def own_encoder(model: Any) -> Path | None:
    """What encodes images for a model's file, by where it lies: the Hugging Face folder that it was
    converted from, or the encoder's file beside it in a repository of the hub's cache or of LM
    Studio, or in Ollama's store. None for every other file, whose folder says nothing.
    """
    if not isinstance(model, (str, os.PathLike)):
        return None
    path = Path(os.path.abspath(model))
    return (
        encoder_folder(model)
        or cached_encoder(path)
        or lm_studio_encoder(path)
        or ollama_encoder(path)
    )


def located_encoder(
    source: str | os.PathLike[str],
    *,
    progress: Callable[[int, int, str], None] | None = None,
) -> Path:
    """The file (mmproj) of an image encoder's name: a file, a folder with one, a Hugging Face
    folder, whose encoder is converted once into the cache folder, or `owner/name` on the hub. The
    path of a .gguf file that is missing is returned unchanged.
    """
    name = os.path.expanduser(os.fspath(source))
    path = Path(name)
    if is_model_folder(path):
        return converted_encoder(path, progress=progress)
    if os.path.isdir(path):
        return path / choose_encoder((each.name for each in _inside(path)), place=str(path))
    match = None if os.path.exists(path) or name.endswith(".gguf") else _REPO.match(name)
    if match is None or match["file"] is not None:
        return path
    return fetch_encoder(match["repo"], progress=progress)


def located_draft(
    source: str | os.PathLike[str],
    *,
    progress: Callable[[int, int, str], None] | None = None,
) -> Path:
    """The file of a draft model's name, as `located` finds it. A folder with GGUF files is returned
    itself: which of them is taken depends on the target.
    """
    path = Path(os.path.expanduser(os.fspath(source)))
    if os.path.isdir(path) and any(path.glob("*.gguf")):
        return path
    return Path(located(source, progress=progress))


def _unreadable(path: Path, error: OSError) -> GgufError:
    return GgufError(f"{path}: cannot be read: {error.strerror}")


def _inside(folder: Path) -> list[Path]:
    """What is in a folder; GgufError if it cannot be listed."""
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise _unreadable(folder, error) from error


def _in_folder(path: Path, file: str | None, progress: Any) -> Path:
    """The model of a folder."""
    names = sorted(each.name for each in _inside(path) if each.suffix.lower() == ".gguf")
    if names and (file is not None or not is_model_folder(path)):
        return path / choose(names, file, place=str(path))
    if is_model_folder(path):
        if file is not None:
            raise GgufNotFound(f"{path}: file: found no GGUF file for {file!r}")
        return converted_file(path, progress=progress)
    raise GgufNotFound(
        f"{path}: found a folder without GGUF files and without a config.json, wanted a GGUF file "
        "or a model folder"
    )


def _named(source: str, file: str | None, encoder: bool, progress: Any) -> Any:
    """The file of a name that is not a path."""
    if source.startswith("ollama:"):
        name = source.removeprefix("ollama:")
        return _only(ollama_file(name), source, "Ollama", ollama_files, file)
    if source.startswith("lmstudio:"):
        name = source.removeprefix("lmstudio:")
        found = lm_studio_file(name, file)
        return _only(found, source, "LM Studio", lm_studio_files, None)
    match = _REPO.match(source)
    if match is not None:
        if file is not None and match["file"] is not None:
            raise ConfigError(f"file: found {file!r} and {source!r}, wanted one of them")
        wanted = file or match["file"]
        here = None if source.startswith(_EXPLICIT) else lm_studio_file(match["repo"], wanted)
        if here is None and file is None and not source.startswith(_EXPLICIT):
            here = ollama_file(source)
        return here or fetch(match["repo"], wanted, encoder=encoder, progress=progress)
    if file is not None:
        raise ConfigError(f"file: found {file!r} and {source!r}, wanted a name as owner/name")
    here = ollama_file(source)
    if here is None:
        raise GgufNotFound(
            f"{source}: no such file or folder, and Ollama has stored no model of this name here; "
            "wanted a GGUF file, a model folder, OWNER/NAME[:QUANT] of the Hugging Face hub "
            "(`oxillama pull` fetches it), or a name that `oxillama list` shows"
        )
    return here


def _only(
    found: Path | None,
    source: str,
    store: str,
    files: Callable[[], list[tuple[str, Path]]],
    file: str | None,
) -> Path:
    if file is not None:
        raise ConfigError(f"file: found {file!r} and {source!r}, wanted one of them")
    if found is None:
        base = source.split(":")[1]
        tags = [name for name, _ in files() if name.partition(":")[0] == base]
        raise GgufNotFound(
            f"{source}: {store} has stored no such model here, wanted "
            + (" or ".join(tags) or "one that `oxillama list` shows")
        )
    return found
