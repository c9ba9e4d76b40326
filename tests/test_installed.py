"""What an installation lacks is said: the package of an extra, compiled modules, a home folder."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from oxillama.audio.reading import _resampled, soundfile
from oxillama.errors import ConfigError, MissingExtra
from oxillama.gguf.reader import GgufReader
from oxillama.gguf.source import hub_package
from oxillama.snapshot.container import _zstd
from oxillama.stores.hub import _hub, cached_files
from oxillama.vision.reading import pillow

ROOT = Path(__file__).resolve().parents[1]
ALONE = {**os.environ, "PYTHONPATH": str(ROOT)}

CALLS = {
    ("zstandard", "zstd"): (_zstd, "zstd"),
    ("PIL", "vision"): (pillow, "images"),
    ("soundfile", "audio"): (soundfile, "audio"),
    ("soxr", "audio"): (lambda: _resampled([], 8000, 16000, "clip"), "audio"),
    ("huggingface_hub", "hub"): (
        lambda: _hub("a/b"),
        "a/b: no such file or folder; as a name on the Hugging Face hub",
    ),
}


@pytest.mark.parametrize(("module", "extra"), CALLS)
def test_a_call_names_the_extra_it_needs(monkeypatch, module, extra):
    call, what = CALLS[module, extra]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra) as caught:
        call()
    assert str(caught.value) == f"{what}: needs {module}, wanted pip install 'oxillama[{extra}]'"
    assert isinstance(caught.value, ConfigError) and isinstance(caught.value, ImportError)


def test_a_package_that_cannot_be_imported_is_not_said_to_be_missing():
    error = ImportError("cannot import name 'x' from 'y'", name="y")
    assert str(MissingExtra("audio", error, "audio")) == (
        "audio: cannot import name 'x' from 'y', wanted pip install 'oxillama[audio]'"
    )


def test_soundfile_without_its_library_is_an_error_that_names_it(monkeypatch, tmp_path):
    (tmp_path / "soundfile.py").write_text("raise OSError('sndfile library not found')")
    monkeypatch.delitem(sys.modules, "soundfile", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        soundfile()
    assert str(caught.value) == (
        "audio: soundfile: sndfile library not found, wanted the system's libsndfile"
    )


@pytest.mark.parametrize(
    ("package", "module", "what", "extra"),
    [
        ("oxillama.server", "starlette", "server", "server"),
        ("oxillama.integrations.ray", "ray", "integrations.ray", "ray"),
    ],
)
def test_a_package_of_an_extra_names_it(package, module, what, extra):
    code = f"""
import sys
sys.modules["{module}"] = None
try:
    import {package}
except ImportError as error:
    print(error)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=ALONE, capture_output=True, text=True, check=True)
    assert done.stdout == f"{what}: needs {module}, wanted pip install 'oxillama[{extra}]'\n"


def test_serve_names_its_extra():
    code = """
import sys
sys.modules["uvicorn"] = None
from oxillama.cli import main
sys.exit(main(["serve"]))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=ALONE, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "oxillama: server: needs uvicorn, wanted pip install 'oxillama[server]'\n",
    )


def test_extras_that_are_named_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = set()
    for path in (ROOT / "oxillama").rglob("*.py"):
        named |= set(re.findall(r'MissingExtra\([^()]*"(\w+)"\)', path.read_text(encoding="utf-8")))
    assert named == {"audio", "hub", "ray", "server", "vision", "zstd"}
    assert named <= set(extras["optional-dependencies"])


def test_the_command_without_compiled_modules_says_so(tmp_path):
    ignored = shutil.ignore_patterns("*.so", "*.pyd", "*.c", "*.gguf", "__pycache__")
    shutil.copytree(ROOT / "oxillama", tmp_path / "oxillama", ignore=ignored)
    command = [sys.executable, "-m", "oxillama", "list"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        f"oxillama: found sources that are not compiled in '{tmp_path / 'oxillama'}', wanted the "
        "installed package: work in another folder than the checkout, or run `pip install "
        "--editable .` in it\n",
    )


def test_the_hub_of_a_user_without_a_home_folder(monkeypatch):
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert cached_files() == []
    with pytest.raises(ConfigError) as caught:
        GgufReader("a/b:m.gguf")
    assert str(caught.value) == (
        "a/b:m.gguf: found no home folder of this user, wanted HF_HOME or HOME set"
    )
    monkeypatch.setenv("HF_HOME", "/x")
    assert hub_package("a").__name__ == "huggingface_hub"


def test_importing_the_package_alone_imports_nothing_of_others():
    code = """
import sys
before = set(sys.modules)
import oxillama
found = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(found - set(sys.stdlib_module_names)), "numpy" in sys.modules)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=ALONE, capture_output=True, text=True, check=True)
    assert done.stdout == "oxillama False\n"
