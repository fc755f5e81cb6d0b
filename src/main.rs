//! `cox`: every component of Kubernetes in one binary.
//!
//! A table from name to component and nothing else. A name is the first argument (`cox apiserver …`), or the name
//! the binary was started by (`kubectl`, a CNI plug-in), so that links to it stand in for the usual programs.

mod closed_pipe;
mod memory;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Command};
use futures_util::future::BoxFuture;

#[global_allocator]
static ALLOCATOR: memory::ByRole = memory::ByRole;

/// One thing that `cox` can be.
struct Component {
    name: &'static str,
    about: &'static str,
    group: Group,
    /// Receives its own name and the arguments after it.
    run: fn(Vec<OsString>) -> ExitCode,
}

/// The heading under which `cox --help` lists a component.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Cluster,
    Client,
    Component,
    /// Started by other components, never by people.
    Internal,
}

/// For what runs outside of the runtime when all else has ended.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

const fn row(group: Group, name: &'static str, about: &'static str, run: fn(Vec<OsString>) -> ExitCode) -> Component {
    Component { name, about, group, run }
}

const COMPONENTS: &[Component] = &[
    row(Group::Cluster, "up", "Start a cluster on this machine, or resume it", |argv| {
        component(argv, cluster::up::main)
    }),
    row(Group::Cluster, "status", "Show whether the cluster runs, and where", |argv| {
        command(argv, cluster::manage::status)
    }),
    row(Group::Cluster, "logs", "Print the cluster's log", |argv| command(argv, cluster::manage::logs)),
    row(Group::Cluster, "down", "Stop the cluster; data and containers stay", |argv| {
        command(argv, cluster::manage::down)
    }),
    row(Group::Cluster, "node", "Add, stop, start and remove nodes on this machine", |argv| {
        component(argv, cluster::nodes::cli::main)
    }),
    row(Group::Cluster, "token", "Create, list and delete tokens that let machines join", |argv| {
        command(argv, cluster::join::token_cli::main)
    }),
    row(Group::Cluster, "join", "Make this machine a node or a server of a cluster, or resume it", |argv| {
        component(argv, cluster::join_command::main)
    }),
    row(Group::Cluster, "server", "Add, remove and show servers and their etcd members", |argv| {
        command(argv, cluster::members::cli::main)
    }),
    row(Group::Cluster, "cert", "Show and renew the certificates of the cluster", |argv| {
        command(argv, cluster::certificates::main)
    }),
    row(Group::Cluster, "upgrade", "Upgrade a running cluster, with a rollback", |argv| {
        command(argv, cluster::upgrade::main)
    }),
    row(Group::Cluster, "import", "Take over a cluster of kubeadm or k3s, with its keys and objects", |argv| {
        command(argv, cluster::import::main)
    }),
    row(Group::Cluster, "delete", "Remove the cluster and all its data", |argv| command(argv, cluster::delete::main)),
    row(Group::Cluster, "check", "Show what this host is missing to be a node", |argv| {
        command(argv, cluster::preflight::main)
    }),
    row(Group::Cluster, "why", "Explain what an object is waiting for, and what to do about it", |argv| {
        command(argv, cluster::why::main)
    }),
    row(Group::Cluster, "trace", "Show what the cluster did for an object, step by step", |argv| {
        command(argv, cluster::walk::main)
    }),
    row(Group::Cluster, "top", "Show resource usage of nodes, pods and the API, now and in the last hour", |argv| {
        command(argv, cluster::top::main)
    }),
    row(
        Group::Cluster,
        "support",
        "Collect the state and the logs of the cluster in a file, without its secrets",
        |argv| command(argv, cluster::support::main),
    ),
    row(Group::Cluster, "ui", "Show the cluster in a browser", |argv| {
        let proxy = ["kubectl", "proxy", "--ui", "--port=0"].map(OsString::from);
        kubectl::main(proxy.into_iter().chain(argv.into_iter().skip(1)))
    }),
    row(Group::Cluster, "systemd-unit", "Print a systemd unit that runs the cluster", |argv| {
        command(argv, cluster::systemd::main)
    }),
    row(Group::Client, "kubectl", "Control a cluster: this one or any other", |argv| kubectl::main(argv.into_iter())),
    row(Group::Client, "store", "Check, repair, back up, restore and move a store, and rotate its keys", |argv| {
        command(argv, cluster::store_command::main)
    }),
    row(Group::Client, "image", "Pull, import, export, list, remove and tag images of this node", |argv| {
        command(argv, runtime::image_cli::main)
    }),
    row(Group::Component, "apiserver", "Serve the API", |argv| component(argv, apiserver::main)),
    row(Group::Component, "controller-manager", "Run the control loops", |argv| component(argv, controllers::main)),
    row(Group::Component, "scheduler", "Assign pods to nodes", |argv| component(argv, scheduler::main)),
    row(Group::Component, "kubelet", "Run the pods of a node", |argv| component(argv, kubelet::main)),
    row(Group::Component, "cri", "Run containers: a CRI runtime", |argv| component(argv, runtime::main)),
    row(Group::Component, "proxy", "Program services into the kernel", |argv| component(argv, proxy::main)),
    row(Group::Component, "dns", "Answer DNS queries for names of the cluster", |argv| component(argv, dns::main)),
    row(Group::Component, "gateway", "Serve Ingresses and Gateways", |argv| component(argv, gateway::main)),
    row(Group::Component, "sim", "Simulate nodes: thousands of hollow kubelets", |argv| component(argv, sim::main)),
    row(Group::Internal, "shim", "Owns the containers of one pod", runtime::shim::main),
    row(Group::Internal, "pause", "Holds the namespaces of one pod", |_| runtime::pause::main()),
];

fn main() -> ExitCode {
    closed_pipe::end_quietly();
    let mut argv: Vec<OsString> = std::env::args_os().collect();
    let called_as =
        argv.first().map(Path::new).and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or("cox");
    if let Some(plugin) = cni::plugin(called_as) {
        return plugin.run();
    }
    if let Some(component) = COMPONENTS.iter().find(|component| component.name == called_as) {
        return (component.run)(argv);
    }
    let Some(name) = argv.get(1).and_then(|name| name.to_str()) else {
        print!("{}", help());
        return ExitCode::SUCCESS;
    };
    match name {
        "version" | "--version" | "-V" => {
            println!("cox {} (Kubernetes v1.36)", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        "help" | "--help" | "-h" => {
            print!("{}", help());
            ExitCode::SUCCESS
        }
        _ => match COMPONENTS.iter().find(|component| component.name == name) {
            Some(component) => {
                argv.remove(0);
                (component.run)(argv)
            }
            None => {
                eprintln!("error: cox has no component {name:?}\n\nRun 'cox --help' for the list.");
                ExitCode::from(2)
            }
        },
    }
}

fn help() -> String {
    let mut text = String::from("Kubernetes as one binary.\n\nUsage: cox <component> [flags]\n");
    for (group, title) in [(Group::Cluster, "Cluster"), (Group::Client, "Client"), (Group::Component, "Components")] {
        text.push_str(&format!("\n{title}:\n"));
        for component in COMPONENTS.iter().filter(|component| component.group == group) {
            text.push_str(&format!("  {:<20} {}\n", component.name, component.about));
        }
    }
    text.push_str("\n  version              Print the version\n\nRun 'cox <component> --help' for its flags.\n");
    text
}

/// The entry of a component. Futures are boxed, so that each tree of them is compiled once, in its own crate, not again here.
type Main<A> = fn(A) -> BoxFuture<'static, anyhow::Result<()>>;

/// Runs what stays and tells what it does. Some of them hold Secrets, and none leaves a core.
fn component<A: Args>(argv: Vec<OsString>, main: Main<A>) -> ExitCode {
    if argv.iter().skip(1).any(|word| asks_version(word)) {
        println!("Kubernetes {}", cluster::VERSION);
        return ExitCode::SUCCESS;
    }
    match cluster::leave_no_core() {
        Ok(()) => start(argv, main, "info"),
        Err(error) => fail(&error),
    }
}

/// As upstream's components: with whatever flags it comes, it is answered first.
fn asks_version(word: &OsStr) -> bool {
    ["--version", "--version=true", "--version=raw"].iter().any(|known| word == *known)
}

/// Runs a command of the command line: its output is not mixed with informational log lines.
fn command<A: Args>(argv: Vec<OsString>, main: Main<A>) -> ExitCode {
    start(argv, main, "warn")
}

/// Parses flags and runs what they are for to its end on a tokio runtime.
fn start<A: Args>(argv: Vec<OsString>, main: Main<A>, log_level: &str) -> ExitCode {
    let name = argv.first().and_then(|name| name.to_str()).map_or("cox".into(), |name| format!("cox {name}"));
    let command = A::augment_args(Command::new("cox").bin_name(name));
    let matches = command.clone().get_matches_from(argv);
    cluster::remember_flags(&command, &matches);
    let args = match A::from_arg_matches(&matches) {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    start_logging(log_level);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into()),
    };
    let result = runtime.block_on(main(args));
    // What still waits for a disk or a silent NFS server ends with the process.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    if let Some(remedy) = cluster::preflight::remedy(error) {
        eprintln!("{remedy}");
    }
    ExitCode::FAILURE
}

/// Logs go to standard error, one line per event; `COX_LOG` chooses what (`info`, `apiserver=debug`, …).
fn start_logging(default: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("COX_LOG").unwrap_or_else(|_| default.into());
    let lines = || trace::log::OneLine(std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(lines).with_ansi(false).init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_asked_for_as_upstream() {
        for (word, expected) in [
            ("--version", true),
            ("--version=true", true),
            ("--version=raw", true),
            ("--version=false", false),
            ("version", false),
            ("--versions", false),
        ] {
            assert_eq!(asks_version(OsStr::new(word)), expected, "{word}");
        }
    }
}
