#!/usr/bin/env bash
# tests/fuzz/campaign.sh SECONDS [HARNESS ..]: a long run of each fuzz harness, and the lines that it ran.
# It explores without sanitizers, which is two to five times as fast, then runs the inputs that reached new
# code, and mutations of them, with sanitizers (make fuzz SECONDS=10). Inputs stay in build/fuzz/corpus,
# findings in build/fuzz/findings. Needs clang, libclang-rt-dev and llvm.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:?usage: tests/fuzz/campaign.sh SECONDS [HARNESS ..]}
shift
declare -A parsers=(
    [checkpoint]="src/nn/safetensors.c src/nn/checkpoint.c src/nn/checkpoint_check.c src/nn/train_state.c"
    [config]="src/nn/config.c src/nn/config_check.c"
    [csv]="src/data/csv.c src/data/classes.c"
    [idx]="src/data/idx.c"
    [picture]="src/data/picture.c src/data/picture_pgm.c src/data/picture_png.c src/data/picture_jpeg.c src/data/picture_scale.c src/data/picture_mnist.c"
    [plugin]="src/backend/plugin.c src/backend/backend_options.c"
    [readme]="src/report/rewrite.c"
    [report]="src/report/records.c src/report/row.c src/report/selection.c src/report/markup.c"
)
[ $# -gt 0 ] || set -- $(printf '%s\n' "${!parsers[@]}" | sort)
built=$PWD/build/campaign seeds=$PWD/tests/fuzz/seeds

explore() {
    mkdir -p build/fuzz/findings build/fuzz/corpus/"$1"
    cd build/fuzz
    LLVM_PROFILE_FILE=$built/$1.profraw "$built"/fuzz/"$1" -max_total_time="$seconds" -timeout=10 \
        -print_final_stats=1 -verbosity=0 -artifact_prefix=findings/"$1"- corpus/"$1" "$seeds"/"$1"
}

covered() { # FILE PERCENT (LINES of LINES) of each parser
    llvm-profdata merge -o "$built"/"$1".profdata "$built"/"$1".profraw
    # shellcheck disable=SC2086 # a list of files
    llvm-cov report -instr-profile="$built"/"$1".profdata "$built"/fuzz/"$1" ${parsers[$1]} |
        awk '$1 ~ /\.c$/ {
            sub(/.*\//, "", $1)
            printf "%s`%s` %d %% (%d of %d)", (count++ ? ", " : ""), $1, 100 * ($8 - $9) / $8, $8 - $9, $8 }'
}

make --no-print-directory CC=clang CUDA=0 OPENBLAS=0 SAN=fuzzer-no-link B=build/campaign \
    CFLAGS='-O2 -fprofile-instr-generate -fcoverage-mapping' fuzzers >&2
for name; do
    (explore "$name") 2> "$built"/"$name".log || { tail -n 40 "$built"/"$name".log; exit 1; }
done
make --no-print-directory fuzz SECONDS=10 >&2

echo '| harness | executions | per second | lines of the parser that were run |'
echo '| --- | ---: | ---: | --- |'
total=0
for name; do
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$built"/"$name".log)
    rate=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$built"/"$name".log)
    echo "| $name | $executions | $rate | $(covered "$name") |"
    total=$((total + executions))
done
echo "executions in total: $total"
