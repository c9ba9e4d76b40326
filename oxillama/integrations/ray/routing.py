"""`PrefixRouter`: chooses the replica of a Ray Serve deployment for a request.

To the one that holds its session; else by `Affinity`, to the one whose prefix cache holds most of
its prompt, unless that one has too much to do.

Serve sends this module by value to whoever routes, so it holds the router alone: a class of it
would be another one there.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from oxillama.integrations.affinity import Affinity
from oxillama.integrations.ray.http import Route

_REMEMBERED = 16384  # names of sessions


class PrefixRouter(RequestRouter):
    """A request router for `request_router_config`; see the module."""

    def initialize_state(  # type: ignore[override]  # with the arguments of the deployment's config
        self, overload: int = 8
    ) -> None:
        """overload: requests by which a replica may have more than the one with the fewest."""
        self._affinity: Affinity[ReplicaID] = Affinity(overload=overload)
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
        by_id = {each.replica_id: each for each in candidate_replicas}
        loads = {each: self.replica_queue_len_cache.get(each) or 0 for each in by_id}
        owners = None
        if route.session is not None:
            owners = {each for each in by_id if self._holds(by_id[each], route.session)}
        else:
            for each in candidate_replicas:
                if stats := each.routing_stats:
                    self._affinity.update(each.replica_id, stats, stats["pages"], stats["reach"])
        return [[by_id[each]] for each in self._affinity.order(loads, route.pages, owners=owners)]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Remember what a replica was sent."""
        route = _route(pending_request)
        self._affinity.sent(replica_id, route.pages)
        if route.session is not None:
            self._sessions[route.session] = replica_id
            self._sessions.move_to_end(route.session)
            while len(self._sessions) > _REMEMBERED:
                self._sessions.popitem(last=False)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Forget replicas that are gone."""
        super().update_replicas(replicas)
        self._affinity.keep([each.replica_id for each in replicas])

    def _holds(self, replica: RunningReplica, session: str) -> bool:
        """Whether a session is in a replica's memory: it was sent there last, or says so."""
        last = self._sessions.get(session)
        if last in self.curr_replicas:
            return last == replica.replica_id
        return session in (replica.routing_stats or {}).get("sessions", ())


def _route(pending: PendingRequest | None) -> Route:
    """What a request was sent with: the argument after the request itself."""
    for each in (*pending.args, *pending.kwargs.values()) if pending is not None else ():
        if isinstance(each, Route):
            return each
    return Route()


def _id(replica: RunningReplica) -> str:
    return replica.replica_id.unique_id
