#!/bin/bash
# tests/install.sh CC: installs into a temporary folder and uses what is there from another one: the program under its name, its
# configs, the header of plug-ins, the manual, the completions; then uninstalls. Prints what is wrong; exit status 1.
set -euo pipefail
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
make --no-print-directory CC="$1" install DESTDIR="$root" PREFIX=/usr >/dev/null
bin=$root/usr/bin share=$root/usr/share
fail() { echo "install: $*"; exit 1; }
says() { grep -q -- "$1" "$root/said" || { cat "$root/said"; fail "'$1' is missing"; }; }

cd "$root"
export HOME=$root/home PATH=$bin:$PATH OMP_WAIT_POLICY=passive
for config in validation validation.cfg configs/validation.cfg; do
    tessera --config $config --epochs 1 --data synthetic >said 2>&1 || fail "--config $config"
    says '^test accuracy'
done
tessera evl >said 2>&1 && fail 'evl'
says "^tessera: unknown command 'evl'; did you mean 'eval'? (tessera --help lists them)"
tessera --help >said
says '^usage: tessera \[COMMAND\]'

# a plug-in: the flags of the pkg-config file, with the folder of DESTDIR
cflags=$(sed -n "s|^Cflags: -I\${prefix}|-I$root/usr|p" "$share/pkgconfig/tessera.pc")
printf '#include <tessera/gemm.h>\nint main(void) { return GEMM_NN; }\n' >one.c
"$1" $cflags one.c -o one || fail "tessera/gemm.h: $cflags"

tessera new-backend two.c >said
says '^verify   tessera devices --backend ./two.so --verify'
grep -q '^#include <tessera/gemm.h>' two.c || fail 'new-backend: the include'
"$1" -O2 -shared -fPIC $cflags two.c -o two.so || fail 'new-backend: two.c'

if command -v man >/dev/null; then
    warnings=$(MANWIDTH=80 man -l --warnings "$share/man/man1/tessera.1" 2>&1 >said)
    [ -z "$warnings" ] || fail "$warnings"
    says '\-\-batch-size IMAGES'
fi
complete_words() { # WORDS: the completions of the last one
    bash -c 'source "$0"; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _tessera; echo "${COMPREPLY[*]}"' \
        "$share/bash-completion/completions/tessera" "$@"
}
[ "$(complete_words tessera ev)" = eval ] || fail 'bash: ev'
[ "$(complete_words tessera bench sca)" = scaling ] || fail 'bash: bench sca'
[ "$(complete_words tessera compare --config validation --lim)" = --limit-seconds ] || fail 'bash: --lim'
[ "$(complete_words tessera --engine g)" = graph ] || fail 'bash: --engine g'

cd - >/dev/null
make --no-print-directory CC="$1" uninstall DESTDIR="$root" PREFIX=/usr
left=$(find "$root/usr" -type f)
[ -z "$left" ] || fail "left: $left"
echo 'install: right'
