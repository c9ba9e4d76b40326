"""`build_app`: the server as an application of Ray Serve, in as many replicas as are asked for.

client --> Serve's proxy --> Gateway --(PrefixRouter)--> OxillamaReplica   an engine each
                               |                              |
                               reads the body once            SessionLedger: who has which session
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ray import serve
from ray.serve.config import RequestRouterConfig

from oxillama.engine.scheduler import SchedulerConfig
from oxillama.errors import ConfigError
from oxillama.integrations.fingerprint import page_hashes
from oxillama.integrations.ray.config import memory_of
from oxillama.integrations.ray.http import HttpRequest, Message, Route
from oxillama.integrations.ray.ledger import SessionLedger
from oxillama.integrations.ray.prompts import PromptReader, body_of
from oxillama.integrations.ray.replica import REPLICA, OxillamaReplica, sessions_of
from oxillama.integrations.ray.routing import PrefixRouter
from oxillama.server import ServerConfig
from oxillama.server.app import dialect_of
from oxillama.server.errors import ApiError
from oxillama.server.ids import new_id

if TYPE_CHECKING:
    from ray.serve import Application
    from ray.serve.handle import DeploymentHandle

_MANY = 100_000  # requests of actors that only wait and pass on
_LIGHT = {"num_cpus": 0}  # what such actors reserve
# what one replica keeps to itself, and why a request cannot name it where there are several
_OWN = {
    "/v1/load_lora_adapter": "an adapter is loaded by one replica",
    "/v1/unload_lora_adapter": "an adapter is loaded by one replica",
    "/lora-adapters": "an adapter is loaded by one replica",
    "/slots/": "slots are those of one replica, wanted a session",
    "/v1/responses/": "a response is stored by one replica",
}


class Gateway:
    """Takes requests from Serve's proxies and passes each to the replica that suits it best."""

    def __init__(
        self, replicas: DeploymentHandle, config: ServerConfig, *, several: bool, affinity: bool
    ) -> None:
        """several: whether there may be more than one replica. affinity: whether prompts are read
        to find out who holds them.
        """
        self._replicas = replicas.options(stream=True)
        self._config, self._several = config, several
        self._prompts = PromptReader(config) if affinity and several else None

    def __serve_build_asgi_app__(self) -> Callable[..., Any]:
        """The application, as a function: what is a bound method is taken for an older ASGI."""

        async def application(scope: Message, receive: Any, send: Any) -> None:
            await self._serve(scope, receive, send)

        return application

    async def _serve(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        if scope["type"] != "http":
            return
        try:
            request = HttpRequest.of(scope, await self._body(receive))
            route = await self._route(request)
        except ApiError as error:
            form = error.body(dialect_of(scope["path"]), new_id("req_"))
            body = json.dumps(form).encode()
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": error.status, "headers": headers})
            await send({"type": "http.response.body", "body": body, "more_body": False})
            return
        answer = self._replicas.answer.remote(request, route)
        left = asyncio.ensure_future(_left(receive))
        work = asyncio.ensure_future(_passed_on(answer, send))
        try:
            await asyncio.wait((left, work), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for each in (left, work):
                each.cancel()
            await asyncio.gather(left, work, return_exceptions=True)
            answer.cancel()

    async def _body(self, receive: Callable[..., Any]) -> bytes:
        """All of a body, or a byte more than may be, which is refused where it is answered."""
        config = self._config
        most = max(config.body_bytes, config.image_body_bytes)
        parts, size = [], 0
        try:
            async with asyncio.timeout(config.body_timeout):
                while size <= most:
                    message = await receive()
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise ApiError(
                408,
                f"body: was not complete within {config.body_timeout:g} seconds",
                code="timeout",
            ) from None
        return b"".join(parts)[: most + 1]

    async def _route(self, request: HttpRequest) -> Route:
        """Where a request wants to go; ApiError for one that only a certain replica could
        answer.
        """
        names = sessions_of(request)
        replica = request.header(REPLICA.decode()) or None
        if self._several:
            self._check(request, names, replica)
        if self._prompts is None or request.method != "POST" or names:
            return Route((), names[0] if names else None, replica)
        return Route(await asyncio.to_thread(self._pages, request), None, replica)

    def _check(self, request: HttpRequest, names: list[str], replica: str | None) -> None:
        if names and self._config.sessions_dir is None:
            raise ApiError(
                400,
                "session: several replicas serve here and share no folder, wanted sessions_dir",
                param="session",
                code="sessions_not_shared",
            )
        if replica is not None:
            return  # it is the one
        counts = request.path == "/v1/responses/input_tokens"
        own = {} if counts else _OWN
        why = next((why for path, why in own.items() if request.path.startswith(path)), None)
        if why is not None and (request.method != "GET" or request.path.startswith("/v1/resp")):
            raise ApiError(
                400,
                f"{request.path}: {why}, and several serve here; wanted x-oxillama-replica to name "
                "it",
                code="several_replicas",
            )
        reads = counts or request.path == "/v1/responses"
        if reads and body_of(request.body).get("previous_response_id"):
            raise ApiError(
                400,
                "previous_response_id: a response is stored by one replica, and several serve "
                "here; wanted the conversation as input, or x-oxillama-replica",
                param="previous_response_id",
                code="several_replicas",
            )
        if request.path == "/v1/messages" and body_of(request.body).get("thread") is not None:
            # by this code Anthropic's client goes on without a thread
            raise ApiError(
                400,
                "thread: is stored by one replica, and several serve here; wanted the conversation "
                "as messages, or x-oxillama-replica",
                param="thread",
                code="thread_unsupported_request",
            )

    def _pages(self, request: HttpRequest) -> tuple[bytes, ...]:
        if self._prompts is None:
            return ()
        return page_hashes(self._prompts.ids(request.path, body_of(request.body)))


async def _passed_on(answer: Any, send: Callable[..., Any]) -> None:
    async for messages in answer:
        for each in messages:
            await send(each)


async def _left(receive: Callable[..., Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _lifespan(receive: Callable[..., Any], send: Callable[..., Any]) -> None:
    for _ in range(2):
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})


def build_app(
    *,
    model: str | None = None,
    replicas: int | tuple[int, int] = 1,
    num_threads: int = 1,
    memory: int | None = None,
    gateways: int = 1,
    target_queue: int = 8,
    overload: int = 8,
    prefix_routing: bool = True,
    publish_seconds: float = 2.0,
    sessions_dir: str | None = None,
    save_sessions: Literal["drain", "reply"] = "drain",
    hand_over_seconds: float = 30.0,
    drain_seconds: float = 60.0,
    scale_up_seconds: float = 30.0,
    scale_down_seconds: float = 600.0,
    engine: Mapping[str, object] | None = None,
    server: Mapping[str, object] | None = None,
) -> Application:
    """An application for `serve.run`, with all routes of `oxillama serve`.

    Engines:

    - `model`: a GGUF file that every machine sees, None for the embedded one.
    - `engine`: keyword arguments of `oxillama.load`.
    - `server`: fields of `ServerConfig`.
    - `replicas`: the number of engines, or (least, most): as many as keep about `target_queue`
      requests in each.
    - `scale_up_seconds`, `scale_down_seconds`: how long the queues must have been longer or shorter
      before Serve starts or ends a replica.
    - `num_threads`: of an engine, and the CPUs that Ray reserves for it.
    - `memory`: bytes that Ray reserves for it (None: as in `OxillamaProcessorConfig`).

    Routing:

    - `gateways`: actors that take requests from Serve's proxies.
    - `prefix_routing`: send a request to the replica whose prefix cache holds most of its prompt,
      unless that one has `overload` more requests than another. False is Serve's own router.
    - `publish_seconds`: how often a replica says what it holds.

    Sessions:

    - `sessions_dir`: a folder that all machines see, through which named sessions move. Several
      replicas without one refuse sessions.
    - `save_sessions`: "drain" saves a session when it moves and when its replica ends, "reply" also
      before the end of each answer is sent.
    - `hand_over_seconds`: how long a request waits for a session that another replica is using.
    - `drain_seconds`: how long a replica that is to end may finish its answers.
    """
    least, most = (replicas, replicas) if isinstance(replicas, int) else replicas
    _check_counts(
        replicas=least, num_threads=num_threads, gateways=gateways, target_queue=target_queue
    )
    if most < least:
        raise ConfigError(f"replicas: found {replicas!r}, wanted (least, most)")
    if save_sessions not in ("drain", "reply"):
        raise ConfigError(f"save_sessions: found {save_sessions!r}, wanted 'drain' or 'reply'")
    if save_sessions == "reply" and sessions_dir is None:
        raise ConfigError("save_sessions: found 'reply' without sessions_dir, wanted both")
    config = _server_config(
        server or {},
        model=model,
        sessions_dir=sessions_dir,
        engine={**(engine or {}), "num_threads": num_threads},
    )
    several = most > 1
    reserved = memory if memory is not None else memory_of(model)
    scaled: dict[str, Any] = {"num_replicas": least}
    if most > least:
        scaled = {
            "autoscaling_config": {
                "min_replicas": least,
                "max_replicas": most,
                "target_ongoing_requests": target_queue,
                "upscale_delay_s": scale_up_seconds,
                "downscale_delay_s": scale_down_seconds,
            }
        }
    if prefix_routing and several:
        scaled["request_router_config"] = _prefix_router(overload, publish_seconds)
    # Serve's own lines, one for each request in each actor, beside those of the server's log
    logging = {"enable_access_log": config.log_requests}
    replica = serve.deployment(
        name="OxillamaReplica",
        ray_actor_options={
            "num_cpus": num_threads,
            **({} if reserved is None else {"memory": reserved}),
        },
        max_ongoing_requests=_rows(config) + config.max_queue,
        graceful_shutdown_timeout_s=drain_seconds,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=10,
        logging_config=logging,
        **scaled,
    )(OxillamaReplica)
    gateway = serve.deployment(
        name="Gateway",
        num_replicas=gateways,
        ray_actor_options=_LIGHT,
        max_ongoing_requests=_MANY,
        logging_config=logging,
    )(serve.ingress()(Gateway))
    made = replica.bind(
        config,
        _ledger(sessions_dir) if several and sessions_dir is not None else None,
        save_sessions=save_sessions,
        hand_over_seconds=hand_over_seconds,
    )
    return gateway.bind(made, config, several=several, affinity=prefix_routing)


def _check_counts(**counts: object) -> None:
    """ConfigError for what is no number of things."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name}: found {value!r}, wanted an integer of 1 or more")


def _server_config(server: Mapping[str, object], **own: object) -> ServerConfig:
    """The config of the fields in `server` and of the arguments of `build_app` that are fields."""
    for name in own:
        if name in server:
            raise ConfigError(f"server: found {name} in it, wanted it as an argument of its own")
    return ServerConfig.of({**server, **own})


def _prefix_router(overload: int, publish_seconds: float) -> RequestRouterConfig:
    """Serve's settings for the router that knows what each replica holds."""
    given: dict[str, Any] = {
        "request_router_class": f"{PrefixRouter.__module__}.{PrefixRouter.__name__}",
        "request_router_kwargs": {"overload": overload},
        "request_routing_stats_period_s": publish_seconds,
    }
    return RequestRouterConfig(**given)


def _rows(config: ServerConfig) -> int:
    """Sequences that run at once in a replica."""
    scheduler = config.engine.get("scheduler") or SchedulerConfig()
    return scheduler.max_sequences if isinstance(scheduler, SchedulerConfig) else 32


def _ledger(sessions_dir: str) -> Application:
    """The actor that knows which replica has which session."""
    made: Application = serve.deployment(
        name="SessionLedger", ray_actor_options=_LIGHT, max_ongoing_requests=_MANY
    )(SessionLedger).bind(str(sessions_dir))
    return made


def app(args: dict[str, str]) -> Application:
    """The application that `serve run oxillama.integrations.ray:app NAME=VALUE ...` runs: arguments
    of `build_app` (`replicas=2`, `replicas=1-4`), `api_key_file` for a file of keys, one a line;
    other names are fields of `ServerConfig`.
    """
    known: dict[str, Callable[[str], Any]] = {
        "model": str,
        "replicas": _replicas,
        "num_threads": int,
        "memory": int,
        "gateways": int,
        "target_queue": int,
        "overload": int,
        "prefix_routing": _switch,
        "publish_seconds": float,
        "sessions_dir": str,
        "save_sessions": str,
        "hand_over_seconds": float,
        "drain_seconds": float,
        "scale_up_seconds": float,
        "scale_down_seconds": float,
    }
    given: dict[str, Any] = {}
    server: dict[str, object] = {}
    for name, value in args.items():
        try:
            if name in known:
                given[name] = known[name](str(value))
            elif name == "api_key_file":
                server["api_keys"] = _keys(value)
            elif name == "allowed_hosts":
                server[name] = tuple(value.split(","))
            else:
                server[name] = _field(name, value)
        except ValueError:
            raise ConfigError(f"{name}: found {value!r}, wanted a value of another form") from None
    return build_app(**given, server=server)


def _replicas(value: str) -> int | tuple[int, int]:
    least, dash, most = value.partition("-")
    return (int(least), int(most)) if dash else int(least)


def _field(name: str, value: str) -> object:
    """A field of `ServerConfig` from text, by the kind of its default."""
    default = next((each.default for each in fields(ServerConfig) if each.name == name), None)
    if isinstance(default, bool):
        return _switch(value)
    return type(default)(value) if isinstance(default, (int, float)) else value


def _keys(path: str) -> tuple[str, ...]:
    """The keys of a file, one a line; an argument would stand in the configuration for all to
    read.
    """
    try:
        found = tuple(line.strip() for line in Path(path).read_text("utf-8").splitlines())
    except OSError as error:
        raise ConfigError(f"api_key_file: {path} cannot be read: {error.strerror}") from None
    if not any(found):
        raise ConfigError(f"api_key_file: {path} holds no key, wanted one a line")
    return tuple(filter(None, found))


def _switch(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError(value)
    return value.lower() == "true"
