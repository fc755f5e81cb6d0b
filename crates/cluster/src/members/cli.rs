//! `cox server`: the servers of a cluster and their etcd members.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::sort::CompactCollect as _;
use client::DeleteParams;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::flags::client_url;
use super::plan::{State, Which};
use super::{state, upkeep};
use crate::connection::connect;
use crate::history::bytes;
use crate::join;
use crate::options::Options;
use crate::shape::Flags;

/// The API may be what is broken.
const API_TIMEOUT: Duration = Duration::from_secs(5);

/// Add, remove and show the servers of a cluster
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Command {
    /// Print the command that makes another machine a server
    Add(Options),
    /// Remove a server from the cluster, whether it is running or not
    #[command(alias = "remove")]
    Rm {
        #[command(flatten)]
        options: Options,
        /// Name of the server's node, or the address of a server that never started
        server: String,
    },
    /// List the servers and etcd members with their health
    Status(Options),
    /// Write a snapshot of etcd below this server's data directory
    Snapshot(Options),
    /// Defragment the etcd members, one at a time
    Defragment(Options),
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(run_main(args.command))
}

async fn run_main(command: Command) -> Result<()> {
    match command {
        Command::Add(options) => join::token_cli::offer_to_server(options).await,
        Command::Rm { options, server } => remove(&options, &server).await,
        Command::Status(options) => status(&options).await,
        Command::Snapshot(options) => {
            let flags = with_members(&options)?;
            let url = client_url(flags.shape()?.node_ip()?);
            println!("{}", upkeep::snapshot(&options, &flags.etcd, &url).await?.display());
            Ok(())
        }
        Command::Defragment(options) => {
            let done = upkeep::defragment(&with_members(&options)?.etcd, Which::All).await?;
            println!("defragmented: {}", done.join(", "));
            Ok(())
        }
    }
}

/// The flags of a server on this machine whose cluster has etcd.
fn with_etcd(options: &Options) -> Result<Flags> {
    let flags = Flags::remembered(options)?;
    if !flags.etcd.is_used() {
        bail!("the cluster at {} has one server with a store of its own", options.data_dir.display());
    }
    Ok(flags)
}

/// As [`with_etcd`], where etcd is the cluster's own.
fn with_members(options: &Options) -> Result<Flags> {
    let flags = with_etcd(options)?;
    if !flags.ha.ha {
        bail!("the etcd of this cluster is looked after by others: it was named with --etcd-servers");
    }
    Ok(flags)
}

async fn remove(options: &Options, name: &str) -> Result<()> {
    let flags = with_members(options)?;
    if flags.machine.node_name.as_deref() == Some(name) {
        bail!("{name} is this machine: 'cox delete' takes it out, or remove it from another server");
    }
    state::remove(&flags.etcd, name).await?;
    println!("{name} is no longer a member of etcd");
    // An address: it has no node.
    if name.contains(':') {
        return Ok(());
    }
    let deleted = connect(&options.admin_kubeconfig())?.all::<Node>().delete(name, &DeleteParams::default()).await;
    match deleted {
        Err(error) if !error.is_not_found() => {
            Err(error).with_context(|| format!("deleting its node: 'cox kubectl delete node {name}' does it"))
        }
        _ => {
            println!("node {name} is deleted. If the machine still runs: 'cox delete' there");
            Ok(())
        }
    }
}

async fn status(options: &Options) -> Result<()> {
    let flags = with_etcd(options)?;
    let api = tokio::time::timeout(API_TIMEOUT, api_servers(options)).await;
    let api = api.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer")));
    let states = state::states(&flags.etcd).await;
    if let Ok(states) = &states {
        print!("{}", table(states, api.as_ref().ok()));
    }
    match api {
        Ok(servers) => println!("\nAPI servers: {}", servers.into_iter().collect::<Vec<_>>().join(", ")),
        Err(error) => println!("\nAPI servers: unknown ({error:#})"),
    }
    states.map(drop)
}

/// Addresses that the `kubernetes` service leads to.
async fn api_servers(options: &Options) -> Result<BTreeSet<String>> {
    let client = connect(&options.admin_kubeconfig())?;
    let slice = client.namespaced::<EndpointSlice>("default").get("kubernetes").await?;
    let endpoints = slice.endpoints.unwrap_or_default();
    Ok(endpoints.into_iter().flat_map(|endpoint| endpoint.addresses).compact_collect())
}

fn table(states: &[State], api: Option<&BTreeSet<String>>) -> String {
    let mut text = format!(
        "{:<24} {:<22} {:<10} {:<10} {:<10} {:<10} {:<12} {:<8}\n",
        "NAME", "ADDRESS", "ROLE", "HEALTH", "API", "DB SIZE", "REVISION", "VERSION"
    );
    for state in states {
        let address = state.address();
        let name = if state.member.name.is_empty() { "<not started>" } else { &state.member.name };
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
        let serves = match api {
            None => "unknown",
            Some(servers) if servers.contains(host) => "serving",
            Some(_) => "away",
        };
        let health = if state.is_healthy { "healthy" } else { "unhealthy" };
        let (size, revision, version) = match &state.status {
            Ok(status) => (bytes(status.db_size as f64), status.revision.to_string(), status.version.clone()),
            Err(_) => ("-".to_owned(), "-".to_owned(), "-".to_owned()),
        };
        text += &format!(
            "{name:<24} {address:<22} {:<10} {health:<10} {serves:<10} {size:<10} {revision:<12} {version:<8}\n",
            state.role()
        );
        let trouble = match &state.status {
            Ok(status) => status.errors.join(", "),
            Err(why) => why.to_string(),
        };
        if !trouble.is_empty() {
            text += &format!("  {trouble}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use store::Revision;
    use store::etcd::{Member, Status};

    use crate::members::plan::NoAnswer;

    use super::*;

    #[test]
    fn flags_of_commands_do_not_clash() {
        use clap::Args as _;
        Args::augment_args(clap::Command::new("server")).debug_assert();
        crate::store_command::Args::augment_args(clap::Command::new("store")).debug_assert();
        crate::upgrade::Args::augment_args(clap::Command::new("upgrade")).debug_assert();
        crate::certificates::Args::augment_args(clap::Command::new("cert")).debug_assert();
        crate::join_command::Args::augment_args(clap::Command::new("join")).debug_assert();
        crate::up::Args::augment_args(clap::Command::new("up")).debug_assert();
    }

    #[test]
    fn servers_are_rows() {
        let member = |id: u64, name: &str| Member {
            id,
            name: name.into(),
            peer_urls: vec![format!("https://192.0.2.{id}:2380")],
            client_urls: vec![format!("https://192.0.2.{id}:2379")],
            is_learner: false,
        };
        let status = Status {
            id: 1,
            version: "3.5.21".into(),
            db_size: 3 << 20,
            db_size_in_use: 1 << 20,
            revision: Revision(77),
            leader: 1,
            is_learner: false,
            errors: Vec::new(),
        };
        let states = [
            State { member: member(1, "one"), status: Ok(status), is_healthy: true },
            State { member: member(2, "two"), status: Err(NoAnswer("no answer".into())), is_healthy: false },
        ];
        let api = BTreeSet::from(["192.0.2.1".to_owned()]);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = table(&states, Some(&api)).lines().map(words).collect();
        assert_eq!(lines[1], "one 192.0.2.1:2379 leader healthy serving 3.0 MiB 77 3.5.21");
        assert_eq!(lines[2], "two 192.0.2.2:2379 member unhealthy away - - -");
        assert_eq!(lines[3], "no answer");
    }
}
