//! kubectl: upstream's commands, output and exit codes, started in a few milliseconds.
//!
//! Flow: argv -> `cli` (the table in `commands`) -> a command's `run` with a [`Context`] -> `resources` (which
//! objects) -> `request` (the server) -> `printers` (text). Objects are dynamic values typed by the server's discovery,
//! so any Kubernetes and any custom resource works; built-in schemas are used only where a patch must know list keys.
//! Nothing is read or connected before a command asks for it.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cli;
mod command_span;
mod commands;
mod complete;
mod describe;
mod discovery;
mod duration;
mod editor;
mod escape;
mod failure;
mod files;
mod go_errors;
mod kuberc;
mod kustomize;
mod manifests;
mod mapping;
mod objects;
mod pattern;
mod plugin_policy;
mod pods;
mod printers;
#[cfg(test)]
mod properties;
mod rbac_rules;
mod request;
mod resources;
mod selector;
mod stream;
mod three_way;
mod validation;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

use cli::Parsed;
use cli::context::{self, Context};
use failure::{Failure, Result};

/// The Kubernetes version whose kubectl this is.
pub(crate) const VERSION: &str = api::version::KUBERNETES;

/// Go's name for the processor.
pub(crate) fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

pub(crate) fn user_agent() -> String {
    format!("kubectl/{} ({}/{}) kubernetes/coxswain", VERSION, std::env::consts::OS, go_arch())
}

/// Runs one command line; the first argument is the program's name.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    command_line(args.skip(1).map(|a| a.to_string_lossy().into_owned()).collect())
}

/// Not generic: it names all commands, which would be compiled again with it by whoever calls it.
fn command_line(argv: Vec<String>) -> ExitCode {
    let (argv, plugin_policy) = match kuberc::apply(&commands::ROOT, argv) {
        Ok(rewritten) => rewritten,
        Err(failure) => return report(&failure),
    };
    if let Some((verb @ ("__complete" | "__completeNoDesc"), words)) = argv.split_first().map(|(v, w)| (v.as_str(), w))
    {
        print!("{}", complete::answer(words, verb == "__complete"));
        return ExitCode::SUCCESS;
    }
    let argv = match argv.split_first() {
        Some((word, topic)) if word == "help" => match help_about(topic) {
            Ok(argv) => argv,
            Err(code) => return code,
        },
        _ => argv,
    };
    // Plug-ins add to `create`, and to nothing else that there is.
    if let [create, kind, ..] = argv.as_slice()
        && create == "create"
        && commands::ROOT.subcommand(create).is_some_and(|create| create.subcommand(kind).is_none())
        && let Some(code) = commands::plugin::run(&argv, 2)
    {
        return code;
    }
    let parsed = match cli::parse(&commands::ROOT, argv.clone()) {
        Ok(parsed) => parsed,
        Err(failure) => return report(&failure),
    };
    let invocation = match parsed {
        Parsed::Run(invocation) => invocation,
        Parsed::Help { command, path, asked } => return help(command, &path, asked),
        Parsed::Unknown { word, root, path } => return unknown(&word, root, &path, &argv),
    };
    for note in invocation.deprecations() {
        eprintln!("{note}");
    }
    let cx = Context::new(invocation, plugin_policy);
    let outcome = run(&cx);
    let flushed = cx.flush();
    let code = match outcome.and(flushed).and_then(|()| warnings_as_errors(&cx)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Whatever was printed before the failure still belongs on stdout.
            let _ = cx.print(&failure.output()).and(cx.flush());
            report(&failure)
        }
    };
    // The process ends here. Taking everything apart first would only bring more code into memory.
    std::mem::forget(cx);
    code
}

/// The global `--profile` of upstream's own measurements; a command may have one of its own.
fn check_profile(cx: &Context) -> Result<()> {
    let own = cx.flags.command.own_flags().any(|f| f.name == "profile");
    let profile = cx.flags.string("profile");
    if own || ["none", "cpu", "heap", "goroutine", "threadcreate", "block", "mutex"].contains(&profile.as_str()) {
        return Ok(());
    }
    Err(Failure::message(format!("unknown profile '{profile}'")))
}

fn run(cx: &Context) -> Result<()> {
    let Some(command) = cx.flags.command.run else { return Ok(()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    check_profile(cx)?;
    let outcome = runtime.block_on(async {
        if cx.flags.bool("match-server-version") {
            commands::require_same_version(cx).await?;
        }
        command(cx).await
    });
    // Nor is the runtime taken apart, or waited for: reads of a terminal cannot be interrupted.
    std::mem::forget(runtime);
    outcome
}

fn warnings_as_errors(cx: &Context) -> Result<()> {
    let count = cx.warnings.borrow().len();
    if count == 0 || !cx.flags.bool("warnings-as-errors") {
        return Ok(());
    }
    Err(Failure::message(format!("{count} warning{} received", if count == 1 { "" } else { "s" })))
}

fn report(failure: &Failure) -> ExitCode {
    let text = failure.to_string();
    // Servers, webhooks and containers have their say in it.
    let text = api::terminal::escaped(&text);
    if !text.is_empty() {
        eprint!("{text}{}", if text.ends_with('\n') { "" } else { "\n" });
    }
    ExitCode::from(failure.exit_code())
}

fn help(command: &'static cli::Command, path: &str, asked: bool) -> ExitCode {
    let text = cli::help(command, path);
    match command.alone {
        cli::Alone::FailWithHelp if !asked => {
            eprint!("{text}");
            ExitCode::FAILURE
        }
        alone => {
            print!("{text}");
            if alone == cli::Alone::FailWithHelpOut && !asked { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
    }
}

/// `kubectl help get` is `kubectl get --help`.
fn help_about(topic: &[String]) -> std::result::Result<Vec<String>, ExitCode> {
    if !topic.is_empty() && cli::command_of(&commands::ROOT, topic).1.is_empty() {
        eprint!("Unknown help topic [`{}`]\n{}", topic.join(" "), cli::help(&commands::ROOT, "kubectl"));
        return Err(ExitCode::SUCCESS);
    }
    Ok([topic, &["--help".to_owned()]].concat())
}

/// What other tools call a command.
const MEANT: &[(&str, &str)] = &[
    ("inspect", "describe"),
    ("list", "get"),
    ("ls", "get"),
    ("remove", "delete"),
    ("rm", "delete"),
    ("stats", "top"),
];

/// A word that names no command: perhaps a plug-in on the PATH, else a mistake to explain.
fn unknown(word: &str, group: &'static cli::Command, path: &str, argv: &[String]) -> ExitCode {
    let top = path == "kubectl";
    if top && let Some(code) = commands::plugin::run(argv, 1) {
        return code;
    }
    if !top && group.alone == cli::Alone::Help {
        return help(group, path, true);
    }
    let close: Vec<String> = group
        .subcommands
        .iter()
        .map(|c| c.name.to_owned())
        .filter(|name| {
            let meant = MEANT.iter().any(|(other, meant)| top && *other == word && meant == name);
            meant || cli::edit_distance(word, name) <= 2 || name.starts_with(word)
        })
        .collect();
    if !top {
        return report(&Failure::usage(path, format!("unknown command \"{word}\"")).suggest(close));
    }
    let failure = Failure::message(format!("unknown command \"{word}\" for \"{path}\""));
    let failure = failure.suggest(close);
    // cobra ends its suggestions with an empty line.
    match failure {
        Failure::Message(text) if text.contains("Did you mean") => report(&Failure::message(text + "\n")),
        other => report(&other),
    }
}
