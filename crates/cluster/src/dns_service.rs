//! The `kube-dns` Service: how pods find the DNS servers, one on every node.
//!
//! A server listens on its node's pod gateway, which pods of every node reach and the world outside does not. So the
//! Service has no selector, and its endpoints are written here. Each endpoint is meant for its own node: the others are asked
//! while it is down. Whether it is up, a node says in an annotation of its Node object.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use api::cidr::Cidr;
use api::meta::Meta as _;
use api::sort::CompactSort as _;
use client::{Client, Informer, InformerFactory, ListParams, Patch};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use tokio::net::UdpSocket;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::node_network;
use crate::role::{self, MANAGER, Role};
use crate::settings::ClusterSettings;
use crate::shape;
use crate::turns::{self, Turns};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";
/// The port on the gateway: the DNS port itself, since nobody else can have that address.
pub(crate) const PORT: u16 = 53;
/// Where CoreDNS's metrics are.
pub(crate) const METRICS_PORT: u16 = 9153;

/// Who the DNS server is.
pub(crate) const USER: &str = "system:serviceaccount:kube-system:coredns";

/// In a Node object: where the node's server answers, while it does.
const ANNOTATION: &str = "cox.dev/dns";
/// Under the names of the `kube-dns` service upstream: collectors find the metrics by theirs.
const PORTS: [(&str, &str, u16); 3] =
    [("dns", "UDP", PORT), ("dns-tcp", "TCP", PORT), ("metrics", "TCP", METRICS_PORT)];
/// How long the end of a server may wait for its last word.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Says how names are answered; people know it from CoreDNS.
const CONFIG_MAP: &str = "coredns";

/// Writes the usual Corefile, unless there is one: it is for people to change.
pub(crate) async fn ensure_corefile(client: &Client, domain: &str) -> Result<()> {
    let corefile = format!(
        ".:53 {{\n    errors\n    health\n    ready\n    kubernetes {domain} in-addr.arpa ip6.arpa {{\n       pods insecure\n       \
         fallthrough in-addr.arpa ip6.arpa\n       ttl 30\n    }}\n    prometheus :{METRICS_PORT}\n    \
         forward . /etc/resolv.conf {{\n       policy sequential\n    }}\n    cache 30\n    loop\n    reload\n    loadbalance\n}}\n"
    );
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(CONFIG_MAP.into()),
            namespace: Some(NAMESPACE.into()),
            ..ObjectMeta::default()
        },
        data: Some([("Corefile".to_owned(), corefile)].into()),
        ..ConfigMap::default()
    };
    match client.namespaced::<ConfigMap>(NAMESPACE).create(&map).await {
        Err(error) if !error.is_already_exists() => Err(error).context("writing the Corefile"),
        _ => Ok(()),
    }
}

/// Lets the DNS server see what it answers from, and nothing else.
pub(crate) async fn ensure_role(client: &Client) -> Result<()> {
    let role = Role {
        name: "system:coredns",
        whose: "the DNS server",
        rules: json!([
            {"apiGroups": [""], "resources": ["services", "endpoints", "pods", "namespaces"], "verbs": ["list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [CONFIG_MAP], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
        ]),
        // Those of further nodes are the nodes' proxies, or the nodes themselves.
        subjects: json!([
            {"kind": "ServiceAccount", "namespace": NAMESPACE, "name": "coredns"},
            {"apiGroup": role::GROUP, "kind": "User", "name": "system:kube-proxy"},
            {"apiGroup": role::GROUP, "kind": "Group", "name": "system:nodes"},
        ]),
    };
    role::ensure(client, role).await
}

/// How the server of a node is told to work.
pub(crate) fn config(cluster: &ClusterSettings, client: Client, gateway: IpAddr) -> dns::Config {
    let mut config = dns::Config::new(client, vec![(gateway, PORT).into()]);
    config.domain = cluster.cluster_domain.clone();
    config.own = vec![(cluster.dns, PORT).into()];
    config.corefile = Some((NAMESPACE.to_owned(), CONFIG_MAP.to_owned()));
    config.metrics_bind_address = Some((gateway, METRICS_PORT).into());
    let ranges = [&cluster.cluster_cidr, &cluster.service_cidr];
    config.ranges = ranges.into_iter().flat_map(|ranges| node_network::list(ranges)).collect();
    config
}

/// Runs the server of a further node, and says in the Node object while it answers.
pub(crate) async fn run_on_node(
    config: dns::Config,
    node: Client,
    name: String,
    stop: CancellationToken,
) -> Result<()> {
    let serving = config.serving.clone();
    let Some(address) = config.listen.first().map(|address| address.ip()) else { return dns::run(config, stop).await };
    let announced = stop.child_token();
    let serve = async {
        let ended = dns::run(config, stop).await;
        announced.cancel();
        ended
    };
    let announcing = async {
        tokio::select! {
            () = serving.notified() => announce(node, name, address, announced.clone()).await,
            // It never served.
            () = announced.cancelled() => Ok(()),
        }
    };
    let (ended, _announced) = tokio::join!(serve, announcing);
    ended
}

/// Says in the Node object that this node answers names at `address`, until `stop`.
pub(crate) async fn announce(client: Client, name: String, address: IpAddr, stop: CancellationToken) -> Result<()> {
    let say = async |address: Option<String>| {
        let patch = json!({"metadata": {"annotations": {ANNOTATION: address}}});
        client.all::<Node>().patch(&name, &Patch::merge(patch)).await.map(drop)
    };
    let announcing = async {
        let mut retries = turns::retries();
        while let Err(error) = say(Some(address.to_string())).await {
            tracing::warn!(%error, "telling that this node answers names");
            tokio::time::sleep(retries.next_delay()).await;
        }
        stop.cancelled().await;
    };
    tokio::select! {
        () = announcing => {}
        () = stop.cancelled() => {}
    }
    // The API server may be gone with the rest of the cluster.
    match tokio::time::timeout(LAST_WRITE_TIMEOUT, say(None)).await {
        Ok(Err(error)) => tracing::debug!(%error, "telling that this node no longer answers names"),
        Err(_) => tracing::debug!("nobody is told that this node no longer answers names"),
        Ok(Ok(())) => {}
    }
    Ok(())
}

/// Keeps the endpoints in step with the nodes until `stop`. The first node's is there whatever its Node object says if this
/// server `is_alone`; where there are several, all of them write the same.
pub(crate) async fn follow(
    client: Client,
    first: (String, IpAddr),
    is_alone: bool,
    stop: CancellationToken,
) -> Result<()> {
    let informers = InformerFactory::new(client.clone());
    let nodes: Informer<Node> = informers.informer();
    let services: Informer<Service> =
        informers.namespaced(NAMESPACE, ListParams::fields(format!("metadata.name={NAME}")));
    let (changed, changes) = watch::channel(());
    let service_changed = changed.clone();
    nodes.subscribe(move |_| changed.send_replace(()));
    services.subscribe(move |_| service_changed.send_replace(()));
    informers.start(stop.child_token());
    let synced = async {
        nodes.synced().await;
        services.synced().await;
    };
    tokio::select! {
        () = synced => {}
        () = stop.cancelled() => return Ok(()),
    }
    let mut written = None;
    let mut turns = Turns::new(changes, stop);
    loop {
        turns.begin();
        let all = nodes.list();
        let is_others = services.get(&format!("{NAMESPACE}/{NAME}")).is_some_and(|service| is_others(&service));
        let always = is_alone.then_some((first.0.as_str(), first.1));
        let own = || endpoints(always, first.1.is_ipv6(), all.iter().map(|node| &**node));
        let wanted = if is_others { Vec::new() } else { own() };
        if written.as_ref() != Some(&wanted) {
            match write_slice(&client, first.1, &wanted).await {
                Ok(()) => written = Some(wanted),
                Err(error) => {
                    tracing::warn!("{error:#}");
                    written = None;
                }
            }
        }
        if !turns.next(written.is_none()).await? {
            return Ok(());
        }
    }
}

/// Whether somebody has pods answer names in our servers' place.
fn is_others(service: &Service) -> bool {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector.is_some_and(|selector| !selector.is_empty())
}

/// The endpoints of the Service: `first`, the server's own, which is ready whatever its node says, and those of nodes that say so.
fn endpoints<'a>(first: Option<(&str, IpAddr)>, is_ipv6: bool, nodes: impl Iterator<Item = &'a Node>) -> Vec<Value> {
    let endpoint = |name: &str, address: IpAddr, is_ready: bool| {
        json!({
            "addresses": [address.to_string()],
            "conditions": {"ready": is_ready},
            "nodeName": name,
            "hints": {"forNodes": [{"name": name}]},
        })
    };
    let mut all: Vec<_> = first.iter().map(|(name, address)| ((*name).to_owned(), *address, true)).collect();
    for node in nodes {
        let name = node.metadata.name().to_owned();
        let address =
            node.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION)).and_then(|a| a.parse().ok());
        // A node may speak for its own pods' gateway only: others would ask it.
        let ranges = node.spec.iter().flat_map(|spec| spec.pod_cidrs.iter().flatten());
        let own: Vec<Cidr> = ranges.filter_map(|range| range.parse().ok()).collect();
        let is_own = |address: &IpAddr| own.iter().any(|range| range.contains(*address));
        let Some(address) = address.filter(is_own).filter(|address| address.is_ipv6() == is_ipv6) else {
            continue;
        };
        if first.is_none_or(|(first, _)| name != first) {
            all.push((name, address, api::node::is_ready(node)));
        }
    }
    all.compact_sort();
    all.into_iter().map(|(name, address, is_ready)| endpoint(&name, address, is_ready)).collect()
}

async fn write_slice(client: &Client, first: IpAddr, endpoints: &[Value]) -> Result<()> {
    let name = format!("{NAME}-cox");
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": NAME, "endpointslice.kubernetes.io/managed-by": MANAGER},
        },
        "addressType": if first.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": endpoints,
        "ports": PORTS.map(|(name, protocol, port)| json!({"name": name, "protocol": protocol, "port": port})),
    });
    let slices = client.namespaced::<EndpointSlice>(NAMESPACE);
    let written = slices.patch(&name, &Patch::apply(MANAGER, slice).force()).await;
    written.context("writing the endpoints of kube-dns").map(drop)
}

/// Writes the Service and its first endpoint; doing so again changes nothing.
pub(crate) async fn ensure(client: &Client, cluster_ip: IpAddr, first: (&str, IpAddr)) -> Result<()> {
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": NAME,
            "namespace": NAMESPACE,
            "labels": {"k8s-app": NAME, "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "Coxswain"},
        },
        "spec": {
            "clusterIP": cluster_ip.to_string(),
            "ports": PORTS.map(|(name, protocol, port)| json!({"name": name, "protocol": protocol, "port": port, "targetPort": port})),
        },
    });
    let services = client.namespaced::<Service>(NAMESPACE);
    let written = services.patch(NAME, &Patch::apply(MANAGER, service).force()).await;
    if is_others(&written.context("writing the kube-dns service")?) {
        return Ok(());
    }
    let nodes = client.all::<Node>().list(&ListParams::default()).await.context("reading the nodes")?.items;
    write_slice(client, first.1, &endpoints(Some(first), first.1.is_ipv6(), nodes.iter())).await
}

/// Waits until the DNS server at the gateway, once it is serving, knows the API server's service.
pub(crate) async fn answers(server: IpAddr, serving: &Notify, expected: IpAddr, domain: &str) -> Result<()> {
    serving.notified().await;
    let socket = UdpSocket::bind((shape::everywhere([server]), 0)).await?;
    socket.connect((server, PORT)).await?;
    let query = query(&format!("kubernetes.default.svc.{domain}"), expected.is_ipv6());
    let expected = match expected {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let mut answer = [0; 512];
    loop {
        let asked = async {
            socket.send(&query).await?;
            socket.recv(&mut answer).await
        };
        if let Ok(Ok(length)) = tokio::time::timeout(Duration::from_secs(1), asked).await
            && answer[..length].windows(expected.len()).any(|bytes| bytes == expected)
        {
            return Ok(());
        }
        // The API server writes its service by itself, in its own time; it is nearly always there by now.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A question for the address of a name, as it goes over the wire.
fn query(name: &str, is_v6: bool) -> Vec<u8> {
    const A: u8 = 1;
    const AAAA: u8 = 28;
    const HEADER: [u8; 12] = [0xc0, 0x53, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let mut query = HEADER.to_vec();
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, if is_v6 { AAAA } else { A }, 0, 1]);
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_that_says_so_is_an_endpoint_for_itself() {
        let node = |name: &str, address: Option<&str>, ready: &str| -> Node {
            let annotations = address.map(|address| json!({ANNOTATION: address}));
            let range = format!("10.42.{}.0/24", name.trim_start_matches("node-"));
            serde_json::from_value(json!({
                "metadata": {"name": name, "annotations": annotations},
                "spec": {"podCIDRs": [range]},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            }))
            .unwrap()
        };
        let nodes = [
            // The first is an endpoint without saying so.
            node("node-1", Some("10.42.1.7"), "False"),
            node("node-2", Some("10.42.2.1"), "True"),
            node("node-3", Some("10.42.3.1"), "False"),
            node("node-4", None, "True"),
            // Of another's address, of another family, of none.
            node("node-5", Some("10.42.2.1"), "True"),
            node("node-6", Some("fd42::1"), "True"),
            node("node-7", Some("x"), "True"),
        ];
        let all = endpoints(Some(("node-1", "10.42.1.1".parse().unwrap())), false, nodes.iter());
        let seen: Vec<_> = all
            .iter()
            .map(|one| (one["addresses"][0].as_str().unwrap(), one["conditions"]["ready"].as_bool().unwrap()))
            .collect();
        assert_eq!(seen, [("10.42.1.1", true), ("10.42.2.1", true), ("10.42.3.1", false)]);
        assert!(all.iter().all(|one| one["hints"]["forNodes"][0]["name"] == one["nodeName"]));
        // Where servers share an etcd none is special.
        let all = endpoints(None, false, nodes.iter());
        let seen: Vec<_> = all.iter().map(|one| one["addresses"][0].as_str().unwrap()).collect();
        assert_eq!(seen, ["10.42.1.7", "10.42.2.1", "10.42.3.1"]);
    }
}
