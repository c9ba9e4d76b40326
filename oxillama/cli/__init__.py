"""The command line: `oxillama run | chat | info | tokenize | pull | list | rm | snapshot | sidecar
| bench | doctor | perplexity | imatrix | quantize | convert | merge-lora | serve`.

Each module adds its own commands (`run`: run and tokenize; `conversation`: chat; `hub`: pull, list
and rm; `quality`: perplexity and imatrix; `lora`: merge-lora; `bench`, `convert`, `doctor`, `info`,
`quantize`, `serve`, `sidecar`, `snapshot`: those of their names). `loading`, `media` and
`generation` are the options of all that load a model, give it images or audio, or generate,
`diffusion` those of models that fill in masks;
`streams` reads texts and writes notes, `progress` draws bars, `input` reads what a person types,
`parsing` the command line. A command is a function over parsed arguments that returns an exit code.
Errors of this package become one line on the standard error stream and exit code 1; a command line
that cannot be read becomes one line and 2; Ctrl-C becomes 130, SIGTERM 143, SIGHUP 129
and Ctrl-Break 149.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

from oxillama.cli import (
    bench,
    conversation,
    convert,
    doctor,
    hub,
    info,
    lora,
    quality,
    quantize,
    run,
    serve,
    sidecar,
    snapshot,
)
from oxillama.cli.parsing import Parser
from oxillama.errors import OxillamaError

MODULES = (
    run,
    conversation,
    info,
    hub,
    snapshot,
    sidecar,
    bench,
    doctor,
    quality,
    quantize,
    convert,
    lora,
    serve,
)


# what a file system says of output that it does not take
_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def parser() -> argparse.ArgumentParser:
    """The whole command line as one parser; each module adds its own commands."""
    import oxillama

    top = Parser(prog="oxillama", description="Run GGUF language models on the CPU.")
    top.add_argument("--version", action="version", version=f"oxillama {oxillama.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in MODULES:
        module.add_commands(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `oxillama` command; returns the exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    _open_streams()
    # a text that the terminal has no characters for is shown in escapes, and is no error
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
            if os.name == "nt":  # the same bytes as elsewhere, into a file or a pipe too
                stream.reconfigure(encoding="utf-8", newline="\n")
                _take_sequences(stream)
    top = parser()
    if not given:
        top.print_help()
        return 0
    arguments = top.parse_args(given)
    plain, warnings.formatwarning = warnings.formatwarning, _warning
    try:
        with _ending_in_order():
            code: int = arguments.function(arguments)
        sys.stdout.flush()
        return code
    except OxillamaError as error:
        print(f"oxillama: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except MemoryError as error:
        refused = " ".join(f": {error}".split()) if str(error) else ""
        print(f"oxillama: out of memory{refused}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # the terminal's ^C has no end of line
        return 130
    except OSError as error:
        gone = isinstance(error, BrokenPipeError)
        if not gone and error.filename is not None:
            print(f"oxillama: {error.filename}: {error.strerror}", file=sys.stderr)
            return 1
        if not gone and error.errno not in _REFUSED:
            raise
        # the reader has gone, or takes no more: nothing is left to flush
        _discard(sys.stdout)
        if gone:
            return 141
        print(f"oxillama: output: cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    finally:
        warnings.formatwarning = plain
        try:
            sys.stderr.flush()
        except OSError:  # what it took no more is given up, or the exit code would be 120
            _discard(sys.stderr)


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """SIGTERM, the SIGHUP of a closed terminal and on Windows the SIGBREAK of Ctrl-Break unwind a
    command as Ctrl-C does, so that its temporary files go with it; a signal that is ignored, or
    has a handler, is left alone.
    """
    changed = []
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP", "SIGBREAK"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _leave)
                changed.append(number)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _take_sequences(stream: TextIO) -> None:
    """Windows: a console obeys escape sequences, which old ones show unless they are told."""
    if not stream.isatty():
        return
    import ctypes
    import msvcrt

    try:
        handle = msvcrt.get_osfhandle(stream.fileno())  # type: ignore[attr-defined]
    except OSError:  # a program's own stream, behind which is no file
        return
    kernel, mode = ctypes.WinDLL("kernel32"), ctypes.c_ulong()  # type: ignore[attr-defined]
    console = ctypes.c_void_p(handle)
    if kernel.GetConsoleMode(console, ctypes.byref(mode)):
        kernel.SetConsoleMode(console, mode.value | 4)  # ENABLE_VIRTUAL_TERMINAL_PROCESSING


def _discard(stream: TextIO) -> None:
    """Nothing more is written to the file of a standard stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """A warning as the one line that a user can read; of those for programmers, which Python hides
    by default, with their place.
    """
    where = "" if issubclass(category, UserWarning) else f"{filename}:{lineno}: "
    return f"oxillama: {where}warning: {' '.join(str(message).split())}\n"


def _open_streams() -> None:
    """Standard streams that are closed are empty, and keep nothing; no file gets their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
