#!/bin/sh
# tests/matrix.sh CC BUILD LIBRARIES (make check-matrix): compiles kernels/host for several processors, links it with the
# other objects of BUILD, and runs the tests that compute, at a stride. The tests themselves go through --isa portable,
# avx2 and, emulated, avx512bf16. MATRIX names other processors. Exit status 1 if a combination failed.
set -u
cc=$1 build=$2 libraries=$3
programs="test_gemm test_tuned test_fused test_ops test_mlp test_optimizer test_regularize test_training test_online"
out=build/matrix passed=0 failed=0 compiled=0
flags=$(sed 's/ -O1 / /' "$build/flags") # which CI appends for the rest of a clang build
export TESSERA_TEST_STRIDE="${TESSERA_TEST_STRIDE:-25}"

runs_here() { # does this processor have what code for $1 needs?
    case $1 in
    x86-64 | native) needs= ;;
    x86-64-v2) needs=sse4_2 ;;
    x86-64-v4 | skylake-avx512 | *rapids* | znver[45]) needs="avx512f avx512bw avx512dq avx512vl" ;;
    *) needs="avx2 fma bmi2" ;;
    esac
    for feature in $needs; do grep -qm1 "^flags.* $feature\b" /proc/cpuinfo || return 1; done
}

compile() { # kernels/host and what else knows vectors, as the Makefile compiles them but for -march
    mkdir -p "$dir"
    for source in kernels/host/*/*.c tests/tuned_emulated.c; do
        [ -e "$build/${source%.c}.o" ] && echo "$source"
    done | xargs -P "$(nproc)" -I{} sh -c \
        'object='"$dir"'/$(basename {} .c).o; '"$(echo "$flags" | sed "s/-march=native/-march=$march/g")"' -c {} -o $object'
}

link() { # $1: the test
    others=$(find "$build/src" "$build/tests" $(ls -d "$build/kernels/cuda" 2>/dev/null) -name '*.o' \
        ! -name 'test_*' ! -name tuned_emulated.o)
    # shellcheck disable=SC2086
    ${flags%% *} -fopenmp "$build/tests/$1.o" $others "$dir"/*.o $libraries -o "$dir/$1"
}

# the name of the first test that fails; empty if all pass
run() {
    for program in $programs; do
        link "$program" && "$dir/$program" >"$dir/log" 2>&1 || {
            echo "$program: $(grep -m1 '^\[  FAILED  \] [a-z]' "$dir/log")"
            return
        }
    done
}

for march in ${MATRIX:-x86-64-v2 x86-64-v3 haswell znver3 skylake-avx512 native}; do
    dir=$out/$(echo "$cc" | tr / _)-$march
    if ! compile; then
        result="does not compile" failed=$((failed + 1))
    elif ! runs_here "$march"; then
        result="compiles; this processor cannot run it" compiled=$((compiled + 1))
    else
        wrong=$(run)
        if [ "$wrong" ]; then failed=$((failed + 1)); else passed=$((passed + 1)); fi
        result=${wrong:-passes}
    fi
    echo "$cc -march=$march: $result"
    rm -rf "$dir"
done
echo "$passed passed, $failed failed, $compiled only compiled"
[ "$failed" -eq 0 ]
