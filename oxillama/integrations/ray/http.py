"""HTTP requests as values that travel between actors, what decides where they go, and an ASGI
application run over them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

Message = MutableMapping[str, Any]
Application = Callable[..., Awaitable[None]]
_AHEAD = 64  # messages that the application may be ahead of whoever reads them


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One HTTP request, whole; `headers` are pairs of bytes, as ASGI has them."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    client: tuple[str, int] | None = None
    scheme: str = "http"

    @classmethod
    def of(cls, scope: Message, body: bytes) -> HttpRequest:
        """From an ASGI scope, without the prefix that the application is mounted under."""
        client = scope.get("client")
        return cls(
            scope["method"],
            scope["path"].removeprefix(scope.get("root_path", "")) or "/",
            scope.get("query_string", b""),
            tuple((bytes(name), bytes(value)) for name, value in scope["headers"]),
            body,
            None if client is None else (client[0], client[1]),
            scope.get("scheme", "http"),
        )

    def scope(self) -> dict[str, Any]:
        """An ASGI scope."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": self.query,
            "headers": list(self.headers),
            "client": self.client,
            "server": None,
            "scheme": self.scheme,
            "state": {},
        }

    def header(self, name: str) -> str:
        """A header's value, empty where there is none."""
        wanted = name.encode()
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), "")


@dataclass(frozen=True, slots=True)
class Route:
    """What decides where a request goes: `page_hashes` of its prompt, the session it names, the
    replica that it must go to.
    """

    pages: tuple[bytes, ...] = ()
    session: str | None = None
    replica: str | None = None


async def answered(app: Application, request: HttpRequest) -> AsyncGenerator[list[Message], None]:
    """The messages of an application's answer, as many at a time as there are. Closing the iterator
    is what a client's leaving is to the application.
    """
    messages: asyncio.Queue[Message | None] = asyncio.Queue(_AHEAD)
    bodies = [{"type": "http.request", "body": request.body, "more_body": False}]
    gone = asyncio.Event()

    async def receive() -> Message:
        if bodies:
            return bodies.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def run() -> None:
        try:
            await app(request.scope(), receive, messages.put)
        finally:
            if not gone.is_set():
                await messages.put(None)

    work = asyncio.ensure_future(run())
    try:
        while True:
            found = [await messages.get()]
            while not messages.empty():
                found.append(messages.get_nowait())
            ready = [each for each in found if each is not None]
            if ready:
                yield ready
            if found[-1] is None:
                await work
                return
    finally:
        gone.set()
        while not work.done():  # it may wait for room for one more message
            while not messages.empty():
                messages.get_nowait()
            await asyncio.wait((work,), timeout=0.01)
        with suppress(Exception):
            work.result()
