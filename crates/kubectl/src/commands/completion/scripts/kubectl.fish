# fish completion for kubectl: asks `kubectl __complete` and shows what it answers.

function __kubectl_answers
    set -l words (commandline --current-process --tokens-expanded --cut-at-cursor 2>/dev/null; or commandline -opc)
    set -l last (commandline -ct)
    $words[1] __complete $words[2..] "$last" 2>/dev/null
end

function __kubectl_candidates
    for line in (__kubectl_answers)
        string match -qr '^:\d+$' -- $line; or echo $line
    end
end

# Files are offered only where kubectl has nothing to offer itself.
function __kubectl_wants_files
    set -l answers (__kubectl_answers)
    test (count $answers) -le 1; and string match -qr '^:[0-3]$' -- $answers[-1]
end

complete -c kubectl -e
complete -c kubectl -n 'not __kubectl_wants_files' -f -a '(__kubectl_candidates)'
complete -c kubectl -n __kubectl_wants_files -F
