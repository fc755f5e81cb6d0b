#compdef kubectl
compdef _kubectl kubectl

# zsh completion for kubectl: asks `kubectl __complete` and shows what it answers.

_kubectl() {
    local line value text directive
    local -a answers described flags

    answers=("${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    (( ${#answers} > 0 )) || return 1
    directive=${answers[-1]#:}
    answers=("${(@)answers[1,-2]}")

    if (( ${#answers} == 0 )); then
        (( directive & 4 )) || _files
        return
    fi
    for line in "${answers[@]}"; do
        [[ -n $line ]] || continue
        value=${line%%$'\t'*}
        text=${line#"$value"}
        text=${text#$'\t'}
        [[ $value == *= ]] && flags=(-S '')
        # A colon separates value and description.
        described+=("${value//:/\\:}${text:+:$text}")
    done
    (( directive & 2 )) && flags=(-S '')
    _describe -V 'kubectl' described "${flags[@]}"
}

# Loaded from $fpath this file is the function's body; sourced it only defines it.
if [[ $funcstack[1] == _kubectl ]]; then
    _kubectl "$@"
fi
