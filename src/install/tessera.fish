# Completions for fish. The program itself lists its commands and flags: --list-flags.
function __tessera_complete
    set -l words (commandline -opc)
    set -l command
    for word in $words[2..] # the words before the first flag
        string match -q -- '-*' $word; and break
        set -a command $word
    end
    set -l list ($words[1] $command --list-flags 2>/dev/null)
    set -l argument (string match -r -- "^$words[-1]\t([^\t]*)" $list)[2]
    if string match -q -- '*|*' "$argument"
        string split -- '|' $argument
    else if test -z "$argument"
        printf '%s\n' $list | cut -f 1,3
    end
end
complete -c tessera -a '(__tessera_complete)'
