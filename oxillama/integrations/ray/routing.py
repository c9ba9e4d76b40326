"""`PrefixRouter`: which replica of a Ray Serve deployment a request goes to.

To the one that holds its session; else to the one whose prefix cache holds most of its prompt, as
far as the replicas have published it and this router has sent it; unless that one has more requests
than another by more than `overload`. What nobody holds goes to the one with the fewest requests.

Serve sends this module by value to whoever routes, so it holds the router alone: a class of it
would be another one there.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from oxillama.integrations.ray.fingerprint import held, published
from oxillama.integrations.ray.http import Route

_REMEMBERED = 16384  # hashes a replica, and names of sessions


class PrefixRouter(RequestRouter):
    """A request router for `request_router_config`; see the module."""

    def initialize_state(  # type: ignore[override]  # with the arguments of the deployment's config
        self, overload: int = 8, trust_seconds: float = 6.0
    ) -> None:
        """overload: requests by which a replica may have more than the one with the fewest.
        trust_seconds: how long what was sent to a replica counts as held there without its saying
        so.
        """
        self._overload, self._trust = overload, trust_seconds
        self._sent: dict[ReplicaID, OrderedDict[bytes, float]] = {}
        self._published: dict[ReplicaID, tuple[bytes, frozenset[bytes]]] = {}
        self._sessions: OrderedDict[str, ReplicaID] = OrderedDict()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The replicas in the order in which they are asked to take the request."""
        route = _route(pending_request)
        if route.replica is not None:
            named = [each for each in candidate_replicas if _id(each) == route.replica]
            return [named or candidate_replicas]  # one that is not the named one says so
        loads = {
            each.replica_id: self.replica_queue_len_cache.get(each.replica_id) or 0
            for each in candidate_replicas
        }
        least = min(loads.values(), default=0)

        def rank(each: RunningReplica) -> tuple[bool, bool, int, int, float]:
            load = loads[each.replica_id]
            return (
                load > least + self._overload,
                not self._holds(each, route.session),
                -self._held(each, route.pages),
                load,
                random.random(),
            )

        return [[each] for each in sorted(candidate_replicas, key=rank)]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Remember what a replica was sent."""
        route, now = _route(pending_request), time.monotonic()
        sent = self._sent.setdefault(replica_id, OrderedDict())
        for each in route.pages:
            sent[each] = now
            sent.move_to_end(each)
        while len(sent) > _REMEMBERED:
            sent.popitem(last=False)
        if route.session is not None:
            self._sessions[route.session] = replica_id
            self._sessions.move_to_end(route.session)
            while len(self._sessions) > _REMEMBERED:
                self._sessions.popitem(last=False)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Forget replicas that are gone."""
        super().update_replicas(replicas)
        here = {each.replica_id for each in replicas}
        for known in (self._sent, self._published):
            for gone in [each for each in known if each not in here]:
                del known[gone]  # type: ignore[attr-defined]

    def _holds(self, replica: RunningReplica, session: str | None) -> bool:
        """Whether a session is in a replica's memory: it was sent there last, or says so."""
        if session is None:
            return True
        last = self._sessions.get(session)
        if last in self.curr_replicas:
            return last == replica.replica_id
        return session in (replica.routing_stats or {}).get("sessions", ())

    def _held(self, replica: RunningReplica, pages: tuple[bytes, ...]) -> int:
        """How many tokens of a prompt a replica's prefix cache holds, or soon will."""
        if not pages:
            return 0
        data = (replica.routing_stats or {}).get("pages", b"")
        known = self._published.get(replica.replica_id)
        if known is None or known[0] is not data:
            known = self._published[replica.replica_id] = (data, published(data))
        since = time.monotonic() - self._trust
        sent = self._sent.get(replica.replica_id, OrderedDict())
        fresh = {each for each in pages if sent.get(each, 0.0) > since}
        # a replica that publishes nothing is taken at what it was sent
        if not data:
            fresh = {each for each in pages if each in sent}
        return held(pages, known[1] | fresh if fresh else known[1])


def _route(pending: PendingRequest | None) -> Route:
    """What a request was sent with: the argument after the request itself."""
    for each in (*pending.args, *pending.kwargs.values()) if pending is not None else ():
        if isinstance(each, Route):
            return each
    return Route()


def _id(replica: RunningReplica) -> str:
    return replica.replica_id.unique_id
