#!/bin/sh
# tests/docs.sh: checks that every file, flag and command that README.md and docs/ name exists, and every source file that a
# comment names. TESSERA is the program. Prints each error; exit status 1 if there is one, 77 without git.
set -u
train=${TESSERA:-./train}
pages="README.md $(ls docs/*.md)"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
git ls-files >"$work/files" 2>/dev/null || exit 77
sources=$(grep -E '\.(c|h|cu|cuh|inc|cfg|sh|py)$|^Makefile$' "$work/files")

# paths from the root, except fetched data (data/mnist), and a page's links
paths() {
    {
        grep -oHE '\b(src|kernels|tests|docs|configs|data)/[A-Za-z0-9_./-]*[A-Za-z0-9_]\.[a-z0-9]+\b' $pages
        grep -oHE '\b(src|kernels|tests|docs)/[A-Za-z0-9_./-]*[A-Za-z0-9_]\.[a-z0-9]+\b' $sources
        for page in $pages; do grep -oE '\]\([^)#:]+\)' "$page" | sed "s|^](|$page:$(dirname "$page")/|; s|)\$||"; done
    } | sort -u | grep -v ":data/mnist/" | while IFS=: read -r page path; do [ -e "$path" ] || echo "$page: $path does not exist"; done
}

# source files by their names alone
names() {
    sed 's|.*/||' "$work/files" >"$work/names"
    grep -oHE '\b[a-z0-9_]+\.(cu|cuh|inc)\b' $pages $sources | grep -vE ':(my_|_|device_radix_sort\.)' | sort -u |
        while IFS=: read -r page name; do grep -qx "$name" "$work/names" || echo "$page: $name does not exist"; done
}

# the lines of ./train in code, with their continuations; then flags in the text
commands() {
    for page in $pages; do
        awk '/^```/ { code = !code; next }
             code && /^\.\/train / || more { more = sub(/\\$/, ""); sub(/ #.*/, ""); printf "%s%s", $0, more ? "" : "\n" }' "$page" |
            while read -r line; do
                set -- $line
                case $2 in -*) help=train ;; bench) help="bench $3" ;; *) help=$2 ;; esac
                "$train" $help --help-all >"$work/help" 2>&1 || echo "$page: no command '$help': $line"
                for word in $line; do
                    case $word in --*) grep -q -- " $word\b" "$work/help" || echo "$page: $help has no flag $word: $line" ;; esac
                done
            done
    done
}
flags() {
    for help in train eval compare report devices augment data predict export grade kmeans readout new-backend \
        "bench gemm" "bench scaling" "bench breakeven" "bench shmem" "bench kmeans" "bench qr" "bench call"; do
        "$train" $help --help-all
    done >"$work/help" 2>&1
    grep -ohE '`--[a-z][a-z0-9-]*' $pages | sort -u | sed 's/`//' |
        while read -r flag; do grep -q -- " $flag\b" "$work/help" || echo "no command has $flag"; done
}

{ paths; names; commands; flags; } >"$work/errors"
cat "$work/errors"
[ ! -s "$work/errors" ]
