"""Builds the compiled modules: every `oxillama/_core/*.pyx` is one extension; `sources` says which
C files each of them links.

All C files of all extensions are compiled side by side, the slowest first, each once; what each
took is printed (`pip install -v` shows it). Environment:
  OXILLAMA_BUILD_ONLY=sampler,trie   builds just those modules while working on them;
  OXILLAMA_ABI3=1                    builds against the limited API of CPython 3.11
                                     (wheels: cp311-abi3);
  CFLAGS=-g                          keeps debug information (left out otherwise: it doubles the
                                     build);
  CC=gcc                             is the C compiler. On Windows it is one for the UCRT, the C
                                     library of Python: without CC the clang of PyPI's ziglang where
                                     that is installed, else gcc. tools/windows_wheel.sh builds for
                                     Windows on Linux.
"""

import importlib.util
import logging
import multiprocessing
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from tempfile import TemporaryDirectory

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError
from setuptools.modified import newer_group

# where the modules will run, which may be another system than this one
target = sysconfig.get_platform()
windows, cross = target.startswith("win"), sys.platform != "win32"
if windows and target != "win-amd64":
    sys.exit(f"oxillama: found a Python for {target}, wanted 64-bit x86 (win-amd64)")


def matching(pattern):
    """What a pattern names, written alike on every system."""
    return sorted(path.replace(os.sep, "/") for path in glob(pattern, recursive=True))


# python.org's interpreters for macOS compile everything for two processors. Only this machine's is
# wanted: Homebrew's libomp is for no other.
if sysconfig.get_platform().endswith("universal2") and "ARCHFLAGS" not in os.environ:
    os.environ["ARCHFLAGS"] = f"-arch {platform.machine()}"
    os.environ["_PYTHON_HOST_PLATFORM"] = f"macosx-11.0-{platform.machine()}"

only = {name for name in os.environ.get("OXILLAMA_BUILD_ONLY", "").split(",") if name}
free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
abi3 = os.environ.get("OXILLAMA_ABI3", "0") not in ("", "0") and not free_threaded
headers = sorted(
    matching("csrc/**/*.h")
    + matching("csrc/**/*.inc")
    + matching("csrc/**/*.def")
    + matching("oxillama/include/*.h")
)

# -ffp-contract=off and no -ffast-math: a float result must not depend on what the compiler likes to
# fuse ("the same bits, always").
flags = [
    "-std=c11",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Wno-unused-function",
    *([] if windows else ["-pthread", "-fvisibility=hidden"]),
]
link = [] if windows else ["-pthread"]
if "-g" not in os.environ.get("CFLAGS", ""):  # the interpreter's own flags bring a -g
    flags.append("-g0")

# What Cython generates is mostly calls of CPython: -O2 halves its compilation. Modules whose own
# loops run over a vocabulary keep -O3, as the kernels do; those that check, or only hand on their
# arguments, have -O1. The plain C tables run where no faster set of instructions does, and are the
# law for the others; the codecs need -O3 (with -O2 they unpack at half the speed). Where the loops
# over tiles of AMX begin makes up to 10 %, so they are aligned.
cold = (
    "_cyutility adapters batch capi chain codecs filemap kernels pager panels pool step tape"
    " threads vectors xorshift"
)
levels = {
    "csrc/lanes/amx.c": "-O3 -falign-loops=32",
    "csrc/lanes/scalar.c": "-O2",
    "csrc/vec/scalar.c": "-O2",
    "oxillama/_core/blocks.c": "-O3",
    "oxillama/_core/candidates.c": "-O3",
    "oxillama/_core/cuts.c": "-O3",
    "oxillama/_core/edits.c": "-O3",
    "oxillama/_core/stages.c": "-O3",
    **{f"oxillama/_core/{name}.c": "-O1" for name in cold.split()},
}
if sysconfig.get_platform().endswith(("arm64", "aarch64", "universal2")):
    # clang knows no pragma for these
    which = "-Xarch_arm64 " if sysconfig.get_platform().endswith("universal2") else ""
    levels["csrc/lanes/neondot.c"] = f"-O3 {which}-march=armv8.2-a+dotprod"
    levels["csrc/lanes/i8mm.c"] = f"-O3 {which}-march=armv8.2-a+dotprod+i8mm"

# The longest compilations in the order of their length: they start first, so that none of them is
# left alone at the end. All others are shorter; the larger file goes first there.
slowest = [
    "csrc/lanes/avx512.c",
    "csrc/lanes/avx2.c",
    "csrc/lanes/neon.c",
    "csrc/lanes/neondot.c",
    "csrc/lanes/avxvnni.c",
    "csrc/lanes/amx.c",
    "csrc/codecs/avx512.c",
    "csrc/codecs/neon.c",
    "csrc/codecs/avx2.c",
    "csrc/codecs.c",
    "csrc/vec/avx512.c",
    "csrc/vec/neon.c",
    "csrc/vec/avx2.c",
    "csrc/lanes/scalar.c",
    "csrc/vec/scalar.c",
    "csrc/lanes/i8mm.c",
]

codecs = ["csrc/codecs.c"]
sources = {
    "codecs": codecs + matching("csrc/codecs/*.c"),
    "elementwise": codecs,
    "kernels": sorted({*matching("csrc/*.c"), *matching("csrc/lanes/*.c")} - {*codecs}),
    "vectors": ["csrc/dispatch.c"] + matching("csrc/vec/*.c"),
}

# Whose standalone calls run by `prange`: they alone link an OpenMP library, where the compiler has
# one; without it those calls run on one thread.
parallel = ("attention", "matmul", "pool", "threads")

# What all modules have in common (Cython's memoryviews and function types) is compiled once.
shared = "oxillama._core._cyutility"
macros = [("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"), ("_GNU_SOURCE", None)]
if windows:
    macros.append(("MS_WIN64", ""))  # which CPython's headers know of Microsoft's compiler alone
if abi3:
    macros.append(("Py_LIMITED_API", "0x030B0000"))
    # Cython's locks differ between modules of the limited API and others; these are all of one kind
    macros.append(("CYTHON_UNSAFE_IGNORE_PYMUTEX_ABI_COMPATIBILITY", "1"))
    flags.append("-Werror=implicit-function-declaration")  # what the limited API lacks
about = dict(
    include_dirs=["csrc", "oxillama/include", numpy.get_include()],
    extra_compile_args=flags,
    extra_link_args=link,
    define_macros=macros,
    py_limited_api=abi3,
)
extensions = [Extension(shared, ["oxillama/_core/_cyutility.c"], **about)]
for path in matching("oxillama/_core/*.pyx"):
    name = os.path.splitext(os.path.basename(path))[0]
    if not only or name in only:
        listed = [path] + sources.get(name, [])
        extensions.append(Extension(f"oxillama._core.{name}", listed, depends=headers, **about))

cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def level(source):
    """The optimisation that a C file is compiled with."""
    return levels.get(source, "-O3" if source.startswith("csrc") else "-O2")


def order(source):
    """Sorts the C files by how long they take, the longest first."""
    known = slowest.index(source) if source in slowest else len(slowest)
    return known, -os.path.getsize(source)


# How Cython translates; side by side where it can fork.
translation = dict(
    include_path=["."],
    nthreads=cores if sys.platform == "linux" else 0,
    shared_utility_qualified_name=shared,
    compiler_directives={
        "language_level": 3,
        "boundscheck": False,
        "wraparound": False,
        "cdivision": True,
        "initializedcheck": False,
        "embedsignature": True,
        "binding": True,
        "auto_pickle": False,
        "freethreading_compatible": True,
    },
)


def libomp():
    """The folders where libomp may be on macOS: of Homebrew, MacPorts and conda."""
    found = []
    if brew := shutil.which("brew"):
        asked = [brew, "--prefix", "libomp"]
        run = subprocess.run(asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        found.append(run.stdout.strip())
    found += ["/opt/homebrew/opt/libomp", "/usr/local/opt/libomp", os.environ.get("CONDA_PREFIX")]
    pairs = [(f"{folder}/include", f"{folder}/lib") for folder in found if folder]
    pairs.append(("/opt/local/include/libomp", "/opt/local/lib/libomp"))
    return [pair for pair in pairs if os.path.exists(f"{pair[0]}/omp.h")]


WANTED = (
    "wanted a compiler for the UCRT: `pip install ziglang`, or gcc 12 or newer of MSYS2's UCRT64 "
    "in CC (Microsoft's own compiler cannot build oxillama)"
)


def ziglang():
    """The command of the clang that PyPI's package ziglang brings, None without it."""
    found = importlib.util.find_spec("ziglang")
    if found is None or not found.submodule_search_locations:
        return None
    program = os.path.join(found.submodule_search_locations[0], "zig.exe").replace(os.sep, "/")
    return f"{shlex.quote(program)} cc -target x86_64-windows-gnu"


class BuildExt(build_ext):
    """Translates the modules, compiles every C file once, in one pool for all extensions, and links
    them. Only here: steps that ask for the package's metadata need not wait for Cython."""

    def finalize_options(self):
        super().finalize_options()
        if windows and not cross:
            if self.compiler not in (None, "mingw32"):
                sys.exit(f"oxillama: found --compiler={self.compiler}, {WANTED}")
            self.compiler = "mingw32"
            os.environ.setdefault("CC", ziglang() or "gcc")

    def get_ext_filename(self, fullname):
        if windows and cross:
            return os.path.join(*fullname.split(".")) + ".pyd"
        return super().get_ext_filename(fullname)

    def get_libraries(self, ext):
        found = super().get_libraries(ext)
        return [*ext.libraries, "python3"] if windows and not cross and abi3 else found

    def run(self):
        if translation["nthreads"]:  # what Python 3.14 does by default runs this file again
            multiprocessing.set_start_method("fork", force=True)
        made = {ext.name: ext.sources for ext in cythonize(self.extensions, **translation)}
        for ext in self.extensions:
            ext.sources = made[ext.name]
        super().run()

    def build_extensions(self):
        stale = [
            ext
            for ext in self.extensions
            if self.force
            or newer_group([*ext.sources, *ext.depends], self.get_ext_fullpath(ext.name), "newer")
        ]
        regions = [ext for ext in stale if ext.name.rpartition(".")[2] in parallel]
        if windows and stale:
            self.for_windows()
        compiled, linked = self.openmp() if regions else ([], [])
        for ext in stale:
            ext.extra_link_args = [*link, *(linked if ext in regions else [])]
        extra = {ext.sources[0]: compiled for ext in regions}
        objects = self.compile_all(sorted({file for ext in stale for file in ext.sources}), extra)
        self.compiler.compile = lambda files, *_, **__: [objects[file] for file in files]
        self.parallel = None
        super().build_extensions()

    def openmp(self):
        """The flags to compile and to link with, found by building a program with them."""
        found = [(["-fopenmp"], ["-fopenmp"])]
        if sys.platform == "darwin":  # Apple's clang has the pragmas, but no library
            for headers_of, lib in libomp():
                compiled = ["-Xpreprocessor", "-fopenmp", f"-I{headers_of}"]
                found.append((compiled, [f"-L{lib}", f"-Wl,-rpath,{lib}", "-lomp"]))
        with TemporaryDirectory() as folder:
            source = os.path.join(folder, "region.c")
            with open(source, "w") as file:
                file.write("#include <omp.h>\nint main(void) { return omp_in_parallel(); }\n")
            for compiled, linked in found:
                try:
                    made = self.compiler.compile([source], folder, extra_postargs=compiled)
                    self.compiler.link_executable(made, source[:-2], extra_postargs=linked)
                    return compiled, linked
                except (CompileError, LinkError):
                    continue
        wanted = " (wanted: brew install libomp)" if sys.platform == "darwin" else ""
        print(f"no OpenMP: standalone calls run on one thread{wanted}", flush=True)
        return [], []

    def for_windows(self):
        """Add what the compiler needs, and end where it will not do. gcc cannot align the stack of
        Windows to more than 16 bytes (its bug 54412): there its assembler turns what needs that
        into what does not. Its own libraries are linked into the modules, so that a wheel needs
        nothing beside Python."""
        folder = TemporaryDirectory()
        source = os.path.join(folder.name, "kind.c")

        def builds(text, *flags, linked=None):
            with open(source, "w", encoding="utf-8") as file:
                file.write(text)
            try:
                made = self.compiler.compile([source], folder.name, extra_postargs=[*flags])
                if linked is not None:
                    self.compiler.link_executable(made, source[:-2], extra_postargs=linked)
            except (CompileError, LinkError):
                return False
            return True

        with folder:
            if not builds("#include <stdio.h>\n#ifndef _UCRT\n#error another library\n#endif\n"):
                sys.exit(f"oxillama: found {os.environ.get('CC', 'gcc')}, {WANTED}")
            clang = builds("#ifndef __clang__\n#error gcc\n#endif\n")
            flag = "-Wa,-muse-unaligned-vector-move"
            if not clang and not builds("int none;\n", flag):
                sys.exit("oxillama: found an old assembler, wanted gcc with binutils 2.38 or newer")
            if not clang:
                flags.append(flag)
                link.append("-static")
            waits = (
                "#define _WIN32_WINNT 0x0A00\n#include <windows.h>\n"
                "int main(void) { WakeByAddressAll(0); return 0; }\n"
            )
            for name in ("synchronization", "api-ms-win-core-synch-l1-2-0"):
                if builds(waits, linked=[f"-l{name}"]):
                    link.append(f"-l{name}")
                    return
            sys.exit("oxillama: found no library synchronization, wanted headers of Windows 10")

    def compile_all(self, files, extra):
        """Compiles the files side by side, some with flags of their own; returns their objects."""
        began, done, root = time.monotonic(), [], logging.getLogger()

        def one(file):
            start = time.monotonic()
            made = self.compiler.compile(
                [file],
                output_dir=self.build_temp,
                macros=macros,
                include_dirs=about["include_dirs"],
                extra_postargs=[*level(file).split(), *flags, *extra.get(file, [])],
            )
            done.append(file)
            now = time.monotonic()
            print(
                f"[{len(done):2}/{len(files)}] {now - began:5.1f} s  {file} ({now - start:.1f} s)",
                flush=True,
            )
            return made[0]

        was = root.level
        root.setLevel(logging.WARNING)  # a line per file, not its whole command
        try:
            with ThreadPoolExecutor(self.parallel or cores) as pool:
                futures = {file: pool.submit(one, file) for file in sorted(files, key=order)}
                try:
                    return {file: future.result() for file, future in futures.items()}
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
        finally:
            root.setLevel(was)


setup(
    cmdclass={"build_ext": BuildExt},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if abi3 else {},
    ext_modules=extensions,
)
