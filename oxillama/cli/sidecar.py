"""`oxillama sidecar list | verify | clear | write`: packed weights that are kept on disk for later
loads.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from oxillama.errors import ConfigError
from oxillama.gguf import GgufReader
from oxillama.model.load import load_model
from oxillama.weights.cache import (
    LEAST_BYTES,
    CacheEntry,
    PackedWeightCache,
    sidecar_folder,
)
from oxillama.weights.panel_file import verify


def add_commands(commands) -> None:
    """Add `sidecar` with its commands."""
    group = commands.add_parser(
        "sidecar", help="show, verify, remove or write packed weights on disk"
    )
    inner = group.add_subparsers(dest="what", required=True, metavar="COMMAND")
    for name, function, text in (
        ("list", _list, "show the sidecars of a folder"),
        ("verify", _verify, "read the sidecars of a folder and compare every byte"),
        ("clear", _clear, "remove the sidecars of a folder"),
        ("write", _write, "write a model's sidecar now, without running it"),
    ):
        command = inner.add_parser(name, help=text)
        if name == "write":
            command.add_argument("model", metavar="MODEL", help="a GGUF file")
        command.add_argument(
            "--folder",
            default="auto",
            help="the folder (default: the one OXILLAMA_SIDECAR names, else the cache folder)",
        )
        command.add_argument("--json", action="store_true", help="print JSON")
        command.set_defaults(function=function)


def _folder(arguments: argparse.Namespace) -> Path:
    """The folder meant; where a model is loaded, the environment would win over --folder, which is
    an error.
    """
    said = os.environ.get("OXILLAMA_SIDECAR")
    if said and arguments.folder != "auto" and arguments.what == "write":
        raise ConfigError(
            f"sidecar: found OXILLAMA_SIDECAR {said!r} and --folder {arguments.folder}, wanted one "
            "of the two"
        )
    found = sidecar_folder("auto") if arguments.folder == "auto" else Path(arguments.folder)
    if found is None:
        raise ConfigError(
            "sidecar: OXILLAMA_SIDECAR is 0 or this user has no home, wanted --folder FOLDER"
        )
    try:
        os.scandir(found).close()
    except FileNotFoundError:  # it holds nothing yet
        pass
    except OSError as error:
        raise ConfigError(f"sidecar: {found}: {error.strerror}, wanted a folder") from error
    return found


def _list(arguments: argparse.Namespace) -> int:
    folder = _folder(arguments)
    return _shown(arguments, folder, [(one, None) for one in PackedWeightCache(folder).entries()])


def _verify(arguments: argparse.Namespace) -> int:
    folder = _folder(arguments)
    found = [
        (one, "whole" if verify(one.path) else "damaged")
        for one in PackedWeightCache(folder).entries()
    ]
    _shown(arguments, folder, found)
    return int(any(state == "damaged" for _, state in found))


def _clear(arguments: argparse.Namespace) -> int:
    folder = _folder(arguments)
    try:
        removed = PackedWeightCache(folder).clear()
    except OSError as error:
        raise ConfigError(
            f"sidecar: {error.filename or folder}: {error.strerror}, wanted a folder that can be "
            "written"
        ) from error
    return _shown(arguments, folder, [(one, "removed") for one in removed])


def _write(arguments: argparse.Namespace) -> int:
    folder = _folder(arguments)
    with GgufReader(arguments.model) as reader:
        slot = PackedWeightCache(folder).slot(reader)
        if slot is not None:
            slot.forget_failure()
        model = load_model(reader, sidecar=folder)
        if model.writer is not None:
            model.writer.finish(1e6)
            if not model.writer.written:
                raise ConfigError(f"sidecar: {model.writer.reason}")
        elif slot is None or not slot.path.exists():
            raise ConfigError(
                f"sidecar: OXILLAMA_SIDECAR is {os.environ.get('OXILLAMA_SIDECAR')!r}, which keeps "
                f"no weights of less than {LEAST_BYTES} bytes, wanted it unset or a folder"
            )
        model.end(keep=True)
    return _list(arguments)


def _shown(
    arguments: argparse.Namespace, folder: Path, found: Sequence[tuple[CacheEntry, str | None]]
) -> int:
    """Print sidecars with what is said of each, the one used last first."""
    if arguments.json:
        rows = [
            {
                "path": str(one.path),
                "bytes": one.nbytes,
                "used": one.used,
                "names": one.names,
                "state": state,
            }
            for one, state in found[::-1]
        ]
        print(json.dumps({"folder": str(folder), "sidecars": rows}))
        return 0
    for one, state in found[::-1]:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.used))
        print(
            f"{one.nbytes / 1e6:10,.1f} MB  {used}  "
            f"{state + '  ' if state else ''}{', '.join(one.names) or '?'}  {one.path.name}"
        )
    print(
        f"{sum(one.nbytes for one, _ in found) / 1e6:10,.1f} MB in {len(found)} "
        f"sidecar{'' if len(found) == 1 else 's'} of {folder}"
    )
    return 0
