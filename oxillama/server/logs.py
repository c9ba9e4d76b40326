"""The server's log: one JSON object a line on the standard error stream; no text of a prompt or an
answer unless asked for. With OpenTelemetry's API installed each request is a span, too.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

try:
    import opentelemetry.trace as _trace
except ImportError:
    _trace = None  # type: ignore[assignment]

_SPAN_NAMES = {
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "status": "http.response.status_code",
    "method": "http.request.method",
    "route": "http.route",
}


def _line(name: str, fields: dict[str, Any]) -> str:
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e3):03d}Z"
    return json.dumps({"time": stamp, "event": name, **fields}, default=str) + "\n"


class Log:
    """Writes lines; safe to use from any thread. A stream that is gone is no error."""

    def __init__(
        self,
        stream: TextIO | BackgroundStream | None = None,
        *,
        prompts: bool = False,
        requests: bool = True,
    ) -> None:
        self._stream, self.prompts, self.requests = stream, prompts, requests
        self._lock = threading.Lock()

    def event(self, name: str, **fields: Any) -> None:
        """One line."""
        line = _line(name, fields)
        try:
            with self._lock:
                stream = self._stream or sys.stderr
                stream.write(line)
                stream.flush()
        except (OSError, ValueError):
            pass

    def request(self, **fields: Any) -> None:
        """The line of one request."""
        if self.requests:
            self.event("request", **fields)


class BackgroundStream:
    """Writes to a file descriptor from a thread of its own, so that nobody waits for a reader of
    the log. Lines that would make the queue longer than `most` lines or `most_bytes` bytes are
    dropped; a line in their place says how many.
    """

    def __init__(self, descriptor: int, most: int = 4096, most_bytes: int = 16 << 20) -> None:
        self._descriptor, self._most, self._most_bytes = descriptor, most, most_bytes
        self._lines: deque[bytes] = deque()
        self._bytes = self._dropped = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="oxillama-log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line, or count it as dropped; safe to call from any thread."""
        given = line.encode()
        with self._changed:
            full = len(self._lines) >= self._most or self._bytes + len(given) > self._most_bytes
            if full and self._lines:
                self._dropped += 1
                return
            self._tell_dropped()
            self._put(given)

    def flush(self) -> None:
        """Nothing: the thread writes line by line."""

    def close(self, seconds: float = 1.0) -> None:
        """Give what is queued so long to be written."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)

    def _put(self, line: bytes) -> None:
        self._lines.append(line)
        self._bytes += len(line)
        self._changed.notify()

    def _tell_dropped(self) -> None:
        if self._dropped:
            self._put(_line("log_dropped", {"lines": self._dropped}).encode())
            self._dropped = 0

    def _next(self) -> bytes | None:
        """The next line; None when the stream is closed and all is written."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._dropped or self._closed)
            if not self._lines:
                self._tell_dropped()
            if not self._lines:
                return None
            line = self._lines.popleft()
            self._bytes -= len(line)
            return line

    def _run(self) -> None:
        while (left := self._next()) is not None:
            try:
                # not sys.stderr, whose lock a blocked write would hold at the interpreter's end
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:  # nobody reads it, or the disk is full
                pass


@contextmanager
def span(name: str) -> Iterator[Any]:
    """An OpenTelemetry span over a request; None where its API is not installed."""
    if _trace is None:
        yield None
        return
    with _trace.get_tracer("oxillama.server").start_as_current_span(name) as current:
        yield current


def annotate(current: Any, fields: dict[str, Any]) -> None:
    """Put what the log says of a request on its span."""
    if current is not None and current.is_recording():
        for name, value in fields.items():
            if isinstance(value, (str, int, float, bool)):
                current.set_attribute(_SPAN_NAMES.get(name, f"oxillama.{name}"), value)
