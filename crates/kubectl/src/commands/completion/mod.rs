//! `kubectl completion`: a script for the shell, which asks `kubectl __complete` (see `complete`).

use crate::cli::{Command, Words};
use crate::context::Context;
use crate::failure::Result;

pub(crate) const COMMAND: Command = Command {
    name: "completion",
    usage: "SHELL",
    about: "Output shell completion code for the specified shell (bash, zsh, fish, or powershell)",
    examples: "  source <(kubectl completion bash)\n  kubectl completion zsh > \"${fpath[1]}/_kubectl\"\n  kubectl completion fish | source\n  kubectl completion powershell | Out-String | Invoke-Expression",
    words: Words::Choice(&["bash", "fish", "powershell", "zsh"]),
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

const SCRIPTS: &[(&str, &str)] = &[
    ("bash", include_str!("scripts/kubectl.bash")),
    ("fish", include_str!("scripts/kubectl.fish")),
    ("powershell", include_str!("scripts/kubectl.ps1")),
    ("zsh", include_str!("scripts/kubectl.zsh")),
];

async fn run(cx: &Context) -> Result<()> {
    let shell = match cx.args() {
        [shell] => shell,
        [] => return Err(cx.usage("Shell not specified.")),
        _ => return Err(cx.usage("Too many arguments. Expected only the shell type.")),
    };
    let script = SCRIPTS.iter().find(|(name, _)| name == shell);
    let (_, script) = script.ok_or_else(|| cx.usage(format!("Unsupported shell type \"{shell}\".")))?;
    cx.print(script)
}
