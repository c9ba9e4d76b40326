"""Divides pages among running requests, stored prefixes and idle sessions.

The scheduler asks: may an entry start (`admit`), can its next rows be written (`reserve`), take its
pages away (`release`). Pages are taken in this order: free pages, those of stored prefixes, those
of idle sessions, least recently used first. What an idle session loses is evaluated again when it
continues, with the same bits. A request that can get its pages in this way does not wait.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from weakref import finalize, ref

from oxillama.engine.memory.pages import KvCachePool, PagedKvCache, rewindable
from oxillama.engine.memory.prefix import PrefixKvCache
from oxillama.engine.memory.states import SequenceState, SsmStatePool
from oxillama.engine.metrics import Histogram
from oxillama.engine.request import BeamRequest, Request
from oxillama.engine.scheduler import ScheduleEntry, Scheduler, SchedulerConfig, State
from oxillama.engine.session import Session
from oxillama.errors import PoolError


class KeptSessions:
    """The sessions that keep pages while idle, longest at rest first; it keeps none of them alive.

    A `WeakKeyDictionary` would not do: it changes in whatever thread frees a session, also while
    another one reads it. Here a finaliser only leaves a note for `collect`.
    """

    __slots__ = ("_forgotten", "_sessions")

    def __init__(self) -> None:
        self._sessions: dict[ref[Session], None] = {}
        # of freed sessions
        self._forgotten: list[tuple[ref[Session], PagedKvCache]] = []

    def __contains__(self, session: Session) -> bool:
        return ref(session) in self._sessions

    def __iter__(self) -> Iterator[Session]:
        for each in list(self._sessions):
            session = each()
            if session is not None:
                yield session

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def add(self, session: Session) -> None:
        """Add a session, or make it the one used last."""
        key = ref(session)
        if key in self._sessions:
            del self._sessions[key]
        else:
            finalize(session, self._forgotten.append, (key, session.kv)).atexit = False
        self._sessions[key] = None

    def remove(self, session: Session) -> None:
        """Remove a session, if it is among them."""
        self._sessions.pop(ref(session), None)

    def collect(self) -> None:
        """Release the pages of freed sessions."""
        while self._forgotten:
            key, kv = self._forgotten.pop()
            self._sessions.pop(key, None)
            kv.release()


class PageAllocator:
    """The memory of one engine: the pool, the prefix tree over it, recurrent states, and the idle
    sessions that keep pages; and the scheduler, which asks it and which it asks.

    prefix: limits of the prefix cache as keyword arguments of `PrefixKvCache`, None for no cache.
    """

    def __init__(
        self,
        memory: Any,
        queue_times: Histogram,
        *,
        scheduling: SchedulerConfig,
        page_size: int = 16,
        max_pages: int | None = None,
        prefix: dict[str, Any] | None = None,
    ) -> None:
        self.pool = KvCachePool(memory, page_size=page_size, max_pages=max_pages)
        # of models that keep recurrent state, None for others
        self.states = SsmStatePool(memory) if getattr(memory, "slot_layers", ()) else None
        if prefix is not None and self.states is not None:
            prefix = {**prefix, "stateful": True, "alive": lambda mark: mark.data is not None}
        self.prefix = PrefixKvCache(self.pool, **prefix) if prefix is not None else None
        self._rewindable = rewindable(memory)
        self.sessions = KeptSessions()
        self.scheduler = Scheduler(
            scheduling, admit=self.admit, reserve=self.reserve, release=self.release
        )
        self._queue_times = queue_times

    @property
    def most_candidates(self) -> int | None:
        """Of a sequence in a step: 0 where sequences cannot drop them, None for any number."""
        if not self._rewindable:
            return 0
        return None if self.states is None else self.states.spares

    def new_sequence(self) -> PagedKvCache:
        """The memory of a new sequence: pages, and recurrent state if the model has any."""
        return (
            PagedKvCache(self.pool)
            if self.states is None
            else SequenceState(self.pool, self.states)
        )

    def keep(self, session: Session) -> None:
        """Add a session to those that keep pages while idle, as the most recently used. A session
        that is freed returns its pages.
        """
        self.collect()
        self.sessions.add(session)

    def collect(self) -> None:
        """Release the pages of freed sessions."""
        self.sessions.collect()

    def admit(self, entry: ScheduleEntry) -> bool | None:
        """Look for a stored prefix; False to wait for one that is being computed now, None to wait
        for pages.
        """
        self.collect()
        request = entry.owner
        if request.prefix_source is not None:
            leader, shared = request.prefix_source
            if leader.state is State.PREFILLING and leader.done < shared:
                return False
            request.prefix_source = None
        prefix = None
        if entry.done == 0 and request.cache and not entry.every_row:
            prefix = self.prefix
        if prefix is not None and self._joins_prefill(request, prefix):
            return False
        if self.scheduler.running and not self._fits(entry, prefix):
            return None
        if prefix is not None:
            hit = prefix.lookup(request.session.identities, key=request.session.cache_key)
            if hit.length:
                request.session.kv.adopt(hit.pages, hit.length, hit.checkpoint, shed=hit.shed)
                entry.done = hit.length
        if not request.admitted_at:
            request.cached = entry.done
            request.admitted_at = time.perf_counter()
            self._queue_times.observe(request.admitted_at - request.submitted_at)
        return True

    def reserve(self, entry: ScheduleEntry, length: int) -> bool:
        """Make an entry's positions below `length` writable, and candidates among them droppable;
        False if there are too few pages or spare slots.
        """
        if entry.width:
            return all(
                self.make_writable(session.kv, length) for session in entry.owner.search.sessions
            )
        kv = entry.owner.session.kv
        if length > entry.length:
            return self.make_writable(kv, length) and kv.spare(length - entry.length)
        return length <= kv.writable or self.make_writable(kv, length)

    def make_writable(self, kv: PagedKvCache, length: int, *, bare: int = 0) -> bool:
        """Make positions below `length` of a sequence writable; False if no page can be taken.
        bare: see `PagedKvCache.reserve`.
        """
        if length <= kv.writable:
            return True
        while True:
            try:
                kv.reserve(length, bare=bare)
                return True
            except PoolError:
                self.collect()
                need = kv.missing_pages(length)
            if self.prefix is not None and self.prefix.free_pages(need):
                continue
            idle = next((each for each in self.sessions if not each.busy and each.kv.pages), None)
            if idle is None:
                return False
            idle.kv.release()

    def release(self, entry: ScheduleEntry) -> None:
        """Take an entry's pages away. Sequences of one entry start again from their common
        prefix.
        """
        request = entry.owner
        request.session.kv.release()
        if isinstance(request, BeamRequest):
            request.search.release()
            entry.length = len(request.session.tokens)

    def store(self, request: Request, *, whole_pages: bool) -> None:
        """Put what is evaluated so far into the prefix tree. For a session that continues, only
        whole pages, so that none must be copied.
        """
        if self.prefix is None or not request.cache:
            return
        with suppress(MemoryError):  # then it is not stored
            self._store(request, self.prefix, whole_pages=whole_pages)

    def _store(self, request: Request, prefix: PrefixKvCache, *, whole_pages: bool) -> None:
        session, size = request.session, self.pool.page_size
        kv, checkpoints = session.kv, None
        if kv.stateful:  # a prefix is of use up to a checkpoint alone, which is where it ends
            mark, whole_pages = kv.mark(), False
            checkpoints = None if mark is None else {mark.position: mark}
        if session.target:  # a source is of use as a whole
            whole_pages = False
        length = kv.length // size * size if whole_pages else kv.length
        pages = kv.pages if whole_pages else kv.shareable_pages()
        if length:
            prefix.insert(
                session.identities[:length],
                pages[: -(-length // size)],
                key=session.cache_key,
                checkpoints=checkpoints,
                shed=kv.shed,
            )

    def available_pages(self) -> int | None:
        """How many pages `make_writable` could provide, None if only memory is the limit."""
        self.collect()
        free = self.pool.pages_free
        return None if free is None else free + self._reclaimable_pages(())

    def _reclaimable_pages(self, but: Sequence[int]) -> int:
        """Whole pages, by their bytes, that only stored prefixes and idle sessions other than `but`
        share.
        """
        pool, idle = self.pool, [each.kv for each in self.sessions if not each.busy]
        held = Counter(page for kv in idle for page in kv.pages)
        near = Counter(page for kv in idle for page in kv.pages[kv.shed :]) if pool.window else {}
        if self.prefix is not None:
            held.update(self.prefix.shares)
            near.update(self.prefix.near_shares)
        for page in but:
            held.pop(page, None)
            near.pop(page, None)
        pages = sum(pool.owners(page) == owners for page, owners in held.items())
        if not pool.window:
            return pages
        apart = sum(pool.near_owners(page) == owners for page, owners in near.items())
        return (pages * pool.bare_bytes + apart * pool.near_bytes) // pool.memory.page_bytes

    def held(self, requests: set[Request]) -> tuple[int, int]:
        """(owned pages that requests and sessions refer to, owned pages that neither these nor
        stored prefixes do).
        """
        self.collect()
        known = {
            page
            for request in requests
            for session in request.sessions
            for page in session.kv.pages
        }
        known.update(page for session in self.sessions for page in session.kv.pages)
        held = len(known)
        if self.prefix is not None:
            known.update(self.prefix.shares)
        return held, self.pool.pages_used - len(known)

    def pages_in_transit(self, request: Request) -> bool:
        """Whether pages are owned by something that is not scheduled and will let go of them: a
        session that is being restored, saved or freed, or one whose request is in the inbox. No
        other request than the given one has pages.
        """
        held = {page for session in request.sessions for page in session.kv.pages}
        for session in self.sessions:
            if not session.busy:
                held.update(session.kv.pages)
        if self.prefix is not None:
            held.update(self.prefix.shares)
        return self.pool.pages_used > len(held)

    def _joins_prefill(self, request: Request, prefix: PrefixKvCache) -> bool:
        """Whether another request is computing a prefix of this one's tokens that is worth waiting
        for.
        """
        session, size = request.session, self.pool.page_size
        if not self.scheduler.prefilling:
            return False
        tokens = session.identities
        stored = prefix.match(tokens, key=session.cache_key)
        for leader in self.scheduler.prefilling:
            other = leader.owner
            if not other.cache or leader.every_row or other.session.cache_key != session.cache_key:
                continue
            limit = min(len(tokens) - 1, len(other.session.tokens))
            if limit - stored < size:
                continue
            shared = common_prefix(tokens, other.session.identities, limit) // size * size
            if shared > max(stored, leader.done):
                request.prefix_source = (leader, shared)
                return True
        return False

    def _fits(self, entry: ScheduleEntry, prefix: PrefixKvCache | None) -> bool:
        """Whether an entry's tokens, and one more for each running request, fit into pages that are
        free or held idly. prefix: a stored prefix to use, None for none.
        """
        free = self.pool.pages_free
        if free is None:
            return True
        session, size = entry.owner.session, self.pool.page_size
        mine: Sequence[int] = ()
        kv, more = session.kv, self.scheduler.running
        pages = kv.missing_pages(entry.length + 1) + more
        rows = self.scheduler.config.max_batch_tokens
        near = self.pool.near_pages(entry.length + 1, rows) + more
        near -= min(near, len(kv.pages) - kv.shed)
        need = self.pool.whole_pages(pages, near)
        if need <= free:
            return True
        if prefix is not None:
            length, mine = prefix.find(session.identities, key=session.cache_key)
            # a page that is filled in part is copied when it is written
            need = self.pool.whole_pages(pages - length // size, near)
        return need <= free + self._reclaimable_bound() and need <= free + self._reclaimable_pages(
            mine
        )

    def _reclaimable_bound(self) -> int:
        """An upper bound of `_reclaimable_pages` that is quick to compute."""
        stored = 0 if self.prefix is None else self.prefix.pages_used
        return stored + sum(len(session.kv.pages) for session in self.sessions if not session.busy)


def common_prefix(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """How many of the first `limit` tokens of two sequences are equal."""
    low, high = 0, limit
    # equal up to low; halve what is not known
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
