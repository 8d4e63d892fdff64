#!/bin/sh
# tests/emulated.sh (make check-emulated): the program for any x86-64 on a Nehalem (no AVX), and for aarch64, both
# emulated by qemu-user: trains on the embedded digits and runs the tests that compute, at a stride. Exit status 1 if
# a test fails.
set -u
tests="gemm bits tuned fused mlp optimizer regularize augment ensemble team training online"
training="--data synthetic --validation 10000 --epochs 1 --layers 784-16-10"
export TESSERA_TEST_STRIDE="${TESSERA_TEST_STRIDE:-75}"
# The program would execute itself once more to limit OpenMP's spinning, outside of qemu
export OMP_WAIT_POLICY=passive
unset OPENBLAS_CORETYPE
failed=0

emulate() { # NAME QEMU BUILD MAKE-VARIABLES
    name=$1 qemu=$2 build=build/$3 programs=
    for test in $tests; do programs="$programs build/$3/tests/test_$test"; done
    shift 3
    # shellcheck disable=SC2086
    make --no-print-directory CUDA=0 PORTABLE=1 "$@" $build/train $programs || { failed=1; return; }
    for backend in openmp tuned; do
        $qemu $build/train $training --backend $backend >"$log" 2>&1 || failed=1
        echo "$name, $backend: $(grep '^test accuracy' "$log" || tail -n 1 "$log")"
    done
    RUNNER=$qemu TESSERA="$qemu $build/train" tests/run.sh $programs || failed=1
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! command -v qemu-x86_64 >/dev/null; then
    echo "skipped: Nehalem and aarch64 need qemu (apt-get install qemu-user)"
    exit 0
fi
emulate Nehalem "qemu-x86_64 -cpu Nehalem" gcc-portable CC=gcc
# Debian's own libraries for arm64; with those of the cross compiler (qemu -L) threads of libgomp hang
cross=aarch64-linux-gnu-gcc
if command -v $cross >/dev/null && [ -e /usr/lib/aarch64-linux-gnu/libcmocka.so ]; then
    emulate aarch64 qemu-aarch64 $cross-portable-noblas CC=$cross OPENBLAS=0
else
    echo "skipped: aarch64 needs dpkg --add-architecture arm64; apt-get update; apt-get install" \
        "gcc-aarch64-linux-gnu {libcjson-dev,libcmocka-dev,zlib1g-dev,libgomp1}:arm64"
fi
exit $failed
