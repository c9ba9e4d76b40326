"""`Call`: one HTTP request as the routes see it: its checked body, the server's state, work outside
the event loop, and whether the client is still connected. `Route`: the handler of one method of one
path.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from oxillama.server import strict_json
from oxillama.server.errors import ApiError
from oxillama.server.models import ServedModel
from oxillama.server.schema import Schema
from oxillama.server.state import ServerState

P = ParamSpec("P")
T = TypeVar("T")

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_BREAKS = ("\x85", "\u2028", "\u2029")  # Unicode's ends of lines that JSON lets stand in a text
LARGE = 1 << 16  # bytes of a body that is parsed and checked off the loop
_ARRIVING = 1 << 29  # bytes of all bodies that have not come whole yet
_BULK = 1 << 18  # bytes of a body whose work waits for that of other such bodies


class ClientGone(Exception):
    """The client has disconnected, so nobody reads an answer. `half`: it only closed its sending
    side.
    """

    def __init__(self, *, half: bool) -> None:
        super().__init__("the client has left")
        self.half = half


class Call:
    """One request. `log_fields` are the fields of its log line, `size` the bytes of its body,
    `whole` says whether all of them were read.
    """

    __slots__ = (
        "body",
        "dialect",
        "log_fields",
        "id",
        "key",
        "params",
        "received",
        "request",
        "size",
        "state",
        "whole",
    )

    def __init__(
        self, state: ServerState, request: Request, *, id: str, dialect: str, params: dict[str, str]
    ) -> None:
        self.state, self.request, self.id, self.dialect = state, request, id, dialect
        self.params = params
        self.body: dict[str, Any] = {}
        self.size, self.whole = 0, False
        self.log_fields: dict[str, Any] = {}
        self.key = ""  # of the client, hashed
        self.received = time.perf_counter()

    async def read_json(self, *, limit: int, kind: type = dict) -> Any:
        """The body as a checked JSON object; ApiError if it is too large, too slow or not JSON."""
        data = await self.read(limit=limit)
        self.size = len(data)
        depth = self.state.config.json_depth
        if len(data) > LARGE:
            return await self.offload(strict_json.loads, data, depth=depth, kind=kind)
        return strict_json.loads(data, depth=depth, kind=kind)

    async def read(self, *, limit: int) -> bytes:
        """The body's bytes."""
        headers = self.request.headers
        encoding = headers.get("content-encoding", "identity").lower()
        if encoding not in ("identity", ""):
            raise ApiError(
                415,
                f"content-encoding: found {encoding[:40]!r}, wanted none",
                headers={"Connection": "close"},
            )
        too_large = ApiError(
            413,
            f"body: larger than {limit} bytes",
            code="body_too_large",
            headers={"Connection": "close"},
        )
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            raise too_large
        parts, size = [], 0
        timeout = self.state.config.body_timeout
        try:
            async with asyncio.timeout(timeout):
                while True:
                    message = await self.request.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone(half=False)
                    part = message.get("body", b"")
                    size += len(part)
                    self.state.arriving += len(part)
                    if size > limit:
                        raise too_large
                    if self.state.arriving > max(_ARRIVING, 2 * limit):
                        raise ApiError(
                            503,
                            "body: too many bodies are being received at once",
                            code="overloaded",
                            headers={"Retry-After": "5", "Connection": "close"},
                        )
                    parts.append(part)
                    if not message.get("more_body", False):
                        self.whole = True
                        return b"".join(parts)
                    if self.half_closed:
                        raise ApiError(
                            400,
                            f"body: the connection was closed after {size} bytes of it",
                            code="incomplete_body",
                            headers={"Connection": "close"},
                        )
        except TimeoutError:
            raise ApiError(
                408,
                f"body: was not complete within {timeout:g} seconds",
                code="timeout",
                headers={"Connection": "close"},
            ) from None
        finally:
            self.state.arriving -= size

    @property
    def half_closed(self) -> bool:
        """Whether the client has closed its sending side."""
        protocol = self.request.scope.get("state", {}).get("protocol")
        return protocol is not None and protocol.half_closed

    async def offload(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run a function outside the event loop; functions of large bodies run after those of
        others.
        """
        if self.large:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self.state.bulk, partial(function, *args, **options))
        return await self.state.offload(function, *args, **options)

    @property
    def large(self) -> bool:
        """Whether the work of the body may take long."""
        return self.size > _BULK

    @asynccontextmanager
    async def model(self, name: Any) -> AsyncIterator[ServedModel]:
        """The model that a request names, loaded, for as long as the block lasts; ClientGone if the
        client disconnects while it is loaded.
        """
        models = self.state.models
        model = models.take(name) or await self.race(models.acquire(name))
        try:
            yield model
        finally:
            models.release(model)

    async def gone(self) -> bool:
        """Wait until the client disconnects; True if it only closed its sending side."""
        while not self.half_closed:
            message = await self.request.receive()
            if message["type"] == "http.disconnect":
                return False
        return True

    async def race(self, work: Awaitable[Any]) -> Any:
        """The result of some work; ClientGone, with the work cancelled, if the client disconnects
        first.
        """
        task = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(self.gone())
        try:
            await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ClientGone(half=watch.result())
        finally:
            for each in (task, watch):
                if not each.done():
                    each.cancel()
            await asyncio.gather(task, watch, return_exceptions=True)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(dumps(value), status, media_type="application/json", headers=headers)


def dumps(value: Any) -> bytes:
    """Compact JSON in UTF-8, on one line."""
    return on_one_line(_encode(value))


def on_one_line(text: str) -> bytes:
    """JSON in UTF-8 with all that may end a line escaped: clients in Python, such as Ollama's,
    split a stream where `str.splitlines` does.
    """
    if not text.isascii():
        for each in _BREAKS:
            text = text.replace(each, f"\\u{ord(each):04x}")
    return text.encode()


Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path. body: the schema of its JSON body, None for no body. optional: the
    body may be missing. images: larger bodies are accepted. open: needs no key. may_lack: the
    parameters of `query` that may be missing. form: the body is multipart/form-data.
    """

    method: str
    path: str
    handler: Handler
    dialect: str = "openai"
    body: Schema | None = None
    optional: bool = False
    images: bool = False
    form: bool = False
    open: bool = False
    about: str = ""
    query: Mapping[str, Schema] | None = None
    may_lack: tuple[str, ...] = ()
    media: str = "application/json"
    streams: str = ""
    hidden: bool = False
