"""What Windows lacks is not needed by Python's modules: they import, files are written, and packed
weights are kept. What is another there: the folders of a user, the names of files, its compilers.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from oxillama import folders
from oxillama.embedded import embedded_path
from oxillama.server.sessions import file_name, name_of

ROOT = Path(__file__).resolve().parents[1]
CODE = """
import os, random, signal, sys
sys.modules["fcntl"] = sys.modules["resource"] = None
# asyncio registers what happens at a fork where there is one
lacking = ("fork", "register_at_fork", "preadv", "pwritev", "pread", "pwrite", "getuid")
for owner, names in (
    (os, (*lacking, "O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW")),
    (signal, ("pthread_sigmask", "SIGBUS", "SIGHUP")),
):
    for name in names:
        if hasattr(owner, name):
            delattr(owner, name)
import importlib, pkgutil
import oxillama
packages = [oxillama]
for package in packages:
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if module.name.endswith("__main__") or module.name == "oxillama.integrations.ray":
            continue  # ray is an extra that no light test needs
        found = importlib.import_module(module.name)
        packages += [found] if module.ispkg else []
from pathlib import Path
from oxillama.durable import write_parts
folder = Path(sys.argv[1])
left = folder / f".saved.{os.getpid()}-0123456789ab.tmp"
left.write_bytes(b"half")
for parts in ([b"old"], [b"new" * 1000, b"", b"er" * 50_000]):
    write_parts(folder / "saved", parts)
assert (folder / "saved").read_bytes() == b"new" * 1000 + b"er" * 50_000 and not left.exists()
ids = [1, 2, 3, 4]
found = []
for mapped in (False, True):
    with oxillama.load(sys.argv[2], num_threads=1, sidecar=folder / "sidecars") as engine:
        found.append(engine.logits(ids).tobytes())
        assert (engine._loaded.model.verifier is not None) == mapped
        engine.generate(ids, max_tokens=2)
        engine.snapshot_to_file(folder / "snapshot")
    with oxillama.load(sys.argv[2], num_threads=1) as engine:
        assert engine.restore_from_file(folder / "snapshot").tokens
assert found[0] == found[1]
"""


def test_nothing_needs_what_windows_lacks(tmp_path):
    subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path), str(embedded_path())],
        check=True,
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "OXILLAMA_SIDECAR"},
        timeout=120,
    )


@pytest.mark.parametrize(
    ("platform", "found"),
    [("win32", "win32"), ("win-arm64", "win-arm64")],
)
def test_a_build_for_another_windows_says_what_is_wanted(platform, found):
    run = subprocess.run(
        [sys.executable, "setup.py", "--version"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "_PYTHON_HOST_PLATFORM": platform},
    )
    assert run.returncode == 1
    assert run.stderr == f"oxillama: found a Python for {found}, wanted 64-bit x86 (win-amd64)\n"


BUILD = """
import multiprocessing, runpy, sys
import Cython.Build
def cythonize(extensions, *, nthreads, **more):
    sys.exit(f"{multiprocessing.get_start_method()} {nthreads > 0}")
multiprocessing.set_start_method("forkserver")  # the default of Python 3.14
Cython.Build.cythonize = cythonize
sys.argv = ["setup.py", "build_ext"]
runpy.run_path("setup.py", run_name="__main__")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="translates in one process elsewhere")
def test_a_build_forks_those_that_translate():
    """Others import the program that runs, `setup.py`, and would build as well."""
    run = subprocess.run([sys.executable, "-c", BUILD], capture_output=True, text=True, cwd=ROOT)
    assert run.stderr.splitlines()[-1:] == ["fork True"], run.stderr


def test_a_users_folders(monkeypatch):
    system = SimpleNamespace(name="posix", environ={})
    monkeypatch.setattr(folders, "os", system)
    home, kinds = Path.home(), ("cache", "config", "state")
    assert [folders.user_folder(kind) for kind in kinds] == [
        home / ".cache/oxillama",
        home / ".config/oxillama",
        home / ".local/state/oxillama",
    ]
    system.environ = {"LOCALAPPDATA": "local", "APPDATA": "roaming"}
    assert folders.user_folder("cache") == home / ".cache/oxillama"
    system.name = "nt"
    assert [folders.user_folder(kind) for kind in kinds] == [
        Path("local/oxillama"),
        Path("roaming/oxillama"),
        Path("local/oxillama"),
    ]
    system.environ["XDG_CACHE_HOME"] = "own"
    assert folders.user_folder("cache") == Path("own/oxillama")


def test_sessions_have_files_of_their_own():
    names = ["a", "A", "aA", "Aa", "con", "CON", "Con", "con.x", "com1", "console", "nul-1", "x.y"]
    for windows in (False, True):
        files = [file_name(name, windows=windows) for name in names]
        assert [name_of(file, windows=windows) for file in files] == names
    assert len({file.lower() for file in files}) == len(names)
    assert files[:5] == ["a.session", "=a.session", "a=a.session", "=aa.session", "==con.session"]
    assert file_name("Con", windows=False) == "Con.session"
