"""The server as one ASGI application: from a request to its route and back, with keys, limits,
headers and a log line.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Unpack

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from oxillama.arguments import spelled
from oxillama.server import hints
from oxillama.server.calls import LARGE, Call, ClientGone, Route, dumps, json_response
from oxillama.server.errors import ApiError, from_engine, shutting_down
from oxillama.server.forms import boundary_of, fields_of, without_files
from oxillama.server.ids import new_id
from oxillama.server.logs import Log, annotate, span
from oxillama.server.options import COMPILED
from oxillama.server.routes import PATHS, Table
from oxillama.server.schema import check, check_body
from oxillama.server.settings import ServerConfig, ServerOptions
from oxillama.server.state import ServerState

_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "content-security-policy": "default-src 'self'",
}
_SAFE = ("GET", "HEAD", "OPTIONS")
_CORS_HEADERS = ("authorization", "content-type", "x-api-key")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")  # the name of a header field


class App:
    """The application; `state` is what its requests share."""

    def __init__(self, config: ServerConfig, *, log: Log | None = None) -> None:
        self.config, self.state, self._table = config, ServerState(config, log=log), Table()
        self._hosts = config.hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets: the server closes the connection
        await self._serve(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self, outer: Any = None) -> AsyncIterator[None]:
        """Starts and ends what requests share. An application that mounts this one has to do so,
        because servers tell only the outer one when they start and end:
        `FastAPI(lifespan=app.lifespan)`.
        """
        await self.state.start()
        try:
            yield
        finally:
            await self.state.stop()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            try:
                message = await receive()
            except asyncio.CancelledError:  # of a server that ends at once, by a second SIGINT
                return
            if message["type"] == "lifespan.startup":
                try:
                    await self.state.start()
                except BaseException as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    raise
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.state.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        path, method = _path_of(scope), scope["method"]
        methods, params = self._table.find(path)
        wanted = "GET" if method == "HEAD" else method
        route = methods.get(wanted)
        dialect = next(iter(methods.values())).dialect if methods else dialect_of(path)
        if route is not None:
            dialect = route.dialect
        if path.startswith("/v1/models") and "anthropic-version" in request.headers:
            dialect = "anthropic"  # OpenAI and Anthropic have the same paths for models
        call = Call(self.state, request, id=new_id("req_"), dialect=dialect, params=params)
        status, began = 0, 0.0  # of the response, once it has begun

        async def counted(message: Any) -> None:
            nonlocal status, began
            if message["type"] == "http.response.start":
                status, began = message["status"], time.perf_counter()
                message = {**message, "headers": self._headed(message["headers"], call)}
            await send(message)

        with span(f"{method} {route.path if route else 'unknown'}") as current:
            try:
                response = await self._answer(call, route, methods, wanted)
                await response(scope, receive, counted)
            except asyncio.CancelledError:
                # the time that the end of the server leaves to what runs is over
                call.log_fields["cut"] = True
                if not status:
                    await self._error(call, shutting_down())(scope, receive, counted)
            except ClientGone as gone:
                self.state.disconnects += 1
                call.log_fields["disconnected"] = True
                if not status:
                    status = 499
                    if gone.half:
                        error = ApiError(
                            400,
                            "the connection's sending side was closed before the answer was ready",
                            code="client_closed_request",
                            headers={"Connection": "close"},
                        )
                        await self._error(call, error)(scope, receive, counted)
            finally:
                fields = {
                    "id": call.id,
                    "method": method,
                    "path": path,
                    "route": route.path if route else None,
                    "status": status,
                    "ms": round((time.perf_counter() - call.received) * 1e3, 2),
                    **({"head_ms": round((began - call.received) * 1e3, 2)} if began else {}),
                    **({"key": call.key} if call.key else {}),
                    **call.log_fields,
                }
                if self.state.log.prompts and call.body:
                    fields["body"] = call.body
                self.state.requests_total[route.path if route else "", str(status)] += 1
                annotate(current, fields)
                self.state.log.request(**fields)

    async def _answer(
        self, call: Call, route: Route | None, methods: dict[str, Route], method: str
    ) -> Response:
        """The answer of a request, including any error before its first byte."""
        try:
            self._check_head(call)
            self._check_origin(call, method)
            if method == "OPTIONS" and methods:
                return self._options(call, methods)
            if not (route is not None and route.open):
                self._check_key(call, route)
            if route is None:
                raise _unrouted(call, methods, method)
            if not self.state.started:
                raise ApiError(
                    503,
                    "server: was not started; the application that mounts it runs its `lifespan`, "
                    "as FastAPI(lifespan=app.lifespan) does",
                    code="not_started",
                )
            if route.body is not None:
                await self._take_body(call, route)
            return await route.handler(call)
        except ClientGone:
            raise
        except Exception as error:
            wrong = from_engine(error)
            if wrong.status >= 500:
                call.log_fields["error"] = wrong.message
                if not isinstance(error, ApiError):
                    import traceback

                    self.state.log.event(
                        "error", id=call.id, trace=traceback.format_exception(error)[-6:]
                    )
            if (
                call.request.headers.get("content-length", "0") != "0"
                or ("transfer-encoding" in call.request.headers)
            ) and not call.whole:
                # what is left of the body is not read
                wrong.headers.setdefault("Connection", "close")
            return self._error(call, wrong)

    async def _take_body(self, call: Call, route: Route) -> None:
        config, headers = self.config, call.request.headers
        # images and audio are only for a server that takes them
        takes = route.images and (
            config.engine.get("mmproj")
            or any(model.sees or model.hears for model in self.state.models.loaded())
        )
        limit = config.image_body_bytes if takes else config.body_bytes
        if (
            route.optional
            and headers.get("content-length", "0") == "0"
            and ("transfer-encoding" not in headers)
        ):
            return
        schema = route.body or {}
        if route.form:
            boundary = boundary_of(headers.get("content-type", ""))
            data = await call.read(limit=limit)
            call.size = len(data)
            call.body = fields_of(data, boundary, schema)
            check_body(without_files(call.body), schema)
            return
        _check_kind(headers.get("content-type", ""))
        listed = schema.get("type") == "array"
        body = await call.read_json(limit=limit, kind=list if listed else dict)
        args = (body, schema, "") if listed else (body, schema)
        checking = check if listed else check_body
        if call.size > LARGE:
            await call.offload(checking, *args)
        else:
            checking(*args)
        call.body = {"list": body} if listed else body
        if call.size > config.schema_bytes and not listed:
            await call.offload(_check_compiled, body, config.schema_bytes)

    # ---- who may ask

    def _check_head(self, call: Call) -> None:
        """Raise 431 for a request head that is too large."""
        scope = call.request.scope
        if scope["http_version"] not in ("1.0", "1.1"):
            raise ApiError(
                400,
                f"HTTP version: found {scope['http_version'][:10]}, wanted 1.0 or 1.1",
                headers={"Connection": "close"},
            )
        names = [name for name, _ in scope["headers"]]
        if b"transfer-encoding" in names and b"content-length" in names:
            # two readers of one connection may not agree where the body ends
            raise ApiError(
                400,
                "headers: found content-length and transfer-encoding, wanted one of them",
                headers={"Connection": "close"},
            )
        size = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > self.config.header_bytes:
            raise ApiError(
                431,
                f"headers: {size} bytes, wanted at most {self.config.header_bytes}",
                code="headers_too_large",
                headers={"Connection": "close"},
            )

    def _check_key(self, call: Call, route: Route | None) -> None:
        """Raise 401 unless the request has one of the keys, as a bearer token, as X-Api-Key, or as
        the password of basic authentication (browsers).
        """
        if not self.config.api_keys:
            return
        headers = call.request.headers
        given = []
        scheme, _, rest = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given.append(rest.strip())
        elif scheme.lower() == "basic":
            try:
                decoded = base64.b64decode(rest.strip(), validate=True).decode("utf-8")
                given.append(decoded.partition(":")[2])
            except (binascii.Error, UnicodeDecodeError, ValueError):
                pass
        if "x-api-key" in headers:
            given.append(headers["x-api-key"])
        key = self.state.key_of(given)
        if key is None:
            browser = route is not None and route.media == "text/html"
            raise ApiError(
                401,
                "the API key is not one of the server's" if given else "an API key is required",
                code="invalid_api_key",
                headers={"WWW-Authenticate": 'Basic realm="oxillama"' if browser else "Bearer"},
            )
        call.key = key

    def _check_origin(self, call: Call, method: str) -> None:
        """Raise 403 for a page of another site, and for a host name that is not the server's."""
        headers = call.request.headers
        host = headers.get("host", "")
        name = host.rsplit(":", 1)[0].lower() if not host.endswith("]") else host.lower()
        hosts = self._hosts
        if hosts is not None and host and name not in hosts:
            raise ApiError(
                403,
                f"host: found {name[:60]!r}, wanted one of {', '.join(sorted(hosts))}",
                code="host_not_allowed",
            )
        origin = headers.get("origin")
        if origin is None or method in _SAFE or self._allowed(origin):
            return
        if origin.lower().partition("://")[2] != host.lower():
            raise ApiError(
                403, f"origin: {origin[:80]!r} is not allowed", code="origin_not_allowed"
            )

    def _allowed(self, origin: str) -> bool:
        return origin in self.config.cors_origins or "*" in self.config.cors_origins

    def _options(self, call: Call, methods: dict[str, Route]) -> Response:
        """The answer to OPTIONS, including preflight requests."""
        allow = _allow(methods)
        headers = {"allow": allow}
        origin = call.request.headers.get("origin")
        if origin is not None and self._allowed(origin):
            headers["access-control-allow-methods"] = allow
            # whatever is asked for: clients in browsers send fields of their own (x-stainless-*)
            asked = call.request.headers.get("access-control-request-headers", "").lower()
            names = dict.fromkeys(
                [*_CORS_HEADERS, *filter(_TOKEN.fullmatch, map(str.strip, asked.split(",")))]
            )
            headers["access-control-allow-headers"] = ", ".join(names)
            headers["access-control-max-age"] = "600"
        return Response(status_code=204, headers=headers)

    # ---- what goes back

    def _headed(self, headers: list[tuple[bytes, bytes]], call: Call) -> list[tuple[bytes, bytes]]:
        """The headers of every answer."""
        present = {name.lower() for name, _ in headers}
        more = {**_HEADERS, "x-request-id": call.id}
        if call.dialect == "anthropic":
            more["request-id"] = call.id
        if self.config.cors_origins:
            more["vary"] = "Origin"
            origin = call.request.headers.get("origin")
            if origin is not None and self._allowed(origin):
                any_one = "*" in self.config.cors_origins
                more["access-control-allow-origin"] = "*" if any_one else origin
                more["access-control-expose-headers"] = "x-request-id, retry-after"
        return [
            *headers,
            *(
                (name.encode(), value.encode("latin-1"))
                for name, value in more.items()
                if name.encode() not in present
            ),
        ]

    def _error(self, call: Call, error: ApiError) -> Response:
        return json_response(error.body(call.dialect, call.id), error.status, error.headers)


# what programs that send JSON send by default; "" is nothing at all
_UNSAID = ("", "application/x-www-form-urlencoded")


def _check_kind(given: str) -> None:
    """Raise 415 for a body whose Content-Type is not JSON in UTF-8."""
    kind, *more = (each.strip().lower() for each in given.split(";"))
    if kind not in (*_UNSAID, "application/json", "text/json") and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        raise ApiError(415, f"content-type: found {kind[:40]!r}, wanted application/json")
    for each in more:
        name, _, value = each.partition("=")
        if name == "charset" and value.strip('"') not in ("utf-8", "utf8", "us-ascii"):
            raise ApiError(415, f"content-type: found charset {value[:20]!r}, wanted utf-8")


def _check_compiled(body: Mapping[str, Any], limit: int) -> None:
    """Raise 400 for a schema, a grammar or tools of more than `limit` bytes, because compiling
    them, and their masks, would delay all requests.
    """
    for name in COMPILED & body.keys():
        size = len(dumps(body[name]))
        if size > limit:
            raise ApiError(
                400,
                f"{name}: found {size} bytes, wanted at most {limit}",
                param=name,
                code="schema_too_large",
            )


def _path_of(scope: Scope) -> str:
    """The path of a request below the one where an application mounts this one, also from an
    absolute URI whose host is the one in `Host`.
    """
    path: str = scope["path"]
    above: str = scope.get("root_path", "")
    if above and (path + "/").startswith(above + "/"):
        return path[len(above) :] or "/"
    scheme, found, rest = path.partition("://")
    if not found or scheme.lower() not in ("http", "https"):
        return path
    host, slash, after = rest.partition("/")
    named = next((value for name, value in scope["headers"] if name == b"host"), b"")
    return slash + after if host.encode("utf-8", "replace") == named and slash else path


def dialect_of(path: str) -> str:
    """Whose form an error of a path has that no route gives another."""
    if path.startswith("/v1/messages"):
        return "anthropic"
    return "ollama" if path.startswith("/api/") else "openai"


def _allow(methods: dict[str, Route]) -> str:
    """The methods of a path, as `Allow` lists them."""
    return ", ".join(sorted({*methods, "OPTIONS", *(("HEAD",) if "GET" in methods else ())}))


def _unrouted(call: Call, methods: dict[str, Route], method: str) -> ApiError:
    if methods:
        allow = _allow(methods)
        return ApiError(
            405,
            f"{method[:20]}: is not a method of this path, wanted one of {allow}",
            code="method_not_allowed",
            headers={"Allow": allow},
        )
    path = _path_of(call.request.scope)
    hint = hints.of_path(path, PATHS)
    return ApiError(404, f"path: {path[:100]!r} is unknown{hint}", code="not_found")


@spelled
def create_app(config: ServerConfig | None = None, **options: Unpack[ServerOptions]) -> App:
    """The application of a config, or of its options."""
    return App(config if config is not None else ServerConfig.of(options))
