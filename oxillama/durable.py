"""Writes a file completely or not at all: whatever fails, even if the process is killed, a reader
finds the old bytes or the new ones.

    temporary file next to the target -> write -> fsync -> rename over the target -> fsync of the
    folder

On macOS F_FULLFSYNC stands for fsync, which does not empty the disk's own cache there.

Symbolic links of a path are followed and stay; `target_of` returns the file they lead to.

A writer holds a lock (flock) on its temporary file. A killed process leaves the file without a
lock, and the next writer in that folder removes it. A temporary folder (`Scratch`), for files that
become no target, is locked by a file in it.

Invariants (tests cite them by number):

1. Until the rename the target is unchanged; after it, the target has all new bytes, which were on
the disk before. 2. A failure that the process survives leaves no temporary file or folder. If the
process is killed, it leaves one that nothing reads and that the next writer in the folder removes.
3. Only regular files are replaced: a folder, a device, a pipe or a socket is refused. 4. A
temporary file that is being written, or a folder in use, is removed by no other writer, thread,
process or machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from oxillama.errors import starting_thread

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed
    fcntl = None  # type: ignore[assignment]

_AT_ONCE = 256  # buffers of one system call; every system takes so many
MOST_BYTES = 1 << 30  # of one system call: macOS refuses 2 GiB, Linux does a part of them
_START_WRITE = 2  # SYNC_FILE_RANGE_WRITE
# of the target's name that a temporary one has: the whole might be as long as names may be
_NAME_BYTES = 100
# bytes as they are, for no program that is started
_OPEN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0) | getattr(os, "O_BINARY", 0)
_TEMPORARY = re.compile(r"\..*\.\d+-[0-9a-f]{12}\.tmp", re.DOTALL)
_LOCK = "lock"  # the file of a temporary folder that its owner has locked
# file systems that know no locks
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


def target_of(path: str | os.PathLike[str]) -> str:
    """The absolute path of the file that would be replaced or created; OSError if it is not, or
    cannot be, a regular file.
    """
    if "\0" in os.fspath(path):
        raise OSError(errno.EINVAL, "a name with a zero byte", path)
    try:
        target = os.path.realpath(path)
    except UnicodeEncodeError:
        name = ascii(os.fspath(path))
        raise OSError(errno.EINVAL, "a name with a lone surrogate", name) from None
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        # the folder must be there, and be one
        folder = os.path.dirname(target)
        try:
            os.stat(os.path.join(folder, ""))
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "there is no such folder", folder) from None
        return target
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, "a folder, wanted a file", path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "no regular file", path)
    return target


def open_without_waiting(path: str, flags: int = os.O_RDONLY) -> int:
    """An opener for `open` that does not block on a pipe without a writer; the caller checks that
    the file is a regular one.
    """
    try:
        return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | _OPEN)
    except PermissionError:  # Windows says so of a folder
        if os.name == "nt" and os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from None
        raise
    except OSError as error:
        if os.name == "nt" and error.errno == errno.EINVAL:  # a name that no file can have there
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
        raise


class Replacement:
    """New bytes for the file at a path, in a temporary file next to it: `fd` is open for writing
    until `keep` or `drop`. mode: permissions, less the umask.
    """

    __slots__ = ("_target", "_temporary", "fd")

    def __init__(self, path: str | os.PathLike[str], *, mode: int = 0o666) -> None:
        self._target = target_of(path)
        folder, name = os.path.split(self._target)
        remove_abandoned(folder)
        self.fd = -1
        while self.fd < 0:
            # not tempfile: its files are private to the user, this one becomes the result and
            # follows the umask
            self._temporary = _temporary(folder, name)
            self.fd = os.open(
                self._temporary,
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN,
                mode,
            )
            if not _lock(self.fd):  # another writer has taken it for abandoned
                self._close()

    def keep(self, *, keep_existing: bool = False) -> None:
        """Sync the new bytes and replace the old ones in one step; after an OSError, call `drop`.
        keep_existing: if a file exists by now, it stays and the new one is removed.
        """
        sync(self.fd)
        if fcntl is None:  # Windows renames no file that is open
            self._close()
        if keep_existing:
            with contextlib.suppress(FileExistsError):
                os.link(self._temporary, self._target)
            os.unlink(self._temporary)
        else:
            (os.rename if os.name == "posix" else os.replace)(self._temporary, self._target)
        # not before: without its lock it would be taken for abandoned
        self._close()
        _sync_folder(os.path.dirname(self._target))

    def drop(self) -> None:
        """Discard the new bytes, unless they have replaced the old ones."""
        with contextlib.suppress(OSError):
            self._close()
        with contextlib.suppress(OSError):
            os.unlink(self._temporary)

    def _close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class Scratch:
    """A new folder beside a path, for files on the way to the one there, without folders among
    them: `path` until `drop`, or the end of a `with` block, removes it with all of them. OSError,
    with the name of the path given, where none can be made.
    """

    __slots__ = ("_fd", "path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        folder, name = os.path.split(os.path.realpath(path))
        remove_abandoned(folder)
        self._fd = -1
        while self._fd < 0:
            self.path = _temporary(folder, name)
            try:
                os.mkdir(self.path, 0o700)
            except OSError as error:
                error.filename = os.fspath(path)
                raise
            try:
                self._fd = os.open(
                    os.path.join(self.path, _LOCK),
                    os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN,
                    0o600,
                )
            except FileNotFoundError:  # another writer has taken it for abandoned
                continue
            if not _lock(self._fd):
                self._close()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def drop(self) -> None:
        """Remove the folder."""
        if self._fd >= 0:
            if fcntl is None:  # Windows removes no file that is open
                self._close()
            with contextlib.suppress(OSError):
                _remove_folder(self.path)
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _temporary(folder: str, name: str) -> str:
    """A new name in the folder for what becomes, or serves, the file of a name there."""
    name = os.fsencode(name)[:_NAME_BYTES].decode(errors="ignore")
    return os.path.join(folder, f".{name}.{os.getpid()}-{secrets.token_hex(6)}.tmp")


def remove_abandoned(folder: str) -> None:
    """Remove the temporary files and folders of killed writers, on which no lock is held. What
    cannot be removed stays.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as inside:
        names = [entry.name for entry in inside if _TEMPORARY.fullmatch(entry.name)]
        for name in names:
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                mode = os.lstat(path).st_mode
                if stat.S_ISDIR(mode):
                    _remove_abandoned_folder(path)
                elif fcntl is None:
                    os.unlink(path)
                elif stat.S_ISREG(mode):
                    with _locked(path):
                        os.unlink(path)


def _remove_abandoned_folder(path: str) -> None:
    """Remove a temporary folder whose lock is free; OSError if it is held."""
    lock = os.path.join(path, _LOCK)
    try:
        if fcntl is None:
            os.unlink(lock)  # which Windows refuses while its owner is there
            _remove_folder(path)
            return
        with _locked(lock):
            _remove_folder(path)
    except FileNotFoundError:
        # killed before it had a lock, or after it was removed; one that is new is made again
        os.rmdir(path)


def _remove_folder(path: str) -> None:
    """Remove a temporary folder and its files, the lock as the last one: while it is there, who
    holds it owns the rest.
    """
    with os.scandir(path) as inside:
        names = [entry.name for entry in inside if entry.name != _LOCK]
    for name in names:
        os.unlink(os.path.join(path, name))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(path, _LOCK))
    os.rmdir(path)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold the lock of a file that another writer may hold; OSError if one does."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    """Lock a new temporary file; False where another process was removing it as abandoned."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _NO_LOCKS
    return os.fstat(fd).st_nlink > 0


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str], *, mode: int = 0o666, keep_existing: bool = False
) -> Iterator[int]:
    """A descriptor for the new bytes; when the block ends they replace the file at `path` in one
    step. mode and keep_existing: see `Replacement`.

    After any exception, from the block or the system (OSError), the old file is unchanged. An
    OSError that names no file, or the temporary one, gets the name of this file.
    """
    new = None
    try:
        new = Replacement(path, mode=mode)
        yield new.fd
        new.keep(keep_existing=keep_existing)
    except BaseException as error:
        if new is not None:
            new.drop()
        if isinstance(error, OSError) and error.errno is not None and not _named(error):
            error.filename = os.fspath(path)
            del error.filename2  # of a rename; None would be shown
        raise


def _named(error: OSError) -> bool:
    """Whether the error has the name of a file that is not a temporary one."""
    name = error.filename
    return isinstance(name, str) and not _TEMPORARY.fullmatch(os.path.basename(name))


def write_parts(path: str | os.PathLike[str], parts: Sequence[bytes | memoryview]) -> None:
    """Make the file at `path` hold the parts, one after the other, in one step; OSError if the
    system refuses, with the old file unchanged.
    """
    with replacing(path) as fd:
        write_at(fd, 0, parts)


def write_at(fd: int, offset: int, parts: Sequence[bytes | memoryview]) -> None:
    """Write every byte of the parts from `offset` on, however few the system takes at once."""
    waiting = [view for view in (memoryview(part).cast("B") for part in parts) if len(view)]
    waiting.reverse()
    while waiting:
        wrote = _write_some(fd, waiting[: -_AT_ONCE - 1 : -1], offset)
        offset += wrote
        while wrote:
            if wrote < len(waiting[-1]):
                waiting[-1] = waiting[-1][wrote:]
                break
            wrote -= len(waiting.pop())


def _write_some(fd: int, views: Sequence[memoryview], offset: int) -> int:
    """The number of bytes of the views that the system took, from the first one on."""
    some, left = [], MOST_BYTES
    for view in views:
        some.append(view[:left])
        left -= len(some[-1])
        if not left:
            break
    if hasattr(os, "pwritev"):
        return os.pwritev(fd, some, offset)
    os.lseek(fd, offset, os.SEEK_SET)  # Windows; a descriptor has one writer
    return os.write(fd, some[0])


def sync(fd: int) -> None:
    """Return when the bytes of a file, or the entries of a folder, are on the disk."""
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS; some file systems have only fsync
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
    os.fsync(fd)


def start_back(fd: int, offset: int, length: int) -> None:
    """Start writing bytes to the disk, if the system supports it, so that the fsync at the end has
    little left to wait for.
    """
    call = getattr(ctypes.CDLL(None), "sync_file_range", None) if os.name == "posix" else None
    if call is not None:  # what it refuses, the fsync refuses too
        call(
            ctypes.c_int(fd),
            ctypes.c_int64(offset),
            ctypes.c_int64(length),
            ctypes.c_uint(_START_WRITE),
        )


class Writer:
    """Writes one buffer while its caller fills the next.

    Use it with `with`; an error of the system is raised at the next call or at the end.
    """

    __slots__ = ("_fd", "_last", "_pool", "offset")

    def __init__(self, fd: int, offset: int) -> None:
        self._fd, self.offset = fd, offset
        self._pool = ThreadPoolExecutor(1)
        self._last: Future | None = None

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Start to write the parts, after the earlier ones are written."""
        self.wait()
        length = sum(map(len, parts))
        with starting_thread():
            self._last = self._pool.submit(self._write, self.offset, length, parts)
        self.offset += length

    def wait(self) -> None:
        """Wait until everything is written."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def _write(self, offset: int, length: int, parts: Sequence[bytes | memoryview]) -> None:
        write_at(self._fd, offset, parts)
        start_back(self._fd, offset, length)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self._pool.shutdown()


def _sync_folder(folder: str) -> None:
    """Sync the folder's entries, and so the rename, to the disk."""
    if os.name == "nt":  # which cannot open a folder, and writes renames by itself
        return
    fd = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        sync(fd)
    finally:
        os.close(fd)
