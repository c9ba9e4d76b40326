"""Which replica has which named session: `SessionLedger`, one per deployment, and
`SessionClaims`, the sessions that one replica has.

    replica B                        ledger                         replica A, which has "ada"
      claim("ada") ----------------->|
                                     |<------------------ wanted()  (A waits here all the time)
                                     |------------------> ["ada"]
                                     |              A: its request ends; it saves "ada", lets go
                                     |<------------------ release("ada")
      <----------------- None, it is B's
      B: restores "ada" from the folder when a request names it

Invariants (tests cite them by number):

1. A session is in the memory of one replica at most: nobody uses one that it has not claimed, and
nothing is released before it is saved. 2. The ledger's word is on the disk before it is given, so
that a ledger that begins anew goes on with it. 3. What a dead replica had may be claimed at once:
its actor is gone from Ray.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from oxillama.durable import write_parts
from oxillama.server.errors import ApiError

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

_FILE = "owners.json"
_LOOK = 1.0  # seconds between looks at whether an owner still lives
_AGAIN = 0.5  # seconds after a ledger that did not answer
_FEWEST = 256  # sessions that a replica may hold before it looks for unused ones
_SERVE = "serve"  # the namespace of Ray Serve's actors


class SessionLedger:
    """The owners of sessions, by the names of the replicas' actors."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / _FILE
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._owners: dict[str, str] = (
            json.loads(self._path.read_text("utf-8")) if self._path.exists() else {}
        )
        self._wanted: defaultdict[str, set[str]] = defaultdict(set)
        self._changed = asyncio.Condition()

    async def claim(self, name: str, replica: str, seconds: float) -> str | None:
        """Make a session a replica's, once its owner has let go of it; None where it is, else the
        owner that did not within so many seconds.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        async with self._changed:
            while True:
                owner = self._owners.get(name)
                if owner == replica:
                    return None
                if owner is None or not await asyncio.to_thread(_lives, owner):
                    if owner is not None:
                        self._wanted.pop(owner, None)
                    await self._set(name, replica)
                    return None
                if loop.time() >= until:
                    self._wanted[owner].discard(name)
                    return owner
                self._wanted[owner].add(name)
                self._changed.notify_all()
                try:
                    async with asyncio.timeout(min(_LOOK, max(0.0, until - loop.time()))):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    async def wanted(self, replica: str) -> list[str]:
        """Wait until others want sessions of a replica; their names."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._wanted.get(replica)))
            return sorted(self._wanted.pop(replica))

    async def release(self, names: list[str], replica: str) -> None:
        """Sessions that a replica has saved and no longer has."""
        async with self._changed:
            for name in names:
                if self._owners.get(name) == replica:
                    await self._set(name, None)
            self._changed.notify_all()

    async def owners(self) -> dict[str, str]:
        """The replica of every session that has one."""
        return dict(self._owners)

    async def _set(self, name: str, owner: str | None) -> None:
        after = {**self._owners, name: owner}
        kept = {name: each for name, each in after.items() if each is not None}
        data = json.dumps(kept, sort_keys=True).encode()
        await asyncio.to_thread(write_parts, self._path, [data])
        self._owners = kept


def _lives(replica: str) -> bool:
    """Whether there is an actor of that name."""
    try:
        ray.get_actor(replica, namespace=_SERVE)
    except ValueError:
        return False
    return True


@dataclass(slots=True)
class _Turn:
    """Who claims or releases a session does so alone; `others`: how many do, or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    others: int = 0


class SessionClaims:
    """The sessions that one replica has. `save` saves and releases a session, or raises. Those
    that nobody uses and that are not in memory are released: names that no session came of, and
    sessions that were removed, or written to the folder to make room.
    """

    def __init__(
        self,
        ledger: DeploymentHandle,
        replica: str,
        save: Callable[[str], Awaitable[None]],
        *,
        seconds: float,
        failed: Callable[[str, str], None],
        keeps: Callable[[str], bool],
    ) -> None:
        """seconds: how long a claim waits. failed: called for a session that could not be saved.
        keeps: whether a session is in memory.
        """
        self._ledger, self._replica, self._save = ledger, replica, save
        self._seconds, self._failed, self._keeps = seconds, failed, keeps
        self._held: set[str] = set()
        self._most = _FEWEST  # held, above which all are looked at, not only those of a request
        self._uses: Counter[str] = Counter()
        self._idle = asyncio.Condition()
        self._turns: dict[str, _Turn] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._listening = asyncio.ensure_future(self._listen())

    @property
    def names(self) -> list[str]:
        """The sessions that this replica has."""
        return sorted(self._held)

    @asynccontextmanager
    async def using(self, names: list[str]) -> AsyncIterator[None]:
        """Hold sessions for as long as the block lasts; ApiError (503) if another replica has one
        and does not release it.
        """
        taken: list[str] = []
        try:
            for name in sorted(set(names)):
                async with self._alone(name):
                    if name not in self._held:
                        await self._claim(name)
                        self._held.add(name)
                    self._uses[name] += 1
                    taken.append(name)
            yield
        finally:
            for name in taken:
                self._uses[name] -= 1
                if not self._uses[name]:
                    del self._uses[name]
            self._release_unused(taken)
            async with self._idle:
                self._idle.notify_all()

    @asynccontextmanager
    async def _alone(self, name: str) -> AsyncIterator[None]:
        """Claim or release a session while nobody else does."""
        turn = self._turns.setdefault(name, _Turn())
        turn.others += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.others -= 1
            if not turn.others:
                del self._turns[name]

    def _unused(self, name: str) -> bool:
        return name in self._held and name not in self._uses and not self._keeps(name)

    def _release_unused(self, names: list[str]) -> None:
        """Release those of these sessions, or of all once there are many, that are not here."""
        many = len(self._held) > self._most
        unused = [name for name in (self.names if many else names) if self._unused(name)]
        if many:
            self._most = max(_FEWEST, 2 * (len(self._held) - len(unused)))
        for name in unused:
            self._start(self._release(name))

    async def _release(self, name: str) -> None:
        """Release a session that is not here, unless it is wanted again."""
        async with self._alone(name):
            if self._unused(name):
                self._held.discard(name)
                with suppress(Exception):  # a ledger that begins anew asks for it when it is wanted
                    await self._ledger.release.remote([name], self._replica)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _claim(self, name: str) -> None:
        owner = await self._ledger.claim.remote(name, self._replica, self._seconds)
        if owner is not None:
            raise ApiError(
                503,
                f"session {name}: another replica has it and did not release it within "
                f"{self._seconds:g} seconds",
                code="session_elsewhere",
                headers={"Retry-After": "5"},
            )

    async def _listen(self) -> None:
        while True:
            try:
                names = await self._ledger.wanted.remote(self._replica)
            except Exception:  # it begins anew, with what it had written down
                await asyncio.sleep(_AGAIN)
                continue
            for name in names:
                self._start(self._let_go(name))

    async def _let_go(self, name: str) -> None:
        """Release a session when no request runs on it; later requests claim it again."""
        async with self._alone(name):
            async with self._idle:
                await self._idle.wait_for(lambda: not self._uses[name])
            if name in self._held:
                try:
                    await self._save(name)
                except Exception as error:  # it stays here, and whoever claims it is told
                    self._failed(name, str(error))
                    return
                self._held.discard(name)
            await self._ledger.release.remote([name], self._replica)

    async def close(self) -> None:
        """Release everything, after it has been saved."""
        self._listening.cancel()
        await asyncio.gather(self._listening, *self._leaving, return_exceptions=True)
        names, self._held = self.names, set()
        if names:
            async with asyncio.timeout(5):
                await self._ledger.release.remote(names, self._replica)
