//! Programs called `kubectl-…` on the PATH, and `kubectl plugin list`.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::sort::CompactSort as _;

use crate::cli::{Alone, Command, Flag};
use crate::context::Context;
use crate::failure::{Failure, Result};

pub(crate) const COMMAND: Command = Command {
    name: "plugin",
    usage: "[flags]",
    about: "Provides utilities for interacting with plugins",
    subcommands: &[&LIST],
    alone: Alone::FailWithHelp,
    ..Command::EMPTY
};
const LIST: Command = Command {
    name: "list",
    usage: "[flags]",
    about: "List all visible plugin executables on a user's PATH",
    flags: &[&[Flag::bool("name-only", "Only names, without directories.")]],
    run: Some(|cx| Box::pin(list(cx))),
    ..Command::EMPTY
};

fn directories() -> Vec<PathBuf> {
    std::env::var_os("PATH").map(|p| std::env::split_paths(&p).collect()).unwrap_or_default()
}

/// Becomes the plug-in with the longest matching name (`kubectl a b` -> `kubectl-a-b`, then `kubectl-a b`) of so many
/// words at least.
pub(crate) fn run(argv: &[String], least: usize) -> Option<ExitCode> {
    let words: Vec<&String> = argv.iter().take_while(|w| !w.starts_with('-')).collect();
    for count in (least..=words.len()).rev() {
        let parts: Vec<String> = words[..count].iter().map(|w| w.replace('-', "_")).collect();
        let name = format!("kubectl-{}", parts.join("-"));
        for dir in directories() {
            let path = dir.join(&name);
            if is_executable(&path) {
                let error = std::process::Command::new(&path).args(&argv[count..]).exec();
                eprintln!("error: {}: {error}", path.display());
                return Some(ExitCode::FAILURE);
            }
        }
    }
    None
}

/// The first words that plug-ins answer to.
pub(crate) fn names() -> Vec<String> {
    let mut out: Vec<String> = directories()
        .iter()
        .flat_map(|dir| std::fs::read_dir(dir).into_iter().flatten())
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(is_executable)
        .filter_map(|path| Some(path.file_name()?.to_str()?.strip_prefix("kubectl-")?.to_owned()))
        .filter_map(|name| Some(name.split('-').next()?.replace('_', "-")))
        .collect();
    out.compact_sort();
    out.dedup();
    out
}

fn is_executable(path: &PathBuf) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

async fn list(cx: &Context) -> Result<()> {
    let mut found: Vec<PathBuf> = Vec::new();
    for dir in directories() {
        let mut names: Vec<PathBuf> =
            std::fs::read_dir(dir).into_iter().flatten().filter_map(|e| Some(e.ok()?.path())).collect();
        names.compact_sort();
        found.extend(names.into_iter().filter(|p| {
            p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("kubectl-")) && is_executable(p)
        }));
    }
    if found.is_empty() {
        return Err(Failure::message("unable to find any kubectl plugins in your PATH"));
    }
    cx.println("The following compatible plugins are available:\n")?;
    let mut warnings = 0;
    for (at, path) in found.iter().enumerate() {
        if cx.flags.bool("name-only") {
            cx.println(path.file_name().unwrap_or_default().to_string_lossy())?;
        } else {
            cx.println(path.display().to_string())?;
        }
        for warning in hindrances(path, &found[..at]) {
            cx.flush()?;
            cx.eprintln(format!("  - warning: {warning}"));
            warnings += 1;
        }
    }
    match warnings {
        0 => Ok(()),
        1 => Err(Failure::message("error: one plugin warning was found\n")),
        count => Err(Failure::message(format!("error: {count} plugin warnings were found\n"))),
    }
}

/// Why nobody will ever run a plug-in: others come before it.
fn hindrances(path: &Path, before: &[PathBuf]) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(first) = before.iter().find(|other| other.file_name() == path.file_name()) {
        out.push(format!("{} is overshadowed by a similarly named plugin: {}", path.display(), first.display()));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let words: Vec<String> = name.split('-').skip(1).map(str::to_owned).collect();
    let (_, named) = crate::cli::command_of(&super::ROOT, &words);
    if !named.is_empty() {
        let command: Vec<&str> = named.into_iter().filter_map(|at| Some(words.get(at)?.as_str())).collect();
        out.push(format!("{name} overwrites existing command: \"kubectl {}\"", command.join(" ")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plug_ins_that_nobody_reaches_are_named() {
        let of = |path: &str, before: &[&str]| {
            hindrances(Path::new(path), &before.iter().map(PathBuf::from).collect::<Vec<_>>())
        };
        assert_eq!(of("/a/kubectl-foo", &["/b/kubectl-bar"]), Vec::<String>::new());
        let expected = "/a/kubectl-foo is overshadowed by a similarly named plugin: /b/kubectl-foo";
        assert_eq!(of("/a/kubectl-foo", &["/b/kubectl-foo"]), [expected]);
        let expected = "kubectl-version overwrites existing command: \"kubectl version\"";
        assert_eq!(of("/a/kubectl-version", &[]), [expected]);
    }
}
