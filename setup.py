"""Builds the compiled floor: every `oxillama/_core/*.pyx` is one extension; `sources` says which C
files each of them links.

`OXILLAMA_BUILD_ONLY=sampler,trie` rebuilds just those modules while working on them.
"""

import copy
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from glob import glob

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

only = {name for name in os.environ.get("OXILLAMA_BUILD_ONLY", "").split(",") if name}
headers = sorted(
    glob("csrc/**/*.h", recursive=True)
    + glob("csrc/**/*.inc", recursive=True)
    + glob("csrc/**/*.def", recursive=True)
)

# -ffp-contract=off and no -ffast-math: a float result must not depend on the compiler's mood ("the
# same bits, always").
flags = [
    "-O3",
    "-std=c11",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fopenmp",
    "-fvisibility=hidden",
    "-Wno-unused-function",
]
link = ["-fopenmp"]
if sys.platform == "darwin":
    flags[flags.index("-fopenmp")] = "-Xpreprocessor"
    flags.insert(flags.index("-Xpreprocessor") + 1, "-fopenmp")
    link = ["-lomp"]

codecs = ["csrc/codecs.c"]
sources = {
    "codecs": codecs + sorted(glob("csrc/codecs/*.c")),
    "elementwise": codecs,
    "kernels": sorted({*glob("csrc/*.c"), *glob("csrc/lanes/*.c")} - {*codecs}),
    "vectors": ["csrc/dispatch.c"] + sorted(glob("csrc/vec/*.c")),
}

extensions = []
for path in sorted(glob("oxillama/_core/*.pyx")):
    name = os.path.splitext(os.path.basename(path))[0]
    if only and name not in only:
        continue
    extensions.append(
        Extension(
            f"oxillama._core.{name}",
            [path] + sources.get(name, []),
            include_dirs=["csrc", numpy.get_include()],
            depends=headers,
            extra_compile_args=flags,
            extra_link_args=link,
            define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"), ("_GNU_SOURCE", None)],
        )
    )

cores = os.cpu_count() or 1


class BuildExt(build_ext):
    """Builds extensions side by side, each with an object folder of its own (some of them compile
    the same C file), and the C files of each too.
    """

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or cores

    def build_extensions(self):
        one_by_one = self.compiler.compile

        def compile(files, *args, **more):
            with ThreadPoolExecutor(cores) as pool:
                return [
                    made
                    for some in pool.map(lambda file: one_by_one([file], *args, **more), files)
                    for made in some
                ]

        self.compiler.compile = compile
        super().build_extensions()

    def build_extension(self, ext):
        own = copy.copy(self)
        own.build_temp = os.path.join(self.build_temp, ext.name)
        super(BuildExt, own).build_extension(ext)


setup(
    cmdclass={"build_ext": BuildExt},
    ext_modules=cythonize(
        extensions,
        include_path=["."],
        nthreads=cores if sys.platform == "linux" else 0,
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": True,
            "binding": True,
        },
    ),
)
