"""The program that compares the tables of kernels: it compiles against the headers as they are.
What it compares, the tests of each kernel compare too; it runs where Python does not.
"""

import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_it_compiles():
    compiler = shlex.split(sysconfig.get_config_var("CC") or "")[:1]
    command = compiler if compiler and shutil.which(compiler[0]) else ["cc"]
    options = ["-std=c11", "-D_GNU_SOURCE", "-Icsrc", "-fsyntax-only", "-Wall", "-Werror"]
    program = [*command, *options, "-Wno-unused-function", "tools/compare_tables.c"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
