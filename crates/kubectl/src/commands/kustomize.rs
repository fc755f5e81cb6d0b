//! `kubectl kustomize`

use crate::cli::{Command, Flag, Words};
use crate::context::Context;
use crate::failure::{Failure, Result};

pub(crate) const COMMAND: Command = Command {
    name: "kustomize",
    usage: "DIR",
    about: "Build a kustomization target from a directory",
    flags: &[&[Flag::string("output", "File to write to.").short('o')]],
    words: Words::Files,
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

async fn run(cx: &Context) -> Result<()> {
    let dir = match cx.args() {
        [] => ".",
        [dir] => dir.as_str(),
        _ => return Err(Failure::message("specify one path to kustomization.yaml")),
    };
    let text = crate::kustomize::build(std::path::Path::new(dir)).map_err(Failure::message)?;
    match cx.flags.string("output") {
        file if file.is_empty() => cx.print(&text),
        file => Ok(std::fs::write(file, text)?),
    }
}
