"""Named sessions: kept in memory while they are used, and as snapshots in the folder given at
start, so that a client's chat continues after a restart, bit for bit. What the server knows of a
session is the note of its snapshot: one file, so that both are replaced together.

A name is letters, digits, '_', '-' and '.', and begins with a letter or digit, so it cannot lead
out of the folder. Names that differ in case alone are of two sessions; where the file system takes
them for one (macOS), the second is not saved. A session that is only in the folder is restored when
it is first used.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxillama.engine.allocator import common_prefix
from oxillama.engine.session import Session
from oxillama.errors import ConfigError, OxillamaError
from oxillama.media.placement import identities
from oxillama.media.prompt import ImagePrompt, media_of
from oxillama.server.errors import ApiError, from_engine, shown
from oxillama.server.settings import ServerConfig
from oxillama.snapshot.session import EngineSnapshot

if TYPE_CHECKING:
    from oxillama.server.models import ServedModel

NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_NAME = re.compile(NAME_PATTERN[1:-1])
_SNAPSHOT = ".session"
_Messages = list[dict]  # a name, since `Sessions.list` hides the type in its class
# what Windows takes for a device, whatever follows a '.'
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?")


class NamedSession:
    """A session in memory. `messages` is the conversation of its chat.

    changed: the folder has not all of its state. holders: requests that are about to run on it,
    for which it must stay. files: held by who writes or removes its file, so that no older state
    replaces a newer one. gone: it was deleted, and is not to be written any more.
    """

    __slots__ = (
        "changed",
        "files",
        "gone",
        "holders",
        "messages",
        "model",
        "name",
        "session",
        "used_at",
    )

    def __init__(
        self, name: str, model: ServedModel, session: Session, messages: _Messages | None = None
    ) -> None:
        self.name, self.model, self.session = name, model, session
        self.messages = messages
        self.changed, self.gone, self.holders = True, False, 0
        self.files = threading.Lock()  # taken within the lock of all sessions, never around it
        self.used_at = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether a request runs on it, or is about to."""
        return bool(self.holders) or self.session.busy

    def info(self) -> dict[str, Any]:
        """Its description in an answer."""
        return {
            "name": self.name,
            "object": "session",
            "model": self.model.name,
            "tokens": len(self.session),
            "busy": self.busy,
            "loaded": True,
            "saved": not self.changed,
            "messages": self.messages,
        }


class Sessions:
    """The named sessions. Methods may take long and must not run on the event loop."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._folder = None if config.sessions_dir is None else Path(config.sessions_dir)
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(
                    f"sessions_dir: {self._folder} cannot be made: {error.strerror}, wanted a "
                    "folder"
                ) from error
            # told now: sessions are written when the server ends, when it is too late
            if not os.access(self._folder, os.R_OK | os.W_OK | os.X_OK):
                raise ConfigError(
                    f"sessions_dir: {self._folder} cannot be written, wanted a folder to save "
                    "sessions in"
                )
        # what changes it holds the lock, which may take long; what looks takes one step, without it
        self._named: dict[str, NamedSession] = {}
        self._lock = threading.RLock()

    # ---- names and files

    def folder(self) -> Path:
        """The folder of saved sessions; 400 if the server has none."""
        if self._folder is None:
            raise ApiError(
                400,
                "sessions: the server was started without --sessions-dir, wanted one to save in",
                code="sessions_not_saved",
            )
        return self._folder

    def path(self, name: str) -> Path:
        """The snapshot's file; 409 if it is that of another session, whose name differs in case."""
        path = self.folder() / file_name(checked_name(name))
        if path.is_file() and not _listed(path):
            raise ApiError(
                409,
                f"session {name}: the folder has one whose name differs in case alone, which its "
                "file system takes for the same; wanted another name",
                code="exists",
            )
        return path

    def on_disk(self, name: str) -> bool:
        """Whether there is a snapshot of that name."""
        if self._folder is None:
            return False
        path = self._folder / file_name(name)
        return path.is_file() and _listed(path)

    def knows(self, name: str) -> bool:
        """Whether there is a session of that name, in memory or in the folder."""
        return checked_name(name) in self._named or self.on_disk(name)

    def begun(self, name: str, model: ServedModel) -> bool:
        """Whether there is a session of that name that has tokens: what is appended to it begins no
        text.
        """
        return self.knows(name) and len(self.get(name, model).session) > 0

    def model_of(self, name: str) -> str | None:
        """The model of a session, None for an unknown session."""
        checked_name(name)
        named = self._named.get(name)
        if named is not None:
            return named.model.name
        return self.saved_info(name)["model"] if self.on_disk(name) else None

    def holds(self, model: ServedModel) -> bool:
        """Whether sessions in memory belong to a model, which must then stay loaded."""
        return any(each.model is model for each in list(self._named.values()))

    # ---- looking

    @property
    def count(self) -> int:
        """Sessions in memory."""
        return len(self._named)

    def list(self) -> list[dict[str, Any]]:
        """All sessions, those in memory and those in the folder."""
        with self._lock:
            found = {each.name: each.info() for each in self._named.values()}
        if self._folder is not None:
            for path in self._folder.glob(f"*{_SNAPSHOT}"):
                name = name_of(path.name)
                if name not in found and _NAME.fullmatch(name):
                    found[name] = self.saved_info(name)
        for each in found.values():
            each.pop("messages", None)
        return [found[name] for name in sorted(found)]

    def about(self, name: str) -> dict[str, Any]:
        """One session; 404 for an unknown one."""
        checked_name(name)
        named = self._named.get(name)
        if named is not None:
            return named.info()
        if self.on_disk(name):
            return self.saved_info(name)
        raise missing(name)

    def saved_info(self, name: str) -> dict[str, Any]:
        """The description of a session that is only in the folder."""
        try:
            found: EngineSnapshot | None = EngineSnapshot.inspect(self.folder() / file_name(name))
        except (OxillamaError, OSError):  # who restores it is told
            found = None
        model, messages = _noted(found)
        return {
            "name": name,
            "object": "session",
            "model": model,
            "tokens": None if found is None else found.facts["tokens"],
            "busy": False,
            "loaded": False,
            "saved": True,
            "messages": messages,
        }

    # ---- changing

    def get(
        self, name: str, model: ServedModel, *, create: bool = False, lora: Any = None
    ) -> NamedSession:
        """A session by name, restored if it is only in the folder; with `create`, made new with the
        given adapters (None: the current ones), which it keeps.
        """
        checked_name(name)
        with self._lock:
            named = self._named.get(name)
            if named is None and self.on_disk(name):
                return self.restore(name, model)
            if named is None:
                if not create:
                    raise missing(name)
                self._make_room()
                named = self._named[name] = NamedSession(
                    name, model, model.engine.session(lora=lora)
                )
            if named.model is not model:
                raise ApiError(
                    409,
                    f"session {name}: is of the model {named.model.name}, not of {model.name}",
                    param="session",
                    code="session_model_mismatch",
                )
            named.used_at = time.monotonic()
            return named

    def create(
        self, name: str, model: ServedModel, messages: _Messages | None = None
    ) -> NamedSession:
        """A new session; 409 if there is one of that name."""
        with self._lock:
            if self.knows(name):
                raise exists(name, param="name")
            named = self.get(name, model, create=True)
            named.messages = messages
            return named

    @contextmanager
    def held(self, name: str, model: ServedModel, *, lora: Any = None) -> Iterator[NamedSession]:
        """A context manager: the session of a request, made new if there is none of that name. If
        the request is refused, a session that was made for it is gone again.
        """
        with self._lock:
            made = not self.knows(name)
            named = self.get(name, model, create=True, lora=lora)
            named.holders += 1
        refused = True
        try:
            yield named
            refused = False
        finally:
            with self._lock:
                named.holders -= 1
                unused = not len(named.session) and not named.busy
                if refused and made and unused and self._named.get(name) is named:
                    del self._named[name]
                    _closed(named.session)

    def restore(self, name: str, model: ServedModel) -> NamedSession:
        """The session from the folder, replacing the one in memory."""
        path = self.path(name)
        if not path.is_file():
            raise missing(name)
        try:
            snapshots = model.engine.loaded.core.require_snapshots()
            session, recorded = snapshots.restored(path)
        except (OxillamaError, OSError) as error:
            raise from_engine(error, param="session") from error
        with self._lock:
            before = self._named.pop(name, None)
            if before is None:
                self._make_room()
            named = NamedSession(name, model, session, _noted(recorded)[1])
            named.changed = False
            self._named[name] = named
        if before is not None:
            _closed(before.session)
        return named

    def save(self, name: str) -> dict[str, Any]:
        """Write a session in memory to the folder; the old file is replaced completely or not at
        all.
        """
        path = self.path(name)
        named = self._named.get(name)
        if named is None:
            if self.on_disk(name):
                return self.saved_info(name)
            raise missing(name)
        size = self._write(named, path)
        return {**named.info(), "bytes": size}

    def _write(self, named: NamedSession, path: Path, *, param: str = "session") -> int:
        """Write a session's snapshot; returns its bytes."""
        with named.files:
            if named.gone:
                raise missing(named.name)
            # first: a request that begins while the file is written changes it again
            before, named.changed = named.changed, False
            note = json.dumps({"model": named.model.name, "messages": named.messages}).encode()
            try:
                snapshots = named.session.owner.require_snapshots()
                snapshots.to_file(named.session, path, note=note)
                return path.stat().st_size
            except BaseException as error:
                named.changed = before or named.changed
                if isinstance(error, OxillamaError):
                    raise from_engine(error, param=param) from error
                if isinstance(error, OSError):
                    raise ApiError(
                        507,
                        f"session {named.name}: cannot be written: {error.strerror}",
                        code="session_not_written",
                    ) from error
                raise

    def store(self, name: str, model: ServedModel, session: Session) -> None:
        """Write the session of a slot to the folder, under a name that no session in memory has."""
        with self._lock:
            if name in self._named:
                raise ApiError(
                    409,
                    f"filename: {name} is a session in memory, wanted another name",
                    param="filename",
                    code="exists",
                )
            self._write(NamedSession(name, model, session), self.path(name), param="filename")

    def fork(self, name: str, to: str, model: ServedModel) -> NamedSession:
        """An independent copy under another name."""
        checked_name(to, param="to")
        with self._lock:
            if to in self._named or self.on_disk(to):
                raise exists(to, param="to")
            named = self.get(name, model)
            try:
                copy = named.session.fork()
            except OxillamaError as error:
                raise from_engine(error, param="session") from error
            try:
                self._make_room()  # after the fork: it may be the session that gives way
            except BaseException:
                _closed(copy)
                raise
            made = self._named[to] = NamedSession(to, named.model, copy, named.messages)
            return made

    def delete(self, name: str) -> None:
        """Remove a session from memory and from the folder."""
        checked_name(name)
        with self._lock:
            named = self._named.get(name)
            if named is not None and named.busy:
                raise ApiError(
                    409,
                    f"session {name}: a request is running on it, wanted an idle session",
                    code="session_busy",
                )
            if named is None and not self.on_disk(name):
                raise missing(name)
            with nullcontext() if named is None else named.files:
                if named is not None:
                    named.gone = True
                    del self._named[name]
                    _closed(named.session)
                if self.on_disk(name):
                    self.path(name).unlink(missing_ok=True)

    def named(self, name: str) -> NamedSession | None:
        """A session in memory, None where it is not there."""
        return self._named.get(name)

    def save_and_release(self, name: str) -> None:
        """Save a session if it changed, and release it so that another process can continue it;
        does nothing for one that is not in memory.
        """
        with self._lock:
            named = self._named.get(name)
            if named is None:
                return
            if named.busy:
                raise ApiError(
                    409,
                    f"session {name}: a request is running on it, wanted an idle session",
                    code="session_busy",
                )
            if named.changed:
                self._write(named, self.path(name))
            del self._named[name]
        _closed(named.session)

    def save_and_release_all(self, model: ServedModel) -> None:
        """The same for all idle sessions of a model; without a folder nothing is done."""
        if self._folder is not None:
            for named in list(self._named.values()):
                if named.model is not model or named.busy:
                    continue
                try:
                    self.save_and_release(named.name)
                except ApiError as error:  # a request began meanwhile
                    if error.code != "session_busy":
                        raise

    def save_all(self) -> dict[str, str | None]:
        """Save every session that changed, if there is a folder: name -> error."""
        if self._folder is None:
            return {}
        out: dict[str, str | None] = {}
        for named in list(self._named.values()):
            if not named.changed:
                continue
            try:
                self._write(named, self.path(named.name))
                out[named.name] = None
            except ApiError as error:
                out[named.name] = error.message
        return out

    def _make_room(self) -> None:
        """Release the session used least recently, after saving it; 429 without a folder."""
        if len(self._named) < self._config.max_sessions:
            return
        idle = min(
            (each for each in self._named.values() if not each.busy),
            key=lambda each: each.used_at,
            default=None,
        )
        if idle is None or self._folder is None:
            raise ApiError(
                429,
                f"sessions: {len(self._named)} are in memory, which is as many as may",
                code="too_many_sessions",
                headers={"Retry-After": "5"},
            )
        if idle.changed:
            self._write(idle, self.path(idle.name))
        del self._named[idle.name]
        _closed(idle.session)


def _listed(path: Path) -> bool:
    """Whether a file that is there has this very name."""
    return path.name in os.listdir(path.parent)


def file_name(name: str, *, windows: bool = os.name == "nt") -> str:
    """The file of a session. To Windows a capital letter is a small one, so that it is written as
    '=' and the small one, and '==' is before what would be a device.
    """
    if windows:
        name = re.sub("[A-Z]", lambda found: f"={found[0].lower()}", name)
        name = f"=={name}" if _DEVICE.fullmatch(name) else name
    return name + _SNAPSHOT


def name_of(file: str, *, windows: bool = os.name == "nt") -> str:
    """The session of a file that `file_name` named."""
    name = file.removesuffix(_SNAPSHOT)
    if windows:
        return re.sub("=(.)", lambda found: found[1].upper(), name.removeprefix("=="))
    return name


def checked_name(name: Any, *, param: str = "session") -> str:
    """The name, if it is valid; 400 otherwise."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ApiError(
            400,
            f"{param}: found {shown(name)}, wanted 1 to 64 letters, digits, '_', '-' and '.' that "
            "begin with a letter or digit",
            param=param,
            code="invalid_session_name",
        )
    return name


def _noted(found: EngineSnapshot | None) -> tuple[str | None, list[dict] | None]:
    """(model, messages) in the note of a snapshot; None for what another writer does not say."""
    try:
        note = json.loads(found.note) if found is not None and found.note is not None else {}
    except (ValueError, RecursionError):
        note = {}
    known = note if isinstance(note, dict) else {}
    model, messages = known.get("model"), known.get("messages")
    return (
        model if isinstance(model, str) else None,
        messages if isinstance(messages, list) else None,
    )


def exists(name: str, *, param: str) -> ApiError:
    return ApiError(409, f"session {name}: exists, wanted a new name", param=param, code="exists")


def missing(name: str) -> ApiError:
    return ApiError(404, f"session {name}: is unknown", param="session", code="session_not_found")


@contextmanager
def copy_on_error(session: Session, keep: Callable[[Session], None]) -> Iterator[None]:
    """A context manager: if a request is refused, `keep` gets a copy of its session from before."""
    before = session.fork()
    try:
        yield
    except BaseException:
        keep(before)
        before = session
        raise
    finally:
        _closed(before)


def truncate_to_common_prefix(session: Session, ids: Sequence[int]) -> list[int]:
    """Truncate a session to its common prefix with a prompt; returns the tokens to append, at least
    one.
    """
    media = media_of(ids)
    wanted = identities(ids, media) if media else ids
    held = session.identities
    common = common_prefix(held, wanted, min(len(held), len(ids) - 1))
    # an image or a clip that differs, or ends the prompt, is taken again from its first row
    for each in (*session.media, *media):
        if each.start < common < each.end:
            common = each.start
    session.truncate(common)
    return ids[common:] if isinstance(ids, ImagePrompt) else list(ids[common:])


def _closed(session: Session) -> None:
    # refused where it is busy, or its engine closed: their end gives the pages back
    with suppress(OxillamaError):
        session.close()
