"""Texts of files and of standard input, and lines for the user on standard error."""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import oxillama

WIDTH = 80  # columns of a terminal
PATIENCE = 1.0  # seconds until who waits is told what for


def read(path: str, *, instead: str = "") -> str:
    """The text of a file, or of standard input for `-`; ConfigError where it cannot be read.

    While standard input gives nothing, a line on a terminal's stderr says that it is awaited.
    instead: what else gives the text, for that line.
    """
    try:
        data = _standard_input(instead) if path == "-" else Path(path).read_bytes()
        # a mark of the encoding is no text
        return data.decode("utf-8-sig")
    except OSError as error:
        raise oxillama.ConfigError(f"{path}: {error.strerror}, wanted a readable file") from error
    except UnicodeDecodeError as error:
        place = "standard input" if path == "-" else path
        if data.startswith(b"GGUF"):
            raise oxillama.ConfigError(f"{place}: is a GGUF file, wanted a text") from None
        raise oxillama.ConfigError(
            f"{place}: byte {error.start} is not UTF-8, wanted text in UTF-8"
        ) from None


def read_prompt(path: str, *, instead: str = "") -> str:
    """As `read`, without the end of the last line as the system writes it."""
    text = read(path, instead=instead)
    return text.removesuffix(os.linesep if text.endswith(os.linesep) else "\n")


def json_of(text: str) -> Any:
    """The value of a JSON text; ValueError for anything else."""
    try:
        return json.loads(text)
    except RecursionError:  # how it is worded depends on the version of Python
        raise ValueError("nested too deeply") from None


def _standard_input(instead: str) -> bytes:
    """All of standard input. A program that holds the other end of the pipe may never close it."""
    told = "[waiting for the end of standard input" + (f"; {instead}]" if instead else "]")
    waiting = threading.Timer(PATIENCE, note, (told,))
    waiting.daemon = True
    if sys.stderr.isatty():
        waiting.start()
    try:
        return sys.stdin.buffer.read()
    finally:
        waiting.cancel()


def piped() -> bool:
    """Whether standard input is a pipe or a file, not a terminal or nothing."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # closed, or not a file's
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def timed(done: oxillama.Completion) -> str:
    """What a reply took."""
    took, used = done.timings, done.usage
    parts = [
        f"prompt {used.prompt_tokens} tokens"
        + (f" ({used.cached_tokens} cached)" if used.cached_tokens else "")
        + f", {took.prompt_tokens_per_second:,.1f} tokens/s",
        f"reply {used.completion_tokens} tokens, {took.tokens_per_second:,.1f} tokens/s",
        f"first token {took.first_token_seconds:.3f} s",
        f"total {took.total_seconds:.2f} s",
        f"seed {done.seed}",
        done.finish_reason,
    ]
    found = done.speculation
    if found is not None and found.accepted + found.rejected:
        judged = found.accepted + found.rejected
        parts.insert(3, f"{found.accepted} of {judged} candidates accepted")
    return bracketed(parts)


def bracketed(parts: Sequence[str]) -> str:
    """Parts between brackets, in lines of at most 80 columns that end between two parts."""
    lines = ["["]
    for at, part in enumerate(parts):
        word = part + ("; " if at + 1 < len(parts) else "]")
        if len(lines[-1] + word.rstrip()) > WIDTH and lines[-1].strip("[ "):
            lines.append(" ")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines)


def note(text: str) -> None:
    """Print a line for the user on standard error, after what standard output was given before."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
