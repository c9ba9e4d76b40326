"""`oxillama snapshot info`: what a snapshot says of itself, without the model and without its
pages.
"""

from __future__ import annotations

import argparse
import json

from oxillama.errors import SnapshotIncompatible, SnapshotNotFound
from oxillama.snapshot.session import EngineSnapshot


def add_commands(commands) -> None:
    """Add `snapshot`, with its one command `info`."""
    inner = commands.add_parser("snapshot", help="look at saved sessions").add_subparsers(
        dest="what", required=True, metavar="COMMAND"
    )
    command = inner.add_parser("info", help="show what a snapshot holds")
    command.add_argument("file", metavar="FILE", help="a file of snapshot_to_file")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(function=_info)


def _info(arguments: argparse.Namespace) -> int:
    try:
        found = EngineSnapshot.inspect(arguments.file)
    except SnapshotNotFound:
        raise
    except OSError as error:
        raise SnapshotIncompatible(f"{arguments.file}: cannot be read: {error.strerror}") from error
    if arguments.json:
        print(
            json.dumps(
                {
                    "version": found.version,
                    "file_bytes": found.file_size,
                    "sections": dict(found.sections),
                    **found.facts,
                }
            )
        )
    else:
        print(found.display())
    return 0
