#!/usr/bin/env bash
# Compiles the kernels for Linux on AArch64 and compares every table of theirs with plain C, under qemu.
# Debian: apt install gcc-aarch64-linux-gnu qemu-user
#     tools/aarch64_kernels.sh            # CC=..., QEMU=... name other programs
set -euo pipefail
cd "$(dirname "$0")/.."
cc=${CC:-aarch64-linux-gnu-gcc}
qemu=${QEMU:-qemu-aarch64}
for program in "$cc" "$qemu"; do
    command -v "$program" >/dev/null || { echo "$program: not found (Debian: gcc-aarch64-linux-gnu, qemu-user)" >&2; exit 2; }
done
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
flags=(-O1 -std=c11 -ffp-contract=off -fno-math-errno -D_GNU_SOURCE -Icsrc -Wno-unused-function -Wno-psabi)
sources=(csrc/dispatch.c csrc/codecs.c csrc/codecs/choose.c csrc/codecs/neon.c csrc/lanes/*.c csrc/vec/*.c tools/compare_tables.c)
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -I{} sh -c 'name=$(echo "$1" | tr / _); shift; exec "$@" -o "'"$place"'/$name.o"' _ {} "$cc" "${flags[@]}" -c {}
"$cc" -static "$place"/*.o -lm -lpthread -o "$place/compare"
# Processors without dot products, with them, and with matrix products of bytes
for pair in cortex-a53:neon neoverse-n1:neondot max:neoni8mm; do
    "$qemu" -cpu "${pair%:*}" "$place/compare" "${pair#*:}"
done
