//! Serving certificates of kubelets that have joined: approved when they are for the node that asks, and for nobody else.
//!
//! Upstream leaves this to the cluster's administrator, since a certificate for another's address would let a node pass for
//! it. Here every address must be one that the node has registered with, that no other node has, and that is not the
//! cluster's own; a request that asks for more stays pending, for a person to decide.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use api::cidr::Cidr;
use client::{Client, Informer, InformerFactory};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rcgen::{CertificateSigningRequestParams, SanType};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const SIGNER: &str = "kubernetes.io/kubelet-serving";
const USER_PREFIX: &str = "system:node:";

/// Approves until `stop`. Addresses in `reserved` are nobody's.
pub(crate) async fn run(client: Client, reserved: Vec<Cidr>, stop: CancellationToken) -> Result<()> {
    let informers = InformerFactory::new(client.clone());
    let requests: Informer<CertificateSigningRequest> = informers.informer();
    let nodes: Informer<Node> = informers.informer();
    let (changed, mut changes) = watch::channel(());
    let also = changed.clone();
    requests.subscribe(move |_| changed.send_replace(()));
    nodes.subscribe(move |_| also.send_replace(()));
    informers.start(stop.child_token());
    loop {
        changes.mark_unchanged();
        let nodes = nodes.list();
        for request in requests.list().iter().filter(|request| may_serve(request, &nodes, &reserved)) {
            // It is seen again when anything changes; another server of the cluster may have been quicker.
            if let Err(error) = approve(&client, request).await {
                tracing::warn!(error = format!("{error:#}"), "serving certificate not approved");
            }
        }
        tokio::select! {
            change = changes.changed() => change?,
            () = stop.cancelled() => return Ok(()),
        }
    }
}

async fn approve(client: &Client, request: &CertificateSigningRequest) -> Result<()> {
    let name = request.metadata.name.as_deref().unwrap_or_default();
    let now = Some(Time(Timestamp::now()));
    let mut approved = CertificateSigningRequest::clone(request);
    approved.status.get_or_insert_default().conditions.get_or_insert_default().push(
        CertificateSigningRequestCondition {
            type_: "Approved".into(),
            status: "True".into(),
            reason: Some("OwnAddresses".into()),
            message: Some("The certificate is for addresses of the node that asks.".into()),
            last_update_time: now.clone(),
            last_transition_time: now,
        },
    );
    let api = client.all::<CertificateSigningRequest>();
    let updated = api.update_subresource::<_, CertificateSigningRequest>(name, "approval", &approved).await;
    updated.map(drop).with_context(|| format!("certificate request {name}"))
}

/// Whether an open request is for the addresses and the name of the node that asks.
fn may_serve(request: &CertificateSigningRequest, nodes: &[Arc<Node>], reserved: &[Cidr]) -> bool {
    let spec = &request.spec;
    let status = request.status.as_ref();
    let is_decided = status.is_some_and(|status| status.conditions.as_ref().is_some_and(|held| !held.is_empty()));
    let is_node = spec.groups.iter().flatten().any(|group| group == "system:nodes");
    let asker = spec.username.as_deref().and_then(|user| user.strip_prefix(USER_PREFIX));
    // Who signs reads it in another way, and must not find another request.
    let is_plain = api::validation::is_one_pem_block(&spec.request.0, "CERTIFICATE REQUEST");
    let text = std::str::from_utf8(&spec.request.0).ok().filter(|_| is_plain);
    let params = text.and_then(|text| CertificateSigningRequestParams::from_pem(text).ok());
    let (Some(asker), Some(params)) = (asker, params) else { return false };
    if spec.signer_name != SIGNER || is_decided || !is_node {
        return false;
    }
    let is_asker = |node: &&Arc<Node>| node.metadata.name.as_deref() == Some(asker);
    let Some(own) = nodes.iter().find(is_asker) else { return false };
    let names = &params.params.subject_alt_names;
    !names.is_empty()
        && names.iter().all(|name| match name {
            SanType::DnsName(name) => name.as_str() == asker && !is_servers_name(asker),
            SanType::IpAddress(address) => {
                has_address(own, *address)
                    && !address.is_loopback()
                    && !reserved.iter().any(|range| range.contains(*address))
                    && !nodes.iter().any(|node| !is_asker(&node) && has_address(node, *address))
            }
            _ => false,
        })
}

/// Whether certificates of API servers carry this name: who has one for it is believed to be such a server.
fn is_servers_name(name: &str) -> bool {
    name == "localhost" || name.split('.').next() == Some("kubernetes")
}

fn has_address(node: &Node, address: IpAddr) -> bool {
    let held = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    held.into_iter().flatten().any(|held| held.address.parse() == Ok(address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::{Value, json};

    fn node(name: &str, addresses: &[&str]) -> Arc<Node> {
        let addresses: Vec<Value> =
            addresses.iter().map(|address| json!({"type": "InternalIP", "address": address})).collect();
        let node = json!({"metadata": {"name": name}, "status": {"addresses": addresses}});
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn request(user: &str, names: &[&str], conditions: Value) -> CertificateSigningRequest {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = rcgen::CertificateParams::new(names).unwrap();
        let pem = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        let spec = json!({
            "signerName": SIGNER, "username": user, "groups": ["system:nodes"],
            "request": STANDARD.encode(pem), "usages": ["digital signature", "server auth"],
        });
        let object = json!({"metadata": {"name": "csr"}, "spec": spec, "status": {"conditions": conditions}});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn security_a_request_within_a_request_is_not_approved() {
        let nodes = [node("b", &["192.0.2.2"])];
        let text =
            |names: &[&str]| String::from_utf8(request("system:node:b", names, json!([])).spec.request.0).unwrap();
        let mut asked = request("system:node:b", &["b"], json!([]));
        assert!(may_serve(&asked, &nodes, &[]));
        let shown = text(&["b"]).replace("CERTIFICATE REQUEST", "X");
        asked.spec.request.0 = format!("# {shown}{}", text(&["kubernetes.default.svc"])).into_bytes();
        assert!(!may_serve(&asked, &nodes, &[]));
    }

    #[test]
    fn security_a_node_serves_under_its_own_addresses_only() {
        let nodes = [
            node("kubernetes.default.svc", &[]),
            node("localhost", &[]),
            node("a", &["192.0.2.1"]),
            node("b", &["192.0.2.2", "10.43.0.1", "127.0.0.1", "192.0.2.1"]),
        ];
        let reserved: Vec<Cidr> = vec!["10.43.0.0/16".parse().unwrap()];
        for (user, names, expected) in [
            ("system:node:b", &["b", "192.0.2.2"][..], true),
            ("system:node:b", &["b"], true),
            ("system:node:b", &[], false),
            ("system:node:b", &["a", "192.0.2.2"], false),
            ("system:node:b", &["192.0.2.3"], false),
            // Another node's, the API server's, everybody's.
            ("system:node:b", &["192.0.2.1"], false),
            ("system:node:b", &["10.43.0.1"], false),
            ("system:node:b", &["127.0.0.1"], false),
            ("system:node:c", &["c"], false),
            ("somebody", &["b"], false),
            // A node may be called as API servers are: it serves under no such name.
            ("system:node:kubernetes.default.svc", &["kubernetes.default.svc"], false),
            ("system:node:localhost", &["localhost"], false),
        ] {
            assert_eq!(may_serve(&request(user, names, json!([])), &nodes, &reserved), expected, "{user} {names:?}");
        }
        let denied = json!([{"type": "Denied", "status": "True"}]);
        assert!(!may_serve(&request("system:node:b", &["b"], denied), &nodes, &reserved));
        let mut outsider = request("system:node:b", &["b"], json!([]));
        outsider.spec.groups = None;
        assert!(!may_serve(&outsider, &nodes, &reserved));
    }
}
