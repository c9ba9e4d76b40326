"""The command line: `oxillama run | chat | info | tokenize | snapshot | sidecar | bench | doctor |
perplexity | imatrix | quantize | convert | merge-lora | serve`.

Each module adds its own commands (`talk`: run and chat; `info`: tokenize too; `quality`: perplexity
and imatrix; `lora`: merge-lora; `loading`: options of all that load a model). A command is a
function over parsed arguments that returns an exit code. Errors of this package become one line on the standard error
stream and exit code 1; Ctrl-C becomes 130.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from oxillama.cli import (
    bench,
    convert,
    doctor,
    info,
    lora,
    quality,
    quantize,
    serve,
    sidecar,
    snapshot,
    talk,
)
from oxillama.errors import OxillamaError

MODULES = (talk, info, snapshot, sidecar, bench, doctor, quality, quantize, convert, lora, serve)


def parser() -> argparse.ArgumentParser:
    """The whole command line as one parser; each module adds its own commands."""
    import oxillama

    top = argparse.ArgumentParser(
        prog="oxillama", description="Run GGUF language models on the CPU."
    )
    top.add_argument("--version", action="version", version=f"oxillama {oxillama.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in MODULES:
        module.add_commands(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `oxillama` command; returns the exit code."""
    arguments = parser().parse_args(argv)
    try:
        return arguments.function(arguments)
    except OxillamaError as error:
        print(f"oxillama: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader has gone: nothing is left to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
