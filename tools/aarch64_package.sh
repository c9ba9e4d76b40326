#!/usr/bin/env bash
# Builds all modules for Linux on AArch64, beside those of this machine, and runs tests of the package under qemu, some 20 times slower.
# Debian 12: dpkg --add-architecture arm64; apt update; apt install gcc-aarch64-linux-gnu qemu-user
#     tools/aarch64_package.sh tests/core tests/quant     # arguments of pytest
# CPU=cortex-a72 is another processor, PYTHON=... the 3.11 that builds (with numpy, Cython and setuptools), PLACE=... where what is fetched stays.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3.11} place=$(realpath -m "${PLACE:-build/aarch64}")
root=$place/root site=$place/site
if [ ! -d "$site" ]; then
    packages=(python3.11 python3.11-minimal libpython3.11 libpython3.11-minimal libpython3.11-stdlib libpython3.11-dev libc6 libgcc-s1 libgomp1
              libstdc++6 libbz2-1.0 libcrypt1 libdb5.3 libexpat1 libffi8 liblzma5 libncursesw6 libnsl2 libreadline8 libsqlite3-0 libssl3 libtinfo6
              libtirpc3 libuuid1 zlib1g)
    mkdir -p "$place/debs" "$root"
    (cd "$place/debs" && apt-get download "${packages[@]/%/:arm64}")
    for file in "$place"/debs/*.deb; do dpkg-deb -x "$file" "$root"; done
    "$python" -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]
print(*p["dependencies"], *p["optional-dependencies"]["test"], sep="\n")' > "$place/wanted"
    "$python" -m pip install --quiet --target "$site.part" --only-binary=:all: --python-version 3.11 --implementation cp \
        --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 \
        --requirement "$place/wanted"
    # tests start programs with the interpreter that runs them
    echo "import sys; sys.executable = '$place/python'" > "$site.part/sitecustomize.py"
    printf '#!/bin/sh\nexec qemu-aarch64 -L %s -cpu "${CPU:-max}" %s/usr/bin/python3.11 "$@"\n' "$root" "$root" > "$place/python"
    chmod +x "$place/python"
    mv "$site.part" "$site"
fi
CC=aarch64-linux-gnu-gcc CFLAGS="-idirafter $root/usr/include" LDSHARED="aarch64-linux-gnu-gcc -shared" \
    SETUPTOOLS_EXT_SUFFIX=.cpython-311-aarch64-linux-gnu.so "$python" setup.py --quiet build_ext --inplace --build-temp "$place/objects"
PYTHONPATH=$PWD:$site "$place/python" -m pytest -n 0 -o faulthandler_timeout=0 "$@"
