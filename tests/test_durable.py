"""A file is written whole or not at all: writes that fail, processes that are killed, at every
step.
"""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from oxillama import durable
from oxillama.durable import target_of, write_parts
from oxillama.snapshot.container import Kind, seal

OLD, NEW = b"old" * 100, [b"new" * 1000, b"", memoryview(b"er" * 50_000), b"!"]
STEPS = ("open", "pwritev", "fsync", "rename", "close", "open folder", "fsync folder")


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "saved"
    path.write_bytes(OLD)
    return path


class Failing:
    """The os module, but the n-th call that counts raises, or takes part of a write first."""

    def __init__(self, step: int, error: BaseException | None = None, short: int = 0) -> None:
        self.step, self.error, self.short, self.at = step, error, short, 0

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in ("open", "pwritev", "write", "fsync", "close", "rename", "replace"):
            return real

        def call(*arguments, **named):
            if name == "pwritev" and self.short:
                return real(arguments[0], [memoryview(arguments[1][0])[: self.short]], arguments[2])
            self.at += 1
            if self.at == self.step and self.error is not None:
                if name == "close":
                    real(*arguments)
                raise self.error
            return real(*arguments, **named)

        return call


def test_parts_are_written_one_after_the_other_however_few_bytes_a_call_takes(target, monkeypatch):
    write_parts(target, NEW)
    assert target.read_bytes() == b"".join(NEW)
    monkeypatch.setattr(durable, "os", Failing(0, short=777))
    write_parts(target, [b"x" * 2000, b"y" * 3000])
    assert target.read_bytes() == b"x" * 2000 + b"y" * 3000
    monkeypatch.undo()
    write_parts(target, [bytes([index % 256]) for index in range(3000)])
    assert target.read_bytes() == bytes(index % 256 for index in range(3000))
    assert os.listdir(target.parent) == ["saved"]


@pytest.mark.parametrize("step", range(1, len(STEPS) + 1), ids=STEPS)
@pytest.mark.parametrize("kind", ["full", "full and named", "interrupt"])
def test_a_failure_at_any_step_leaves_the_old_file_or_the_new_one(target, monkeypatch, step, kind):
    error = OSError(errno.ENOSPC, "full") if kind != "interrupt" else KeyboardInterrupt()
    if kind == "full and named":  # as of open and rename
        error.filename, error.filename2 = f"/here/.saved.{os.getpid()}-0123456789ab.tmp", "saved"
    monkeypatch.setattr(durable, "os", Failing(step, error))
    with pytest.raises(type(error)) as raised:
        write_parts(target, NEW)
    monkeypatch.undo()
    if isinstance(error, OSError):
        assert str(raised.value) == f"[Errno 28] full: {str(target)!r}"
    assert target.read_bytes() == (OLD if step <= 4 else b"".join(NEW))  # invariant 1
    assert os.listdir(target.parent) == ["saved"]  # invariant 2


SAVES = {
    "parts": "durable.write_parts(path, NEW)",
    "sealed": "container.write_sealed(path, KIND, {'a': b'1' * 5000, 'b': NEW})",
}


KIND = Kind(b"OXITEST1", 1, ValueError)
WHOLE = {"parts": b"".join(NEW), "sealed": b"".join(seal(KIND, {"a": b"1" * 5000, "b": NEW}))}


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no such signal")
@pytest.mark.parametrize(
    "save, step, old",
    [
        *(("parts", step, step <= 4) for step in range(1, 8)),
        *(("sealed", step, step <= 6) for step in (2, 3, 4, 5, 6, 7)),
    ],
)
def test_a_kill_at_any_step_leaves_the_old_file_or_the_new_one(target, save, step, old):
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from oxillama import durable
from oxillama.snapshot import container
from tests.test_durable import KIND, NEW, Failing
class Killed(Failing):
    def __getattr__(self, name):
        call = super().__getattr__(name)
        def last(*arguments, **named):
            if name in ("open", "pwritev", "fsync", "close", "rename") and self.at + 1 == self.step:
                if name == "pwritev":
                    os.pwrite(arguments[0], bytes(arguments[1][0])[:100], arguments[2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)
        return last if callable(call) else call
durable.os = Killed({step})
path = {str(target)!r}
{SAVES[save]}
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert target.read_bytes() == (OLD if old else WHOLE[save])
    write_parts(target, NEW)
    assert target.read_bytes() == b"".join(NEW)
    # what was killed has left nothing for good (invariant 2)
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_what_another_process_writes_is_not_removed(target):
    """Invariant 4: whether a file is abandoned is told by its lock, not by the process's number."""
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from oxillama.durable import replacing
os.getpid = lambda: 4194305  # no process has this number
with replacing({str(target)!r}) as fd:
    os.write(fd, b"by another")
    print("open", flush=True)
    sys.stdin.readline()
"""
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "open\n"
    write_parts(target, NEW)
    assert len(list(target.parent.iterdir())) == 2
    other.communicate("\n", timeout=20)
    assert other.returncode == 0 and target.read_bytes() == b"by another"


@pytest.mark.parametrize("call, keep_existing", [("rename", False), ("link", True)])
def test_what_is_whole_is_not_removed_before_it_is_in_place(
    target, monkeypatch, call, keep_existing
):
    """Invariant 4: another writer comes to the folder just before the new bytes take their name."""
    target.unlink()

    class Shared:
        """The os module; the other writer looks for what is abandoned."""

        def __getattr__(self, name):
            if name == call:
                durable.remove_abandoned(str(target.parent))
            return getattr(os, name)

    monkeypatch.setattr(durable, "os", Shared())
    with durable.replacing(target, keep_existing=keep_existing) as fd:
        os.write(fd, b"whole")
    assert target.read_bytes() == b"whole" and os.listdir(target.parent) == ["saved"]


def test_only_abandoned_temporary_files_are_removed(target):
    """Invariant 2, and nothing else of the folder: any name that is not of this form stays."""
    folder = target.parent
    left = folder / f".other.99.{2**22 + 1}-0123456789ab.tmp"
    left.write_bytes(b"half")
    kept = [".other.1-0123456789a.tmp", "other.1-0123456789ab.tmp", ".x.1-0123456789ab.tmp.gz"]
    for name in kept:
        (folder / name).write_bytes(b"kept")
    (folder / ".dir.1-0123456789ab.tmp").mkdir()
    (folder / ".dir.1-0123456789ab.tmp" / "of a user").write_bytes(b"kept")
    (folder / ".new.1-0123456789ab.tmp").mkdir()  # killed before it was locked
    os.mkfifo(folder / ".pipe.1-0123456789ab.tmp")
    (folder / ".link.1-0123456789ab.tmp").symlink_to(target)
    write_parts(target, NEW)
    found = {path.name for path in folder.iterdir()}
    assert found == {
        *kept,
        target.name,
        ".dir.1-0123456789ab.tmp",
        ".pipe.1-0123456789ab.tmp",
        ".link.1-0123456789ab.tmp",
    }


SCRATCH = """
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
from oxillama.durable import Scratch
with Scratch({target!r}) as scratch:
    Path(scratch.path, "half").write_bytes(b"half of it")
    print(scratch.path, flush=True)
    sys.stdin.readline()
    assert Path(scratch.path, "half").read_bytes() == b"half of it"
"""


@pytest.mark.parametrize("killed", [True, False])
def test_a_temporary_folder_lives_as_long_as_its_process(target, killed):
    """Invariants 2 and 4: the next writer removes a folder whose process was killed, and no
    other.
    """
    code = SCRATCH.format(here=str(Path(__file__).parents[1]), target=str(target))
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    path = Path(other.stdout.readline().rstrip())
    with durable.Scratch(target) as own:
        Path(own.path, "own").touch()
        write_parts(target, NEW)
        assert (path / "half").exists() and Path(own.path, "own").exists()
    assert sorted(target.parent.iterdir()) == sorted((path, target))
    if killed:
        other.kill()
    other.communicate("\n", timeout=60)
    assert (other.returncode == 0) is not killed and path.exists() is killed
    write_parts(target, NEW)
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("call", ["mkdir", "open"])
def test_a_folder_that_is_taken_for_abandoned_before_it_is_locked_is_made_again(
    target, monkeypatch, call
):
    made = []

    class Swept:
        """The os module; another writer comes after the first folder, or its lock, is made."""

        def __getattr__(self, name):
            return getattr(os, name)

        def mkdir(self, path, *arguments):
            os.mkdir(path, *arguments)
            made.append(path)
            if call == "mkdir" and len(made) == 1:
                durable.remove_abandoned(str(target.parent))

        def open(self, path, flags, *arguments):
            fd = os.open(path, flags, *arguments)
            if call == "open" and flags & os.O_CREAT and len(made) == 1:
                durable.remove_abandoned(str(target.parent))
            return fd

    monkeypatch.setattr(durable, "os", Swept())
    with durable.Scratch(target) as scratch:
        assert made[1:] == [scratch.path] and os.listdir(scratch.path) == ["lock"]
    assert os.listdir(target.parent) == [target.name]


def test_a_file_that_is_taken_for_abandoned_before_it_is_locked_is_made_again(target, monkeypatch):
    opened = []

    class Swept:
        """The os module; what is opened first is removed before its writer comes to lock it."""

        def __getattr__(self, name):
            return getattr(os, name)

        def open(self, path, *arguments):
            fd = os.open(path, *arguments)
            if not opened:
                os.unlink(path)
            opened.append(path)
            return fd

    monkeypatch.setattr(durable, "os", Swept())
    write_parts(target, NEW)
    assert target.read_bytes() == b"".join(NEW)
    assert len([path for path in opened if str(path).endswith(".tmp")]) == 2


def test_an_existing_file_stays_where_that_is_asked_for(target):
    with durable.replacing(target, keep_existing=True) as fd:
        os.write(fd, b"second")
    assert target.read_bytes() == OLD
    new = target.with_name("new")
    with durable.replacing(new, mode=0o600, keep_existing=True) as fd:
        os.write(fd, b"first")
    assert new.read_bytes() == b"first" and new.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in target.parent.iterdir()) == ["new", target.name]


def test_a_link_keeps_being_one(target):
    link = target.with_name("link")
    link.symlink_to(target)
    write_parts(link, [b"through"])
    assert link.is_symlink() and target.read_bytes() == b"through"


def test_a_link_to_nothing_yet_becomes_one_to_the_new_file(tmp_path):
    (tmp_path / "link").symlink_to("later")
    write_parts(tmp_path / "link", [b"new"])
    assert os.readlink(tmp_path / "link") == "later" and (tmp_path / "later").read_bytes() == b"new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are of Unix")
def test_nothing_is_replaced_but_a_regular_file(tmp_path, monkeypatch):  # invariant 3
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.symlink("pipe", "link")
    os.mkdir("folder")
    Path("file").write_bytes(OLD)
    for path, message in (
        ("pipe", "no regular file"),
        ("link", "no regular file"),
        ("folder", "a folder, wanted a file"),
        (".", "a folder, wanted a file"),
        ("", "a folder, wanted a file"),
        ("/", "a folder, wanted a file"),
        ("none/saved", "there is no such folder"),
        ("file/saved", "Not a directory"),
        ("a\0b", "a zero byte"),
        ("n" * 256, "name too long"),
    ):
        for write in (target_of, lambda path: write_parts(path, NEW)):
            with pytest.raises(OSError, match=message):
                write(path)
    assert (
        Path("pipe").is_fifo()
        and sorted(os.listdir()) == ["file", "folder", "link", "pipe"]
        and not os.listdir("folder")
    )


@pytest.mark.parametrize(
    "name", ["n" * 255, "\U0001f98a" * 63], ids=["ascii", "four bytes a letter"]
)
def test_a_name_as_long_as_names_may_be_is_written(tmp_path, name):
    write_parts(tmp_path / name, NEW)
    assert os.listdir(tmp_path) == [name] and (tmp_path / name).read_bytes() == b"".join(NEW)
