//! The `kube-dns` Service: how pods find the DNS server that runs in this process.
//!
//! The server listens on the node's pod gateway, which pods of every node reach and the world outside does not. So the
//! Service has no selector, and its one endpoint is written here.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use client::{Client, Patch};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::json;
use tokio::net::UdpSocket;
use tokio::sync::Notify;

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

/// Writes the Service and its endpoint; doing so again changes nothing.
pub(crate) async fn ensure(client: &Client, cluster_ip: IpAddr, listens_on: IpAddr) -> Result<()> {
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
            "name": format!("{NAME}-cox"),
            "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": NAME, "endpointslice.kubernetes.io/managed-by": MANAGER},
        },
        "addressType": if listens_on.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [listens_on.to_string()], "conditions": {"ready": true}}],
        "ports": ports.map(|(name, protocol)| json!({"name": name, "protocol": protocol, "port": PORT})),
    });
    let services = client.namespaced::<Service>(NAMESPACE);
    services.patch(NAME, &Patch::apply(MANAGER, service).force()).await.context("writing the kube-dns service")?;
    let slices = client.namespaced::<EndpointSlice>(NAMESPACE);
    let name = format!("{NAME}-cox");
    slices.patch(&name, &Patch::apply(MANAGER, slice).force()).await.context("writing the endpoint of kube-dns")?;
    Ok(())
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
