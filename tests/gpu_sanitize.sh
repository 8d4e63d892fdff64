#!/bin/sh
# tests/gpu_sanitize.sh [PROGRAM[:TEST]..]: runs the GPU tests, all or those of the names (* and ? in TEST), one by one under
# the four tools of compute-sanitizer, thinned out (one case in STRIDE, default 25, of the long lists; SLOWED=3 thins out the
# trainings further), each for at most LIMIT seconds (default 240), JOBS of them side by side (default 2: the tools take memory
# of the GPU), and prints one table: errors found, how many of the tests came to their end, and seconds. SIGTERM ends it
# early, with the table of what was run. Needs a GPU and `make tests`. Exit status 1 if a tool found an error or a test failed,
# 77 without the tool. TOOLS chooses some of the four. LOGS keeps their output.
set -u
cd "$(dirname "$0")/.." || exit 1
command -v compute-sanitizer >/dev/null || { echo 'skipped: compute-sanitizer is not installed (CUDA toolkit)'; exit 77; }
build=$(for d in build/*/tests/test_gpu_*[!.d]; do dirname "$(dirname "$d")"; done | head -n 1)
[ $# -gt 0 ] || set -- $(cd "$build/tests" && ls | grep -x 'test_gpu_[a-z0-9_]*')
logs=${LOGS:-$(mktemp -d)}
export TESSERA_TEST_SLOWED="${SLOWED:-1}" TESSERA_TEST_NO_WHILE=1 TESSERA_TEST_STRIDE="${STRIDE:-25}" TESSERA="$build/train"
export logs build limit="${LIMIT:-240}"
tools=${TOOLS:-memcheck racecheck initcheck synccheck}

# the tests of a program that the names choose
tests_of() {
    grep -o 'cmocka_unit_test([a-z0-9_]*)' "tests/${1%%:*}.c" | sed 's/.*(\(.*\))/\1/' | while read -r test; do
        case $1 in *:*) case $test in ${1#*:}) ;; *) continue ;; esac ;; esac
        echo "$test"
    done
}

print_table() {
    echo "| errors, tests that ended, time | $(echo $tools | sed 's/ / | /g') |"
    echo "|---|$(echo $tools | sed 's/[a-z]* */---:|/g')"
    for program in "$@"; do
        row="| $program |"
        for tool in $tools; do
            row="$row $(cat "$logs/${program%%:*}".*."$tool.cell" 2>/dev/null | awk -v of="$(tests_of "$program" | wc -l)" '
                $1 == "end" { errors += $2; ended++ } $1 == "limit" { errors += $2 } $1 == "failed" { failed++ } { seconds += $3 }
                END { printf "%d%s, %d of %d, %d s", errors, failed ? " and " failed " failed" : "", ended, of, seconds }') |"
        done
        echo "$row"
    done
    ! grep -qE '^failed|^[a-z]+ [1-9]' "$logs"/*.cell
}

# one run: a line with its end, the errors, and seconds goes to a file
# shellcheck disable=SC2016 # the inner shell expands them
for tool in $tools; do for program in "$@"; do for test in $(tests_of "$program"); do
    echo "${program%%:*} $test $tool"
done; done; done | xargs -P "${JOBS:-2}" -L 1 sh -c '
    log=$logs/$0.$1.$2 start=$(date +%s)
    export TESSERA_TEST_ONLY="$1"
    case $2 in
    memcheck) options="--report-api-errors no" ;; # of the test of a full memory
    synccheck) options="--num-cuda-barriers 8192" ;; # takes memory of the GPU
    *) options= ;;
    esac
    timeout "$limit" stdbuf -oL compute-sanitizer --tool "$2" $options --error-exitcode 99 --print-limit 20 "$build/tests/$0" >"$log" 2>&1
    status=$?
    errors=$(sed -n "s/.*ERROR SUMMARY: \([0-9]*\) error.*/\1/p; s/.*RACECHECK SUMMARY: \([0-9]*\) hazard.*/\1/p" "$log" | tail -n 1)
    case $status in
    0 | 99) cell="end ${errors:-0}" ;;
    124) cell="limit $(grep -cE "========= (Error|Invalid|Uninit|Race|Barrier|Warning: Race)" "$log")" ;;
    *) cell="failed ${errors:-0}" ;;
    esac
    echo "$cell $(($(date +%s) - start))" >"$log.cell"
' &
trap 'kill $!; print_table "$@"; exit' TERM INT
wait $!
print_table "$@"
