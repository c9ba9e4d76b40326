"""The server's log: one JSON object a line on the standard error stream; no text of a prompt or an
answer unless asked for. With OpenTelemetry's API installed each request is a span, too.
"""

from __future__ import annotations

import json
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
