#!/usr/bin/env bash
# What a newcomer waits for: wall seconds, CPU seconds and MB of each step of the README, in a fresh
# environment without caches. Copies the tracked files of this checkout and leaves nothing behind.
#     tools/newcomer.sh [python3.12]
set -euo pipefail
python=${1:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/oxillama" "$place/home" "$place/tmp"
(cd "$root" && git ls-files -z | tar --null -T - -cf -) | tar -xf - -C "$place/oxillama"
cd "$place/oxillama"

# The packages' index stays what the machine is configured for; nothing else of the caller's comes along.
kept=(PATH="$PATH" HOME="$place/home" TMPDIR="$place/tmp" LANG="${LANG:-C.UTF-8}" PIP_NO_CACHE_DIR=1 CCACHE_DISABLE=1)
for name in "${!PIP_@}" "${!SSL_@}" http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [ "$name" = PIP_NO_CACHE_DIR ] || [ -z "${!name:-}" ] || kept+=("$name=${!name}")
done
[ -n "${PIP_CONFIG_FILE:-}" ] || for file in /etc/pip.conf "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf"; do
    [ -f "$file" ] && kept+=("PIP_CONFIG_FILE=$file") && break
done

megabytes() { du -sm "$1" 2>/dev/null | cut -f1; }
step() {
    local name=$1; shift
    local before after
    before=$(megabytes .)
    TIMEFORMAT='%R %U %S'
    if ! { time env -i "${kept[@]}" bash -euo pipefail -c "$*" >"$place/output" 2>&1; } 2>"$place/times"; then
        echo "$name: failed"; tail -30 "$place/output"; exit 1
    fi
    after=$(megabytes .)
    awk -v name="$name" -v grown=$((after - before)) '{printf "%-28s %8.1f %8.1f %8d\n", name, $1, $2 + $3, grown}' <"$place/times"
}

echo "$(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg 2>/dev/null || echo ?), $($python --version), $(date -u +%Y-%m-%d)"
printf '%-28s %8s %8s %8s\n' step "wall s" "CPU s" MB
step "virtual environment" "$python -m venv .venv"
step "install" ".venv/bin/pip install ."
step "a story of 160 tokens" ".venv/bin/oxillama run -p 'Once upon a time' -n 160"
step "the same again" ".venv/bin/oxillama run -p 'Once upon a time' -n 160"
# In a folder of their own, as a caller's programs are: in the checkout Python would find the sources.
step "import oxillama" "cd '$place/home' && ../oxillama/.venv/bin/python -c 'import oxillama'"
step "five lines of Python" "cd '$place/home' && ../oxillama/.venv/bin/python -c 'import oxillama
engine = oxillama.load()
print(engine.generate(\"Once upon a time\", max_tokens=64).text)'"
package=$(cd "$place/home" && env -i "${kept[@]}" ../oxillama/.venv/bin/python -c 'import oxillama, os; print(os.path.dirname(oxillama.__file__))')
echo "the installed package: $(megabytes "$package") MB; all of the environment: $(megabytes .venv) MB"
