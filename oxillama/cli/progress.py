"""A bar on standard error for what takes long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(
    title: str, *, sizes: bool = False, remaining: bool = False, waits: bool = False
) -> Iterator[Callable[..., None] | None]:
    """A function (done, total, and a name or number that is shown) that moves the bar; None where
    standard error is no terminal.

    sizes: the numbers are bytes. remaining: the bar estimates the time that is left. waits: it is
    not shown before the first call.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),  # a tensor's name is no markup
        BarColumn(),
        DownloadColumn() if sizes else MofNCompleteColumn(),
        *((TimeRemainingColumn(),) if remaining else ()),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, visible=not waits)

        def progress(done: int, total: int, shown: str | float = "") -> None:
            text = f"{shown:.4f}" if isinstance(shown, float) else shown
            said = f"{title} {text}".rstrip()
            bar.update(task, completed=done, total=total, description=said, visible=True)

        yield progress
