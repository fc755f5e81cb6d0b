# PowerShell completion for kubectl: asks `kubectl __complete` and shows what it answers.

Register-ArgumentCompleter -Native -CommandName 'kubectl' -ScriptBlock {
    param($WordToComplete, $CommandAst, $CursorPosition)

    # Only the words up to the cursor count.
    $words = @($CommandAst.CommandElements |
        Where-Object { $_.Extent.StartOffset -lt $CursorPosition } |
        ForEach-Object { $_.ToString() })
    $program, $rest = $words
    $rest = @($rest)
    if ($WordToComplete -eq '') {
        # An empty last word would be lost on the way to the program.
        $rest += '""'
        if ($PSVersionTable.PSVersion -ge [version]'7.3') { $rest[-1] = '' }
    }

    $answers = @(& $program __complete @rest 2>$null)
    if ($answers.Count -eq 0) { return }
    $directive = [int]($answers[-1].TrimStart(':'))
    $space = if ($directive -band 2) { '' } else { ' ' }

    $answers | Select-Object -SkipLast 1 | ForEach-Object {
        $value, $text = $_.Split("`t", 2)
        if (-not $text) { $text = $value }
        $tail = if ($value.EndsWith('=')) { '' } else { $space }
        [System.Management.Automation.CompletionResult]::new("$value$tail", $value, 'ParameterValue', $text)
    }
}
