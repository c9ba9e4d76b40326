"""uvicorn's HTTP/1.1 protocol with additional time-outs (a request's head, an idle connection, a
client that does not read) and answers for malformed and half-closed connections.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
from collections.abc import Callable
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from oxillama.server.errors import ApiError
from oxillama.server.settings import ServerConfig

_HELD = 1 << 16  # bytes that are written at once
_LINGER = 5.0  # seconds in which something must happen on a connection that is being closed


class _Outbox:
    """The connections with something to write in a turn of the event loop."""

    def __init__(self) -> None:
        self._waiting: list[_Joined] = []

    def add(self, joined: _Joined, loop: asyncio.AbstractEventLoop) -> None:
        """Let a connection write soon."""
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.append(joined)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.flush()


class _Joined:
    """A transport that writes once per turn of the event loop: a head with its body, the last
    frames of a stream with its end. After every system call other threads may run.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        outbox: _Outbox,
        sends: Callable[[], bool],
    ) -> None:
        """sends: whether the client may still be sending."""
        self._transport, self._loop, self._outbox = transport, loop, outbox
        self._sends = sends
        self.lingering = False  # closed for what is written; what comes is dropped
        self._parts: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write soon, and in order."""
        if not data or self.lingering:
            return
        if not self._parts:
            self._outbox.add(self, self._loop)
        self._parts.append(data)
        self._size += len(data)
        if self._size >= _HELD:
            self.flush()

    def flush(self) -> None:
        """Write now what is to be written."""
        if self._parts:
            data, self._parts, self._size = b"".join(self._parts), [], 0
            self._transport.write(data)

    def is_closing(self) -> bool:
        """Whether nothing is written any more."""
        return self.lingering or self._transport.is_closing()

    def close(self) -> None:
        """Close once all is written. A client that is still sending would get a reset and lose the
        response: of its connection only the sending side is closed, the rest by a second call.
        """
        self.flush()
        if self.lingering or not self._sends():
            self._transport.close()
        else:
            self.lingering = True
            self._transport.write_eof()
            self._transport.resume_reading()


class _LimitedProtocol(H11Protocol):
    """One connection. `half_closed`: the client has closed its sending side. `limits`, `outbox`:
    those of its server.
    """

    limits: ClassVar[ServerConfig]
    outbox: ClassVar[_Outbox]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.app_state = {**self.app_state, "protocol": self}
        self.half_closed = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._bytes_of_head = False
        self._refused = False  # bytes that are no valid request, whose end is unknown
        self._heard = False  # since the last look at a connection that is being closed

    # ---- beginning and end

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        joined = _Joined(transport, self.loop, self.outbox, self._sends)
        super().connection_made(joined)  # type: ignore[arg-type]
        if len(self.connections) > self.limits.max_connections:
            transport.abort()
            return
        self._arm_head(self.limits.header_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm_head()
        self._disarm_write()
        super().connection_lost(exc)

    def _sends(self) -> bool:
        """Whether the client may have more of a request to send."""
        more = self._refused or (self.cycle is not None and self.cycle.more_body)
        return more and not self.half_closed

    def shutdown(self) -> None:
        if self.transport.is_closing():
            self.transport.close()
        else:
            super().shutdown()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        self.half_closed = True
        if self.transport.is_closing():
            return None
        if self.cycle is None or self.cycle.response_complete:
            if self._bytes_of_head:
                self._refuse(400, "the connection was closed inside a request's head")
            return None
        self.cycle.keep_alive = False
        self.cycle.message_event.set()
        return True  # the answer can still be written

    def is_reset(self) -> bool:
        """Whether the client refused what was written. asyncio does not look at a connection of
        which nothing more is read. On Windows the next write may be what tells.
        """
        made = self.transport.get_extra_info("socket")
        if self.cycle.disconnected or made is None or made.fileno() < 0:
            return True
        if not hasattr(select, "poll"):
            return bool(made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        look = select.poll()
        look.register(made.fileno(), 0)  # errors alone
        return bool(look.poll(0))

    # ---- reading

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            self._heard = True
            return
        if self._outside_request():
            self._bytes_of_head = True
            if self._head_timer is None:
                self._arm_head(self.limits.header_timeout)
        super().data_received(data)

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: a client that offers another protocol is served in this one. Java's offers
        HTTP/2 with every request, and uvicorn's advice is to install a library of websockets.
        """

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._bytes_of_head = False
            self._disarm_head()

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]
        super().on_response_complete()
        if self._outside_request() and self.conn.trailing_data[0]:
            self._bytes_of_head = True
            self._arm_head(self.limits.header_timeout)
        if self.transport.is_closing():
            self._abort_later()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_later()

    def _outside_request(self) -> bool:
        return self.cycle is None or (
            self.cycle.response_complete and self.conn.their_state is h11.IDLE
        )

    def _arm_head(self, seconds: float) -> None:
        self._disarm_head()
        self._head_timer = self.loop.call_later(seconds, self._head_late)

    def _disarm_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if self.transport.is_closing() or not self._outside_request():
            return
        if self._bytes_of_head:
            self._refuse(408, "the request's head did not come within the time-out")
        else:
            self.transport.close()
            self._abort_later()

    # ---- writing

    def write_piece(self, data: bytes) -> bool:
        """Write a piece of a chunked body without the checks that uvicorn and h11 made of its
        head; False, with nothing written, where there is more to it.
        """
        if (
            not data
            or self.flow.write_paused
            or self.cycle.disconnected
            or self.cycle.scope["method"] == "HEAD"
            or self.conn.our_state is not h11.SEND_BODY
            or self.conn.their_http_version != b"1.1"
        ):
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(
                self.limits.write_timeout, self.transport.abort
            )

    def resume_writing(self) -> None:
        super().resume_writing()
        self._disarm_write()

    def _disarm_write(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _abort_later(self) -> None:
        """End a connection that is being closed: when nothing comes any more, or too much."""
        self._heard = False
        until = self.loop.time() + self.limits.body_timeout
        self.loop.call_later(_LINGER, self._abort_unheard, until)

    def _abort_unheard(self, until: float) -> None:
        if not self._heard or self.loop.time() >= until:
            self.transport.abort()
            return
        self._heard = False
        self.loop.call_later(_LINGER, self._abort_unheard, until)

    # ---- what is no HTTP

    def send_400_response(self, msg: str) -> None:
        held = len(self.conn.trailing_data[0])
        if (
            held > self.limits.header_bytes
            or self.conn.their_state is h11.ERROR
            and _too_large(self)
        ):
            self._refuse(431, f"the request's head is larger than {self.limits.header_bytes} bytes")
        else:
            self._refuse(400, "malformed HTTP request")

    def _refuse(self, status: int, message: str) -> None:
        """Answer with an error and close; nothing more is read."""
        self._disarm_head()
        if self.transport.is_closing():
            return
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            body = json.dumps(ApiError(status, message).openai()).encode()
            head = (
                f"HTTP/1.1 {status} {STATUS_PHRASES[status].decode()}\r\n"
                "content-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._refused = status != 408  # a request that timed out gets no more time
        self.transport.close()
        self._abort_later()


def protocol_class(limits: ServerConfig) -> type[H11Protocol]:
    """The protocol with the limits of a config."""
    return type("LimitedProtocol", (_LimitedProtocol,), {"limits": limits, "outbox": _Outbox()})


def _too_large(protocol: Any) -> bool:
    """Whether a request head was refused for its size."""
    return len(protocol.conn._receive_buffer) > protocol.config.h11_max_incomplete_event_size
