#!/bin/sh
# The tests that want more than the light suite: the clients that people use, schemathesis, a
# browser, a soak, a cluster of Ray. Needs the extra `test-all` and Debian's packages `chromium` and
# `chromium-driver`; what is missing fails, it is not skipped.
#
#   tools/test_all.sh [pytest arguments]
set -eu
cd "$(dirname "$0")/.."
OXILLAMA_TEST_ALL=1 exec "${PYTHON:-python3}" -m pytest tests/all tests/integrations/ray -m "all or ray" "$@"
