# bash completion for kubectl: asks `kubectl __complete` and shows what it answers.

__kubectl_complete() {
    local words cword cur line directive value text
    local -a answers
    COMPREPLY=()

    # bash splits words at "=" and ":", which belong to ours.
    if declare -F _comp_get_words >/dev/null; then
        _comp_get_words -n "=:" cur words cword
    elif declare -F _get_comp_words_by_ref >/dev/null; then
        _get_comp_words_by_ref -n "=:" cur words cword
    else
        read -ra words <<<"${COMP_LINE:0:COMP_POINT}"
        [[ ${COMP_LINE:COMP_POINT-1:1} == " " ]] && words+=("")
        cword=$((${#words[@]} - 1))
        cur=${words[cword]}
    fi

    mapfile -t answers < <("${words[0]}" __complete "${words[@]:1:cword}" 2>/dev/null)
    ((${#answers[@]} > 0)) || return
    directive=${answers[-1]#:}
    unset "answers[-1]"

    if ((${#answers[@]} == 0)); then
        ((directive & 4)) || compopt -o default 2>/dev/null
        return
    fi
    ((directive & 2)) && compopt -o nospace 2>/dev/null

    # What stands before a "=" or ":" that bash split at is already on the line.
    local done_part=""
    case $cur in
        *=*) [[ $COMP_WORDBREAKS == *=* ]] && done_part=${cur%"${cur##*=}"} ;;
        *:*) [[ $COMP_WORDBREAKS == *:* ]] && done_part=${cur%"${cur##*:}"} ;;
    esac
    for line in "${answers[@]}"; do
        value=${line%%$'\t'*}
        text=${line#"$value"}
        [[ $value == "$cur"* ]] || continue
        value=${value#"$done_part"}
        # A flag that takes a value is finished by typing it.
        [[ $value == *= ]] && compopt -o nospace 2>/dev/null
        # Descriptions only where bash lists the choices.
        if [[ $COMP_TYPE == 63 && -n $text && ${#answers[@]} -gt 1 ]]; then
            COMPREPLY+=("$value  (${text#$'\t'})")
        else
            COMPREPLY+=("$value")
        fi
    done
}

complete -F __kubectl_complete kubectl
