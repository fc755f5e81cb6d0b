//! `--help`, `kubectl options` and the list of commands.

use std::fmt::Write;

use api::sort::CompactSort as _;

use super::{Command, Flag, GLOBAL, Kind};

pub(crate) fn help(command: &Command, path: &str) -> String {
    let mut out = String::new();
    if !command.groups.is_empty() {
        let _ = writeln!(out, "kubectl controls the Kubernetes cluster manager.");
        let width = command.groups.iter().map(|(_, commands)| widest(commands)).max().unwrap_or(0);
        for (title, commands) in command.groups {
            let _ = writeln!(out, "\n{title}");
            list_commands(&mut out, commands, width);
        }
        let _ = write!(
            out,
            "\nUsage:\n  kubectl [flags] [options]\n\nUse \"kubectl <command> --help\" for more information about a given command.\nUse \"kubectl options\" for a list of global command-line options (applies to all commands).\n"
        );
        return out;
    }
    let _ = writeln!(out, "{}", command.about);
    if !command.aliases.is_empty() {
        let _ = writeln!(out, "\nAliases:\n{}, {}", command.name, command.aliases.join(", "));
    }
    if !command.examples.is_empty() {
        let _ = writeln!(out, "\nExamples:\n{}", command.examples.trim_end());
    }
    if !command.subcommands.is_empty() {
        let _ = writeln!(out, "\nAvailable Commands:");
        list_commands(&mut out, command.subcommands, widest(command.subcommands));
    }
    let flags: Vec<&Flag> = command.own_flags().collect();
    if flags.iter().any(|f| !f.hidden) {
        let _ = writeln!(out, "\nOptions:");
        list_flags(&mut out, flags);
    }
    let tail = match (command.usage, command.run) {
        ("", None) => "SUBCOMMAND [options]".to_owned(),
        ("", Some(_)) => "[options]".to_owned(),
        (usage, _) if usage.contains("[options]") => usage.to_owned(),
        (usage, _) => format!("{usage} [options]"),
    };
    let _ = writeln!(out, "\nUsage:\n  {path} {tail}");
    out.push('\n');
    if !command.subcommands.is_empty() {
        let _ = writeln!(out, "Use \"{path} <command> --help\" for more information about a given command.");
    }
    let _ =
        writeln!(out, "Use \"kubectl options\" for a list of global command-line options (applies to all commands).");
    out
}

pub(crate) fn global_options() -> String {
    let mut out = String::from("The following options can be passed to any command:\n\n");
    list_flags(&mut out, GLOBAL.iter().collect());
    out
}

/// Names of commands stand in a column at least this wide.
const NAMES: usize = 11;

fn widest(commands: &[&Command]) -> usize {
    commands.iter().map(|c| c.name.len()).max().unwrap_or(0).max(NAMES)
}

fn list_commands(out: &mut String, commands: &[&Command], width: usize) {
    for c in commands {
        let _ = writeln!(out, "  {:width$}   {}", c.name, c.about.lines().next().unwrap_or(""));
    }
}

fn list_flags(out: &mut String, mut flags: Vec<&Flag>) {
    flags.retain(|f| !f.hidden);
    flags.compact_sort_by_key(|f| f.name);
    for flag in flags {
        let short = flag.short.map(|c| format!("-{c}, ")).unwrap_or_default();
        let value = match flag.kind {
            Kind::String => format!("'{}'", flag.default),
            Kind::Slice | Kind::Array => format!("[{}]", flag.default),
            Kind::Bool | Kind::Int | Kind::Duration => flag.default.to_owned(),
        };
        let _ = writeln!(out, "    {short}--{}={value}:\n\t{}\n", flag.name, flag.help);
    }
}
