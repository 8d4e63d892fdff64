#!/bin/sh
# tests/run.sh PROGRAM...: runs cmocka test programs, JOBS of them side by side (default: one more than there are cores,
# since some wait for time limits), and adds their results up. Exit status 1 if any test failed. TESSERA names the program
# that the command-line tests start. RUNNER (optional): an emulator that runs the test programs.
set -u
logs=$(mktemp -d) || exit 1
trap 'rm -rf "$logs"' EXIT
export logs
# threads that wait leave the core to the other programs; malloc keeps what was freed, for the next of many cases
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
export MALLOC_TRIM_THRESHOLD_=1000000000 MALLOC_MMAP_THRESHOLD_=1000000000

# shellcheck disable=SC2016 # the inner shell expands them
printf '%s\n' "$@" | xargs -P "${JOBS:-$(($(nproc) + 1))}" -I{} sh -c '
    name=$(basename "$1")
    ${RUNNER:-} "$1" >"$logs/$name.log" 2>&1
    status=$?
    # a program that crashes prints no counts
    if [ $status -ne 0 ] && ! grep -q "^\[ *FAILED *\] [0-9]* test(s)" "$logs/$name.log"; then
        echo "ended with status $status before its tests were done" >>"$logs/$name.log"
        echo "[  FAILED  ] 1 test(s)" >>"$logs/$name.log"
    fi
    grep -vE "^\[ (RUN|      OK|==========) |^\[==========\]" "$logs/$name.log" | sed "s|^|$name: |" >"$logs/$name.shown"
    cat "$logs/$name.shown"
    [ $status -eq 0 ] || mv "$logs/$name.shown" "$logs/$name.why"' sh {}

# once more, so that the last lines say it: which test failed, and where
cat "$logs"/*.why 2>/dev/null | grep -E ': (\[ *(ERROR|LINE|FAILED) *\]|ended with status)|(ERROR|SUMMARY|runtime error): |#[0-9] .*tests/' |
    tail -n 40

count() { # the sum of the numbers in front of "test(s)" on lines that hold $1
    cat "$logs"/*.log 2>/dev/null | sed -n "s/^\[ *$1 *\] \([0-9][0-9]*\) test(s).*/\1/p" | awk '{ sum += $1 } END { print sum + 0 }'
}
passed=$(count PASSED) failed=$(count FAILED)
echo "$passed passed, $failed failed, $(count SKIPPED) skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
