"""The examples are compiled, by every C compiler there is, and do what Python does."""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import oxillama
from oxillama import quant
from oxillama._core.matmul import matmul
from oxillama._core.panels import PackedMatrix

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
INCLUDES = [f"-I{sysconfig.get_path('include')}", f"-I{oxillama.get_include()}"]
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror"]
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
HERE = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=HERE, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def text(count):
    """What the embedded model says after the prompt of the examples."""
    with oxillama.load() as engine:
        return engine.generate(
            "Once upon", max_tokens=count, sampler=oxillama.SamplerConfig.greedy()
        ).text


def test_there_is_a_compiler():
    assert COMPILERS


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_c_extension_tells_what_the_engine_does(compiler, tmp_path):
    target = tmp_path / f"story{SUFFIX}"
    flags = ["-shared", "-fPIC", *WARNINGS, *INCLUDES]
    run(compiler, *flags, str(EXAMPLES / "story.c"), "-o", str(target))
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import story; print(story.tell('Once "
        "upon', 10), end='')"
    )
    assert run(sys.executable, "-c", code) == text(10)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_program_that_embeds_python_tells_what_the_engine_does(compiler, tmp_path):
    at = sysconfig.get_config_var
    shared = bool(at("Py_ENABLE_SHARED"))
    libraries = f"-L{at('LIBDIR')} -lpython{at('LDVERSION')} {at('LIBS')} {at('SYSLIBS')}"
    libraries += f" {at('LINKFORSHARED')}" + (f" -Wl,-rpath,{at('LIBDIR')}" if shared else "")
    target = tmp_path / "embed"
    flags = [*WARNINGS, *INCLUDES]
    run(compiler, *flags, str(EXAMPLES / "embed.c"), "-o", str(target), *shlex.split(libraries))
    assert run(str(target), "Once upon", "10") == text(10)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_cython_module_computes_what_python_does(compiler, tmp_path):
    source = tmp_path / "rows.c"
    pyx = str(EXAMPLES / "rows.pyx")
    found = str(Path(oxillama.__file__).parents[1])  # where capi.pxd is
    run(sys.executable, "-m", "cython", "-I", found, pyx, "-o", str(source))
    flags = ["-shared", "-fPIC", "-O1", *INCLUDES]
    run(compiler, *flags, str(source), "-o", str(tmp_path / f"rows{SUFFIX}"))
    rng = np.random.default_rng(3)
    blocks = quant.quantize(rng.standard_normal((5, 64), np.float32), "Q8_0")
    x = rng.standard_normal((2, 64), np.float32)
    np.savez(tmp_path / "in.npz", blocks=blocks, x=x)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import numpy as np, rows\n"
        f"given = np.load({str(tmp_path / 'in.npz')!r})\n"
        f"np.savez({str(tmp_path / 'out.npz')!r}, rows=rows.unpacked(given['blocks'], b'Q8_0'),"
        " product=rows.product(given['blocks'], b'Q8_0', given['x']))"
    )
    run(sys.executable, "-c", code)
    out = np.load(tmp_path / "out.npz")
    assert np.array_equal(out["rows"], quant.dequantize(blocks, "Q8_0"))
    assert np.array_equal(out["product"], matmul(PackedMatrix(blocks, "Q8_0", 5, 64), x))


def test_rows_by_cffi_come_back_within_their_steps():
    assert 0 < float(run(sys.executable, str(EXAMPLES / "rows_cffi.py"))) < 0.02
