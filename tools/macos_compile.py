"""Compiles and links all modules for macOS, anywhere: `setup.py` runs as on a Mac whose interpreter
is python.org's and which has Homebrew's libomp. Nothing is run: there is no Mac. A few minutes for
each processor. Needs what builds the package, and `pip install ziglang`, which has clang, macOS's
headers and the names in its system library.

    python tools/macos_compile.py              # arm64 and x86_64
    python tools/macos_compile.py arm64
"""

import os
import platform
import runpy
import stat
import subprocess
import sys
import sysconfig
import urllib.request  # noqa: F401 (as long as it is no Mac, whose proxies it would ask for)
from pathlib import Path
from tempfile import TemporaryDirectory

import ziglang

ROOT = Path(__file__).resolve().parents[1]
# as Apple's clang, which knows no -fopenmp of its own; what links is another program. Modules lack
# names of the interpreter and of OpenMP, and no others.
CLANG = r"""#!{python}
import os, re, subprocess, sys
given = sys.argv[1:]
zig = ["{python}", "-m", "ziglang"]
if any(one == "-fopenmp" and given[i - 1] != "-Xpreprocessor" for i, one in enumerate(given)):
    sys.exit("clang: error: unsupported option '-fopenmp'")
if "-c" in given:
    headers = ["-nostdinc", "-isystem{lib}/include", "-isystem{lib}/libc/include/any-darwin-any"]
    command = [*zig, "clang", "-target", "{arch}-apple-macos11", *headers, *given]
else:
    command = [*zig, "cc", "-target", "{zig_arch}-macos.11.0", *given]
    if "dynamic_lookup" in given:
        strict = [one for one in command if one not in ("-undefined", "dynamic_lookup")]
        said = subprocess.run(strict, capture_output=True, text=True).stderr
        lacking = set(re.findall(r"undefined symbol: _(\w+)", said))
        others = [name for name in lacking if not re.match("_?Py|__kmpc_|omp_", name)]
        if others or not lacking:
            sys.exit("found undefined " + str(sorted(others)) + ", wanted only Python's\n" + said)
os.execv(command[0], command)
"""
# of OpenMP only what the modules and clang's regions call
OMP_H = """int omp_in_parallel(void);
int omp_get_thread_num(void);
int omp_get_num_threads(void);
int omp_get_max_threads(void);
"""
OMP_C = "int omp_in_parallel(void) { return 0; }\n"


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def headers_of_python(folder: Path) -> str:
    """This interpreter's headers, with what its configuration says of another system left out."""
    found = Path(sysconfig.get_path("include"))
    folder.mkdir()
    for one in found.iterdir():
        if one.name != "pyconfig.h":
            (folder / one.name).symlink_to(one)
    lines = Path(sysconfig.get_config_h_filename()).read_text().splitlines()
    names = ("_GNU_SOURCE", "_POSIX_C_SOURCE", "_XOPEN_SOURCE", "HAVE_PTY_H", "HAVE_ENDIAN_H")
    other = tuple(f"#define {name}" for name in names)
    kept = [line for line in lines if not line.startswith(other)]
    (folder / "pyconfig.h").write_text("\n".join([*kept, "#define _DARWIN_C_SOURCE 1", ""]))
    (folder / "endian.h").write_text("#include <machine/endian.h>\n")  # numpy's asks for it
    return str(folder)


def build(arch: str, folder: Path) -> None:
    """Runs setup.py as a Mac with this processor would, in this process."""
    lib = Path(ziglang.__file__).parent / "lib"
    of_zig = "aarch64" if arch == "arm64" else arch
    names = dict(python=sys.executable, lib=lib, arch=arch, zig_arch=of_zig)
    clang = program(folder / "clang", CLANG.format(**names))
    brewed = folder / "libomp"
    (brewed / "include").mkdir(parents=True)
    (brewed / "lib").mkdir()
    (brewed / "include" / "omp.h").write_text(OMP_H)
    (folder / "omp.c").write_text(OMP_C)
    subprocess.run([clang, "-c", folder / "omp.c", "-o", folder / "omp.o"], check=True)
    library = brewed / "lib" / "libomp.dylib"
    subprocess.run([clang, "-shared", folder / "omp.o", "-o", library], check=True)
    program(folder / "brew", f'#!/bin/sh\n[ "$*" = "--prefix libomp" ] && echo {brewed}\n')
    os.environ.update(
        CC=clang,
        LDSHARED=f"{clang} -shared -undefined dynamic_lookup",
        PATH=f"{folder}:{os.environ['PATH']}",
        SETUPTOOLS_EXT_SUFFIX=".cpython-311-darwin.so",
        _PYTHON_HOST_PLATFORM="macosx-11.0-universal2",
    )
    included = headers_of_python(folder / "python")
    sysconfig.get_config_vars().update(INCLUDEPY=included, CONFINCLUDEPY=included)
    platform.machine = lambda: arch
    sys.platform = "darwin"
    places = [f"--build-temp={folder}/made", f"--build-lib={folder}/lib"]
    sys.argv = ["setup.py", "build_ext", "--force", *places]
    runpy.run_path("setup.py", run_name="__main__")
    made = sorted((folder / "lib" / "oxillama" / "_core").glob("*.so"))
    wanted = len(list(Path("oxillama/_core").glob("*.pyx"))) + 1
    if len(made) != wanted:
        sys.exit(f"{arch}: found {len(made)} modules, wanted {wanted}")
    print(f"{arch}: {wanted} modules compiled and linked for macOS")


def main() -> None:
    os.chdir(ROOT)
    asked = sys.argv[1:] or ["arm64", "x86_64"]
    if len(asked) > 1:  # each in a process of its own
        for arch in asked:
            subprocess.run([sys.executable, __file__, arch], check=True)
        return
    with TemporaryDirectory() as folder:
        build(asked[0], Path(folder))


if __name__ == "__main__":
    main()
