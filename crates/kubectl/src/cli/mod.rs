//! The command line: what a command is, how its words are parsed, how its help reads, what it has at hand while it runs.
//!
//! Flow: argv -> [`parse::parse`] over the table in `commands::ROOT` -> an [`Invocation`] -> the command's `run` with a [`Context`].
//! The rules are pflag's and cobra's (flags anywhere, `--x=y`, `--x y`, `-oyaml`, `-it`, `--`), because scripts
//! depend on them; a table and a small parser start faster than a general argument library.

pub(crate) mod context;
mod global;
mod help;
mod parse;

pub(crate) use global::GLOBAL;
pub(crate) use help::{global_options, help};
pub(crate) use parse::{Invocation, Parsed, command_of, edit_distance, find_long as find_flag, parse};

use futures_util::future::LocalBoxFuture;

use crate::failure::Result;
use context::Context;

pub(crate) type Run = for<'a> fn(&'a Context) -> LocalBoxFuture<'a, Result<()>>;

/// One row of the command table.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    pub(crate) aliases: &'static [&'static str],
    /// What follows the command's name in its usage line.
    pub(crate) usage: &'static str,
    /// One line for the list of commands.
    pub(crate) about: &'static str,
    pub(crate) examples: &'static str,
    pub(crate) flags: &'static [&'static [Flag]],
    pub(crate) subcommands: &'static [&'static Command],
    /// The subcommands under the headings that help gives them; none to list them as they are.
    pub(crate) groups: &'static [(&'static str, &'static [&'static Command])],
    /// What its words are, for shells that complete them.
    pub(crate) words: Words,
    pub(crate) run: Option<Run>,
    /// What a command that only groups others does on its own.
    pub(crate) alone: Alone,
}

/// A group of commands without one of them: help, as a success or (most of upstream's) as a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Alone {
    Help,
    FailWithHelp,
    /// The same on standard output.
    FailWithHelpOut,
}

/// The words that may follow a command.
pub(crate) enum Words {
    None,
    Files,
    Choice(&'static [&'static str]),
    /// A type and names, or `type/name`.
    Objects,
    /// The same, for these types.
    ObjectsOf(&'static [&'static str]),
    /// A type.
    Types,
    /// One name of this type.
    Named(&'static str),
    /// A pod, or `type/name` of something with pods.
    Pods,
    PodThenContainer,
    PodThenPort,
    Contexts,
    Clusters,
    Users,
}

impl Command {
    /// A starting point for struct update syntax in the table.
    pub(crate) const EMPTY: Command = Command {
        name: "",
        aliases: &[],
        usage: "",
        about: "",
        examples: "",
        flags: &[],
        subcommands: &[],
        groups: &[],
        words: Words::None,
        run: None,
        alone: Alone::Help,
    };

    /// Its own flags, without those that a variable has not turned on.
    pub(crate) fn own_flags(&self) -> impl Iterator<Item = &'static Flag> + use<> {
        self.flags.iter().copied().flatten().filter(|f| f.exists())
    }

    pub(crate) fn subcommand(&self, word: &str) -> Option<&'static Command> {
        self.subcommands.iter().copied().find(|c| c.name == word || c.aliases.contains(&word))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Bool,
    String,
    Int,
    Duration,
    /// Repeatable; each value is also split at commas.
    Slice,
    /// Repeatable, taken as written.
    Array,
}

pub(crate) struct Flag {
    pub(crate) name: &'static str,
    pub(crate) short: Option<char>,
    pub(crate) kind: Kind,
    pub(crate) default: &'static str,
    /// The value when the flag is given without one (`--dry-run`).
    pub(crate) bare: Option<&'static str>,
    pub(crate) deprecated: Option<&'static str>,
    pub(crate) hidden: bool,
    /// The variable that must be `true` for the flag to exist.
    pub(crate) gate: Option<&'static str>,
    pub(crate) help: &'static str,
}

impl Flag {
    const fn new(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Flag {
        Flag { name, short: None, kind, default, bare: None, deprecated: None, hidden: false, gate: None, help }
    }
    pub(crate) const fn bool(name: &'static str, help: &'static str) -> Flag {
        Flag { bare: Some("true"), ..Flag::new(name, Kind::Bool, "false", help) }
    }
    pub(crate) const fn string(name: &'static str, help: &'static str) -> Flag {
        Flag::new(name, Kind::String, "", help)
    }
    pub(crate) const fn int(name: &'static str, default: &'static str, help: &'static str) -> Flag {
        Flag::new(name, Kind::Int, default, help)
    }
    pub(crate) const fn duration(name: &'static str, default: &'static str, help: &'static str) -> Flag {
        Flag::new(name, Kind::Duration, default, help)
    }
    pub(crate) const fn slice(name: &'static str, help: &'static str) -> Flag {
        Flag::new(name, Kind::Slice, "", help)
    }
    pub(crate) const fn array(name: &'static str, help: &'static str) -> Flag {
        Flag::new(name, Kind::Array, "", help)
    }
    pub(crate) const fn short(self, short: char) -> Flag {
        Flag { short: Some(short), ..self }
    }
    pub(crate) const fn default(self, default: &'static str) -> Flag {
        Flag { default, ..self }
    }
    pub(crate) const fn bare(self, bare: &'static str) -> Flag {
        Flag { bare: Some(bare), ..self }
    }
    pub(crate) const fn deprecated(self, note: &'static str) -> Flag {
        Flag { deprecated: Some(note), hidden: true, ..self }
    }
    pub(crate) const fn gate(self, variable: &'static str) -> Flag {
        Flag { gate: Some(variable), ..self }
    }
    fn exists(&self) -> bool {
        self.gate.is_none_or(|variable| std::env::var(variable).is_ok_and(|v| v.eq_ignore_ascii_case("true")))
    }
    pub(crate) const fn hidden(self) -> Flag {
        Flag { hidden: true, ..self }
    }
}
