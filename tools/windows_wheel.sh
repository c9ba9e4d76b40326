#!/usr/bin/env bash
# Builds the wheel for Windows (x86-64, CPython 3.11 and later) on Linux, by mingw-w64's gcc for the UCRT, into dist/. Where wine is installed it runs
# the tests that follow with the Windows Python, which needs the packages of the extra `test`.
# Debian 13: apt install gcc-mingw-w64-ucrt64 wine
#     tools/windows_wheel.sh PREFIX [tests/core tests/quant]
# PREFIX is the folder of a Windows Python: its include, its python3.dll and its Lib/site-packages with numpy.
# CC=... is another compiler, PYTHON=... the Python of this system that builds (3.11, with numpy, Cython and setuptools), WINE=... what starts the other.
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(realpath "$1") python=${PYTHON:-python3.11} place=$(realpath -m build/windows)
shift
export CC=${CC:-x86_64-w64-mingw32ucrt-gcc}
numpy=$(echo "$prefix"/Lib/site-packages/numpy/_core/include)
mkdir -p "$place/libs"
# an installed Python has libs/python3.lib, which is for Microsoft's linker; this one is made of what the library exports
{
    echo EXPORTS
    "${OBJDUMP:-x86_64-w64-mingw32-objdump}" -p "$prefix/python3.dll" | sed -nE 's/^\s*\[ *[0-9]+\] (\+base\[ *[0-9]+\] +[0-9a-f]+ )?(_?Py\w*)$/\2/p'
} > "$place/libs/python3.def"
"${DLLTOOL:-x86_64-w64-mingw32-dlltool}" --dllname python3.dll --def "$place/libs/python3.def" --output-lib "$place/libs/libpython3.a"
export _PYTHON_HOST_PLATFORM=win-amd64 OXILLAMA_ABI3=1 LDSHARED="$CC -shared -s" CFLAGS="-Icsrc -I$prefix/include -I$numpy ${CFLAGS:-}"
"$python" setup.py --quiet build_ext --build-temp "$place/objects" --library-dirs "$place/libs" --libraries python3 bdist_wheel --dist-dir dist
cp build/lib.win-amd64-*/oxillama/_core/*.pyd oxillama/_core/     # for the tests; modules of this system stay beside them
ls -l dist/*win_amd64.whl
if [ $# -gt 0 ]; then
    ${WINE:-wine} "$prefix/python.exe" -m pytest -p no:cacheprovider -n 0 "$@"
fi
