# Completions for bash. The program itself lists its commands and flags: --list-flags.
_tessera() {
    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=() list argument i
    for ((i = 1; i < COMP_CWORD; i++)); do # the words before the first flag
        [[ ${COMP_WORDS[i]} == -* ]] && break
        command+=("${COMP_WORDS[i]}")
    done
    list=$("${COMP_WORDS[0]/#\~/$HOME}" "${command[@]}" --list-flags 2>/dev/null)
    argument=$(awk -F '\t' -v flag="$previous" '$1 == flag { print $2 }' <<<"$list")
    COMPREPLY=() # empty: names of files
    if [[ $argument == *'|'* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "${argument//|/ }" -- "$word")
    elif [[ -z $argument ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(cut -f 1 <<<"$list")" -- "$word")
    fi
}
complete -o default -F _tessera tessera train ./train
