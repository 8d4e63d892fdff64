#compdef tessera
# Completions for zsh. The program itself lists its commands and flags: --list-flags.
local -a command names
local word line argument
for word in ${words[2,CURRENT-1]}; do # the words before the first flag
    [[ $word == -* ]] && break
    command+=($word)
done
for line in ${(f)"$($words[1] $command --list-flags 2>/dev/null)"}; do
    local -a fields=("${(@ps:\t:)line}")
    [[ $fields[1] == $words[CURRENT-1] ]] && argument=$fields[2]
    names+=("${fields[1]}:${fields[3]//:/\\:}")
done
if [[ $argument == *'|'* ]]; then
    compadd -- ${(s:|:)argument}
elif [[ -n $argument ]]; then
    _files
else
    _describe 'command or flag' names
    [[ $words[CURRENT] == -* ]] || _files
fi
