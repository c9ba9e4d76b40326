"""`OxillamaReplica`: the server's application, with its engine, as a replica of a Ray Serve
deployment.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Literal

import ray
from ray import serve
from starlette.responses import Response

from oxillama.integrations.fingerprint import Publisher
from oxillama.integrations.ray.http import HttpRequest, Message, Route, answered
from oxillama.integrations.ray.ledger import SessionClaims
from oxillama.integrations.ray.prompts import body_of
from oxillama.server import App, ServerConfig
from oxillama.server.errors import ApiError

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

REPLICA = b"x-oxillama-replica"
_SESSION = re.compile(r"/v1/sessions/([^/]+)(?:/(\w+))?")


class OxillamaReplica:
    """One engine behind the routes of `oxillama serve`. It is ready once its model is loaded, and
    unhealthy when `/health` is.
    """

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self,
        config: ServerConfig,
        ledger: DeploymentHandle | None = None,
        *,
        save_sessions: Literal["drain", "reply"] = "drain",
        hand_over_seconds: float = 30.0,
    ) -> None:
        self._app = App(config)
        self._state = self._app.state
        await self._state.start()
        if self._state.models.default is not None:
            async with self._state.models.use(None):
                pass  # what cannot be loaded ends the deployment here, with its reason
        self._id = serve.get_replica_context().replica_id.unique_id
        self._save_replies = save_sessions == "reply"
        self._claims: SessionClaims | None = None
        if ledger is not None:
            self._claims = SessionClaims(
                ledger,
                ray.get_runtime_context().get_actor_name() or self._id,
                self._hand_over,
                seconds=hand_over_seconds,
                failed=lambda name, why: self._state.log.event(
                    "session_kept", session=name, error=why
                ),
                keeps=lambda name: self._state.sessions.named(name) is not None,
            )
        self._publisher = Publisher()
        self._closed = False

    async def answer(
        self, request: HttpRequest, route: Route
    ) -> AsyncGenerator[list[Message], None]:
        """The ASGI messages of an answer; closing the iterator ends its work within a token."""
        if route.replica not in (None, self._id):
            wrong = ApiError(
                503,
                f"x-oxillama-replica: {route.replica} is not among the replicas",
                code="no_replica",
            )
            yield self._error_response(wrong)
            return
        names = sessions_of(request)
        try:
            using = self._claims.using(names) if self._claims and names else nullcontext()
            async with using, aclosing(self._run(request, names)) as answer:
                async for messages in answer:
                    yield messages
        except ApiError as error:
            yield self._error_response(error)

    async def _run(
        self, request: HttpRequest, names: list[str]
    ) -> AsyncGenerator[list[Message], None]:
        """The application's answer; its end waits until the sessions it changed are saved."""
        begun = False
        async with aclosing(answered(self._app, request)) as answer:
            async for messages in answer:
                for each in messages:
                    if each["type"] == "http.response.start":
                        each["headers"] = [*each["headers"], (REPLICA, self._id.encode())]
                last = messages[-1]
                if last["type"] == "http.response.body" and not last.get("more_body", False):
                    try:
                        await self._save(names)
                    except ApiError as error:
                        if begun:
                            raise RuntimeError(f"the answer is cut: {error.message}") from None
                        raise
                begun = True
                yield messages

    async def _save(self, names: list[str]) -> None:
        """Save sessions at the end of a reply, where that is asked for."""
        for name in names if self._save_replies else ():
            named = self._state.sessions.named(name)
            if named is not None and named.changed:
                await self._state.offload(self._state.sessions.save, name)

    async def _hand_over(self, name: str) -> None:
        await self._state.offload(self._state.sessions.save_and_release, name)
        self._state.log.event("session_handed_over", session=name)

    def _error_response(self, error: ApiError) -> list[Message]:
        """An error as a whole answer."""
        response = Response(
            json.dumps(error.openai()).encode(),
            error.status,
            {**error.headers, REPLICA.decode(): self._id},
            "application/json",
        )
        return [
            {
                "type": "http.response.start",
                "status": response.status_code,
                "headers": response.raw_headers,
            },
            {"type": "http.response.body", "body": response.body, "more_body": False},
        ]

    # ---- what Ray Serve asks

    async def check_health(self) -> None:
        """Raises where `/health` says that the engine does not serve."""
        status, said = self._state.health()
        if status != 200:
            raise RuntimeError(said["error"]["message"])

    async def record_routing_stats(self) -> dict[str, Any]:
        """What the router knows of this replica: the beginnings that its prefix cache stores, and
        the sessions in its memory.
        """
        loaded = [
            each for each in self._state.models.loaded() if each.name == self._state.models.default
        ]
        pages, reach = b"", 0.0
        if loaded:
            pages, reach = await self._state.offload(self._publisher.tell, loaded[0].engine)
        names = self._claims.names if self._claims else []
        return {"pages": pages, "reach": reach, "sessions": names}

    async def statistics(self) -> dict[str, int]:
        """Counters of its engines: prompt tokens, and those of them found in the prefix cache."""
        metrics = list(self._state.metrics.values())
        return {
            "prompt": sum(each.prompt_total for each in metrics),
            "cached": sum(each.cached_total for each in metrics),
        }

    async def __del__(self) -> None:
        """The end that Ray Serve gives a replica once its requests have ended: sessions are saved,
        and free for others.
        """
        if getattr(self, "_closed", True):
            return
        self._closed = True
        await self._state.stop()
        if self._claims is not None:
            with suppress(Exception):  # the ledger may be ending too
                await self._claims.close()


def sessions_of(request: HttpRequest) -> list[str]:
    """The sessions that a request is about."""
    path = _SESSION.fullmatch(request.path)
    body = body_of(request.body) if request.method == "POST" else {}
    found = [path[1]] if path else []
    if path and path[2] == "fork":
        found.append(body.get("to"))
    if not path:
        found.append(body.get("session"))
    return [each for each in found if isinstance(each, str)]
