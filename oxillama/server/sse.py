"""Server-sent events. The head of a stream is sent with its first event, so that an error before it
is a plain HTTP answer. A stream that is silent for long, as while a long prompt is evaluated, sends
comments (`probe`): proxies cut off what sends nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from json.encoder import encode_basestring
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from oxillama.server.calls import Call, ClientGone, dumps, on_one_line
from oxillama.server.errors import ApiError, from_engine, shutting_down

DONE = b"data: [DONE]\n\n"
_LOOK = 0.02  # seconds between looks at a half-closed connection


def data(value: Any) -> bytes:
    """An event without a name."""
    return b"data: " + dumps(value) + b"\n\n"


def _comment() -> bytes:
    return b":\n\n"


def event(name: str, value: Any) -> bytes:
    """An event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + dumps(value) + b"\n\n"


def openai_error(error: ApiError) -> bytes:
    """The frames of an error during a stream of OpenAI's API."""
    return data(error.openai()) + DONE


class TextFrames:
    """Frames that differ only in their index and text. The rest is formatted once, because a server
    writes one frame per token.
    """

    def __init__(self, head: Mapping[str, Any], text: str, *, usage: bool) -> None:
        """text: the member of a choice that holds the text, written as %s in it."""
        before, after = text.split("%s")
        self._start = b"data: " + dumps(head)[:-1] + b',"choices":[{"index":'
        self._before = b"," + before.encode()
        self._after = (
            after.encode()
            + b',"logprobs":null,"finish_reason":null}]'
            + (b',"usage":null' if usage else b"")
            + b"}\n\n"
        )

    def frames(self, index: int, texts: Iterable[str]) -> bytes:
        """A frame of each text, one after the other."""
        head = b"%b%d%b" % (self._start, index, self._before)
        quoted = [on_one_line(encode_basestring(text)) for text in texts]
        return head + (self._after + head).join(quoted) + self._after if quoted else b""


class EventStream(Response):
    """The frames of an iterator as they arrive. `failed` makes the frames of an error during the
    stream; frames that are ready together are written together. `probe` makes a frame that adds
    nothing to what a client has read.
    """

    def __init__(
        self,
        call: Call,
        frames: AsyncIterator[bytes],
        *,
        failed: Callable[[ApiError], bytes],
        media_type: str = "text/event-stream",
        probe: Callable[[], bytes] = _comment,
    ) -> None:
        self.status_code = 200
        self._call, self._frames, self._failed, self._probe = call, frames, failed, probe
        self.background = None
        self.media_type = media_type
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        # seconds of silence
        self._interval = call.state.config.sse_ping_interval
        self._first: asyncio.Future[bytes]  # frame
        self._written = 0.0  # when something was
        self._ended = False

    async def begin(self) -> EventStream:
        """Wait for the first frame, though no longer than a stream may be silent, or until the
        client closes its sending side; raises an error that occurs before.
        """
        self._first = asyncio.ensure_future(anext(self._frames))
        try:
            try:
                await self._call.race(asyncio.wait((self._first,), timeout=self._interval or None))
            except ClientGone as gone:
                if not gone.half:
                    raise  # else the head is written, which tells whether the client reads on
            if self._first.done() and not isinstance(self._first.exception(), StopAsyncIteration):
                self._first.result()
        except BaseException:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
            await self._frames.aclose()  # type: ignore[attr-defined]
            raise
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._written = asyncio.get_running_loop().time()
        left = asyncio.ensure_future(self._call.gone())
        work = asyncio.ensure_future(self._write(scope, send))
        pings = asyncio.ensure_future(self._ping(send))
        try:
            while True:
                await asyncio.wait((left, work), return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    await work
                    return
                if left.result():
                    # half closed: if the client is gone for good, writing tells
                    await send(
                        {"type": "http.response.body", "body": self._probe(), "more_body": True}
                    )
                    left = asyncio.ensure_future(self._reset(scope))
                    continue
                raise ClientGone(half=False)
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            last = self._failed(shutting_down())
            await send({"type": "http.response.body", "body": last, "more_body": False})
            raise
        finally:
            tasks = (left, work, pings, self._first)
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _reset(self, scope: Scope) -> bool:
        """Wait until the client of a half-closed connection is gone for good."""
        protocol = scope["state"]["protocol"]
        while not protocol.is_reset():
            await asyncio.sleep(_LOOK)
        return False

    async def _ping(self, send: Send) -> None:
        """Write a probe whenever nothing else was written for the interval."""
        now = asyncio.get_running_loop().time
        while self._interval:
            left = self._written + self._interval - now()
            if left > 0:
                await asyncio.sleep(left)
            elif self._ended:
                return
            else:
                self._written = now()
                await send({"type": "http.response.body", "body": self._probe(), "more_body": True})

    async def _write(self, scope: Scope, send: Send) -> None:
        now = asyncio.get_running_loop().time
        async with aclosing(self._frames) as frames:  # type: ignore[type-var]
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            first = b"" if self._first.done() else self._probe()
            await send({"type": "http.response.body", "body": first, "more_body": True})
            self._written = now()
            # of our own server: past what every message of ASGI goes through
            protocol = scope.get("state", {}).get("protocol")
            write = _asgi_only if protocol is None else protocol.write_piece
            try:
                frame = await self._first
                while True:
                    if not write(frame):
                        await send({"type": "http.response.body", "body": frame, "more_body": True})
                    self._written = now()
                    frame = await anext(frames)
            except StopAsyncIteration:
                pass
            except asyncio.CancelledError:
                raise
            except Exception as error:
                wrong = from_engine(error)
                self._call.log_fields["error"] = wrong.message
                await send(
                    {
                        "type": "http.response.body",
                        "body": self._failed(wrong),
                        "more_body": True,
                    }
                )
            self._ended = True
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _asgi_only(frame: bytes) -> bool:
    """Writes nothing: where another server has the connection, it alone can."""
    return False
