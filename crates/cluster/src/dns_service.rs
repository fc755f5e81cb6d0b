//! The `kube-dns` Service: how pods find the DNS server that runs in this process.
//!
//! The server listens on the node's pod gateway, which pods of every node reach and the world outside does not. So the
//! Service has no selector, and its endpoint is written here. Where several servers share an etcd each writes its own, and
//! each sees to it that those of nodes that are not Ready get no questions ([`follow`]).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use client::{Client, DeleteParams, Informer, InformerFactory, ListParams, Patch};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::json;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::role::{self, MANAGER, Role};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";
/// The port on the gateway: the DNS port itself, since nobody else can have that address.
pub(crate) const PORT: u16 = 53;
/// Where CoreDNS's metrics are.
pub(crate) const METRICS_PORT: u16 = 9153;

/// Who the DNS server is.
pub(crate) const USER: &str = "system:serviceaccount:kube-system:coredns";

/// Lets the DNS server see what it answers from, and nothing else.
pub(crate) async fn ensure_role(client: &Client) -> Result<()> {
    let role = Role {
        name: "system:coredns",
        whose: "the DNS server",
        rules: json!([
            {"apiGroups": [""], "resources": ["services", "endpoints", "pods", "namespaces"], "verbs": ["list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        ]),
        subjects: json!([{"kind": "ServiceAccount", "namespace": NAMESPACE, "name": "coredns"}]),
    };
    role::ensure(client, role).await
}

/// Writes the Service and its endpoint; doing so again changes nothing. `node` is the server's, where there are several.
pub(crate) async fn ensure(client: &Client, cluster_ip: IpAddr, listens_on: IpAddr, node: Option<&str>) -> Result<()> {
    let name = format!("{NAME}-{}", node.unwrap_or("cox"));
    let mut endpoint = json!({"addresses": [listens_on.to_string()], "conditions": {"ready": true}});
    if let Some(node) = node {
        endpoint["nodeName"] = node.into();
    }
    let ports = [("dns", "UDP"), ("dns-tcp", "TCP")];
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
            "ports": ports.map(|(name, protocol)| json!({"name": name, "protocol": protocol, "port": 53, "targetPort": PORT})),
        },
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": NAME, "endpointslice.kubernetes.io/managed-by": MANAGER},
        },
        "addressType": if listens_on.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [endpoint],
        "ports": ports.map(|(name, protocol)| json!({"name": name, "protocol": protocol, "port": PORT})),
    });
    let services = client.namespaced::<Service>(NAMESPACE);
    services.patch(NAME, &Patch::apply(MANAGER, service).force()).await.context("writing the kube-dns service")?;
    let slices = client.namespaced::<EndpointSlice>(NAMESPACE);
    slices.patch(&name, &Patch::apply(MANAGER, slice).force()).await.context("writing the endpoint of kube-dns")?;
    Ok(())
}

/// What is to become of a server's slice.
#[derive(Debug, PartialEq)]
enum Change {
    /// Its endpoint is to be asked, or not.
    Ready(bool),
    /// Its node is gone for good.
    Delete,
}

/// Keeps the endpoints of all servers as their nodes are, until `stop`. Every server does so, and all come to the same.
pub(crate) async fn follow(client: Client, stop: CancellationToken) -> Result<()> {
    let informers = InformerFactory::new(client.clone());
    let nodes: Informer<Node> = informers.informer();
    let selector = format!("kubernetes.io/service-name={NAME},endpointslice.kubernetes.io/managed-by={MANAGER}");
    let api = client.namespaced::<EndpointSlice>(NAMESPACE);
    let slices: Informer<EndpointSlice> = Informer::new(api.clone(), ListParams::labels(selector));
    let (changed, mut changes) = watch::channel(());
    let also = changed.clone();
    nodes.subscribe(move |_| changed.send_replace(()));
    slices.subscribe(move |_| also.send_replace(()));
    informers.start(stop.child_token());
    let work = async {
        // A node that is not seen yet is not one that is gone.
        nodes.synced().await;
        loop {
            changes.mark_unchanged();
            for slice in slices.list() {
                let Some(change) = change(&slice, &nodes.list()) else { continue };
                let name = slice.metadata.name.clone().unwrap_or_default();
                let done = match change {
                    Change::Delete => api.delete(&name, &DeleteParams::default()).await.map(drop),
                    Change::Ready(ready) => {
                        let path = "/endpoints/0/conditions";
                        let patch = json!([{"op": "replace", "path": path, "value": {"ready": ready}}]);
                        api.patch(&name, &Patch::json(patch)).await.map(drop)
                    }
                };
                // It is looked at again when anything changes, and nodes say something every few minutes.
                if let Err(error) = done
                    && !error.is_not_found()
                {
                    tracing::warn!(%error, slice = name, "the endpoint of a DNS server is not as it should be");
                }
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = slices.run(stop.clone()) => {}
    }
    Ok(())
}

fn change(slice: &EndpointSlice, nodes: &[Arc<Node>]) -> Option<Change> {
    let endpoint = slice.endpoints.as_ref()?.first()?;
    let own = endpoint.node_name.as_deref()?;
    let Some(node) = nodes.iter().find(|node| node.metadata.name.as_deref() == Some(own)) else {
        return Some(Change::Delete);
    };
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let is_ready = conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True");
    let is_asked = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true);
    (is_ready != is_asked).then_some(Change::Ready(is_ready))
}

/// Waits until the DNS server at the gateway, once it is serving, knows the API server's service.
pub(crate) async fn answers(server: IpAddr, serving: &Notify, expected: IpAddr, domain: &str) -> Result<()> {
    serving.notified().await;
    let socket = UdpSocket::bind((IpAddr::from([0, 0, 0, 0]), 0)).await?;
    socket.connect((server, PORT)).await?;
    let query = query(&format!("kubernetes.default.svc.{domain}"));
    let IpAddr::V4(expected) = expected else { return Ok(()) };
    let mut answer = [0; 512];
    loop {
        let asked = async {
            socket.send(&query).await?;
            socket.recv(&mut answer).await
        };
        if let Ok(Ok(length)) = tokio::time::timeout(Duration::from_secs(1), asked).await
            && answer[..length].windows(4).any(|bytes| bytes == expected.octets())
        {
            return Ok(());
        }
        // The API server writes its service by itself, in its own time; it is nearly always there by now.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A question for the IPv4 address of a name, as it goes over the wire.
fn query(name: &str) -> Vec<u8> {
    const HEADER: [u8; 12] = [0xc0, 0x53, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let mut query = HEADER.to_vec();
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_asked_while_its_node_is_ready() {
        let slice = |node: Option<&str>, ready: bool| -> EndpointSlice {
            serde_json::from_value(json!({"metadata": {"name": "s"}, "addressType": "IPv4",
                "endpoints": [{"addresses": ["10.42.0.1"], "nodeName": node, "conditions": {"ready": ready}}]}))
            .unwrap()
        };
        let node = |name: &str, ready: &str| -> Arc<Node> {
            let status = json!({"conditions": [{"type": "Ready", "status": ready}]});
            Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "status": status})).unwrap())
        };
        let nodes = [node("up", "True"), node("down", "Unknown")];
        for (slice, expected) in [
            (slice(Some("up"), true), None),
            (slice(Some("up"), false), Some(Change::Ready(true))),
            (slice(Some("down"), true), Some(Change::Ready(false))),
            (slice(Some("down"), false), None),
            (slice(Some("gone"), true), Some(Change::Delete)),
            // The one of a cluster with one server.
            (slice(None, true), None),
        ] {
            assert_eq!(change(&slice, &nodes), expected, "{slice:?}");
        }
    }
}
