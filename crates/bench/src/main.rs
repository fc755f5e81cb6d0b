//! `coxbench`: comparisons with real peers on the same machine, in the same run.
//!
//! `cargo run --profile dist -p coxbench -- <what>` runs one row of [`COMPARISONS`]. Each case prints one line,
//! `<case> <parameters> ours=… peer=… ratio=…`; the ratio says how many times better than the peer we are.
//! To add a comparison: one file with a `run` function and one row.

mod api;
mod authz;
mod autoscaling;
mod control_plane;
mod controllers;
mod dns;
mod faults;
mod footprint;
mod gateway;
mod ha;
mod history;
mod kubectl;
mod lifecycle;
mod load;
mod machines;
mod memory;
mod metrics;
mod node;
mod own_network;
mod own_server;
mod peer;
mod policy;
mod process;
mod proxy;
mod report;
mod scheduler;
mod services;
mod storage;
mod store;
mod trace;
mod up;

use clap::Parser;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;

/// As in `cox`, whose parts are measured here.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Run = fn(Args) -> Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;

/// Name, what is compared with what, how.
const COMPARISONS: &[(&str, &str, Run)] = &[
    ("kubectl", "our kubectl with Debian's: start to exit", |args| Box::pin(kubectl::run(args))),
    ("api", "our API server, or one given by its kubeconfig, with another one", |args| Box::pin(api::run(args))),
    ("authz", "RBAC decisions from the index with a scan of all bindings", |args| Box::pin(authz::run(args))),
    ("store", "the embedded store with a real etcd on the same disk", |args| Box::pin(store::run(args))),
    ("controllers", "deployments to Available on hollow nodes", |args| Box::pin(controllers::run(args))),
    ("memory", "caches of pods with caches of their types, whole control planes with upstream's", |args| {
        Box::pin(memory::run(args))
    }),
    ("metrics", "usage of nodes and pods with a real metrics-server", |args| Box::pin(metrics::run(args))),
    ("autoscaling", "a pod's start to its figures, a load to twice the pods and back", |args| {
        Box::pin(autoscaling::run(args))
    }),
    ("up", "a whole cluster: time to Ready, memory, idle CPU, size", |args| Box::pin(up::run(args))),
    ("node", "our runtime with containerd and runc: starting pods, memory", |args| Box::pin(node::run(args))),
    ("scheduler", "our scheduler with that of another cluster, or by itself", |args| Box::pin(scheduler::run(args))),
    ("storage", "pods with a volume each, beside another cluster or a helper pod per volume", |args| {
        Box::pin(storage::run(args))
    }),
    ("trace", "writes with the trace and without it", |args| Box::pin(trace::run(args))),
    ("dns", "cluster DNS with unbound serving the same names", |args| Box::pin(dns::run(args))),
    ("ha", "one and three of our API servers over three etcd members with kube-apiservers", |args| {
        Box::pin(ha::run(args))
    }),
    ("faults", "writes to three servers, one always in trouble: is anything lost?", |args| Box::pin(faults::run(args))),
    ("proxy", "the service proxy with nftables and with iptables", |args| Box::pin(proxy::run(args))),
    ("policy", "network policies with none: packets, and changes", |args| Box::pin(policy::run(args))),
    ("gateway", "the gateway with nginx on the same routes", |args| Box::pin(gateway::run(args))),
];

/// Compare with real peers
#[derive(Parser, Clone, Debug)]
#[command(name = "coxbench", after_help = comparisons())]
struct Args {
    /// What to compare
    what: String,
    /// Only the cases whose name starts with this
    #[arg(long)]
    only: Option<String>,
    /// A short run on little data: to see that it works, not for figures
    #[arg(long)]
    quick: bool,
    /// Where to put data; the disk under it is what is measured
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// The server to measure
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// A running cluster to compare with, where the comparison takes one
    #[arg(long)]
    peer_kubeconfig: Option<PathBuf>,
    /// storage: the class of volumes to compare with, in the peer's cluster or else in the one that is measured
    #[arg(long, value_name = "CLASS")]
    peer_class: Option<String>,
    /// metrics: the program of a metrics-server to compare with
    #[arg(long, value_name = "PROGRAM")]
    metrics_server: Option<PathBuf>,
    /// scheduler: decisions only, without an API server
    #[arg(long)]
    algorithm_only: bool,
    /// scheduler: how many nodes the cluster has
    #[arg(long)]
    nodes: Option<usize>,
    /// scheduler, controllers, storage, memory, kubectl: how many pods, where the case does not depend on the number
    #[arg(long)]
    pods: Option<usize>,
    /// ha, faults, memory: the cox program to run (default: the one beside this)
    #[arg(long)]
    cox: Option<PathBuf>,
    /// ha, faults, memory: the etcd program to run (default: the one in $PATH)
    #[arg(long)]
    etcd_binary: Option<PathBuf>,
    /// ha, memory: an upstream kube-apiserver to compare with
    #[arg(long)]
    kube_apiserver: Option<PathBuf>,
    /// memory: an upstream kube-controller-manager to compare with
    #[arg(long)]
    kube_controller_manager: Option<PathBuf>,
    /// memory: an upstream kube-scheduler to compare with
    #[arg(long)]
    kube_scheduler: Option<PathBuf>,
    /// faults: how long it goes on; memory: how long pods are deleted and replaced
    #[arg(long, default_value_t = 5)]
    minutes: u64,
    /// Given to itself when a case needs a process of its own
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
}

impl Args {
    fn wants(&self, case: &str) -> bool {
        self.only.as_deref().is_none_or(|only| case.starts_with(only))
    }
}

fn comparisons() -> String {
    let rows: Vec<_> = COMPARISONS.iter().map(|(name, what, _)| format!("  {name:<11} {what}")).collect();
    format!("What:\n{}", rows.join("\n"))
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let Some((_, _, run)) = COMPARISONS.iter().find(|(name, _, _)| *name == args.what) else {
        eprintln!("coxbench: no comparison {:?}\n{}", args.what, comparisons());
        return ExitCode::FAILURE;
    };
    match run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("coxbench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
