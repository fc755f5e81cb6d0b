//! The table of commands: one file each, listed once, in the order help shows them.

mod api;
mod apply;
pub(crate) mod auth;
mod autoscale;
mod certificate;
mod completion;
mod config;
mod cp;
mod create;
mod debug;
mod delete;
mod describe;
mod diff;
mod edit;
mod events;
mod exec;
mod explain;
mod expose;
pub(crate) mod flags;
mod get;
mod kuberc;
mod kustomize;
mod label;
mod logs;
mod nodes;
mod options;
mod patch;
pub(crate) mod plugin;
mod port_forward;
mod proxy;
mod rollout;
mod run;
mod scale;
mod set;
mod top;
mod version;
mod wait;

use crate::cli::Command;
use crate::failure::Failure;
use crate::resources::Info;

pub(crate) use version::require_same as require_same_version;

pub(crate) const ROOT: Command = Command {
    name: "kubectl",
    about: "kubectl controls the Kubernetes cluster manager",
    subcommands: ALL,
    groups: GROUPS,
    ..Command::EMPTY
};

/// Help's headings.
const GROUPS: &[(&str, &[&Command])] = &[
    ("Basic Commands (Beginner):", &[&create::COMMAND, &expose::COMMAND, &run::COMMAND, &set::COMMAND]),
    ("Basic Commands (Intermediate):", &[&explain::COMMAND, &get::COMMAND, &edit::COMMAND, &delete::COMMAND]),
    ("Deploy Commands:", &[&rollout::COMMAND, &scale::COMMAND, &autoscale::COMMAND]),
    (
        "Cluster Management Commands:",
        &[
            &certificate::COMMAND,
            &api::CLUSTER_INFO,
            &top::COMMAND,
            &nodes::CORDON,
            &nodes::UNCORDON,
            &nodes::DRAIN,
            &nodes::TAINT,
        ],
    ),
    (
        "Troubleshooting and Debugging Commands:",
        &[
            &describe::COMMAND,
            &logs::COMMAND,
            &exec::ATTACH,
            &exec::EXEC,
            &port_forward::COMMAND,
            &proxy::COMMAND,
            &cp::COMMAND,
            &auth::COMMAND,
            &debug::COMMAND,
            &events::COMMAND,
        ],
    ),
    (
        "Advanced Commands:",
        &[&diff::COMMAND, &apply::COMMAND, &patch::PATCH, &patch::REPLACE, &wait::COMMAND, &kustomize::COMMAND],
    ),
    ("Settings Commands:", &[&label::LABEL, &label::ANNOTATE, &completion::COMMAND]),
    (
        "Other Commands:",
        &[&api::RESOURCES, &api::VERSIONS, &config::COMMAND, &kuberc::COMMAND, &plugin::COMMAND, &version::COMMAND],
    ),
];

/// How many commands there are: those of the groups, and `options`.
const COUNT: usize = {
    let (mut count, mut group) = (1, 0);
    while group < GROUPS.len() {
        count += GROUPS[group].1.len();
        group += 1;
    }
    count
};

/// Those of the groups, and at the end `options`, which help leaves out.
const ALL: &[&Command] = &{
    let mut all = [&options::COMMAND; COUNT];
    let (mut next, mut group) = (0, 0);
    while group < GROUPS.len() {
        let mut at = 0;
        while at < GROUPS[group].1.len() {
            all[next] = GROUPS[group].1[at];
            (next, at) = (next + 1, at + 1);
        }
        group += 1;
    }
    all
};

/// Says which file an error is about, as upstream's `AddSourceToErr`.
pub(crate) fn create_failure(verb: &str, info: &Info, failure: Failure) -> Failure {
    create::in_operation(verb, &info.source, failure)
}
