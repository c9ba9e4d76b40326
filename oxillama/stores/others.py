"""Models stored on this machine by Ollama and LM Studio. They are read in place and never
changed.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from oxillama.errors import GgufError
from oxillama.stores.hub import choose, encoder_within

_REGISTRY, _LIBRARY = "registry.ollama.ai", "library"
_MODEL = "application/vnd.ollama.image.model"
_ADAPTER = "application/vnd.ollama.image.adapter"
_PROJECTOR = "application/vnd.ollama.image.projector"
_DIGEST = re.compile(r"^sha256[:-](?P<hash>[0-9a-f]{64})$")
_PART = re.compile(r"^[\w.-]+$")


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:
        return None


def _is_name(part: str) -> bool:
    """Whether a part of a model's name is the name of a folder within one of a store."""
    return bool(_PART.match(part) and part.strip("."))


def _ollama_folders() -> list[Path]:
    """The folders of Ollama's models: OLLAMA_MODELS, otherwise the user's and the service's
    folders.
    """
    named = os.environ.get("OLLAMA_MODELS")
    if named:
        return [Path(named)]
    home = _home()
    own = [] if home is None else [home / ".ollama" / "models"]
    return [*own, Path("/usr/share/ollama/.ollama/models")]


def ollama_file(name: str) -> Path | None:
    """The GGUF file of a model of Ollama (`llama3.2`, `llama3.2:1b`, `owner/name:tag`,
    `hf.co/owner/name:tag`); None if it is not stored.

    Its own prompt template and parameters are not used; those of the GGUF file apply. GgufError for
    a model with adapters, which the file alone does not contain, and for a damaged store.
    """
    base, _, tag = name.partition(":")
    parts = base.split("/")
    if len(parts) > 3 or not all(map(_is_name, (*parts, tag or "latest"))):
        return None
    where = [_REGISTRY, _LIBRARY][: 3 - len(parts)] if len(parts) < 3 else []
    for folder in _ollama_folders():
        manifest = folder.joinpath("manifests", *where, *parts, tag or "latest")
        with suppress(OSError):
            if manifest.is_file():
                return _blob(folder, manifest, name)
    return None


def ollama_encoder(model: Path) -> Path | None:
    """The image encoder that Ollama's manifests name beside a file of weights; None if they name
    none, or several.
    """
    folder = model.parent.parent
    if model.parent.name != "blobs" or folder not in _ollama_folders():
        return None
    found = set()
    for manifest in _files(folder / "manifests"):
        with suppress(GgufError):
            layers = [(kind, f"sha256-{one['hash']}") for kind, one in _layers(manifest) if one]
            if (_MODEL, model.name) in layers:
                found |= {name for kind, name in layers if kind == _PROJECTOR}
    return model.with_name(found.pop()) if len(found) == 1 else None


def _layers(manifest: Path) -> list[tuple[str, re.Match[str] | None]]:
    """The kind of each layer of a manifest, and the match of its digest."""
    try:
        layers = json.loads(manifest.read_bytes())["layers"]
        return [(layer["mediaType"], _DIGEST.match(layer["digest"])) for layer in layers]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GgufError(f"{manifest}: found no manifest of Ollama: {error}") from error


def _blob(folder: Path, manifest: Path, name: str) -> Path:
    """The file of weights that a manifest names."""
    kinds = _layers(manifest)
    if any(kind == _ADAPTER for kind, _ in kinds):
        raise GgufError(
            f"{name}: Ollama applies an adapter to this model, wanted one without (its weights "
            "alone are another model)"
        )
    models = [digest for kind, digest in kinds if kind == _MODEL]
    if len(models) != 1 or models[0] is None:
        raise GgufError(f"{manifest}: found {len(models)} files of weights, wanted 1")
    path = folder / "blobs" / f"sha256-{models[0]['hash']}"
    if not path.is_file():
        raise GgufError(f"{path}: missing, the manifest of {name} names it")
    return path


def ollama_files() -> list[tuple[str, Path]]:
    """Every model of Ollama by its name, without those that cannot be opened."""
    found: dict[str, Path] = {}
    for folder in _ollama_folders():
        base = folder / "manifests"
        for manifest in sorted(_files(base)):
            parts = manifest.relative_to(base).parts
            if len(parts) != 4:
                continue
            host, owner, name, tag = parts
            short = [part for part in (host, owner) if part not in (_REGISTRY, _LIBRARY)]
            called = "/".join((*short, name)) + f":{tag}"
            with suppress(GgufError):
                path = ollama_file(called)
                if path is not None:
                    found.setdefault(called, path)
    return sorted(found.items())


def _files(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [each for each in folder.rglob("*") if each.is_file()]
    return []


def _lm_studio_homes(home: Path) -> list[Path]:
    """LM Studio's own folders: the one that its pointer file names, and its defaults, the newer
    first.
    """
    homes = [home / ".lmstudio", home / ".cache" / "lm-studio"]
    with suppress(OSError, ValueError):
        named = (home / ".lmstudio-home-pointer").read_text("utf-8").strip()
        if named:
            homes.insert(0, Path(named))
    return homes


def _lm_studio_folders() -> list[Path]:
    """The folders of LM Studio's models: of each of its own folders the one that the settings name,
    then the default.
    """
    home = _home()
    folders: list[Path] = []
    for place in [] if home is None else _lm_studio_homes(home):
        with suppress(OSError, ValueError):
            settings = json.loads((place / "settings.json").read_text("utf-8"))
            moved = settings.get("downloadsFolder") if isinstance(settings, dict) else None
            if isinstance(moved, str) and moved:
                folders.append(Path(moved))
        folders.append(place / "models")
    return list(dict.fromkeys(folders))


def lm_studio_file(repo: str, file: Any = None) -> Path | None:
    """A GGUF file of LM Studio's folder of `owner/name` (file: see `hub.choose`); None if it has
    none.
    """
    parts = repo.split("/")
    if len(parts) != 2 or not all(map(_is_name, parts)):
        return None
    for folder in _lm_studio_folders():
        place = folder.joinpath(*parts)
        names = [each.name for each in _files(place) if each.suffix.lower() == ".gguf"]
        if names:
            return place / choose(names, file, place=str(place))
    return None


def lm_studio_encoder(model: Path) -> Path | None:
    """The image encoder in the folder of a model of LM Studio."""
    for folder in _lm_studio_folders():
        if folder in model.parents:
            owner, name, *rest = model.relative_to(folder).parts
            return encoder_within(folder / owner / name, model) if rest else None
    return None


def lm_studio_files() -> list[tuple[str, Path]]:
    """Every GGUF file of LM Studio by its repository."""
    return [
        (path.relative_to(folder).parent.as_posix(), path)
        for folder in _lm_studio_folders()
        for path in sorted(_files(folder))
        if path.suffix.lower() == ".gguf" and "mmproj" not in path.name.lower()
    ]
