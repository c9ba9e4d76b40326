"""Every compiled module says that it runs without the GIL."""

import ast
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CODE = """
import importlib, pkgutil, sys, warnings
warnings.simplefilter("error")
import oxillama
import oxillama._core
for module in pkgutil.iter_modules(oxillama._core.__path__, "oxillama._core."):
    importlib.import_module(module.name)
with oxillama.load() as engine:
    engine.generate("Once upon a time", max_tokens=4)
assert not sys._is_gil_enabled()
"""


def test_the_directive_holds_for_all_modules():
    tree = ast.parse((ROOT / "setup.py").read_text())
    (found,) = (
        value
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values)
        if isinstance(key, ast.Constant) and key.value == "freethreading_compatible"
    )
    assert isinstance(found, ast.Constant) and found.value is True
    sources = list((ROOT / "oxillama/_core").glob("*.pyx"))
    assert sources
    assert not [each.name for each in sources if "freethreading" in each.read_text()]


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="an interpreter that has a GIL"
)
def test_the_gil_stays_off():
    # not by PYTHON_GIL=0, which would keep it off whatever the modules say
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    subprocess.run([sys.executable, "-c", CODE], check=True, cwd=ROOT, env=environment, timeout=120)
