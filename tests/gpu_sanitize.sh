#!/bin/sh
# tests/gpu_sanitize.sh [PROGRAM[:TEST]..]: runs the GPU tests, all or those of the names (* and ? in TEST), under the four
# tools of compute-sanitizer, one case in STRIDE (default 25) of the long lists, each run for at most LIMIT seconds (default
# 240), JOBS of them side by side (default 2: the tools take memory of the GPU), and prints one table: errors found, and
# seconds. Needs a GPU and `make tests`. Exit status 1 if a tool found an error or a run failed, 77 without the tool. TOOLS
# chooses some of the four. LOGS keeps their output.
set -u
cd "$(dirname "$0")/.." || exit 1
command -v compute-sanitizer >/dev/null || { echo 'skipped: compute-sanitizer is not installed (CUDA toolkit)'; exit 77; }
build=$(for d in build/*/tests/test_gpu_*[!.d]; do dirname "$(dirname "$d")"; done | head -n 1)
[ $# -gt 0 ] || set -- $(cd "$build/tests" && ls | grep -x 'test_gpu_[a-z_]*')
logs=${LOGS:-$(mktemp -d)}
export TESSERA_TEST_SLOWED=1 TESSERA_TEST_NO_WHILE=1 TESSERA_TEST_STRIDE="${STRIDE:-25}" TESSERA="$build/train"
export logs build limit="${LIMIT:-240}"
tools=${TOOLS:-memcheck racecheck initcheck synccheck}

# one run: its cell of the table goes to a file
# shellcheck disable=SC2016 # the inner shell expands them
for test in "$@"; do for tool in $tools; do echo "$test $tool"; done; done | xargs -P "${JOBS:-2}" -L 1 sh -c '
    log=$logs/$0.$1 start=$(date +%s)
    case $0 in *:*) export TESSERA_TEST_ONLY="${0#*:}" ;; esac
    case $1 in
    memcheck) options="--report-api-errors no" ;; # of the test of a full memory
    synccheck) options="--num-cuda-barriers 8192" ;; # takes memory of the GPU
    *) options= ;;
    esac
    timeout "$limit" stdbuf -oL compute-sanitizer --tool "$1" $options --error-exitcode 99 --print-limit 20 "$build/tests/${0%%:*}" >"$log" 2>&1
    status=$?
    errors=$(sed -n "s/.*ERROR SUMMARY: \([0-9]*\) error.*/\1/p; s/.*RACECHECK SUMMARY: \([0-9]*\) hazard.*/\1/p" "$log" | tail -n 1)
    case $status in
    0) cell=${errors:-0} ;;
    99) cell="${errors:-?} ERRORS" ;;
    124) cell="no end; so far $(grep -cE "========= (Error|Invalid|Uninit|Race|Barrier|Warning: Race)" "$log")" ;;
    *) cell="test failed ($status)" ;;
    esac
    echo "$cell, $(($(date +%s) - start)) s" >"$log.cell"
'
trap 'exit 1' TERM INT
echo "| errors, time | $(echo $tools | sed 's/ / | /g') |"
echo "|---|$(echo $tools | sed 's/[a-z]* */---:|/g')"
for test in "$@"; do
    row="| $test |"
    for tool in $tools; do row="$row $(cat "$logs/$test.$tool.cell" 2>/dev/null || echo 'not run') |"; done
    echo "$row"
done
! grep -qE 'ERRORS|failed|so far [1-9]' "$logs"/*.cell
