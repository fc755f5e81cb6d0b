//! `cox delete`: everything of a cluster goes, and nothing else does.
//!
//! Teardown goes on after a failure, collects every error and returns them together.

use anyhow::{Context, Result, bail};
use futures_util::future::BoxFuture;
use netlink::Socket;

use crate::join::{Membership, leave};
use crate::leftovers::{remove_cgroups, remove_dir, unmount_below};
use crate::lock::Lock;
use crate::options::Options;
use crate::shape::Flags;
use crate::{kubeconfig, manage, members, node_address, node_network, nodes, usual_place};

/// Remove the cluster: processes, mounts, links, rules, cgroups, data and context
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(args: Args) -> Result<()> {
    let options = &args.options;
    // What runs and cannot be stopped keeps what it has.
    if let Some(holder) = Lock::holder(&options.lock_file())? {
        holder.refuse_stranger()?;
    }
    let mut errors = Vec::new();
    let mut step = |what: &str, result: Result<()>| {
        if let Err(error) = result {
            errors.push(format!("{what}: {error:#}"));
        }
    };
    // One that cannot be read is no reason to keep everything.
    let member = Membership::load(options).unwrap_or_default();
    let flags = Flags::remembered(options).unwrap_or_default();
    // While it still has a vote.
    let not_left = members::leave(&flags).await;
    step("stopping the cluster", manage::stop(options).map(drop));
    step("stopping etcd", members::end_orphan(options).await);
    step("removing further nodes", remove_nodes(options).await);
    step("removing pods", nodes::clear_pods(options, nodes::Chore::RemovePods).await);
    step("removing firewall rules", remove_rules());
    step("removing cgroups", remove_cgroups(&options.cgroup()));
    step("removing links", remove_links());
    let pool = &flags.gateway_address_pool;
    step("removing addresses of Gateways", gateway::own_addresses::remove(pool).map_err(anyhow::Error::from));
    step("removing routes", node_network::unseal(options));
    step("removing the link to the kubelet's directory", usual_place::remove(options));
    step("removing mounts", unmount_below(&options.data_dir).and_then(|()| unmount_below(&options.run_dir)));
    // Last of what needs credentials: a node whose pods are gone is missed by nobody.
    let left = match &member {
        Some(member) => leave(options, member).await,
        None if flags.ha.ha => match not_left {
            None => format!("server {} is gone", flags.machine.node_name.unwrap_or_default()),
            Some(left) => format!("this server is gone. {left}"),
        },
        None if flags.etcd.is_used() => format!(
            "this server is gone. The objects of the cluster stay in etcd at {}; other servers still list its node: there, \
             run 'cox kubectl delete node {}'",
            flags.etcd.etcd_servers.join(","),
            flags.machine.node_name.unwrap_or_default()
        ),
        None => format!("cluster {:?} is gone", options.name),
    };
    step("removing run files", remove_dir(&options.run_dir));
    step("removing data", remove_dir(&options.data_dir));
    if let Some(file) = kubeconfig::user_file() {
        step("removing the context", kubeconfig::remove_from(&file, &options.name));
    }
    if !errors.is_empty() {
        bail!("not everything could be removed:\n  {}", errors.join("\n  "));
    }
    println!("{left}");
    Ok(())
}

async fn remove_nodes(options: &Options) -> Result<()> {
    for record in nodes::all(options)? {
        nodes::remove(options, &record).await?;
    }
    nodes::remove_bridge()
}

/// Every table that we make, and no other, has a name that begins like this.
const TABLES: &str = "cox-";

fn remove_rules() -> Result<()> {
    let mut tables = netlink::nft::tables().context("listing the tables of the packet filter")?;
    tables.retain(|table| table.name.starts_with(TABLES));
    Ok(netlink::nft::delete_tables(&tables)?)
}

fn remove_links() -> Result<()> {
    let socket = Socket::open()?;
    let tunnel = cni::routes::VxlanConfig::default().link;
    for name in [node_network::BRIDGE, node_address::OWN_LINK, &tunnel].into_iter().chain(wireguard::LINKS) {
        if let Some(link) = socket.link(name)? {
            socket.del_link(link.index)?;
        }
    }
    Ok(())
}
