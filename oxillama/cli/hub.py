"""`oxillama pull`, `list` and `rm`: models fetched from the Hugging Face hub, converted, and those
of other programs.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from oxillama.errors import ConfigError, GgufNotFound
from oxillama.stores import (
    an_address,
    cached_files,
    cached_folder,
    converted_files,
    fetch,
    lm_studio_files,
    ollama_file,
    ollama_files,
    own_encoder,
    remove_cached,
    remove_converted,
)


def add_commands(commands: Any) -> None:
    """Add `pull`, `list` and `rm`."""
    pull = commands.add_parser("pull", help="fetch a model from the Hugging Face hub")
    pull.add_argument(
        "name", metavar="OWNER/NAME[:QUANT]", help="a repository, and which of its files"
    )
    pull.add_argument(
        "--file",
        default=None,
        metavar="PATTERN",
        help="which file: a name, a pattern (*Q4_K_M.gguf) or a quantisation (Q4_K_M)",
    )
    pull.add_argument(
        "--no-mmproj",
        action="store_true",
        help="leave out the encoder of images that belongs to the model",
    )
    pull.set_defaults(function=_pull)
    listed = commands.add_parser("list", help="show models that are stored on this machine")
    listed.add_argument("--json", action="store_true", help="print JSON")
    listed.set_defaults(function=_list)
    remove = commands.add_parser("rm", help="remove a fetched or converted model")
    remove.add_argument(
        "name",
        metavar="NAME",
        help="as `oxillama list` shows it; OWNER/NAME is all of a repository, OWNER/NAME:QUANT one "
        "model of it",
    )
    remove.set_defaults(function=_remove)


def _pull(arguments: argparse.Namespace) -> int:
    if arguments.name.startswith(("https://", "http://")):
        raise an_address(arguments.name)
    name, _, kind = arguments.name.removeprefix("hf://").removeprefix("hf.co/").partition(":")
    if name.count("/") != 1 or not all(name.split("/")):
        raise ConfigError(
            f"pull: found {arguments.name!r}, wanted OWNER/NAME[:QUANT] of the hub, "
            "as unsloth/Qwen3-0.6B-GGUF:Q4_K_M"
        )
    if kind and arguments.file:
        raise ConfigError(f"--file: found together with {arguments.name!r}, wanted one of them")
    path = fetch(name, arguments.file or kind or None, encoder=not arguments.no_mmproj)
    print(path)
    encoder = None if arguments.no_mmproj else own_encoder(path)
    if encoder is not None and encoder.is_file():
        print(encoder)
    return 0


def _stored() -> list[dict[str, Any]]:
    """Every model found: its name, store, file and bytes."""
    rows = [
        {"name": f"{one.repo}:{one.name}", "store": "hub", "path": one.path, "bytes": one.nbytes}
        for one in cached_files()
    ]
    named = [(path.name, "converted", path) for path in converted_files()]
    named += [(name, "ollama", path) for name, path in ollama_files()]
    named += [(f"{repo}:{path.name}", "lmstudio", path) for repo, path in lm_studio_files()]
    rows += [
        {"name": name, "store": store, "path": path, "bytes": path.stat().st_size}
        for name, store, path in named
    ]
    return [{**row, "path": str(row["path"])} for row in rows]


def _list(arguments: argparse.Namespace) -> int:
    rows = _stored()
    if arguments.json:
        print(json.dumps(rows, ensure_ascii=False))
        return 0
    if not rows:
        print("no models here; `oxillama pull OWNER/NAME` fetches one", file=sys.stderr)
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        print(f"{row['name']:<{width}}  {row['store']:<9}  {row['bytes'] / 1e6:>10,.0f} MB")
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    name = arguments.name
    freed = remove_converted(name)
    if freed is not None:
        print(f"removed {name}, {freed / 1e6:,.0f} MB")
        return 0
    repo, _, file = name.removeprefix("hf://").removeprefix("hf.co/").partition(":")
    named = any(one.repo == repo for one in cached_files())
    if named or (not file and repo.count("/") == 1 and cached_folder(repo) is not None):
        print(f"removed {name}, {remove_cached(repo, file or None) / 1e6:,.0f} MB")
        return 0
    if ollama_file(name) is not None:
        raise ConfigError(f"rm: {name} belongs to Ollama, wanted `ollama rm {name}`")
    if any(repo == one for one, _ in lm_studio_files()):
        raise ConfigError(f"rm: {name} belongs to LM Studio, which removes it")
    raise GgufNotFound(f"rm: {name}: found no such model, `oxillama list` shows them")
