#!/bin/sh
# Build the extensions and the executable with the address and undefined behaviour sanitizers, and run their tests. Warnings
# of the compiler are errors here.
# usage: [FUZZ=INPUTS] sanitize.sh VENV DIRECTORY [pytest options]
# With FUZZ, mutated inputs are read in place of the tests: as many by the core, and a hundredth by the executable.
set -eu
venv=$1 directory=$2
shift 2
export SVC_SANITIZERS="-Werror -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"

# An environment with its own svc and the packages of VENV: the editable installation there would hide this svc.
"$venv/bin/python" -m venv --without-pip "$directory/venv"
python=$directory/venv/bin/python
where="import site; print(site.getsitepackages()[0])"
packages=$("$python" -c "$where")
CFLAGS=$SVC_SANITIZERS "$venv/bin/pip" install --quiet --no-deps --no-build-isolation --upgrade --target "$packages" \
    -C build-dir="$directory/cmake" .
"$venv/bin/python" -c "$where" > "$packages/tools.pth"

# Python's own allocator hides errors in its blocks, and Python does not free all memory at its end.
# Without replace_str=0 the `ip` of some systems is aborted: it is executed with the library, too.
export PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:replace_str=0
library=$(gcc -print-file-name=libasan.so)
if [ -n "${FUZZ:-}" ]; then
    cd tests  # in the root, Python would find the sources in place of what was built
    python=../$python
    export LD_PRELOAD=$library
    "$python" -m fuzz --inputs "$FUZZ" --seed "${SEED:-0}" --target netlink --target block --target address
    exec "$python" -m fuzz --inputs $((FUZZ / 100)) --seed "${SEED:-0}" --target executable
fi
# Left out: tests of the static executable, which count its system calls as well, and of processes that preload another library or
# give up rights, which the library of the sanitizer needs.
LD_PRELOAD=$library exec "$python" "$venv/bin/pytest" "$@" \
    tests/unit/test_bitmap.py tests/unit/test_cidr.py tests/unit/test_cidr_index.py tests/unit/test_rtnl.py \
    tests/unit/test_rtnl_replies.py tests/netns/core \
    tests/e2e/shim \
    -k "not executable_is_static and not executable_is_small and not process_dies_when_the_way_back_fails and not openat \
        and not process_aborts_if_a_thread_cannot_return and not folder_replaces_an_own_procfs"
