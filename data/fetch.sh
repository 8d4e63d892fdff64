#!/bin/sh
# Downloads the four files of MNIST, and checks them.
#
#   data/fetch.sh [DIRECTORY]      default: the folder "mnist" next to this script
#   MIRRORS="URL URL" data/fetch.sh
#
# A file under its final name is complete, and its SHA-256 is right. An interrupted download stays in FILE.part,
# and the next run resumes it. Existing files are not touched, compressed or not (train-images-idx3-ubyte,
# train-images.idx3-ubyte, with or without .gz).
#
# MIRRORS replaces the list of mirrors: URLs of folders, separated by spaces, tried in order. Needs curl or wget,
# and sha256sum, shasum or openssl. Proxies are those of curl or wget.
# Exit status: 0 if all four files exist, else 1.

set -uf

mirrors=${MIRRORS:-"https://storage.googleapis.com/cvdf-datasets/mnist/
    https://ossci-datasets.s3.amazonaws.com/mnist/
    https://raw.githubusercontent.com/fgnt/mnist/master/"}
connect_timeout=10 # seconds: a machine without network should fail soon
stall_timeout=20   # seconds without data

complain() {
    printf 'fetch.sh: %s\n' "$*" >&2
}

usage_error() {
    complain "usage: fetch.sh [DIRECTORY]; see --help"
    exit 1
}

have() {
    command -v "$1" >/dev/null 2>&1
}

size_of() {
    if [ -f "$1" ]; then echo $(($(wc -c <"$1"))); else echo 0; fi
}

sha256_of() {
    if have sha256sum; then
        sha256sum <"$1" | cut -d ' ' -f 1
    elif have shasum; then
        shasum -a 256 <"$1" | cut -d ' ' -f 1
    else
        openssl dgst -sha256 <"$1" | sed 's/^.*= *//'
    fi
}

# download URL FILE: resumes FILE. Returns the status of curl or wget.
download() {
    if have curl; then
        if [ -t 2 ]; then progress=--progress-bar; else progress=--silent; fi
        curl "$progress" --show-error --fail --location --connect-timeout "$connect_timeout" \
            --speed-limit 1 --speed-time "$stall_timeout" --continue-at - --output "$2" "$1"
    else
        wget -nv -t 1 -T "$connect_timeout" -c -O "$2" "$1"
    fi
}

# is_answer STATUS: true if the server replied with an error. Only curl and GNU wget can tell that from no network.
is_answer() {
    if have curl; then [ "$1" -eq 22 ]; else [ "$1" -eq 8 ]; fi
}

# Removes an unreachable mirror from the list, so that the next file does not wait for its timeout.
drop_mirror() {
    kept=
    for candidate in $mirrors; do
        [ "$candidate" = "$mirror" ] || kept="$kept $candidate"
    done
    mirrors=$kept
}

explain_wrong_sum() {
    complain "$url: wrong SHA-256 ($(size_of "$part") bytes, expected $bytes); file deleted"
    if [ "$(dd if="$part" bs=1 count=1 2>/dev/null | tr -d '\0')" = '<' ]; then
        complain "  it looks like an HTML page, perhaps from a proxy or a login page"
    fi
}

# Downloads $name from $mirror to $part, checks it and renames it. If a resumed download has a wrong sum, its first part
# may be wrong, so the same mirror is tried once more from the beginning.
fetch_from_mirror() {
    url=${mirror%/}/$name
    while :; do
        before=$(size_of "$part")
        if [ "$before" -lt "$bytes" ]; then
            download "$url" "$part"
            code=$?
            if [ "$code" -eq 33 ] && [ "$before" -gt 0 ] && have curl; then
                rm -f "$part" # 33: this server cannot resume
                continue
            elif [ "$code" -ne 0 ]; then
                complain "$url: download failed (status $code)"
                [ "$(size_of "$part")" -gt "$before" ] || is_answer "$code" || drop_mirror
                [ -s "$part" ] || rm -f "$part"
                return 1
            fi
        fi
        if [ "$(sha256_of "$part")" = "$sum" ]; then
            mv -f "$part" "$directory/$name" && return 0
            complain "cannot rename $part to $directory/$name"
            return 1
        fi
        explain_wrong_sum
        rm -f "$part"
        [ "$before" -gt 0 ] || return 1
    done
}

# fetch NAME BYTES SHA256
fetch() {
    name=$1.gz bytes=$2 sum=$3 part=$directory/$1.gz.part
    dotted=$(echo "$1" | sed 's/-idx/.idx/')
    for spelling in "$1" "$1.gz" "$dotted" "$dotted.gz"; do
        if [ -s "$directory/$spelling" ]; then
            echo "$directory/$spelling: exists already"
            return 0
        fi
    done
    for mirror in $mirrors; do
        if fetch_from_mirror; then
            echo "$directory/$name: downloaded and checked"
            return 0
        fi
    done
    complain "$name: no mirror has it"
    return 1
}

case ${1-} in
--help | -h)
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
-*) usage_error ;;
esac
[ $# -le 1 ] || usage_error
if ! have curl && ! have wget; then
    complain "neither curl nor wget is installed; install one of them"
    exit 1
fi
if ! have sha256sum && ! have shasum && ! have openssl; then
    complain "cannot check downloads: install one of sha256sum, shasum, openssl"
    exit 1
fi
directory=${1:-$(dirname -- "$0")/mnist}
if ! mkdir -p -- "$directory" || ! [ -w "$directory" ]; then
    complain "cannot write to $directory; name another directory: fetch.sh DIRECTORY"
    exit 1
fi
trap 'complain "interrupted; run it again to resume"; exit 1' HUP INT TERM

missing=0
while read -r file size checksum; do
    fetch "$file" "$size" "$checksum" </dev/null || missing=$((missing + 1))
done <<END
train-images-idx3-ubyte 9912422 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
train-labels-idx1-ubyte 28881 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
t10k-images-idx3-ubyte 1648877 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
t10k-labels-idx1-ubyte 4542 f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6
END
if [ "$missing" -gt 0 ]; then
    complain "$missing of 4 files are missing in $directory. Check the network or proxy and run this again"
    complain "(it resumes), name another source in MIRRORS, or copy the files there by hand."
    complain "Without them, --data synthetic trains on generated digits."
    rmdir "$directory" 2>/dev/null # only if it is empty
    exit 1
fi
