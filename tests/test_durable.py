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
STEPS = ("open", "pwritev", "fsync", "close", "rename", "open folder", "fsync folder")


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
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()], ids=["full", "interrupt"]
)
def test_a_failure_at_any_step_leaves_the_old_file_or_the_new_one(target, monkeypatch, step, error):
    monkeypatch.setattr(durable, "os", Failing(step, error))
    with pytest.raises(type(error)):
        write_parts(target, NEW)
    monkeypatch.undo()
    assert target.read_bytes() == (OLD if step <= 5 else b"".join(NEW))  # invariant 1
    assert os.listdir(target.parent) == ["saved"]  # invariant 2


SAVES = {
    "parts": "durable.write_parts(path, NEW)",
    "sealed": "container.write_sealed(path, KIND, {'a': b'1' * 5000, 'b': NEW})",
}


KIND = Kind(b"OXITEST1", 1, ValueError)
WHOLE = {"parts": b"".join(NEW), "sealed": b"".join(seal(KIND, {"a": b"1" * 5000, "b": NEW}))}


@pytest.mark.parametrize(
    "save, step, old",
    [
        *(("parts", step, step <= 5) for step in range(1, 8)),
        *(("sealed", step, step <= 7) for step in (2, 3, 4, 5, 7, 8)),
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


def test_a_link_keeps_being_one(target):
    link = target.with_name("link")
    link.symlink_to(target)
    write_parts(link, [b"through"])
    assert link.is_symlink() and target.read_bytes() == b"through"


def test_a_link_to_nothing_yet_becomes_one_to_the_new_file(tmp_path):
    (tmp_path / "link").symlink_to("later")
    write_parts(tmp_path / "link", [b"new"])
    assert os.readlink(tmp_path / "link") == "later" and (tmp_path / "later").read_bytes() == b"new"


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
        ("none/saved", "No such file"),
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
