//! The table of commands: one file each, listed once, in the order help shows them.

mod apply;
mod config;
mod create;
mod delete;
mod describe;
mod expose;
pub(crate) mod flags;
mod get;
mod logs;
mod options;
pub(crate) mod plugin;
mod run;
mod version;

use crate::cli::Command;
use crate::failure::Failure;
use crate::resources::Info;

pub(crate) use create::known as create_known;

pub(crate) const ROOT: Command = Command {
    name: "kubectl",
    about: "kubectl controls the Kubernetes cluster manager",
    subcommands: ALL,
    ..Command::EMPTY
};

/// Help's headings.
pub(crate) const GROUPS: &[(&str, &[&Command])] = &[
    ("Basic Commands (Beginner):", &[&create::COMMAND, &expose::COMMAND, &run::COMMAND]),
    ("Basic Commands (Intermediate):", &[&get::COMMAND, &delete::COMMAND]),
    ("Troubleshooting and Debugging Commands:", &[&describe::COMMAND, &logs::COMMAND]),
    ("Advanced Commands:", &[&apply::COMMAND]),
    ("Other Commands:", &[&config::COMMAND, &plugin::COMMAND, &version::COMMAND]),
];

const ALL: &[&Command] = &[
    &create::COMMAND,
    &expose::COMMAND,
    &run::COMMAND,
    &get::COMMAND,
    &delete::COMMAND,
    &describe::COMMAND,
    &logs::COMMAND,
    &apply::COMMAND,
    &config::COMMAND,
    &plugin::COMMAND,
    &version::COMMAND,
    &options::COMMAND,
];

/// Says which file an error is about, as upstream's `AddSourceToErr`.
pub(crate) fn create_failure(verb: &str, info: &Info, failure: Failure) -> Failure {
    create::in_operation(verb, &info.source, failure)
}
