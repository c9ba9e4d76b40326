"""The server as a process. It listens before the model is loaded, finishes running requests when it
is asked to end, and exits with 0. If the model that it was given cannot be loaded, it ends with an
error.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import uvicorn

from oxillama.errors import ConfigError, EngineError
from oxillama.server.app import App
from oxillama.server.logs import BackgroundStream, Log
from oxillama.server.protocol import protocol_class
from oxillama.server.settings import ServerConfig

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_FILES = 128  # descriptors that are no connections: models, sessions, what reads them
_SWITCH = (
    0.0003  # seconds that Python work in one thread may keep the event loop, or the engine, waiting
)


class Server(uvicorn.Server):
    """uvicorn's server of an `App`. It ends if the given model cannot be loaded at the start. An
    end by a signal is not a failure, and while nothing happens it wakes up once a second instead of
    ten times, because a wake-up takes a core from the engine.
    """

    def __init__(self, app: App, *, started: Callable[[], None] = lambda: None) -> None:
        """started: called once connections are taken, and signals end the server in order."""
        super().__init__(uvicorn_config(app))
        self._state, self._on_started = app.state, started
        self._told: dict[str, float] = {}  # when each error of the loop was last logged

    _loop: asyncio.AbstractEventLoop | None = None
    _exit: asyncio.Event | None = None  # set when the server is to end
    _should_exit = False

    @property  # type: ignore[override]
    def should_exit(self) -> bool:
        """Whether the server must end; set from any thread, or in a signal handler."""
        return self._should_exit

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        self._should_exit = value
        if value and self._loop is not None and self._exit is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._exit.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections."""
        await super().startup(sockets)
        self._on_started()

    async def main_loop(self) -> None:
        """Run until the server must end; the date in its answers is that of the last tick."""
        self._loop, self._exit = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(self._tell)
        self._state.on_unusable = self._end
        if self._state.unusable is not None:  # already, while the server started
            self._end()
        tick = 0
        while not await self.on_tick(tick):
            tick += 10  # of uvicorn's, which are tenths of a second
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._exit.wait()

    def _end(self) -> None:
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """As uvicorn's; a second SIGINT also drops the connections, whose end a server waits for
        from Python 3.12 on.
        """
        super().handle_exit(sig, frame)
        if self.force_exit and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._drop)

    def _drop(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def _tell(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """One line of the log for what asyncio has no caller to raise to, once a second for each
        message: where no connection can be accepted it comes thousands of times.
        """
        message, error, now = (
            str(context.get("message")),
            context.get("exception"),
            time.monotonic(),
        )
        if now - self._told.get(message, -1.0) < 1.0:
            return
        self._told[message] = now
        trace = traceback.format_exception(error)[-6:] if error is not None else None
        self._state.log.event("http", message=message, **({"trace": trace} if trace else {}))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGINT, SIGTERM and the SIGHUP of a terminal that is closed end the server in order, a
        second SIGINT at once. Outside the main thread there are no signals, and `should_exit` ends
        it.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in _ending()}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def _ending() -> list[signal.Signals]:
    """The signals that end the server; one that nohup ignores stays ignored."""
    found = [signal.SIGINT, signal.SIGTERM]
    # of Windows the latter: Ctrl-Break, which another process may send
    for name in ("SIGHUP", "SIGBREAK"):
        each = getattr(signal, name, None)
        if each is not None and signal.getsignal(each) is not signal.SIG_IGN:
            found.append(each)
    return found


def listen(config: ServerConfig) -> socket.socket:
    """A bound socket; ConfigError if the address is in use or invalid."""
    host = config.host.strip("[]")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, proto)
        try:
            # on Windows SO_REUSEADDR would let two servers have one address
            alone = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR if alone is None else alone, 1)
            made.bind(address)
            made.listen(2048)
        except BaseException:
            made.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"host, port: {config.host}:{config.port} cannot be listened to: {error.strerror}"
        ) from error
    made.setblocking(False)
    return made


def fit_connections(config: ServerConfig) -> ServerConfig:
    """The config with as many connections as the system gives descriptors for, beside those of
    models and sessions; this process's limit is raised as far as it may be. ConfigError if more
    were asked for; the default becomes less.
    """
    if resource is None:
        return config
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.max_connections + _FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return config
    more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        soft = more
    if soft >= wanted:
        return config
    most = max(soft - _FILES, soft // 2, 1)
    if config.max_connections != ServerConfig().max_connections:
        raise ConfigError(
            f"max_connections: found {config.max_connections}, wanted at most {most}: the system "
            f"allows this process {soft} open files (ulimit -n)"
        )
    return replace(config, max_connections=most)


class _Handler(logging.Handler):
    """uvicorn's own messages as lines of our log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        trace = traceback.format_exception(record.exc_info[1])[-6:] if record.exc_info else None
        self._log.event("http", message=record.getMessage(), **({"trace": trace} if trace else {}))


def _take_messages(log: Log) -> None:
    logger = logging.getLogger("uvicorn")
    logger.handlers, logger.propagate = [_Handler(log)], False


def uvicorn_config(app: App) -> uvicorn.Config:
    """uvicorn's settings: its own log and server header off, our protocol."""
    config = app.config
    return uvicorn.Config(
        app,
        http=protocol_class(config),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=config.idle_timeout,  # type: ignore[arg-type]  # as call_later takes
        timeout_graceful_shutdown=config.grace,  # type: ignore[arg-type]  # seconds, as wait_for takes
        h11_max_incomplete_event_size=config.header_bytes,
        backlog=2048,
    )


def _in_background() -> Any:
    """The standard error stream without waiting for its reader; None if it is no file, or if a
    program has put a stream of its own there.
    """
    stderr = sys.__stderr__
    if stderr is None or sys.stderr is not stderr:
        return None
    try:
        return BackgroundStream(stderr.fileno())
    except (AttributeError, OSError, ValueError):
        return None


def serve(config: ServerConfig, *, stream: TextIO | None = None) -> int:
    """Serve until a signal ends it, logging to a stream (stderr); returns the exit code. Raises
    ConfigError if there is no model's file, or the address cannot be listened to, and EngineError
    if the given model cannot be loaded, or a session cannot be saved at the end.
    """
    if config.model is not None and not Path(config.model).is_file():
        raise ConfigError(f"model: {config.model} is not a file, wanted a GGUF file")
    background = None if stream is not None else _in_background()
    log = Log(background or stream, prompts=config.log_prompts, requests=config.log_requests)
    config = fit_connections(config)
    app = App(config, log=log)
    listening = listen(config)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host

    def started() -> None:
        with contextlib.suppress(OSError):  # nobody reads it, or the disk is full
            print(f"oxillama: listening on http://{shown}:{port}", file=sys.stderr, flush=True)
        log.event("listening", host=host, port=port, max_connections=config.max_connections)
        if not app.state.models.known():
            log.event("no_models", message=app.state.models.none_there)

    _take_messages(log)
    sys.setswitchinterval(_SWITCH)
    gc.freeze()
    try:
        Server(app, started=started).run(sockets=[listening])
        log.event("stopped")
    finally:
        if background is not None:
            background.close()
    if app.state.unusable is not None:
        raise EngineError(f"the model cannot be loaded: {app.state.unusable}")
    if app.state.lost:
        more = f"; {len(app.state.lost) - 1} more, see the log" if len(app.state.lost) > 1 else ""
        raise EngineError(f"{app.state.lost[0]}{more}")
    return 0
