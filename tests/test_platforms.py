"""What Windows lacks is not needed by Python's modules: they import, files are written, and packed
weights are kept. The C sources need it, and the build says so.
"""

import os
import subprocess
import sys
from pathlib import Path

from oxillama.embedded import embedded_path

ROOT = Path(__file__).resolve().parents[1]
CODE = """
import os, random, sys
sys.modules["fcntl"] = None
# asyncio registers what happens at a fork where there is one
lacking = ("fork", "register_at_fork", "pwritev", "getuid", "O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW")
for name in lacking:
    if hasattr(os, name):
        delattr(os, name)
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


def test_a_build_for_windows_says_what_is_wanted():
    code = (
        "import runpy, sys, sysconfig, Cython.Build, numpy, setuptools.command.build_ext\n"
        "sysconfig.get_config_vars()\n"
        "sys.platform = 'win32'\n"
        "runpy.run_path('setup.py')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 1
    assert run.stderr == (
        "oxillama does not build for Windows itself, wanted Linux (on Windows: WSL 2) or macOS\n"
    )
