"""Adapters on the command line: `--lora FILE[:SCALE]` of commands that run a model, and `oxillama
merge-lora`.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

import oxillama
from oxillama.cli.parsing import number
from oxillama.lora.merge import merge_lora


def add_lora(command: argparse.ArgumentParser) -> None:
    """The option that adds adapters."""
    command.add_argument(
        "--lora",
        action="append",
        default=[],
        metavar="FILE[:SCALE]",
        help="add a low-rank adapter; may be given more than once",
    )


def file_and_scale(given: str) -> tuple[str, float]:
    """What FILE[:SCALE] names; a file whose name ends like a scale is that file."""
    path, colon, scale = given.rpartition(":")
    if colon and path and not Path(given).exists():
        with suppress(ValueError):
            return path, float(scale)
    return given, 1.0


def apply(engine: oxillama.InferenceEngine, given: list[str]) -> None:
    """Push the adapters that --lora names, in their order."""
    for each in given:
        engine.apply_lora(*file_and_scale(each))


def add_commands(commands) -> None:
    """Add `merge-lora`."""
    merge = commands.add_parser(
        "merge-lora", help="write a model with adapters added to its weights"
    )
    merge.add_argument("base", metavar="BASE", help="the model's GGUF file")
    merge.add_argument(
        "adapters", metavar="ADAPTER[:SCALE]", nargs="+", help="an adapter; several are added up"
    )
    merge.add_argument("target", metavar="OUT.gguf")
    merge.add_argument(
        "-t", "--threads", type=number(int), default=0, help="worker threads of quantising"
    )
    merge.set_defaults(function=_merge)


def _merge(arguments: argparse.Namespace) -> int:
    adapters = [file_and_scale(each) for each in arguments.adapters]
    print(merge_lora(arguments.base, adapters, arguments.target, num_threads=arguments.threads))
    return 0
