#!/bin/sh
# tests/run.sh PROGRAM...: runs cmocka test programs and adds their results up. Exit status 1 if any test failed.
# TESSERA names the program that the command-line tests start.
set -u
passed=0 failed=0 skipped=0
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

count() { # the sum of the numbers in front of "test(s)" on lines that hold $1
    sed -n "s/^\[ *$1 *\] \([0-9][0-9]*\) test(s).*/\1/p" "$log" | awk '{ sum += $1 } END { print sum + 0 }'
}

for program; do
    "$program" >"$log" 2>&1
    status=$?
    grep -vE '^\[ (RUN|      OK|==========) ' "$log" | grep -vE '^\[==========\]|^\[ RUN|^\[       OK' | sed "s|^|$(basename "$program"): |"
    p=$(count PASSED) f=$(count FAILED) s=$(count SKIPPED)
    # a program that crashes prints no counts
    if [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then
        echo "$(basename "$program"): ended with status $status before its tests were done"
        f=1
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
