#!/usr/bin/env bash
# Compares the speed of this commit with the one before: builds both beside each other, runs the benchmarks
# of asv by turns, keeps the results in .asv/results, and ends with 1 where one got slower by a tenth or more.
#     pip install -e .[bench]
#     tools/regressions.sh [BASE=HEAD~1] [HEAD] [-- options of asv run, such as --bench bench_model --quick]
# Uncommitted changes are not measured. OXILLAMA_BENCH_SHAPES says which models (asv_benchmarks/models.py).
set -euo pipefail
root=$(git rev-parse --show-toplevel)
python=${PYTHON:-python3}
commits=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do commits+=("$1"); shift; done
[ "${1:-}" = -- ] && shift
base=$(git rev-parse --verify "${commits[0]:-HEAD~1}^{commit}")
head=$(git rev-parse --verify "${commits[1]:-HEAD}^{commit}")
if [ "$base" = "$head" ]; then echo "base and head are both $head, wanted two commits" >&2; exit 2; fi
place=$(mktemp -d)
trap 'for commit in "$base" "$head"; do git -C "$root" worktree remove --force "$place/$commit" 2>/dev/null || true; done; rm -rf "$place"' EXIT
for commit in "$base" "$head"; do
    git -C "$root" worktree add --quiet --detach "$place/$commit" "$commit"
    (cd "$place/$commit" && "$python" setup.py build_ext --inplace >"$place/build" 2>&1) || { tail -20 "$place/build"; exit 1; }
done

# The benchmarks are those of this checkout for both, so that a changed benchmark is no change of speed.
cd "$root"
"$python" -m asv machine --yes >/dev/null
mkdir "$place/turns"
for turn in 1 2; do
    for commit in "$base" "$head"; do
        ASV_PYTHONPATH="$place/$commit" "$python" -m asv run --config "$root/asv.conf.json" --python=same --set-commit-hash "$commit" "$@"
    done
    cp -r "$root/.asv/results" "$place/turns/$turn"
done
"$python" tools/regressions.py "$place/turns" "$base" "$head"
