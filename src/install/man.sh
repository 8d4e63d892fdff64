#!/bin/sh
# src/install/man.sh PROGRAM: writes the manual page of tessera to standard output, from what the program lists (--list-flags).
set -eu
program=$1
version=$("$program" --version | awk '{ print $2; exit }')

# flags WHICH: the entries of the list on standard input: commands, own flags of a command, or keys by group
flags() {
    awk -F '\t' -v which="$1" '
        function plain(text) { gsub(/\\/, "\\e", text); gsub(/\.\/train /, "tessera ", text); gsub(/-/, "\\-", text); gsub(/^[.\x27]/, "\\\\\\&&", text); return text }
        { kind = $1 !~ /^-/ ? "commands" : $4 == "" ? "own" : "keys" }
        kind != which { next }
        kind == "keys" && $4 != group { group = $4; print ".SS " plain(group) }
        { printf ".TP\n.B %s", plain($1); if ($2 != "") printf " \\fI%s\\fR", plain($2); print ""; print plain($3) }'
}

cat <<END
.TH TESSERA 1 "" "Tessera $version" "User Commands"
.SH NAME
tessera \\- train a neural network from scratch with the GEMM of your choice
.SH SYNOPSIS
.B tessera
.RI [ COMMAND ]
.RI [ FLAGS ]
.SH DESCRIPTION
Tessera trains a multi\\-layer perceptron on MNIST, or on other images, measures what each matrix multiply (GEMM) takes,
and compares implementations of it. The default command is
.BR train .
.SH COMMANDS
END
"$program" --list-flags | flags commands
for command in $("$program" --list-flags | awk -F '\t' '/^[^-]/ { print $1 }'); do
    names=$("$program" "$command" --list-flags | awk -F '\t' '/^[^-]/ { print $1 }') # gemm, scaling .. of bench
    for name in ${names:-''}; do
        printf '.SH FLAGS OF tessera %s\n' "$command${name:+ $name}"
        "$program" "$command" $name --list-flags | flags own
    done
done
echo '.SH KEYS'
echo 'Each is a flag, a line "key = value" of a config file, and an environment variable (TESSERA_BATCH_SIZE for'
echo 'batch\-size). Defaults are in [brackets].'
{ "$program" train --list-flags; "$program" kmeans --list-flags; "$program" readout --list-flags; } | awk '!seen[$0]++' | flags keys
cat <<'END'
.SH EXIT STATUS
0 success, 1 run\-time failure, 2 wrong flag or key, 3 bad data or checkpoint, 4 backend or device not available,
5 a result is wrong, 6 a target was missed, 130 interrupted.
.SH FILES
Configs and data are looked for in the working directory, in
.I $XDG_DATA_HOME/tessera
.RI ( ~/.local/share/tessera ),
and in
.I ../share/tessera
beside the folder of the program.
END
