"""Files of the Hugging Face hub, downloaded and cached by `huggingface_hub` (extra `hub`)."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path, PurePosixPath
from typing import Any

from oxillama.errors import ConfigError, GgufError, GgufNotFound, listed
from oxillama.gguf.source import hub_package, shard_names
from oxillama.stores.converted import converted_encoder, converted_file, stored_file

# quantisations that are taken where none is asked for, the first that a repository has
PREFERRED = (
    "Q4_K_M",
    "Q4_K_S",
    "Q4_0",
    "IQ4_XS",
    "Q5_K_M",
    "Q5_K_S",
    "Q6_K",
    "Q8_0",
    "MXFP4",
    "BF16",
    "F16",
    "F32",
)
_UNFINISHED = ".incomplete"
_STALE = 60  # seconds without a write, after which a download has ended
_NOT_STORED = (
    *(errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.EIO, errno.ENOTDIR),
)
# files beside a model that are none: drafts of it, by llama.cpp's names for them, and statistics
_BESIDE = re.compile(r"^(?:mtp|eagle3|dflash|dspark)-|^imatrix|[-_.]imatrix\.gguf$")
_KIND = re.compile(
    r"[-_.](?:UD[-_])?(?:I?Q|TQ|MXFP|NVFP|BF|F)(\d+)(?:_[A-Z0-9]+)*(?=[-_.]|$)", re.IGNORECASE
)
# of a folder of weights what a conversion reads
_PARTS = ("*.json", "*.safetensors", "*.model", "*.jinja", "*.txt")


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A GGUF file in the cache of the hub."""

    repo: str
    name: str
    path: Path
    nbytes: int


def choose(names: Iterable[str], wanted: str | None, *, place: str) -> str:
    """One GGUF file of many: by a pattern, by a quantisation, or a common quantisation. Of a set of
    shards, the first. Files of drafts (`mtp-*.gguf`) and of an imatrix are for patterns alone.

    ConfigError if several match equally well, GgufNotFound if there is none.
    """
    files = [name for name in sorted(names) if name.lower().endswith(".gguf")]
    models = [name for name in files if not _is_encoder(name)]
    if wanted is None or not _is_pattern(wanted):
        models = [n for n in models if not _BESIDE.search(PurePosixPath(n).name)] or models
    found = [name for name in models if _is_first(name)]
    if not found:
        if models:
            shards = shard_names(PurePosixPath(models[0]).name) or models
            raise GgufNotFound(f"{place}: found {listed(models)}, wanted {shards[0]} too")
        only = f", only {listed(files)}, which encodes images" if files else ""
        raise GgufNotFound(f"{place}: found no GGUF file of a model{only}")
    if wanted is not None:
        matching = [name for name in found if _matches(name, wanted)]
        if len(matching) == 1:
            return matching[0]
        if not matching:
            raise GgufNotFound(f"{place}: no file for {wanted!r}, it has {listed(found)}")
        raise ConfigError(f"{place}: several files for {wanted!r}: {listed(matching)}")
    if len(found) == 1:
        return found[0]
    for kind in PREFERRED:
        matching = [name for name in found if _is_of(name, kind)]
        if len(matching) == 1:
            return matching[0]
    raise ConfigError(f"{place}: several files, wanted file= to name one: {listed(found)}")


def _is_first(name: str) -> bool:
    """Whether a file is not a later part of a set."""
    path = PurePosixPath(name)
    shards = shard_names(path.name)
    return shards is None or shards[0] == path.name


def _is_of(name: str, kind: str) -> bool:
    """Whether a file's name contains a quantisation."""
    return (
        re.search(
            rf"(?:^|[-_./]){re.escape(kind)}(?=[-./]|$)", name.removesuffix(".gguf"), re.IGNORECASE
        )
        is not None
    )


def _is_pattern(wanted: str) -> bool:
    """Whether what is wanted is a file's name or a pattern of names, not a quantisation."""
    return any(sign in wanted for sign in "*?[") or wanted.lower().endswith(".gguf")


def _is_encoder(name: str) -> bool:
    """Whether a file's name is that of an image encoder's."""
    return "mmproj" in PurePosixPath(name).name.lower()


def _matches(name: str, wanted: str) -> bool:
    """Whether a file matches a pattern or a quantisation, ignoring case."""
    if _is_pattern(wanted):
        pattern, whole = wanted.lower(), name.lower()
        shards = shard_names(PurePosixPath(whole).name)
        if shards is not None:  # as the pattern would be of a single file
            single = re.sub(r"-\d{5}-of-\d{5}\.gguf$", ".gguf", whole)
            if fnmatchcase(single, pattern):
                return True
        return fnmatchcase(whole, pattern) or fnmatchcase(PurePosixPath(whole).name, pattern)
    return _is_of(name, wanted)


def fetch(
    repo: str,
    file: str | None = None,
    *,
    encoder: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> Path:
    """A GGUF file of a repository, downloaded if it is not cached; file: see `choose`. encoder:
    with the image encoder that belongs to it, if there is one (`matching_encoder`).

    A repository that has only safetensors is downloaded completely and converted
    (`converted_file`).
    """
    hub = _hub(repo)
    try:
        names = _names(hub, repo)
    except GgufError:
        made = None if file is not None else _made_before(repo)
        if made is None:
            raise
        return made
    if any(name.lower().endswith(".gguf") for name in names) or file is not None:
        name = choose(names, file, place=repo)
        folder, shards = PurePosixPath(name).parent, shard_names(PurePosixPath(name).name)
        wanted = [name] if shards is None else [str(folder / each) for each in shards]
        found = [_one(hub, repo, each) for each in wanted][0]
        beside = matching_encoder(names, name) if encoder else None
        if beside is not None:
            _one(hub, repo, beside)
        return found
    return converted_file(_weights(hub, repo, names), progress=progress)


def _made_before(repo: str, *, encoder: bool = False) -> Path | None:
    """What was converted of a repository while the hub could be reached."""
    folder = cached_folder(repo)
    for snapshot in sorted((folder / "snapshots").glob("*")) if folder else ():
        made = stored_file(snapshot, encoder=encoder)
        if made is not None:
            return made
    return None


def fetch_encoder(
    repo: str,
    file: str | None = None,
    *,
    progress: Callable[[int, int, str], None] | None = None,
) -> Path:
    """The GGUF file (mmproj) of a repository's image encoder, downloaded if it is not cached, or
    converted from the folder of a repository that has only safetensors; file: see
    `choose_encoder`.
    """
    hub = _hub(repo)
    try:
        names = _names(hub, repo)
    except GgufError:
        made = None if file is not None else _made_before(repo, encoder=True)
        if made is None:
            raise
        return made
    if any(name.lower().endswith(".gguf") for name in names) or file is not None:
        return _one(hub, repo, choose_encoder(names, file, place=repo))
    return converted_encoder(_weights(hub, repo, names), progress=progress)


def choose_encoder(names: Iterable[str], wanted: str | None = None, *, place: str) -> str:
    """The GGUF file of an image encoder among many: by a pattern or a quantisation, the only one,
    otherwise the one of halves; ConfigError if there are several others, GgufNotFound if there is
    none.
    """
    found = [name for name in sorted(names) if name.lower().endswith(".gguf") and _is_encoder(name)]
    if not found:
        raise GgufNotFound(f"{place}: found no GGUF file of an image encoder (mmproj)")
    if wanted is not None:
        matching = [name for name in found if _matches(name, wanted)]
        if not matching:
            raise GgufNotFound(f"{place}: no file for {wanted!r}, it has {listed(found)}")
        found = matching
    halves = [name for name in found if _is_of(name, "F16")]
    for several in (found, halves):
        if len(several) == 1:
            return several[0]
    raise ConfigError(f"{place}: several files of image encoders: {listed(found)}, wanted one")


def matching_encoder(names: Iterable[str], model: str) -> str | None:
    """The GGUF file of the image encoder that belongs to a model's among the files of a repository,
    as llama.cpp chooses it: in the model's folder or the nearest above it, of the quantisation with
    the nearest number of bits, of equals the first. None if there is none, or several that are of
    different models and none of them of this one.
    """
    path = PurePosixPath(model)
    above = (path.parent, *path.parent.parents)
    found = [PurePosixPath(name) for name in sorted(names) if name.lower().endswith(".gguf")]
    found = [each for each in found if _is_encoder(each.name) and each.parent in above]
    if not found:
        return None
    nearest = min((each.parent for each in found), key=above.index)
    found = [each for each in found if each.parent == nearest]
    if len({_of_model(each) for each in found}) > 1:
        found = [each for each in found if _of_model(each) in path.name.lower()]
    if len({_of_model(each) for each in found}) != 1:
        return None
    return str(min(found, key=lambda each: abs(_bits(each) - _bits(path))))


def _of_model(encoder: PurePosixPath) -> str:
    """The model that an encoder's name names: what is left without `mmproj` and the kind."""
    return re.sub(r"[-_.]?mmproj[-_.]?", "", _KIND.sub("", encoder.stem.lower()))


def _bits(path: PurePosixPath) -> int:
    """The number in the quantisation of a file's name, 0 without one."""
    numbers = _KIND.findall(path.stem)
    return int(numbers[-1]) if numbers else 0


def _weights(hub: Any, repo: str, names: list[str]) -> Path:
    """The folder of a repository of safetensors, downloaded completely."""
    if "config.json" not in names:
        raise GgufNotFound(f"{repo}: found neither GGUF files nor a config.json")
    where = _whole(repo, repo, lambda: hub.snapshot_download(repo, allow_patterns=list(_PARTS)))
    # where the connection is lost, the client gives what an earlier download may have left
    parts = [name for name in names if any(fnmatchcase(name, part) for part in _PARTS)]
    absent = [name for name in parts if not (where / name).is_file()]
    if absent:
        raise GgufError(
            f"{repo}: {listed(absent)}: did not come from the Hugging Face hub, wanted all "
            f"{len(parts)} files that are converted"
        )
    return where


def _one(hub: Any, repo: str, name: str) -> Path:
    return _whole(repo, f"{repo}: {name}", lambda: hub.hf_hub_download(repo, name))


def _whole(repo: str, what: str, download: Callable[[], str]) -> Path:
    """What a download stored. The hub's client compares sizes alone: the hashes of files that came
    are compared here, and what killed downloads of them left is removed.
    """
    folder = cached_folder(repo)
    before = {path.name for path in _blobs(folder)}
    try:
        path = Path(download())
    # the hub's own errors have no common root; each one means: this file did not come
    except Exception as error:
        raise _failed(what, error) from error
    folder = cached_folder(repo)
    for blob in _blobs(folder):
        if blob.name not in before:
            _check_hash(what, blob)
    _remove_unfinished(folder)
    if not path.exists():
        raise GgufError(f"{what}: came, and was removed by another process; wanted it again")
    return path


def _blobs(folder: Path | None) -> list[Path]:
    """The complete files of a repository's folder, each named after its hash."""
    found = [] if folder is None else sorted((folder / "blobs").glob("*"))
    return [path for path in found if path.suffix != _UNFINISHED]


def _check_hash(what: str, blob: Path) -> None:
    """GgufError, with the file removed, if its SHA-256 is not its name, as that of large files is;
    small ones are named after a hash of Git. Another process may check and remove it too.
    """
    if re.fullmatch("[0-9a-f]{64}", blob.name) is None:
        return
    try:
        with blob.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return
    if found == blob.name:
        return
    for link in (blob.parent.parent / "snapshots").glob("**/*"):
        if link.is_symlink() and link.resolve() == blob:
            what = f"{what.partition(':')[0]}: {link.name}"
            link.unlink(missing_ok=True)
    blob.unlink(missing_ok=True)
    raise GgufError(
        f"{what}: damaged on its way from the Hugging Face hub: found SHA-256 {found[:16]}..., "
        f"wanted {blob.name[:16]}...; the file is removed"
    )


def _remove_unfinished(folder: Path | None) -> None:
    """Remove what downloads that were killed left of files that are complete now. One that still
    runs writes all the time.
    """
    for blob in _blobs(folder):
        for path in blob.parent.glob(f"{escape(blob.name)}*{_UNFINISHED}"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE:
                    path.unlink()


def _names(hub: Any, repo: str) -> list[str]:
    """The files of a repository; the cached ones if the hub cannot be reached."""
    try:
        # one request; `list_repo_files` tries again for half a minute where there is no network
        return [each.rfilename for each in hub.HfApi().model_info(repo).siblings or ()]
    except Exception as error:
        kept = [each.name for each in cached_files() if each.repo == repo]
        if kept:
            return kept
        raise _failed(repo, error) from error


def _failed(what: str, error: Exception) -> GgufError:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, RepositoryNotFoundError) and not isinstance(error, GatedRepoError):
        return GgufNotFound(
            f"{what}: no such file or folder here, and no such repository on the Hugging Face hub "
            "(or a private one, which needs `hf auth login`)"
        )
    if isinstance(error, OSError) and error.errno in _NOT_STORED:
        from huggingface_hub import constants

        return GgufError(
            f"{what}: cannot be stored in {error.filename or constants.HF_HUB_CACHE}: "
            f"{os.strerror(error.errno)}"
        )
    said = (str(error).splitlines() or [type(error).__name__])[0]
    return GgufError(f"{what}: could not be fetched from the Hugging Face hub: {said}")


def _hub(repo: str) -> Any:
    return hub_package(f"{repo}: no such file or folder; as a name on the Hugging Face hub")


def cached_folder(repo: str) -> Path | None:
    """The folder of a repository in the hub's cache, complete or not; None where there is none."""
    try:
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name
    except ImportError:
        return None
    try:
        name = repo_folder_name(repo_id=repo, repo_type="model")
    except ValueError:  # no name of a repository
        return None
    folder = Path(constants.HF_HUB_CACHE, name)
    return folder if os.path.isdir(folder) else None


def cached_encoder(model: Path) -> Path | None:
    """The image encoder that belongs to a model in the hub's cache, if it was fetched too."""
    for snapshot in model.parents:
        if snapshot.parent.name == "snapshots" and snapshot.parents[1].name.startswith("models--"):
            return encoder_within(snapshot, model)
    return None


def encoder_within(folder: Path, model: Path) -> Path | None:
    """The image encoder that belongs to a model among the files of its repository."""
    names = [each.relative_to(folder).as_posix() for each in folder.rglob("*.gguf")]
    name = matching_encoder(names, model.relative_to(folder).as_posix())
    return None if name is None else folder / name


def cached_files() -> list[CachedFile]:
    """The GGUF files in the hub's cache; empty without the extra, a home folder or a cache."""
    try:
        hub = hub_package("models")
        from huggingface_hub.errors import CacheNotFound
    except ConfigError:
        return []
    try:
        info = hub.scan_cache_dir()
    except CacheNotFound:
        return []
    found = {
        (repo.repo_id, each.file_path.relative_to(revision.snapshot_path).as_posix()): each
        for repo in info.repos
        if repo.repo_type == "model"
        for revision in sorted(repo.revisions, key=lambda one: one.last_modified)
        for each in revision.files
        if each.file_name.lower().endswith(".gguf")
    }
    return [
        CachedFile(repo, name, Path(each.file_path), each.size_on_disk)
        for (repo, name), each in sorted(found.items())
    ]


def remove_cached(repo: str, wanted: str | None = None) -> int:
    """Remove a repository from the hub's cache, or one of its models (wanted: see `choose`, with
    all parts of a set); returns the bytes freed, 0 if the repository is not there.
    """
    hub = _hub(repo)
    from huggingface_hub.errors import CacheNotFound

    try:
        info = hub.scan_cache_dir()
    except CacheNotFound:
        return 0
    revisions = [
        revision
        for one in info.repos
        if one.repo_id == repo and one.repo_type == "model"
        for revision in one.revisions
    ]
    folder = cached_folder(repo)
    if not revisions and folder is not None and wanted is None:  # nothing came completely
        freed = sum(path.lstat().st_size for path in folder.glob("**/*") if path.is_file())
        shutil.rmtree(folder)
        return freed
    if not revisions:
        return 0
    kept = {each.name for each in cached_files() if each.repo == repo}
    if wanted is not None:
        name = choose(kept, wanted, place=repo)
        shards = shard_names(PurePosixPath(name).name) or [PurePosixPath(name).name]
        gone = {str(PurePosixPath(name).with_name(each)) for each in shards}
        # without a model its encoder is of no use
        if any(not _is_encoder(each) for each in kept - gone):
            return _remove_files(revisions, gone)
    strategy = info.delete_revisions(*(revision.commit_hash for revision in revisions))
    strategy.execute()
    return int(strategy.expected_freed_size)


def _remove_files(revisions: Iterable[Any], names: set[str]) -> int:
    """Remove files from all revisions of a cached repository, and what they alone refer to."""
    blobs: dict[Path, int] = {}
    others: set[Path] = set()
    for revision in revisions:
        for each in revision.files:
            if each.file_path.relative_to(revision.snapshot_path).as_posix() in names:
                blobs[each.blob_path] = each.size_on_disk
                each.file_path.unlink()
            else:
                others.add(each.blob_path)
    for blob in blobs.keys() - others:
        blob.unlink(missing_ok=True)
    return sum(blobs[blob] for blob in blobs.keys() - others)
