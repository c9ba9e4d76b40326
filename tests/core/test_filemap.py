"""Mapped files that somebody shortens or writes to: no process ends, nothing stays unseen, and
signals that are about other memory go where they went before.
"""

import errno
import mmap
import os
import signal
import subprocess
import sys
import threading

import pytest

from oxillama._core.filemap import FileMap, read_at

PAGE = mmap.PAGESIZE
on_unix = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows lets nobody shorten or replace a mapped file"
)
with_sigbus = pytest.mark.skipif(not hasattr(signal, "SIGBUS"), reason="the system has no SIGBUS")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x" * 5 * PAGE)
    return path


def mapped(path, **options):
    with open(path, "rb") as file:
        return FileMap(file.fileno(), path.name, **options)


def test_it_is_the_bytes_of_its_file(path):
    path.write_bytes(b"abc" * PAGE)
    file = mapped(path)
    with memoryview(file) as view:
        assert view.readonly and bytes(view) == b"abc" * PAGE
    assert len(file) == 3 * PAGE and file.label == "model.gguf" and file.change() is None
    file.release(PAGE, PAGE)
    assert bytes(file) == b"abc" * PAGE
    for start, nbytes in ((1, 1), (-PAGE, 1), (0, -1), (0, 3 * PAGE + 1), (3 * PAGE, 1)):
        with pytest.raises(ValueError, match="release"):
            file.release(start, nbytes)


def test_bytes_are_read_at_a_place(path):
    path.write_bytes(bytes(range(256)) * 40)
    with open(path, "rb", buffering=0) as file:
        out = bytearray(300)
        assert read_at(file.fileno(), memoryview(out)[:100], 256 * 39 + 200) == 56
        assert bytes(out[:56]) == bytes(range(200, 256)) and not any(out[56:])
        assert read_at(file.fileno(), out, 1) == 300
        assert bytes(out) == bytes(range(256))[1:] + bytes(range(45))
        assert read_at(file.fileno(), out, 256 * 40) == 0
        assert read_at(file.fileno(), bytearray(), 0) == 0
    with pytest.raises(OSError) as caught:
        read_at(1 << 20, out, 0)
    assert caught.value.errno == errno.EBADF


FAULT = """
import ctypes, sys
import numpy as np
from oxillama._core.filemap import FileMap
def mapped(name):
    with open(sys.argv[1], "rb") as file:
        return FileMap(file.fileno(), name)
lost, kept = mapped("lost"), mapped("kept")
seen = np.frombuffer(lost, np.uint8)
kernel = ctypes.WinDLL("kernel32")
def fault(at):
    kernel.RaiseException(0xC0000006, 0, 3, (ctypes.c_size_t * 3)(0, at, 0xC000009C))
fault(seen.ctypes.data + 70_000)
assert not seen.any() and bytes(lost) == bytes(300_000)
assert "a part of the file could not be read" in lost.change()
assert bytes(kept) == b"x" * 300_000 and kept.change() is None
del seen, lost
again = mapped("again")
assert bytes(again) == b"x" * 300_000 and again.change() is None
try:
    fault(ctypes.addressof(ctypes.create_string_buffer(8)))
except OSError as error:  # ctypes makes one of an exception that nobody took
    print(hex(error.winerror & 0xFFFFFFFF))
"""


@pytest.mark.skipif(sys.platform != "win32", reason="such exceptions are of Windows")
def test_an_exception_of_a_page_is_a_lost_map(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 300_000)
    run = subprocess.run(
        [sys.executable, "-c", FAULT, str(tmp_path / "file")], capture_output=True, text=True
    )
    assert (run.stdout, run.stderr) == ("0xc0000006\n", "")


def test_what_cannot_be_mapped_is_an_error(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(OSError, match="empty"):
        mapped(tmp_path / "empty")
    with pytest.raises(OSError, match="gone"):
        FileMap(1 << 20, "gone")


@on_unix
def test_a_file_that_was_shortened_reads_as_zeros_and_is_told(path, tmp_path):
    (tmp_path / "other").write_bytes(b"y" * 5 * PAGE)
    file, other = mapped(path), mapped(tmp_path / "other")
    view = memoryview(file)
    assert view[-1] == ord("x")
    os.truncate(path, PAGE)
    assert view[-1] == 0
    assert bytes(view) == bytes(5 * PAGE)
    wanted = f"found {PAGE} bytes, wanted {5 * PAGE}"
    assert file.change() == f"model.gguf: the file was changed after it was opened: {wanted}"
    assert bytes(other) == b"y" * 5 * PAGE and other.change() is None


@on_unix
def test_what_was_lost_stays_lost(path):
    """The file is as it was by the time somebody asks, but what was read were zeros."""
    file, status = mapped(path), os.stat(path)
    os.truncate(path, 0)
    assert memoryview(file)[PAGE] == 0
    path.write_bytes(b"x" * 5 * PAGE)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert "a part of the file could not be read (SIGBUS)" in file.change()
    assert mapped(path).change() is None


def test_another_content_of_the_same_length_is_told(path):
    file, undated = mapped(path), mapped(path, dated=False)
    with open(path, "r+b") as other:
        other.write(b"y")
    os.utime(path, ns=(1, 1))
    assert f"found {5 * PAGE} bytes as before but written to" in file.change()
    assert undated.change() is None


@on_unix
def test_a_file_that_another_took_the_place_of_is_unchanged(path, tmp_path):
    file = mapped(path)
    (tmp_path / "other").write_bytes(b"other")
    os.replace(tmp_path / "other", path)
    assert file.change() is None and bytes(file) == b"x" * 5 * PAGE
    path.unlink()
    assert file.change() is None


@on_unix
def test_threads_that_meet_one_loss_all_go_on(path):
    files = [mapped(path) for _ in range(4)]
    found, begin = [], threading.Barrier(8)

    def read(file):
        begin.wait()
        found.append(bytes(file))

    threads = [threading.Thread(target=read, args=(files[i % 4],)) for i in range(8)]
    os.truncate(path, 0)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [bytes(5 * PAGE)] * 8 and all(file.change() for file in files)


SETUP = """
import faulthandler, mmap, os, signal, sys
from oxillama._core.filemap import FileMap
PAGE = mmap.PAGESIZE
def new(name):
    with open(os.path.join(sys.argv[1], name), "wb") as file:
        file.write(b"x" * 2 * PAGE)
    return open(file.name, "r+b")
def ours(name="ours"):
    with new(name) as file:
        return FileMap(file.fileno(), name), file.name
def lose(made):
    os.truncate(made[1], 0)
    assert memoryview(made[0])[PAGE] == 0 and made[0].change()
def theirs():
    file = new("theirs")
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    file.truncate(0)
    return mapped[PAGE]
"""
DUMP = "Fatal Python error: Bus error"


def ran(tmp_path, code, *options):
    """(return code, stderr) of a program."""
    done = subprocess.run(
        [sys.executable, *options, "-c", SETUP + code, tmp_path],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "code",
    (
        "made = ours(); lose(made); theirs()",
        "made = ours(); del made; theirs()",  # often at the very same address
        "made = ours(); signal.raise_signal(signal.SIGBUS)",
        "made = ours(); os.kill(os.getpid(), signal.SIGBUS); signal.pause()",
        "signal.signal(signal.SIGBUS, signal.SIG_IGN); made = ours(); theirs()",
    ),
)
@with_sigbus
def test_a_signal_that_is_not_ours_ends_the_process_as_before(tmp_path, code):
    assert ran(tmp_path, code) == (-signal.SIGBUS, "")


@pytest.mark.parametrize(
    "code",
    (
        "made = ours(); lose(made); theirs()",
        "made = ours(); lose(made); signal.raise_signal(signal.SIGBUS)",
        "faulthandler.disable(); made = ours(); faulthandler.enable(); theirs()",
        # our handler is on top of another that passes on to ours
        "faulthandler.disable(); one = ours(); faulthandler.enable(); two = ours('two'); lose(one);"
        " lose(two); theirs()",
    ),
)
@with_sigbus
def test_handlers_that_were_there_before_are_called(tmp_path, code):
    returned, written = ran(tmp_path, code, "-X", "faulthandler")
    assert returned == -signal.SIGBUS and written.count(DUMP) == 1


@with_sigbus
def test_what_ignores_signals_goes_on_doing_so(tmp_path):
    code = """
signal.signal(signal.SIGBUS, signal.SIG_IGN)
made = ours()
signal.raise_signal(signal.SIGBUS)
lose(made)
"""
    assert ran(tmp_path, code) == (0, "")


@with_sigbus
def test_a_handler_of_a_program_is_called(tmp_path):
    code = """
called = []
signal.signal(signal.SIGBUS, lambda number, frame: called.append(number))
made = ours()
signal.raise_signal(signal.SIGBUS)
lose(made)
assert called == [signal.SIGBUS]
"""
    assert ran(tmp_path, code) == (0, "")


@with_sigbus
def test_a_forked_child_has_the_handler(tmp_path):
    code = """
made = ours()
child = os.fork()
if not child:
    lose(made)
    lose(ours("another"))
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
lose(made)
"""
    assert ran(tmp_path, code) == (0, "")
