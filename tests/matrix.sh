#!/bin/sh
# tests/matrix.sh CC BUILD OBJECTS LIBRARIES (make check-matrix): compiles kernels/host for several processors, links it with
# the other objects of BUILD, and runs the tests that compute, at a stride. The tests themselves select isa=portable and isa=avx2,
# and emulate avx512bf16. MATRIX names other processors. Exit status 1 if a combination fails.
set -u
cc=$1 build=$2 objects=$3 libraries=$4
programs="test_gemm test_bits test_tuned test_fused test_ops test_mlp test_optimizer test_regularize test_training test_online"
out=build/matrix passed=0 failed=0 compiled=0
flags=$(sed 's/ -O1 / /; s/ -O3 / -O2 /; q' "$build/flags") # -O2: half the time; CI appends -O1 to a clang build
export TESSERA_TEST_STRIDE="${TESSERA_TEST_STRIDE:-25}"
export TESSERA="$build/train"

has() { # has this processor all these features?
    for feature; do grep -qm1 "^flags.* $feature\b" /proc/cpuinfo || return 1; done
}

runs_here() {
    case $1 in
    x86-64 | native) ;;
    x86-64-v2) has sse4_2 ;;
    x86-64-v4 | skylake-avx512 | *rapids* | znver[45]) has avx512f avx512bw avx512dq avx512vl ;;
    *) has avx2 fma bmi2 ;;
    esac
}

sources() { # isa_avx512*.c take two thirds of the time, and their target attribute fixes the code that -march would choose;
    # isa_portable.c is always compiled for the baseline
    for source in kernels/host/*.c kernels/host/*/*.c; do
        case $source in *avx512* | *portable*) continue ;; esac
        [ -e "$build/${source%.c}.o" ] && echo "$source"
    done
}

compile() {
    for folder in kernels/host/*/; do mkdir -p "$dir/$folder"; done
    march_flags=$(echo "$flags" | sed "s/-march=native/-march=$march/g")
    sources | xargs -P "$(nproc)" -I{} sh -c "$march_flags -w -c {} -o \$(echo $dir/{} | sed 's/c\$/o/')"
}

link() { # $1: the test; recompiled objects replace those of BUILD
    all=
    for object in $objects; do
        new=$dir/${object#"$build"/}
        if [ -e "$new" ]; then all="$all $new"; else all="$all $object"; fi
    done
    # shellcheck disable=SC2086
    $cc -fopenmp "$build/tests/$1.o" $all $libraries -o "$dir/$1"
}

run() { # prints the first test that fails
    for program in $programs; do link "$program" || { echo "does not link $program"; return; }; done
    # shellcheck disable=SC2046
    tests/run.sh $(for program in $programs; do echo "$dir/$program"; done) >"$dir/log" 2>&1 ||
        echo "fails in $(grep -m1 'FAILED  \] [a-z]\|ended with status' "$dir/log")"
}

for march in ${MATRIX:-x86-64-v2 x86-64-v3 haswell znver3 skylake-avx512}; do
    dir=$out/$(echo "$cc" | tr / _)-$march
    if ! compile; then
        result="does not compile" failed=$((failed + 1))
    elif ! runs_here "$march"; then
        result="compiles; this processor cannot run it" compiled=$((compiled + 1))
    else
        result=$(run)
        if [ "$result" ]; then failed=$((failed + 1)); else passed=$((passed + 1)); fi
    fi
    echo "$cc -march=$march: ${result:-passes}"
    rm -rf "$dir"
done
echo "$passed passed, $failed failed, $compiled only compiled"
[ "$failed" -eq 0 ]
