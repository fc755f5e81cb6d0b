//! `kubectl kustomize`

use crate::cli::{Command, Flag, Words};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::kustomize::LoadRestrictor;

pub(crate) const COMMAND: Command = Command {
    name: "kustomize",
    usage: "DIR [flags]",
    about: "Build a kustomization target from a directory",
    flags: &[&[
        Flag::bool("as-current-user", "Run functions as this user; there are none here."),
        Flag::bool("enable-alpha-plugins", "Allow plug-ins; there are none here."),
        Flag::bool("enable-helm", "Allow Helm charts; they are not supported."),
        Flag::array("env", "Environment of functions; there are none here.").short('e'),
        Flag::slice("helm-api-versions", "API versions for Helm; charts are not supported."),
        Flag::string("helm-command", "Helm program; charts are not supported.").default("helm"),
        Flag::bool("helm-debug", "Debug Helm; charts are not supported."),
        Flag::string("helm-kube-version", "Version for Helm; charts are not supported."),
        Flag::string(
            "load-restrictor",
            "LoadRestrictionsRootOnly, or LoadRestrictionsNone to read files outside of the directory.",
        )
        .default("LoadRestrictionsRootOnly"),
        Flag::array("mount", "Storage of functions; there are none here."),
        Flag::bool("network", "Network of functions; there are none here."),
        Flag::string("network-name", "Network of functions; there are none here.").default("bridge"),
        Flag::string("output", "File to write to.").short('o'),
    ]],
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
    let restrictor = match cx.flags.string("load-restrictor").as_str() {
        "LoadRestrictionsRootOnly" => LoadRestrictor::RootOnly,
        "LoadRestrictionsNone" => LoadRestrictor::None,
        other => {
            return Err(Failure::message(format!(
                "illegal flag value --load-restrictor {other}; legal values: [LoadRestrictionsRootOnly LoadRestrictionsNone]"
            )));
        }
    };
    let text = crate::kustomize::build(std::path::Path::new(dir), restrictor)
        .map_err(|error| Failure::message(error.to_string()))?;
    match cx.flags.string("output") {
        file if file.is_empty() => cx.print(&text),
        file => Ok(std::fs::write(file, text)?),
    }
}
