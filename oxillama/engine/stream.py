"""The pieces of a request as they come: a `Stream` for any thread, and the same for an event loop.

Both read without waiting for a lock of others. Nothing is lost between reading and listening,
because a listener is registered first and reads afterwards.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from oxillama.completion import Completion, Piece
from oxillama.errors import not_pickled

# seconds that a thread waits at a time: on Windows no wait is interrupted by Ctrl-C
HEARD = 0.1 if os.name == "nt" else None
# seconds that an event loop sleeps at most while a task waits for a request
AWAKE = 1.0

Item = TypeVar("Item", covariant=True)  # of a stream: a piece, or an event of a chat


class PieceSource(Protocol):
    """What a stream reads: a `Request`, whose methods these are."""

    @property
    def pieces(self) -> Sequence[tuple[str, int]]:
        """(text, tokens generated when it came) of every piece so far."""

    @property
    def events(self) -> Callable[[], Any] | None:
        """Makes a reader of the pieces of a chat's reply."""

    @property
    def done(self) -> bool:
        """Whether it has ended."""

    @property
    def finish_reason(self) -> str | None:
        """Why it has ended."""

    def __iter__(self) -> Iterator[Piece]:
        """Another reader of its pieces."""

    def piece(self, index: int) -> Piece:
        """Piece number `index`."""

    def last_piece(self) -> Piece:
        """The one that has the reason of its end."""

    def result(self, timeout: float | None = None) -> Any:
        """Wait for its end and return its result."""

    def cancel(self) -> None:
        """Stop it."""

    def listen(self, listener: Callable[[], None], *, in_loop: bool = False) -> None:
        """Call `listener()` after every piece and at the end."""

    def stop_listening(self, listener: Callable[[], None]) -> None:
        """Stop calling it."""

    def check_process(self) -> None:
        """Raise EngineError in a forked child process."""

    def check_waiter(self) -> None:
        """Raise EngineError in a thread that would wait for itself."""


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Run `call` in an event loop's thread; nothing happens if the loop has been closed."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        if not loop.is_closed():
            raise


class _Awake:
    """Wakes an event loop now and then, until its end. Jupyter stops a cell that awaits by a cancel
    in a signal handler, which a loop that sleeps does not notice.
    """

    __slots__ = ("_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._wake()

    def _wake(self) -> None:
        self._handle = self._loop.call_later(AWAKE, self._wake)

    def end(self) -> None:
        self._handle.cancel()


async def awaited(request: PieceSource) -> Any:
    """The result of a request; a task that is cancelled meanwhile cancels it."""
    request.check_process()
    loop, event = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        if request.done:
            _call_in(loop, event.set)

    request.listen(wake, in_loop=True)
    awake = _Awake(loop)
    try:
        if not request.done:
            await event.wait()
    except asyncio.CancelledError:
        request.cancel()
        raise
    finally:
        awake.end()
        request.stop_listening(wake)
    return request.result()


async def pieces_of(request: PieceSource) -> AsyncIterator[Any]:
    """The pieces of a request, or the events of a chat, as they come; it is cancelled when
    the reading stops.
    """
    request.check_process()
    loop, event, at = asyncio.get_running_loop(), asyncio.Event(), 0
    reader = None if request.events is None else request.events()

    def wake() -> None:
        _call_in(loop, event.set)

    request.listen(wake, in_loop=True)
    awake = _Awake(loop)
    try:
        while True:
            event.clear()
            while at < len(request.pieces):
                piece, at = request.piece(at), at + 1
                for each in (piece,) if reader is None else reader.feed(piece):
                    yield each
            if request.done and at == len(request.pieces):
                break
            await event.wait()
        done, piece = request.result(), request.last_piece()
        for each in (piece,) if reader is None else reader.finish(piece, done):
            yield each
    finally:
        awake.end()
        request.stop_listening(wake)
        request.cancel()


class Stream(Generic[Item]):
    """An iterator over the pieces of a request, or the events of a chat. Closing or dropping a
    stream that owns its request cancels the request. Several threads may read one stream: each
    piece goes to one of them. Closing it, from any thread, ends them all.
    """

    __slots__ = (
        "_at",
        "_ended",
        "_owner",
        "_queue",
        "_reader",
        "_ready",
        "_taking",
        "_wake",
        "request",
    )

    def __init__(self, request: PieceSource, *, owner: bool = True) -> None:
        self.request = request
        self._at = 0
        self._ended = False
        self._owner = owner
        self._reader = None if request.events is None else request.events()
        self._ready: deque[Any] = deque()  # events that are not yet given out
        self._taking = threading.Lock()  # one reader at a time
        self._queue: SimpleQueue[None] = SimpleQueue()
        # knows the queue alone, so that a forgotten stream can go
        self._wake = partial(self._queue.put, None)
        request.listen(self._wake, in_loop=True)

    def __iter__(self) -> Stream[Item]:
        return self

    def __next__(self) -> Item:
        request = self.request
        while True:
            with self._taking:
                self._take()
                with suppress(IndexError):  # another thread closed the stream
                    item: Item = self._ready.popleft()
                    return item
            if self._ended:
                raise StopIteration
            request.check_process()
            request.check_waiter()
            try:
                with suppress(Empty):
                    self._queue.get(timeout=HEARD)
            except BaseException:
                self.close()
                raise
            if self._ended:  # nothing more wakes the others that wait
                self._wake()

    def _take(self) -> None:
        """Put the next piece or event, if it is there, among those that are ready."""
        request, reader = self.request, self._reader
        while not self._ended and not self._ready:
            if self._at < len(request.pieces):
                piece, self._at = request.piece(self._at), self._at + 1
                self._ready.extend((piece,) if reader is None else reader.feed(piece))
            elif not request.done:
                return
            elif self._at == len(request.pieces):
                self._end()
                done, piece = request.result(), request.last_piece()
                self._ready.extend((piece,) if reader is None else reader.finish(piece, done))

    __reduce__ = not_pickled(
        "stream: belongs to the engine of this process",
        "iterate over its `request` for another reader",
    )

    def __repr__(self) -> str:
        return f"<Stream of {self.request!r}>"

    def close(self) -> None:
        """Stop; the engine ends the request within a few milliseconds."""
        self._end()
        self._ready.clear()
        if self._owner:
            self.request.cancel()

    @property
    def completion(self) -> Completion:
        """The finished request; waits for its end."""
        done: Completion = self.request.result()
        return done

    def __enter__(self) -> Stream[Item]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._ended:
            self.close()

    def _end(self) -> None:
        self._ended = True
        self.request.stop_listening(self._wake)
        self._wake()  # a reader in another thread
