"""Reads what a user types: lines with history and editing, and messages of several lines.

A line that ends in a backslash continues on the next line. `\"""` begins and ends a message of
several lines. With prompt_toolkit (extra `cli`) Alt-Enter also starts a new line; without it the
standard library's readline edits a line. Bytes that are not UTF-8 are read as replacement
characters; a note says so once.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from oxillama.folders import user_folder

_QUOTES = '"""'
_REPLACED = "\N{REPLACEMENT CHARACTER}"
_SURROGATES = re.compile("[\ud800-\udfff]")
_KEPT = 1000  # lines of the history


class Dropped(Exception):
    """Ctrl-C dropped a message that was being typed."""


class InputReader:
    """The messages of standard input, one after the other."""

    def __init__(self, note: Callable[[str], None]) -> None:
        """note: says a line to the person."""
        self._note, self._said = note, False
        self.terminal = sys.stdin.isatty()
        if hasattr(sys.stdin, "reconfigure"):
            # a byte that is no text becomes a surrogate, which `_line` sees
            sys.stdin.reconfigure(errors="surrogateescape")
            # Windows' Python reads a pipe in the encoding of the user's language
            if os.name == "nt" and sys.stdin.encoding != "utf-8":
                sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
        self._read: Callable[[str], str]
        self._typed: Callable[[], str]
        self._read, self._typed = _reader() if self.terminal else (lambda _: input(), str)
        self._begun = False  # a message, whose first line has been read

    def message(self, prompt: str) -> str:
        """The next message; EOFError at the end of the input, KeyboardInterrupt for Ctrl-C where
        nothing had been typed, otherwise Dropped.
        """
        self._begun = False
        try:
            return self._message(prompt)
        except KeyboardInterrupt:
            if self._begun or self._typed().strip():
                raise Dropped from None
            raise

    def _message(self, prompt: str) -> str:
        line = self._line(prompt)
        if line.lstrip().startswith(_QUOTES):
            return self._quoted(line.lstrip().removeprefix(_QUOTES))
        parts = []
        while line.endswith("\\"):
            parts.append(line[:-1])
            try:
                line = self._line("... ")
            except EOFError:
                line = ""
        return "\n".join((*parts, line))

    def _quoted(self, first: str) -> str:
        """A message up to the quotes that close it, or the end of the input."""
        parts, line = [], first
        while _QUOTES not in line:
            parts.append(line)
            try:
                line = self._line("... ")
            except EOFError:
                return "\n".join(parts).strip("\n")
        parts.append(line.partition(_QUOTES)[0])
        return "\n".join(parts).strip("\n")

    def _line(self, prompt: str) -> str:
        line = self._read(prompt)
        self._begun = True
        whole = _SURROGATES.sub(_REPLACED, line)
        if whole != line and not self._said:
            self._said = True
            self._note(f"[bytes that are not UTF-8 are read as {_REPLACED}]")
        return whole


def _reader() -> tuple[Callable[[str], str], Callable[[], str]]:
    """What reads a line from a terminal, with history; and what says, when Ctrl-C came, what had
    been typed of a line.
    """
    path = history_file()
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.key_binding import KeyBindings
    except ImportError:
        return _readline_reader(path)

    class Kept(FileHistory):
        def store_string(self, string: str) -> None:
            # the file is UTF-8, which has no surrogates
            super().store_string(_SURROGATES.sub(_REPLACED, string))

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: object) -> None:
        event.current_buffer.insert_text("\n")  # type: ignore[attr-defined]

    history = InMemoryHistory() if path is None else Kept(str(path))
    session: PromptSession[str] = PromptSession(history=history, key_bindings=keys)
    return session.prompt, lambda: session.default_buffer.text


def _readline_reader(path: Path | None) -> tuple[Callable[[str], str], Callable[[], str]]:
    """`input` with the standard library's readline, where there is one."""
    try:
        import readline
    except ImportError:
        return _own_line, str
    if path is not None:
        with suppress(OSError):
            readline.read_history_file(path)
        readline.set_history_length(_KEPT)

    def read(prompt: str) -> str:
        line = _own_line(prompt)
        if path is not None:
            with suppress(OSError):
                readline.write_history_file(path)
        return line

    return read, readline.get_line_buffer


def _own_line(prompt: str) -> str:
    """`input`, after whose end by Ctrl-C or Ctrl-D what is written next has a line of its own."""
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):
        print()
        raise


def history_file() -> Path | None:
    """The file that keeps the lines typed in earlier conversations; None if the user has no folder
    for it.

    OXILLAMA_HISTORY names another file; empty, it turns the history off.
    """
    named = os.environ.get("OXILLAMA_HISTORY")
    if named is not None:
        return Path(named) if named else None
    try:
        folder = user_folder("state")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError):
        return None
    return folder / "history"
