//! `cox node`: add, stop, start and remove further nodes of the cluster on this machine.
//!
//! A command writes what is wanted into the node's record, nudges the cluster's process, and waits until the API shows it.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use client::{Client, Event, InformerFactory, ListParams};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use nix::sys::signal::{Signal, kill};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::reasons::saying_why;
use super::record::{self, Network, Record, Wanted};
use super::run;
use crate::connection::connect;
use crate::lock::Lock;
use crate::options::Options;
use crate::wireguard_keys;

/// Between looks at the keys of nodes.
const KEYS_INTERVAL: Duration = Duration::from_millis(300);
/// As long as a node may take to do what it is told.
const NODE_TIMEOUT: Duration = Duration::from_secs(180);

/// Add, stop, start and remove nodes of the cluster on this machine
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Command {
    /// Add a node and wait until it is Ready
    Add(Add),
    /// Stop a node: its pods end and are created again elsewhere
    Stop(Named),
    /// Start a stopped node
    Start(Named),
    /// Remove a node and all its data
    #[command(alias = "remove")]
    Rm(Named),
    /// List the nodes of the cluster on this machine
    #[command(alias = "ls")]
    List(Options),
    /// Rotate the keys with which all nodes encrypt their traffic (cox up --encrypt)
    RotateKeys(Options),
    /// Started by the cluster's process
    #[command(hide = true)]
    Run(run::Args),
}

#[derive(Debug, Clone, clap::Args)]
struct Add {
    #[command(flatten)]
    options: Options,
    /// Name of the node (default: node-2, node-3 …)
    node: Option<String>,
}

#[derive(Debug, Clone, clap::Args)]
struct Named {
    #[command(flatten)]
    options: Options,
    /// Name of the node
    node: String,
}

/// How a node shows in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Ready,
    NotReady,
    Absent,
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(carry_out_command(args.command))
}

async fn carry_out_command(command: Command) -> Result<()> {
    match command {
        Command::Run(args) => run::main(args).await,
        Command::List(options) => list(&options),
        Command::RotateKeys(options) => rotate_keys(&options).await,
        Command::Add(args) => {
            let record = Network::load(&args.options)?.add(&args.options, args.node.as_deref())?;
            carry_out(&args.options, &record.name, Shown::Ready).await?;
            println!("node {} is ready at {}", record.name, record.address);
            Ok(())
        }
        Command::Start(args) => {
            want(&args, Wanted::Running)?;
            carry_out(&args.options, &args.node, Shown::Ready).await?;
            println!("node {} is ready", args.node);
            Ok(())
        }
        Command::Stop(args) => {
            want(&args, Wanted::Stopped)?;
            carry_out(&args.options, &args.node, Shown::NotReady).await?;
            println!("node {} is stopped", args.node);
            Ok(())
        }
        Command::Rm(args) => {
            want(&args, Wanted::Removed)?;
            carry_out(&args.options, &args.node, Shown::Absent).await?;
            println!("node {} is gone", args.node);
            Ok(())
        }
    }
}

/// Adds nodes to a cluster that runs until it has `count`.
pub(crate) async fn grow(options: &Options, count: u32) -> Result<()> {
    let known = record::all(options)?;
    Network::load(options)?.ensure_count(options, count)?;
    for record in record::all(options)?.into_iter().filter(|record| !known.contains(record)) {
        carry_out(options, &record.name, Shown::Ready).await?;
        println!("node {} is ready at {}", record.name, record.address);
    }
    Ok(())
}

fn want(args: &Named, wanted: Wanted) -> Result<()> {
    let network = Network::load(&args.options)?;
    if args.node == network.first_node {
        bail!("node {:?} runs in the cluster's own process: use 'cox down' or 'cox delete'", args.node);
    }
    Record { wanted, ..record::find(&args.options, &args.node)? }.save(&args.options)
}

/// Nudges the cluster's process and waits until the API shows the outcome.
async fn carry_out(options: &Options, node: &str, expected: Shown) -> Result<()> {
    let Some(holder) = Lock::holder(&options.lock_file())? else {
        bail!("noted, but cluster {:?} does not run: 'cox up' carries it out", options.name);
    };
    kill(holder.pid, Signal::SIGUSR1).with_context(|| format!("reaching process {}", holder.pid))?;
    let client = connect(&options.admin_kubeconfig())?;
    match tokio::time::timeout(NODE_TIMEOUT, until_shown(&client, node, expected)).await {
        Ok(result) => result,
        Err(_) => bail!("node {node} takes longer than {NODE_TIMEOUT:?}: see 'cox logs' and 'cox logs --node {node}'"),
    }
}

/// Waits until the API shows the node as ready.
pub(crate) async fn until_ready(client: &Client, node: &str) -> Result<()> {
    saying_why(client, node, until_shown(client, node, Shown::Ready)).await
}

async fn until_shown(client: &Client, node: &str, expected: Shown) -> Result<()> {
    let informers = InformerFactory::new(client.clone());
    let nodes = informers.filtered::<Node>(ListParams::fields(format!("metadata.name={node}")));
    let (sender, mut seen) = watch::channel(Shown::Absent);
    nodes.subscribe(move |event| {
        sender.send_replace(shown(event));
    });
    let stop = CancellationToken::new();
    let _stop_on_return = stop.clone().drop_guard();
    informers.start(stop);
    nodes.synced().await;
    seen.wait_for(|seen| *seen == expected).await.context("the watch of the node ended")?;
    Ok(())
}

fn shown(event: &Event<Node>) -> Shown {
    match (event, api::node::is_ready(event.object())) {
        (Event::Deleted(_), _) => Shown::Absent,
        (_, true) => Shown::Ready,
        (_, false) => Shown::NotReady,
    }
}

/// Begins another generation of keys and waits until every node that is ready has published its own.
async fn rotate_keys(options: &Options) -> Result<()> {
    let client = connect(&options.admin_kubeconfig())?;
    let number = wireguard_keys::rotate(&client).await?;
    let deadline = tokio::time::Instant::now() + NODE_TIMEOUT;
    loop {
        let nodes = client.all::<Node>().list(&ListParams::default()).await.context("listing the nodes")?.items;
        let behind = wireguard_keys::behind(&nodes, number);
        if behind.is_empty() {
            break;
        }
        if tokio::time::Instant::now() >= deadline {
            bail!("{} has no new key yet; until then its old one is good: see its log", behind.join(", "));
        }
        tokio::time::sleep(KEYS_INTERVAL).await;
    }
    println!("every node has a key of generation {number}; those of before go once nobody uses them");
    Ok(())
}

fn list(options: &Options) -> Result<()> {
    let network = Network::load(options)?;
    println!("{:<24} {:<16} {:<9} PROCESS", "NAME", "ADDRESS", "WANTED");
    let own = Lock::holder(&options.lock_file())?;
    println!("{:<24} {:<16} {:<9} {}", network.first_node, "-", "running", process(own.map(|holder| holder.pid)));
    for record in record::all(options)? {
        let holder = Lock::holder(&record.options(options).lock_file())?;
        let wanted = match record.wanted {
            Wanted::Running => "running",
            Wanted::Stopped => "stopped",
            Wanted::Removed => "removed",
        };
        let process = process(holder.map(|holder| holder.pid));
        println!("{:<24} {:<16} {wanted:<9} {process}", record.name, record.address.to_string());
    }
    Ok(())
}

fn process(pid: Option<nix::unistd::Pid>) -> String {
    pid.map_or("-".to_owned(), |pid| pid.to_string())
}
