#!/bin/sh
# The tests that want more than the light suite: the clients that people use, schemathesis and a
# soak; a browser; a cluster of Ray. Needs the extra `test-all` and Debian's packages `chromium` and
# `chromium-driver`; what is missing fails, it is not skipped.
#
#   tools/test_all.sh [clients] [page] [ray] [-- pytest arguments]
#
# Without the name of a part it runs all three.
set -eu
cd "$(dirname "$0")/.."
parts=""
while [ $# -gt 0 ]; do
    case $1 in
        clients | page | ray) parts="$parts $1" ;;
        --) shift; break ;;
        *) echo "tools/test_all.sh: found $1, wanted clients, page, ray or --" >&2; exit 2 ;;
    esac
    shift
done
for part in ${parts:-clients page ray}; do
    case $part in
        clients)
            for file in tests/all/test_*.py; do
                [ "$file" = tests/all/test_page.py ] || set -- "$@" "$file"
            done
            ;;
        page) set -- "$@" tests/all/test_page.py ;;
        ray) set -- "$@" tests/integrations/ray ;;
    esac
done
OXILLAMA_TEST_ALL=1 exec "${PYTHON:-python3}" -m pytest -m "all or ray" "$@"
