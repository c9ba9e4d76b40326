"""The server's log: one JSON object a line on the standard error stream; no text of a prompt or an
answer unless asked for. With OpenTelemetry's API installed each request is a span, too.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
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


class Log:
    """Writes lines; safe to use from any thread. A stream that is gone is no error."""

    def __init__(
        self, stream: TextIO | None = None, *, prompts: bool = False, requests: bool = True
    ) -> None:
        self._stream, self.prompts, self.requests = stream, prompts, requests
        self._lock = threading.Lock()

    def event(self, name: str, **fields: Any) -> None:
        """One line."""
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e3):03d}Z"
        line = json.dumps({"time": stamp, "event": name, **fields}, default=str)
        try:
            with self._lock:
                stream = self._stream or sys.stderr
                stream.write(line + "\n")
                stream.flush()
        except (OSError, ValueError):
            pass

    def request(self, **fields: Any) -> None:
        """The line of one request."""
        if self.requests:
            self.event("request", **fields)


class BackgroundStream:
    """Writes to a file descriptor from a thread of its own, so that nobody waits for a reader of
    the log. What does not fit into the queue is dropped, and the log says how many lines.
    """

    def __init__(self, descriptor: int, most: int = 4096) -> None:
        self._descriptor, self._dropped = descriptor, 0
        self._lines: queue.Queue[str | None] = queue.Queue(most)
        self._thread = threading.Thread(target=self._run, name="oxillama-log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line; called by one thread at a time."""
        try:
            if self._dropped:
                told = json.dumps({"event": "log_dropped", "lines": self._dropped}) + "\n"
                self._lines.put_nowait(told)
                self._dropped = 0
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def flush(self) -> None:
        """Nothing: the thread writes line by line."""

    def close(self, seconds: float = 1.0) -> None:
        """Give what is queued so long to be written."""
        try:
            self._lines.put(None, timeout=seconds)
        except queue.Full:
            return
        self._thread.join(seconds)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            left = line.encode()
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
