#!/usr/bin/env bash
# Writes the API reference as static HTML, made from the docstrings; needs the extra `docs` and no network.
#     tools/build_docs.sh [build/docs]        # PYTHON=... names another interpreter
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/docs} python=${PYTHON:-python3}
# The modules that public names come from. Warnings are off: an error that names its kinds as attributes of
# its base (PoolError.Exhausted) is one without end to pdoc, which gives up there.
mapfile -t modules < <("$python" -P -c 'import oxillama; print(*sorted(oxillama._HOMES), "oxillama.compat.llama_cpp", sep="\n")')
"$python" -P -W ignore -m pdoc --docformat markdown --no-show-source -o "$out" "${modules[@]}"
echo "$out/index.html"
