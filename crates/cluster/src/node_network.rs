//! This node's place in the pod network: the bridge, the CNI configuration and the way to the plug-ins.
//!
//! Flow: the controller manager gives the node a pod range -> here: bridge with the range's first address, then the CNI
//! configuration, which is what makes the runtime report its network ready -> the kubelet makes the node Ready.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use client::{Client, InformerFactory, ListParams};
use cni::netlink::{LinkKind, Socket};
use cni::{Cidr, netns};
use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::options::{Options, Shape};
use crate::pki::write_private;

/// The bridge that this node's pods hang on.
pub(crate) const BRIDGE: &str = "cox0";

/// Gives the cluster's ranges an end on this machine, so that what nobody serves never leaves it.
pub(crate) fn seal(options: &Options, shape: &Shape, node_ip: IpAddr) -> Result<()> {
    let range = |text: &str| text.parse::<Cidr>().map_err(|error| anyhow!("{text:?}: {error}"));
    let ranges = [range(&shape.cluster_cidr)?, range(&shape.service_cidr)?];
    // Written first, so that `delete` finds what was made even if we go no further.
    write_private(&ranges_file(options), serde_json::to_string(&ranges.map(|range| range.to_string()))?.as_bytes())?;
    cni::routes::seal(&ranges[..1], &ranges[1..], Some(node_ip)).context("sealing the cluster's ranges")
}

/// Takes back what [`seal`] did.
pub(crate) fn unseal(options: &Options) -> Result<()> {
    let path = ranges_file(options);
    if !path.exists() {
        return Ok(());
    }
    let ranges: [String; 2] = serde_json::from_slice(&fs::read(&path)?).with_context(|| path.display().to_string())?;
    let ranges: Vec<Cidr> = ranges.iter().filter_map(|range| range.parse().ok()).collect();
    Ok(cni::routes::unseal(&ranges, &[])?)
}

fn ranges_file(options: &Options) -> PathBuf {
    options.data_dir.join("ranges.json")
}

/// Waits until the node has a pod range.
pub(crate) async fn pod_range(client: &Client, node: &str) -> Result<Cidr> {
    let informers = InformerFactory::new(client.clone());
    let nodes = informers.filtered::<Node>(ListParams::fields(format!("metadata.name={node}")));
    let (sender, mut range) = watch::channel(None);
    nodes.subscribe(move |event| {
        sender.send_replace(event.object().spec.as_ref().and_then(|spec| spec.pod_cidr.clone()));
    });
    let stop = CancellationToken::new();
    let _stop_on_return = stop.clone().drop_guard();
    informers.start(stop);
    let found = range.wait_for(Option::is_some).await.context("the watch of the node ended")?.clone();
    let text = found.unwrap_or_default();
    match text.parse() {
        Ok(range) => Ok(range),
        Err(_) => bail!("node {node} has the pod range {text:?}, which is none"),
    }
}

/// Makes the bridge, or completes the one that is there, and returns its address: the pods' gateway.
pub(crate) fn ensure_bridge(range: Cidr) -> Result<IpAddr> {
    let gateway = cni::cidr::next(range.network().addr).context("the pod range has no room for a gateway")?;
    let make = || -> std::io::Result<()> {
        let socket = Socket::open()?;
        if socket.link(BRIDGE)?.is_none() {
            socket.add_link(BRIDGE, LinkKind::Bridge { vlan_filtering: false }, None, None)?;
        }
        let Some(link) = socket.link(BRIDGE)? else {
            return Err(std::io::Error::other("the bridge vanished as it was made"));
        };
        let address = Cidr::new(gateway, range.prefix);
        if !socket.addresses_of(link.index)?.iter().any(|held| held.cidr == address) {
            socket.add_address(link.index, address)?;
        }
        socket.set_up(link.index)?;
        netns::set_sysctl("net/ipv4/ip_forward", "1")
    };
    make().with_context(|| format!("making the bridge {BRIDGE}"))?;
    Ok(gateway)
}

/// Links every CNI plug-in to this binary.
pub(crate) fn install_plugins(options: &Options) -> Result<()> {
    let dir = options.cni_bin_dir();
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let binary = std::env::current_exe().context("finding this binary")?;
    for name in cni::PLUGINS {
        let link = dir.join(name.0);
        // A link of an earlier start may lead to a binary that has moved.
        match fs::remove_file(&link) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("replacing {}", link.display()));
            }
            _ => symlink(&binary, &link).with_context(|| format!("linking {}", link.display()))?,
        }
    }
    Ok(())
}

/// Writes the configuration that the runtime picks up.
pub(crate) fn write_config(options: &Options, range: Cidr) -> Result<()> {
    let dir = options.cni_conf_dir();
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let leases = options.data_dir.join("cni/leases");
    let config = cni::config::default_conflist(BRIDGE, &[range], &leases, None, true);
    write_private(&dir.join("10-cox.conflist"), serde_json::to_string_pretty(&config)?.as_bytes())
}
