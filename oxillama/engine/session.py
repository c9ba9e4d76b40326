"""`Session`: the complete state of one sequence.

    tokens   t0 t1 ... tn-1            all of them, prompt and generated
    kv       pages of the first kv.length of them; the rest is evaluated again when it is
             needed, with the same bits
    pending  logits after the last token, if they are known

`fork` shares pages until one side writes, and `truncate` removes the end. A session belongs to one
engine, which is asked before anything changes. While a request runs on a session, it is `busy`, and
only the engine's loop touches it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from html import escape
from os import PathLike
from typing import Any, Literal, Protocol
from weakref import ref

import numpy as np

from oxillama.arguments import checked_ids
from oxillama.engine.memory.pages import KvCache, PagedKvCache
from oxillama.errors import ContextError, EngineError, not_pickled
from oxillama.media.placement import (
    PlacedMedia,
    check_boundary,
    identities,
    moved,
    of_kind,
    outside,
    source_of,
)
from oxillama.media.prompt import ImagePrompt, media_of

_STATE = ("start", "pending", "sampler", "grammar", "text", "stops", "at_start")


class Owner(Protocol):
    """What a session needs from its engine."""

    @property
    def program(self) -> Any:
        """An object with a `vocab_size`."""

    pool: Any  # where its pages come from
    prefix: Any  # the prefix cache, None without one
    context_size: int
    lock: Any

    @property
    def closed(self) -> bool:
        """Whether it has been closed, with the pages of all sessions released."""

    def new_session(self) -> Session:
        """An empty session."""

    def sourced(self, ids: Sequence[int]) -> list[int]:
        """Tokens as an empty session takes them."""

    def new_sequence(self) -> PagedKvCache:
        """The memory of an empty session."""

    def exclusive(self, session: Session) -> AbstractContextManager[None]:
        """The lock that must be held to change an idle session; EngineError for a busy or closed
        one.
        """

    def keep(self, session: Session) -> Session:
        """Let an idle session keep its pages."""

    def wait_for_cancelled(self, session: Session) -> None:
        """Wait for a cancelled request that still runs on it."""

    def drop(self, session: Session) -> None:
        """Release its pages."""

    def require_snapshots(self) -> Any:
        """Saves sessions (`snapshot.Snapshots`); SnapshotIncompatible for an engine without a model
        file.
        """


class Session:
    """Tokens, pages, sampler, grammar state, text decoder, stop filter and adapters of one
    sequence.
    """

    __slots__ = (
        "__weakref__",
        "_owner",
        "adapters",
        "at_start",
        "busy",
        "closed",
        "grammar",
        "media",
        "kv",
        "origin",
        "pending",
        "sampler",
        "start",
        "stops",
        "text",
        "tokens",
    )

    def __init__(self, owner: Owner, kv: PagedKvCache, *, adapters: Any = ()) -> None:
        # weak, as all that leads from a request or session to the engine: neither keeps it alive
        self._owner = ref(owner)
        self.kv = kv
        self.tokens: list[int] = []
        # in order, the images and clips of audio that replace some of the tokens
        self.media: tuple[PlacedMedia, ...] = ()
        self.start = 0  # where generated tokens begin
        self.pending: np.ndarray | None = None  # float32 (vocab,)
        self.sampler: Any = None
        self.grammar: Any = None
        self.text: Any = None
        self.stops: Any = None
        # the next text is the first: without the vocabulary's leading space
        self.at_start = False
        # a tuple (`lora.stack.Adapters`, where not empty) of all that its pages depend on besides
        # tokens
        self.adapters = adapters
        # what its pages may be exchanged with besides: None, every session of this engine
        self.origin: Hashable = None
        self.busy = False
        self.closed = False  # by its caller: nothing changes or saves it any more

    @property
    def cache_key(self) -> Hashable:
        """Sessions with equal keys may share pages through the prefix cache. A restored session
        shares only with its own forks, because nothing proves that the pages of a file are right.
        A key, which stored prefixes outlive a session with, holds no adapter's memory.
        """
        adapters = tuple(self.adapters)
        return adapters if self.origin is None else (self.origin, adapters)

    @property
    def identities(self) -> list[int]:
        """Numbers that identify its tokens in the prefix cache: the tokens themselves, and unique
        numbers for rows of images and of audio.
        """
        return identities(self.tokens, self.media) if self.media else self.tokens

    @property
    def target(self) -> int:
        """Where the tokens begin that predict the next one: behind the source, if an encoder reads
        one, otherwise 0.
        """
        source = source_of(self.media)
        return 0 if source is None else len(source) - 1

    @property
    def images(self) -> tuple[PlacedMedia, ...]:
        """The images among its tokens."""
        return of_kind(self.media, "image")

    @property
    def audio(self) -> tuple[PlacedMedia, ...]:
        """The clips of audio among its tokens."""
        return of_kind(self.media, "audio")

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        """Its tokens, how many are evaluated, and whether a request runs on it."""
        if self.closed:
            return f"<Session {len(self.tokens)} tokens, closed>"
        kv = getattr(self, "kv", None) if self._owner() is not None else None
        state = "engine gone" if kv is None else "busy" if self.busy else "idle"
        return f"<Session {len(self.tokens)} tokens, {kv.length if kv else 0} evaluated, {state}>"

    def _repr_html_(self) -> str:
        """For notebooks: what `repr` says, and a bar of the tokens evaluated."""
        gone = self.closed or self._owner() is None
        kv = None if gone else getattr(self, "kv", None)
        done, most = kv.length if kv else 0, max(len(self.tokens), 1)
        return (
            f'<code>{escape(repr(self))}</code> <progress value="{done}" max="{most}"></progress>'
        )

    __reduce__ = not_pickled(
        "session: belongs to the engine of this process",
        "`fork()` makes another, `snapshot()` gives bytes that `engine.restore` takes",
    )

    def __getattr__(self, name: str) -> Any:
        # after `rest`: pages again, as none are held
        if name != "kv":
            raise AttributeError(f"'Session' object has no attribute {name!r}")
        self.kv = self.owner.new_sequence()
        return self.kv

    @property
    def owner(self) -> Owner:
        """The engine it belongs to; EngineError if that no longer exists."""
        owner = self._owner()
        if owner is None:
            raise EngineError("session: its engine is gone")
        return owner

    def release_pages(self) -> None:
        """Release all pages and the reference to the pool, so that the session keeps no page memory
        alive. It can be used again.
        """
        self.kv.release()
        del self.kv

    def fork(self) -> Session:
        """An independent session in the same state. Pages are shared, and nothing is copied until
        one side writes.
        """
        with self._idle() as owner:
            return owner.keep(self.fork_untracked())

    def fork_untracked(self) -> Session:
        """A fork that the owner does not track, for callers that hold the engine's lock and release
        its pages themselves.
        """
        kv = None
        try:
            kv = self.kv.fork()
            copy = Session(self.owner, kv, adapters=self.adapters)
            copy.origin, copy.media = self.origin, self.media
            copy.tokens, copy.start, copy.pending, copy.at_start = (
                list(self.tokens),
                self.start,
                self.pending,
                self.at_start,
            )
            for part in ("sampler", "grammar", "text", "stops"):
                value = getattr(self, part)
                setattr(copy, part, None if value is None else value.fork())
            return copy
        except BaseException:
            if kv is not None:
                kv.release()
            raise

    def extend(self, ids: Iterable[int]) -> None:
        """Append tokens that are not yet evaluated. Sampler, grammar and text of an earlier
        generation end. Of a decoder behind an encoder the first tokens are the source, which the
        decoder's start token follows, and later ones are the decoder's. ContextError for more than
        the context holds.
        """
        self.owner.wait_for_cancelled(self)
        self.extend_locked(ids)

    def extend_locked(self, ids: Iterable[int]) -> None:
        """`extend` for callers that hold the engine's lock, under which nothing can be waited
        for.
        """
        with self.owner.exclusive(self):
            more = checked_ids(ids, self.owner.program.vocab_size, media=True)
            if isinstance(ids, ImagePrompt):
                more = ImagePrompt(more, ids.media)
            if not self.tokens:
                more = self.owner.sourced(more)
            length, most = len(self.tokens) + len(more), self.owner.context_size
            if length > most:
                raise ContextError(
                    f"session: {len(self.tokens)} tokens and {len(more)} more, the context holds "
                    f"{most}",
                    tokens=length,
                    limit=most,
                )
            self.media += moved(media_of(more), len(self.tokens))
            self.tokens.extend(more)
            self.start = len(self.tokens)
            self._forget()

    def truncate(self, length: int) -> None:
        """Remove tokens from `length` on. Sampler, grammar and text are dropped too, because they
        cannot go back.
        """
        with self._idle():
            if (
                isinstance(length, bool)
                or not isinstance(length, (int, np.integer))
                or not 0 <= length <= len(self.tokens)
            ):
                raise ContextError(
                    f"truncate: found length {length!r}, wanted 0 to {len(self.tokens)}"
                )
            length = int(length)
            check_boundary(self.media, length, "truncate")
            self.truncate_unchecked(length)

    def truncate_unchecked(self, length: int) -> None:
        """`truncate` for the engine's loop, which may call it while the session is busy."""
        if length == len(self.tokens):
            return
        del self.tokens[length:]
        self.media = tuple(each for each in self.media if each.end <= length)
        if self.kv.length > length:
            self.kv.truncate(length)
        self.start = min(self.start, length)
        self._forget()

    def shift(self, keep: int) -> None:
        """Remove the older half of the tokens after the first `keep`, for the engine's loop. The
        tokens that move are evaluated again at their new positions.
        """
        keep = outside(self.media, keep)
        drop = outside(self.media, keep + max(1, (len(self.tokens) - keep) // 2)) - keep
        del self.tokens[keep : keep + drop]
        self.media = (
            *(each for each in self.media if each.end <= keep),
            *moved((each for each in self.media if each.start >= keep + drop), -drop),
        )
        self.start = max(keep, self.start - drop)
        self.kv.truncate(min(keep, self.kv.length))

    def kv_cache(self) -> KvCache:
        """A contiguous float32 copy of the keys and values of the tokens evaluated so far;
        PoolError once windowed layers have given some back.
        """
        with self._idle():
            return KvCache.of(self.kv)

    def snapshot(self, *, compress: Literal["zstd"] | None = None, full: bool = False) -> bytes:
        """The complete state as bytes, for `engine.restore` of any engine over the same model.
        compress="zstd" makes its pages smaller; full=True binds the snapshot to every byte of the
        model's file.

        EngineError while a request runs on the session, SnapshotIncompatible if the session cannot
        be saved completely.
        """
        data: bytes = self.owner.require_snapshots().to_bytes(self, compress=compress, full=full)
        return data

    def snapshot_to_file(
        self,
        path: str | PathLike[str],
        *,
        compress: Literal["zstd"] | None = None,
        full: bool = False,
    ) -> None:
        """Write `snapshot` to a file. Even after a failure, the file holds either its old
        content or the complete snapshot.
        """
        self.owner.require_snapshots().to_file(self, path, compress=compress, full=full)

    def close(self) -> None:
        """Release the pages for good; the tokens can still be read, and any further use raises
        EngineError. May be called twice. EngineError while a request runs on it.
        """
        owner = self._owner()
        # of an engine that is closed or gone, nothing is left to release
        if owner is None or owner.closed or self.closed:
            self.closed = True
            return
        with self._idle():
            owner.drop(self)
            self.closed = True  # under the lock: nothing begins on it in between

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _idle(self) -> Iterator[Owner]:
        """Its engine, under the lock that must be held to change an idle session. A cancelled
        request that still runs on it is waited for.
        """
        owner = self.owner
        owner.wait_for_cancelled(self)
        with owner.exclusive(self):
            yield owner

    def restorer(self) -> Callable[[], None]:
        """A function that takes back what is appended from now on, and what that ended (sampler,
        grammar, text), under the engine's lock. Nothing may be drawn in between.
        """
        length = len(self.tokens)
        state = [getattr(self, name) for name in _STATE]

        def restore() -> None:
            self.truncate_unchecked(length)
            for name, value in zip(_STATE, state):
                setattr(self, name, value)

        return restore

    @contextmanager
    def restored_on_error(self) -> Iterator[None]:
        """A context manager: after an exception the session is as it was before. The caller holds
        the engine's lock and evaluates nothing inside.
        """
        restore = self.restorer()
        try:
            yield
        except BaseException:
            if not self.busy:
                restore()
            raise

    def _forget(self) -> None:
        self.pending = self.sampler = self.grammar = self.text = self.stops = None
        self.at_start = False


class DefaultSession:
    """The session that an engine itself holds, for callers without one of their own: made when it
    is first needed, together with the session used last. Hold `lock` to change the default session.
    """

    __slots__ = ("_core", "_kept", "_session", "lock", "recent")

    def __init__(self, core: Owner) -> None:
        self.lock = threading.RLock()
        # what a prompt of None continues: a session, or `Siblings`, which have one at the end
        self.recent: Any = None
        self._core = core
        self._session: Session | None = None
        self._kept: list[Session] = []  # sessions of `retaining`

    def get(self) -> Session:
        """The default session."""
        with self.lock:
            if self._session is None:
                self._session = self._core.keep(self._core.new_session())
            return self._session

    def use(self) -> Session:
        """The default session, which becomes the one used last."""
        with self.lock:
            session = self.recent = self.get()
            return session

    def retaining(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """`make` for a request whose session keeps its pages, if the prefix cache does not store
        them, until the next request made in this way.
        """

        def made(core: Owner, vocabulary: Any, options: Any, **more: Any) -> Any:
            request = make(core, vocabulary, options, **more)
            # of several completions it is known at their end
            session = getattr(request, "session", None)
            with core.lock:
                idle = [each for each in self._kept if each is not session and not each.busy]
                for each in idle:
                    core.drop(each)
                self._kept = [each for each in self._kept if each not in idle]
                if (
                    session is not None
                    and more.get("session") is None
                    and not _stored(core, len(session), options)
                ):
                    self._kept.append(core.keep(session))
            return request

        return made

    def take(self, session: Session) -> None:
        """Make another session the default one and the one used last; the previous one is
        closed.
        """
        with self.lock:
            if self._session is not None:
                self._session.close()
            self._session = self.recent = session

    def truncate(self, length: int) -> None:
        """Remove its tokens from `length` on."""
        with self.lock:
            self.get().truncate(length)

    def reset(self) -> None:
        """Close it; the next use makes a new one."""
        with self.lock:
            session = self.get()
            session.close()
            if self.recent is session:
                self.recent = None
            self._session = None


def _stored(core: Owner, tokens: int, options: Any) -> bool:
    """Whether the prefix cache will take everything that a request can evaluate."""
    if core.prefix is None or not options.cache_prompt:
        return False
    most = (
        core.context_size
        if options.max_tokens is None
        else min(core.context_size, tokens + options.max_tokens)
    )
    return bool(-(-most // core.pool.page_size) <= core.prefix.max_pages)
