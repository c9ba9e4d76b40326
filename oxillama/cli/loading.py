"""Loads the model a command was given, with a progress bar where a person is watching."""
from __future__ import annotations

import argparse
import sys

import oxillama


def add_model(command: argparse.ArgumentParser) -> None:
    """The arguments every command that runs a model has."""
    command.add_argument("model", nargs="?", metavar="MODEL", help="a GGUF file; the embedded model when left out")
    command.add_argument("-t", "--threads", type=int, default=0, help="worker threads (default: the cores this process may use)")
    command.add_argument("-c", "--context", type=int, default=None, help="context size in tokens (default: the model's own)")
    command.add_argument("--kv-type", choices=("f16", "f32", "q8_0", "q4_0"), default="f16", help="how keys and values are stored (default: %(default)s)")
    command.add_argument("--sidecar", metavar="auto|FOLDER|0", default="auto",
                         help="where packed weights are kept for the next load: auto is the cache folder, for large models; 0 is nowhere (default: auto)")


def load(arguments: argparse.Namespace, **more) -> oxillama.InferenceEngine:
    """The engine of `arguments.model`; the bar shows weights packed and is left out when stderr is not a terminal."""
    options = dict(num_threads=arguments.threads or None, context_size=arguments.context, kv_type=arguments.kv_type,
                   sidecar=False if arguments.sidecar == "0" else arguments.sidecar, **more)
    if not sys.stderr.isatty():
        return oxillama.load(arguments.model, **options)
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
    with Progress(TextColumn("loading"), BarColumn(), DownloadColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("load", total=None)
        return oxillama.load(arguments.model, progress=lambda done, total: bar.update(task, completed=done, total=total), **options)
