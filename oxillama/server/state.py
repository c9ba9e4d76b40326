"""`ServerState`: what all requests share: the models, the running jobs, the counters, named
sessions, stored responses, and threads for work that would block the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from oxillama.engine.request import GenerateRequest
from oxillama.errors import OxillamaError
from oxillama.server.errors import ApiError, shutting_down
from oxillama.server.logs import Log
from oxillama.server.metrics import ModelMetrics
from oxillama.server.models import ModelRegistry, ServedModel
from oxillama.server.sessions import Sessions
from oxillama.server.settings import ServerConfig
from oxillama.server.waker import Waker

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 4
_LOOK = 0.5  # seconds between looks at the engines


class RunningJob(Protocol):
    """What the state needs from a job (`work.Job`)."""

    id: int
    slot: int
    params: dict[str, Any]
    call: Any
    model: ServedModel
    requests: tuple[Any, ...]
    abandoned: bool

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""

    @property
    def generated(self) -> int:
        """Tokens so far."""

    def times(self) -> dict[str, float]:
        """Seconds of its parts."""

    def close(self) -> None:
        """End it."""


class BoundedStore(Generic[T]):
    """What is stored, by name, each with its size. The oldest leave beyond `most`, or beyond
    `most_bytes`; the last one stays.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes, self._bytes = most, most_bytes, 0
        self._found: OrderedDict[str, tuple[T, int]] = OrderedDict()

    def add(self, name: str, value: T, size: int) -> None:
        """Store under a new name."""
        self._found[name] = value, size
        self._bytes += size
        while len(self._found) > 1 and (
            len(self._found) > self._most or self._bytes > self._most_bytes
        ):
            self.remove(next(iter(self._found)))

    def get(self, name: str) -> T | None:
        """What has a name, None for nothing."""
        return self._found[name][0] if name in self._found else None

    def values(self) -> list[T]:
        """All of them, the oldest first."""
        return [value for value, _ in self._found.values()]

    def remove(self, name: str) -> None:
        """Forget one."""
        self._bytes -= self._found.pop(name)[1]


class ServerState:
    """Made once, started on the event loop that serves."""

    def __init__(self, config: ServerConfig, *, log: Log | None = None) -> None:
        self.config = config
        self.log = log or Log(prompts=config.log_prompts, requests=config.log_requests)
        self.pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="oxillama server")
        # long texts wait for one another, and hold nobody else up
        self.bulk = ThreadPoolExecutor(1, thread_name_prefix="oxillama bulk")
        self._looking = ThreadPoolExecutor(1, thread_name_prefix="oxillama health")
        self.sessions = Sessions(config)
        self.models = ModelRegistry(
            config,
            self.offload,
            keep=self._keep,
            release=self.sessions.save_and_release_all,
            forget=self._forget,
        )
        self.metrics: dict[str, ModelMetrics] = defaultdict(ModelMetrics)
        # stored conversations, by the id of their last reply
        most = config.max_responses, config.max_response_bytes
        self.responses: BoundedStore[Any] = BoundedStore(*most)
        self.threads: BoundedStore[Any] = BoundedStore(*most)
        self.jobs: dict[int, RunningJob] = {}  # by slot
        self._deferred: list[RunningJob] = []  # which wait for the slot that they name
        self._slots: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.slot_sessions: dict[int, tuple[ServedModel, Any]] = {}  # what each has evaluated
        self._named_slots: set[int] = set()  # not used by requests that name no slot
        self.by_key: dict[str, Counter[str]] = defaultdict(Counter)  # jobs of a key, by request
        self.requests_total: Counter[tuple[str, str]] = Counter()
        self.disconnects = self.refused = 0
        self.arriving = 0  # bytes of bodies that have not come whole yet
        self.waker: Waker = None  # type: ignore[assignment]
        self.moved_at = time.perf_counter()
        self.started_at = time.time()
        self.stopping = False
        self._steps: dict[str, int] = {}
        self._watch: asyncio.Task | None = None
        self._first: asyncio.Task | None = None
        # why the given model could not be loaded at the start, and what is called then
        self.unusable: str | None = None
        self.lost: list[str] = []  # why sessions could not be saved at the end
        self.on_unusable: Callable[[], None] = lambda: None
        self._keys = [hashlib.sha256(key.encode()).digest() for key in config.api_keys]

    def _keep(self, model: ServedModel) -> bool:
        """Whether unloading an idle model would lose something that is only in memory."""
        return self.sessions.holds(model) or model.adapters.changed

    def _forget(self, model: ServedModel) -> None:
        """Drop the slots' last sessions of a model, which would keep its vocabulary and its file's
        mapping.
        """
        for slot, held in list(self.slot_sessions.items()):
            if held[0] is model:
                self.empty_slot(slot)

    # ---- life

    async def start(self) -> None:
        """Start to watch the engines and to load the given model."""
        self.waker = Waker(asyncio.get_running_loop())
        self._watch = asyncio.ensure_future(self._watching())
        if self.models.default is not None:
            self._first = asyncio.ensure_future(self._load_first())

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._watch is not None

    async def _load_first(self) -> None:
        try:
            async with self.models.use(None) as model:
                self.log.event("model_loaded", model=model.name)
        except ApiError as error:
            self.log.event("model_failed", error=error.message)
            if self.models.given:
                self.unusable = error.message
                self.on_unusable()

    async def stop(self) -> None:
        """Save the named sessions and unload the models."""
        self.stopping = True
        for task in (self._watch, self._first):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for job in list(self.jobs.values()):
            job.close()
        # what clients that are cut had prepared may go on for long: the end does not wait for it
        busy = (self.pool, self.bulk, self._looking)
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="oxillama end")
        for each in busy:
            each.shutdown(wait=False, cancel_futures=True)
        saved = await self.offload(self.sessions.save_all)
        for name, error in saved.items():
            if error is None:
                self.log.event("session_saved", session=name)
            else:
                self.lost.append(error)
                self.log.event("session_not_saved", session=name, error=error)
        await self.models.close()
        self.pool.shutdown(wait=False)

    async def offload(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run a function outside the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, partial(function, *args, **options))

    # ---- jobs

    @property
    def active(self) -> list[RunningJob]:
        """The jobs that have a slot, then those that wait for theirs; in any thread."""
        return [*self.jobs.values(), *self._deferred]

    def named_slot(self, number: int) -> asyncio.Lock:
        """The lock of a slot that a request names, held by the job that runs in it and by calls
        that save, restore or erase it. Requests that name no slot do not use it.
        """
        self._named_slots.add(number)
        return self._slots[number]

    def empty_slot(self, number: int) -> None:
        """Drop what a slot holds; requests that name no slot may use it again."""
        self.slot_sessions.pop(number, None)
        self._named_slots.discard(number)

    async def enter(self, job: RunningJob) -> None:
        """Give a job its slot, which it waits for if it names one; 429 if the queue is full, or its
        key has as many as allowed.
        """
        config, key = self.config, job.call.key
        if self.stopping:
            raise shutting_down()
        request, others = job.call.id, self.by_key[key]
        goes_on = request in others  # a further prompt of a request that was let in
        active = len(self.active)
        if not goes_on and active >= job.model.slots + config.max_queue:
            self.refused += 1
            raise ApiError(
                429,
                f"queue: {active} requests run or wait, which is as many as may",
                code="queue_full",
                headers={"Retry-After": "1"},
            )
        if not goes_on and config.per_key and len(others) >= config.per_key:
            self.refused += 1
            raise ApiError(
                429,
                f"key: {len(others)} requests of this key run or wait, wanted at most "
                f"{config.per_key}",
                code="rate_limit_exceeded",
                headers={"Retry-After": "1"},
            )
        others[request] += 1
        if not self.jobs:
            self.moved_at = time.perf_counter()
        if job.slot >= 0:
            lock = self.named_slot(job.slot)
        else:
            awaited = self._named_slots.union(each.slot for each in self._deferred)
            job.slot = next(
                at for at in count() if at not in awaited and not self._slots[at].locked()
            )
            lock = self._slots[job.slot]
        self._deferred.append(job)
        try:
            await lock.acquire()
        except BaseException:
            job.abandoned = True
            self.leave(job)
            raise
        finally:
            self._deferred.remove(job)
        self.jobs[job.slot] = job

    def leave(self, job: RunningJob) -> None:
        """Release a job's slot and count its work."""
        others = self.by_key[job.call.key]
        others[job.call.id] -= 1
        if not others[job.call.id]:
            del others[job.call.id]
        if not others:
            del self.by_key[job.call.key]
        self._count(job)
        if self.jobs.get(job.slot) is job:  # or it never had it
            del self.jobs[job.slot]
            self._slots[job.slot].release()

    def _count(self, job: RunningJob) -> None:
        """Count a job's work."""
        if not job.requests:
            if job.abandoned:  # nothing else is known of it
                self.metrics[job.model.name].finished["abort"] += 1
                job.call.log_fields.update(model=job.model.name, finish_reason="abort")
            return
        first, times = job.requests[0], job.times()
        reason = next(
            (each.finish_reason for each in job.requests if each.finish_reason), "cancelled"
        )
        reason = "error" if first.error is not None else _REASONS.get(reason, reason)
        self.metrics[job.model.name].observe(
            reason=reason,
            prompt=job.prompt_tokens,
            cached=first.cached,
            generated=job.generated,
            **times,
        )
        fields = job.call.log_fields
        fields["model"] = job.model.name
        fields["prompt_tokens"] = fields.get("prompt_tokens", 0) + job.prompt_tokens
        fields["cached_tokens"] = fields.get("cached_tokens", 0) + first.cached
        fields["completion_tokens"] = fields.get("completion_tokens", 0) + job.generated
        fields.setdefault("finish_reason", reason)
        fields["queue_ms"] = round(times["queue"] * 1e3, 2)
        fields["prefill_ms"] = round(times["prefill"] * 1e3, 2)
        fields["decode_ms"] = round(times["decode"] * 1e3, 2)
        if job.call.body.get("session") is not None:
            # a named session is changed under its name alone
            self.empty_slot(job.slot)
        elif job.slot < job.model.slots and isinstance(first, GenerateRequest):
            self.slot_sessions[job.slot] = (job.model, first.session)

    def waiting(self, name: str) -> int:
        """Requests of a model that have not begun: those being prepared, and those not yet admitted
        by the engine.
        """
        jobs = [job for job in self.active if job.model.name == name]
        return sum(
            sum(not (each.admitted_at or each.done) for each in job.requests) if job.requests else 1
            for job in jobs
        )

    # ---- keys

    def key_of(self, given: list[str]) -> str | None:
        """The name of the first key that is one of the server's, None without one. Every key is
        compared, in constant time each.
        """
        import hmac

        if not self._keys:
            return ""
        found = None
        for each in given:
            digest = hashlib.sha256(each.encode("utf-8", "surrogatepass")).digest()
            for known in self._keys:
                if hmac.compare_digest(digest, known) and found is None:
                    found = digest.hex()[:12]
        return found

    # ---- health

    async def _watching(self) -> None:
        """Read the engines' counters outside the event loop, so that a lock that is never released
        is noticed.
        """
        loop = asyncio.get_running_loop()
        while True:
            for model in self.models.loaded():
                try:
                    seen = await loop.run_in_executor(self._looking, model.engine.metrics)
                except OxillamaError:  # `health` tells
                    continue
                if seen.steps_total != self._steps.get(model.name):
                    self._steps[model.name] = seen.steps_total
                    self.moved_at = time.perf_counter()
            await asyncio.sleep(_LOOK)

    def health(self) -> tuple[int, dict[str, Any]]:
        """(status, the body of /health)."""
        default, loaded = self.models.default, self.models.loaded()
        failure = self.models.failures.get(default or "")
        for model in loaded:
            try:
                _ = model.engine.context_size  # raises where the engine failed
            except OxillamaError as error:
                failure = str(error)
        if (
            failure is None
            and not loaded
            and default is not None
            and self._first is not None
            and not self._first.done()
        ):
            return 503, _unhealthy("Loading model")
        age = time.perf_counter() - self.moved_at if self.jobs else 0.0
        if failure is None and age > self.config.stall_timeout:
            failure = f"the engine has made no step for {age:.0f} seconds"
        if failure is not None:
            return 503, _unhealthy(failure)
        return 200, {
            "status": "ok",
            "loop_age_seconds": round(age, 3),
            "requests": len(self.jobs),
            "models": [model.name for model in loaded],
        }


_REASONS = {"cancelled": "abort", "tool_calls": "stop", "timeout": "length"}


def _unhealthy(why: str) -> dict[str, Any]:
    return {
        "status": "error",
        "error": {"code": 503, "message": why, "type": "unavailable_error", "param": None},
    }
