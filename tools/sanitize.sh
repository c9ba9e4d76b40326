#!/usr/bin/env bash
# Builds the compiled modules with a sanitizer, in a copy of this checkout, and runs tests there:
#     tools/sanitize.sh address tests/core tests/quant      # AddressSanitizer, UndefinedBehaviorSanitizer
#     tools/sanitize.sh thread tests/core/test_team.py      # ThreadSanitizer
# The copy is build/sanitize/NAME; a second run builds what has changed. The first finding of `address` ends the run,
# those of `thread` make it fail. Needs gcc with its sanitizers, setarch, and the extra `test`. CLANG=clang compiles the
# kernels, which takes gcc much longer; KERNELS=-fsanitize=address,undefined compiles them with both, which takes clang
# longer too; PYTHON=... names another interpreter.
# Tests that limit memory or threads fail here: a sanitizer reserves memory of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:-} python=$(command -v "${PYTHON:-python3}")
case $name in
    address) # kernels under both compile much longer
        # CPython's own flags have signed integers wrap around, which would not be looked at then
        recover="-fno-sanitize-recover=all -fno-wrapv"
        flags="-fsanitize=address,undefined,float-cast-overflow $recover" kernels="${KERNELS:--fsanitize=address} $recover"
        preload="libasan.so libubsan.so" ;;
    thread) flags=-fsanitize=thread kernels=-fsanitize=thread preload=libtsan.so ;;
    *) sed -n '2,9s/^# //p' "$0" && exit 2 ;;
esac
shift
copy=build/sanitize/$name
mkdir -p "$copy"
[ ! -d ../shared ] || ln -sfn "$(realpath ../shared)" build/sanitize/shared # facts that tests compare with
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --update --target-directory "$copy"
cd "$copy"

# The compiler of the copy. What setup.py asks for comes first, so that these flags hold: intrinsics need -O1, since they
# take constants. ThreadSanitizer does not know the threads of an OpenMP library, so there it is not found.
cat > compiler <<END
#!/usr/bin/env bash
case " \$* " in
    *" -fopenmp "*) [ $name != thread ] || exit 1 ;;&
    *" -c csrc/"*) exec ${CLANG:-gcc} -w "\$@" -O1 -g1 -fno-omit-frame-pointer $kernels ;;
    *" -c "*) exec gcc -w "\$@" -O0 -g1 -fno-omit-frame-pointer $flags ;;
    *) exec gcc "\$@" $flags ;;
esac
END
chmod +x compiler
CC=$PWD/compiler "$python" setup.py build_ext --inplace

libraries=
for each in $preload; do libraries+=$(gcc -print-file-name="$each"):; done
export PYTHONMALLOC=malloc PYTHONDONTWRITEBYTECODE=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=die_after_fork=0
export ASAN_OPTIONS=detect_leaks=0:handle_sigbus=0:allocator_may_return_null=1
# without random addresses, some of which ThreadSanitizer cannot map; -s: what it reports is seen
exec setarch -R env LD_PRELOAD="$libraries" "$python" -m pytest -n 0 -s -p no:cacheprovider "${@:-tests/core}"
