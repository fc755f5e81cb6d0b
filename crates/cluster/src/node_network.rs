//! This node's place in the pod network: the bridge, the CNI configuration and the way to the plug-ins.
//!
//! Flow: the controller manager gives the node pod ranges -> here: a bridge with the first address of each, then the CNI
//! configuration, which is what makes the runtime report its network ready -> the kubelet makes the node Ready.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use api::cidr::Cidr;
use client::{Client, InformerFactory, ListParams};
use cni::netns;
use cni::routes::Backend;
use k8s_openapi::api::core::v1::Node;
use netlink::{LinkKind, Socket};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::network_policy;
use crate::options::Options;
use crate::pki::write_private;
use crate::settings::Settings;

pub(crate) use crate::cidr_list::{list, ranges};

/// The bridge that this node's pods hang on.
pub(crate) const BRIDGE: &str = "cox0";

/// Gives the cluster's ranges an end on this node, so that what nobody serves never leaves it.
pub(crate) fn seal(options: &Options, settings: &Settings) -> Result<()> {
    let (pods, services) = (ranges(&settings.cluster.cluster_cidr)?, ranges(&settings.cluster.service_cidr)?);
    // Written first, so that `delete` finds what was made even if we go no further.
    let mut all: Vec<Cidr> = pods.iter().chain(&services).copied().collect();
    all.extend(sealed(options)?.into_iter().filter(|range| !pods.contains(range) && !services.contains(range)));
    write_private(&ranges_file(options), serde_json::to_string(&all)?.as_bytes())?;
    cni::routes::seal(&pods, &services, Some(settings.address)).context("sealing the cluster's ranges")
}

/// Does the same for ranges of services that were added later, and takes it back for those that are gone.
pub(crate) fn seal_services(options: &Options, settings: &Settings, added: &[Cidr]) -> Result<()> {
    let (pods, services) = (ranges(&settings.cluster.cluster_cidr)?, ranges(&settings.cluster.service_cidr)?);
    let mut wanted: Vec<Cidr> = pods.iter().chain(&services).map(Cidr::network).collect();
    let new: Vec<Cidr> = added.iter().filter(|range| !wanted.contains(range)).copied().collect();
    wanted.extend(&new);
    let before = sealed(options)?;
    let gone: Vec<Cidr> = before.iter().filter(|range| !wanted.contains(&range.network())).copied().collect();
    let all: Vec<Cidr> = wanted.iter().chain(&gone).copied().collect();
    write_private(&ranges_file(options), serde_json::to_string(&all)?.as_bytes())?;
    cni::routes::seal(&[], &new, Some(settings.address)).context("sealing ranges of services")?;
    cni::routes::unseal(&[], &gone).context("opening ranges that services no longer have")?;
    write_private(&ranges_file(options), serde_json::to_string(&wanted)?.as_bytes())
}

/// Takes back what [`seal`] and [`seal_services`] did.
pub(crate) fn unseal(options: &Options) -> Result<()> {
    Ok(cni::routes::unseal(&sealed(options)?, &[])?)
}

/// The ranges that have an end on this node.
fn sealed(options: &Options) -> Result<Vec<Cidr>> {
    let path = ranges_file(options);
    match fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| path.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

fn ranges_file(options: &Options) -> PathBuf {
    options.data_dir.join("ranges.json")
}

/// Waits until the node has pod ranges.
pub(crate) async fn pod_ranges(client: &Client, node: &str) -> Result<Vec<Cidr>> {
    let informers = InformerFactory::new(client.clone());
    let nodes = informers.filtered::<Node>(ListParams::fields(format!("metadata.name={node}")));
    let (sender, mut ranges) = watch::channel(Vec::new());
    nodes.subscribe(move |event| {
        let spec = event.object().spec.as_ref();
        let all = spec.and_then(|spec| spec.pod_cidrs.clone());
        let one = spec.and_then(|spec| spec.pod_cidr.clone()).into_iter().collect();
        sender.send_replace(all.unwrap_or(one));
    });
    let stop = CancellationToken::new();
    let _stop_on_return = stop.clone().drop_guard();
    informers.start(stop);
    let found = ranges.wait_for(|ranges| !ranges.is_empty()).await.context("the watch of the node ended")?.clone();
    match found.iter().map(|range| range.parse()).collect() {
        Ok(ranges) => Ok(ranges),
        Err(_) => bail!("node {node} has the pod ranges {found:?}, which are none"),
    }
}

/// Makes the bridge, or completes the one that is there, and returns its first address: the pods' gateway.
pub(crate) fn ensure_bridge(ranges: &[Cidr]) -> Result<IpAddr> {
    let first = |range: &Cidr| api::cidr::next(range.network().addr).map(|addr| Cidr::new(addr, range.prefix));
    let gateways: Vec<Cidr> = ranges.iter().filter_map(first).collect();
    let gateway = gateways.first().context("the pod range has no room for a gateway")?.addr;
    bridge(BRIDGE, &gateways).with_context(|| format!("making the bridge {BRIDGE}"))?;
    netns::set_sysctl("net/ipv4/ip_forward", "1")?;
    if gateways.iter().any(Cidr::is_v6) {
        netns::set_sysctl("net/ipv6/conf/all/forwarding", "1")?;
    }
    Ok(gateway)
}

/// A bridge that is up and has these addresses; returns its index.
pub(crate) fn bridge(name: &str, addresses: &[Cidr]) -> std::io::Result<u32> {
    let socket = Socket::open()?;
    if socket.link(name)?.is_none() {
        socket.add_link(name, LinkKind::Bridge { vlan_filtering: false }, None, None)?;
    }
    let Some(link) = socket.link(name)? else {
        return Err(std::io::Error::other("the bridge vanished as it was made"));
    };
    // Pinned: otherwise it follows the lowest port, and whoever has learned it loses the bridge as ports come and go.
    socket.set_mac(link.index, link.mac)?;
    if addresses.iter().any(Cidr::is_v6) {
        // A bridge without ports has nobody to ask, and an address is none until nobody has answered.
        netns::set_sysctl(&format!("net/ipv6/conf/{name}/accept_dad"), "0")?;
    }
    let held = socket.addresses_of(link.index)?;
    for address in addresses.iter().filter(|address| !held.iter().any(|held| held.cidr == **address)) {
        socket.add_own_address(link.index, *address)?;
    }
    socket.set_up(link.index)?;
    Ok(link.index)
}

/// What this node's pods send out of the cluster leaves with the node's address; inside they keep their own.
pub(crate) fn masquerade(settings: &Settings, pods: &[Cidr]) -> Result<()> {
    let behind = settings.also_behind.iter().filter_map(|range| range.parse().ok());
    let sources: Vec<Cidr> = pods.iter().copied().chain(behind.clone()).collect();
    let inside: Vec<Cidr> = ranges(&settings.cluster.cluster_cidr)?.into_iter().chain(behind).collect();
    cni::routes::masquerade(&sources, &inside).map_err(|error| anyhow!("masquerading what leaves the cluster: {error}"))
}

/// Links every CNI plug-in to this binary.
pub(crate) fn install_plugins(options: &Options) -> Result<()> {
    let dir = options.cni_bin_dir();
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let binary = std::env::current_exe().context("finding this binary")?;
    for plugin in cni::PLUGINS {
        let link = dir.join(plugin.name);
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
pub(crate) fn write_config(options: &Options, settings: &Settings, ranges: &[Cidr]) -> Result<()> {
    let dir = options.cni_conf_dir();
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let leases = options.data_dir.join("cni/leases");
    let mut config = cni::config::default_conflist(BRIDGE, ranges, &leases, pod_mtu(settings)?, false);
    if let Some(plugins) = config["plugins"].as_array_mut() {
        plugins.push(serde_json::json!({"type": "policy", "socket": network_policy::socket(options)}));
    }
    write_private(&dir.join("10-cox.conflist"), serde_json::to_string_pretty(&config)?.as_bytes())
}

/// Smaller than the node's network allows where packets to another node are wrapped into one of the node's: always, or in
/// a family that the node has no address of, or because they are encrypted.
fn pod_mtu(settings: &Settings) -> Result<Option<u32>> {
    let addresses: Vec<IpAddr> = [settings.address].into_iter().chain(settings.second_address).collect();
    let has_address = |range: &Cidr| addresses.iter().any(|address| address.is_ipv6() == range.is_v6());
    let is_tunnelled =
        settings.cluster.routes == Backend::Vxlan || !ranges(&settings.cluster.cluster_cidr)?.iter().all(has_address);
    Ok(match (settings.cluster.encryption, is_tunnelled) {
        (Some(_), _) => underlay_mtu(settings)?.map(|mtu| wireguard::mtu(mtu, addresses)),
        (None, true) => underlay_mtu(settings)?.map(|mtu| cni::routes::pod_mtu(Backend::Vxlan, mtu, settings.address)),
        (None, false) => None,
    })
}

/// Of the link that has the node's address.
pub(crate) fn underlay_mtu(settings: &Settings) -> Result<Option<u32>> {
    let socket = Socket::open()?;
    let own = socket.addresses()?.into_iter().find(|held| held.cidr.addr == settings.address);
    let underlay = own.map(|own| socket.link_by_index(own.index)).transpose()?.flatten();
    Ok(underlay.map(|link| link.mtu))
}
