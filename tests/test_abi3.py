"""Wheels for the limited API of CPython 3.11: every module, as Cython wrote it, compiles for it."""

import re
import shlex
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]


def macros():
    """The definitions that `setup.py` adds for such a wheel."""
    found = re.findall(
        r'^    macros\.append\(\("(\w+)", "(\w+)"\)\)', (ROOT / "setup.py").read_text(), re.M
    )
    assert dict(found)["Py_LIMITED_API"] == "0x030B0000"
    return [f"-D{name}={value}" for name, value in found]


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="the headers of a free-threaded build have no limited API before 3.15",
)
def test_every_module_compiles_for_the_limited_api():
    modules = sorted(path.stem for path in (ROOT / "oxillama/_core").glob("*.pyx"))
    command = [
        *shlex.split(sysconfig.get_config_var("CC"))[:1],
        *(
            "-std=c11",
            "-fsyntax-only",
            "-w",
            "-D_GNU_SOURCE",
            "-DNPY_NO_DEPRECATED_API=NPY_1_7_API_VERSION",
        ),
        *("-Werror=implicit-function-declaration", *macros()),
        *("-Icsrc", "-Ioxillama/include"),
        *("-I" + sysconfig.get_path("include"), "-I" + np.get_include()),
    ]

    def compiled(name):
        source = f"oxillama/_core/{name}.c"
        done = subprocess.run([*command, source], cwd=ROOT, capture_output=True, text=True)
        return name, done.returncode, done.stderr[-2000:]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(compiled, modules))
    assert found == [(name, 0, "") for name in modules]
