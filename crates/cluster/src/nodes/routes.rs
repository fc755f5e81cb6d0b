//! Keeps the routes to other nodes' pods in step with the Node objects.
//!
//! Flow: Nodes (informer) -> peers -> `cni::routes::plan` -> `cni::routes::program`, in this process's network namespace.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use api::meta::Meta as _;
use api::sort::CompactSort as _;
use client::{Client, Informer, InformerFactory};
use cni::routes::{Backend, Peer, Plan, VxlanConfig, is_in_place, plan, program};
use k8s_openapi::api::core::v1::Node;
use netlink::{RouteKind, Socket};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::turns::Turns;

/// Between looks at routes that nobody tells us of.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Programs routes until `stop`; they stay behind, so that a restart interrupts nobody.
pub(super) async fn run(client: Client, me: String, backend: Backend, stop: CancellationToken) -> Result<()> {
    let informers = InformerFactory::new(client);
    let nodes: Informer<Node> = informers.informer();
    let (changed, changes) = watch::channel(());
    nodes.subscribe(move |_| changed.send_replace(()));
    informers.start(stop.child_token());
    tokio::select! {
        () = nodes.synced() => {}
        () = stop.cancelled() => return Ok(()),
    }
    let mut programmed = None;
    let mut turns = Turns::new(changes, stop);
    loop {
        turns.begin();
        let mut peers: Vec<Peer> = nodes.list().iter().filter_map(|node| peer(node)).collect();
        peers.compact_sort_by(|one, other| one.name.cmp(&other.name));
        match apply(me.clone(), peers, backend, programmed.clone()).await {
            Ok(plan) => {
                if programmed.as_ref() != Some(&plan) {
                    let (direct, tunnelled) = (plan.direct.len(), plan.tunnelled.len());
                    tracing::info!(direct, tunnelled, "routes programmed");
                }
                programmed = Some(plan);
            }
            Err(error) => {
                tracing::warn!(%error, "programming routes failed");
                programmed = None;
            }
        }
        if !turns.next_within(LOOK_INTERVAL, programmed.is_none()).await? {
            return Ok(());
        }
    }
}

/// Programs the routes unless they are as `programmed` says, and still there. Who is a neighbour is asked anew each time: after a
/// restart of the machine its networks may come up later than this.
async fn apply(me: String, peers: Vec<Peer>, backend: Backend, programmed: Option<Plan>) -> Result<Plan> {
    let programming = move || -> std::io::Result<Plan> {
        let Some(own) = peers.iter().find(|peer| peer.name == me) else { return Ok(Plan::default()) };
        let socket = Socket::open()?;
        let plan = plan(&me, &peers, backend, |address| is_neighbour(&socket, address));
        if programmed.as_ref() != Some(&plan) || !is_in_place(&plan)? {
            program(own, &plan, &VxlanConfig::default())?;
        }
        Ok(plan)
    };
    Ok(tokio::task::spawn_blocking(programming).await??)
}

/// Whether packets to this address go straight to its owner.
fn is_neighbour(socket: &Socket, address: IpAddr) -> bool {
    socket.route_to(address).is_ok_and(|route| route.gateway.is_none() && route.kind == RouteKind::Unicast)
}

/// A node as others must know it; none until it has an address and a pod range.
pub(super) fn peer(node: &Node) -> Option<Peer> {
    let spec = node.spec.as_ref()?;
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    let internal = addresses.iter().find(|address| address.type_ == "InternalIP")?;
    let ranges = match &spec.pod_cidrs {
        Some(ranges) => ranges.clone(),
        None => spec.pod_cidr.iter().cloned().collect(),
    };
    let pod_cidrs: Vec<_> = ranges.iter().filter_map(|range| range.parse().ok()).collect();
    let is_known = !pod_cidrs.is_empty();
    is_known.then_some(Peer {
        name: node.metadata.name().to_owned(),
        address: internal.address.parse().ok()?,
        pod_cidrs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink::LinkKind;
    use serde_json::json;

    #[test]
    fn routes_come_back_that_their_link_took_along() {
        let inside = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let socket = Socket::open().unwrap();
            let kind = LinkKind::Veth { peer: "out0", peer_netns: None, peer_mtu: None };
            socket.add_link("eth0", kind, None, None).unwrap();
            let link = socket.link("eth0").unwrap().unwrap().index;
            socket.add_address(link, "192.0.2.1/24".parse().unwrap()).unwrap();
            let peer = |name: &str, address: &str, range: &str| Peer {
                name: name.into(),
                address: address.parse().unwrap(),
                pod_cidrs: vec![range.parse().unwrap()],
            };
            let peers = || vec![peer("a", "192.0.2.1", "10.42.1.0/24"), peer("b", "192.0.2.2", "10.42.2.0/24")];
            let apply = |programmed| runtime.block_on(apply("a".into(), peers(), Backend::HostGw, programmed)).unwrap();
            let is_there = || socket.routes().unwrap().iter().any(|route| route.dst == "10.42.2.0/24".parse().unwrap());
            socket.set_up(socket.link("out0").unwrap().unwrap().index).unwrap();
            socket.set_up(link).unwrap();
            let programmed = apply(None);
            assert!(is_there());
            let down = std::process::Command::new("ip").args(["link", "set", "eth0", "down"]).status().unwrap();
            assert!(down.success());
            assert!(!is_there());
            socket.set_up(link).unwrap();
            apply(Some(programmed));
            assert!(is_there());
        };
        std::thread::spawn(inside).join().unwrap();
    }

    #[test]
    fn a_node_is_a_peer_once_it_has_address_and_range() {
        let node = |spec, addresses| -> Node {
            serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": spec, "status": {"addresses": addresses}}))
                .unwrap()
        };
        let address = json!([{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "192.0.2.7"}]);
        let both = json!({"podCIDR": "10.42.1.0/24", "podCIDRs": ["10.42.1.0/24", "fd42:0:0:1::/64"]});
        let peer_of_both = peer(&node(both, address.clone())).unwrap();
        assert_eq!((peer_of_both.address.to_string(), peer_of_both.pod_cidrs.len()), ("192.0.2.7".into(), 2));
        let single = peer(&node(json!({"podCIDR": "10.42.1.0/24"}), address.clone())).unwrap();
        assert_eq!(single.pod_cidrs.len(), 1);
        assert_eq!(peer(&node(json!({}), address)), None);
        assert_eq!(peer(&node(json!({"podCIDR": "10.42.1.0/24"}), json!([]))), None);
    }
}
