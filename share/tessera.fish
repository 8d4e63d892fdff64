# Completions for fish. The program itself lists its commands and flags: --list-flags.
function __tessera_complete
    set -l words (commandline -opc)
    set -l command
    for word in $words[2..] # the words before the first flag
        string match -q -- '-*' $word; and break
        set -a command $word
    end
    $words[1] $command --list-flags 2>/dev/null | while read -l -d \t name argument help group
        if test "$name" = "$words[-1]"; and string match -q '*|*' -- $argument
            string split '|' -- $argument
        else
            printf '%s\t%s\n' $name $help
        end
    end
end
complete -c tessera -a '(__tessera_complete)'
