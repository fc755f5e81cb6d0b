//! Objects that every cluster has, made when the server starts: namespaces, roles, priority classes, the `kubernetes`
//! service and its endpoints, registrations of what is served, flow control.
//!
//! They are written through the same chain as everything else, as the server's own user.

pub(crate) mod flow_control;
pub(crate) mod legacy_tokens;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use api::meta::Meta as _;
use http::Method;
use serde_json::{Value, json};

use crate::loopback::send;
use crate::stamp::now;
use crate::state::State;

/// Servers that start together make the same objects; each lost race means that another one made progress.
const ATTEMPTS: u32 = 10;

/// Another server wrote the object in between.
#[derive(Debug, thiserror::Error)]
#[error("{url}: {message}")]
struct Raced {
    url: String,
    message: String,
}

pub(crate) async fn run(state: &Arc<State>) -> anyhow::Result<()> {
    for _ in 1..ATTEMPTS {
        match make(state).await {
            Err(error) if error.is::<Raced>() => tracing::debug!(%error, "another server was faster: looking again"),
            done => return done,
        }
    }
    make(state).await
}

async fn make(state: &Arc<State>) -> anyhow::Result<()> {
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        let namespace = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}});
        create(state, "/api/v1/namespaces", &namespace).await?;
    }
    for (name, value, description) in [
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
        (
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
    ] {
        let class = json!({"kind": "PriorityClass", "apiVersion": "scheduling.k8s.io/v1", "metadata": {"name": name},
            "value": value, "globalDefault": false, "description": description});
        create(state, "/apis/scheduling.k8s.io/v1/priorityclasses", &class).await?;
    }
    if state.authz.uses_rbac() {
        roles(state).await?;
    }
    service_range(state).await?;
    kubernetes_service(state).await?;
    crate::api_services::trust::ensure(state).await?;
    // Tried again later. It is no reason not to start: a webhook that must be asked about it may run in this cluster.
    if state.authn.service_accounts.is_some()
        && let Err(error) = legacy_tokens::begin(state).await
    {
        tracing::warn!("uses of tokens in Secrets are not tracked yet: {error:#}");
    }
    crate::identity_lease::begin(state).await;
    crate::api_services::local::register(state).await?;
    flow_control::ensure(state).await?;
    state.bootstrapped.store(true, std::sync::atomic::Ordering::Release);
    Ok(())
}

/// Creates what is missing; what is there is only replaced when a role lost rules or a binding subjects.
async fn roles(state: &Arc<State>) -> anyhow::Result<()> {
    const BASE: &str = "/apis/rbac.authorization.k8s.io/v1";
    let policy = crate::authz::bootstrap_policy::policy();
    let mut wanted: Vec<(String, Value, &str)> = Vec::new();
    for role in &policy.cluster_roles {
        wanted.push((format!("{BASE}/clusterroles"), serde_json::to_value(role)?, "rules"));
    }
    for binding in &policy.cluster_role_bindings {
        wanted.push((format!("{BASE}/clusterrolebindings"), serde_json::to_value(binding)?, "subjects"));
    }
    for role in &policy.roles {
        let namespace = role.metadata.namespace();
        wanted.push((format!("{BASE}/namespaces/{namespace}/roles"), serde_json::to_value(role)?, "rules"));
    }
    for binding in &policy.role_bindings {
        let namespace = binding.metadata.namespace();
        wanted.push((
            format!("{BASE}/namespaces/{namespace}/rolebindings"),
            serde_json::to_value(binding)?,
            "subjects",
        ));
    }
    // Together, so that the store can write many at once: one at a time would cost a sync each.
    let writes = wanted.iter().map(|(path, object, list)| reconcile(state, path, object, list));
    futures_util::future::try_join_all(writes).await?;
    Ok(())
}

async fn reconcile(state: &Arc<State>, path: &str, wanted: &Value, list: &str) -> anyhow::Result<()> {
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
    let url = format!("{path}/{}", name.replace('%', "%25"));
    let (code, mut found) = send(state, Method::GET, &url, &Value::Null).await?;
    if code == 404 {
        return create(state, path, wanted).await;
    }
    let protected = found["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] == "false";
    let have = found[list].as_array().cloned().unwrap_or_default();
    let missing: Vec<Value> =
        wanted[list].as_array().into_iter().flatten().filter(|item| !have.contains(item)).cloned().collect();
    if protected || missing.is_empty() {
        return Ok(());
    }
    found[list] = Value::Array(have.into_iter().chain(missing).collect());
    replace(state, url, &found).await
}

/// The range of cluster IPs, as an object that people and controllers can read.
async fn service_range(state: &Arc<State>) -> anyhow::Result<()> {
    let ranges: Vec<String> = state.config.service_cluster_ip_ranges.iter().map(ToString::to_string).collect();
    if ranges.is_empty() {
        return Ok(());
    }
    let range = json!({"kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": ranges}});
    const PATH: &str = "/apis/networking.k8s.io/v1/servicecidrs";
    create(state, PATH, &range).await?;
    let url = format!("{PATH}/kubernetes/status");
    let (code, mut found) = send(state, Method::GET, &url, &Value::Null).await?;
    anyhow::ensure!(code < 300, "{url}: {}", found["message"]);
    if found["spec"]["cidrs"] != range["spec"]["cidrs"] {
        tracing::warn!(flags = ?ranges, object = %found["spec"]["cidrs"], "service ranges of flags and cluster differ");
        return Ok(());
    }
    let ready = found["status"]["conditions"].as_array().is_some_and(|list| list.iter().any(|c| c["type"] == "Ready"));
    if ready {
        return Ok(());
    }
    found["status"] = json!({"conditions": [{"type": "Ready", "status": "True", "reason": "",
        "message": "Kubernetes default Service CIDR is ready", "lastTransitionTime": api::time::rfc3339(now())}]});
    replace(state, url, &found).await
}

/// `kubernetes.default`: how pods find this server.
async fn kubernetes_service(state: &Arc<State>) -> anyhow::Result<()> {
    let Some(range) = state.config.service_cluster_ip_ranges.first() else { return Ok(()) };
    let address = crate::allocation::range::at(range, 1).to_string();
    let target_port = state.config.bind.port();
    let service = json!({"kind": "Service", "apiVersion": "v1",
        "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "sessionAffinity": "None",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": target_port}]}});
    create(state, "/api/v1/namespaces/default/services", &service).await?;
    // Servers that share a store find out about each other first (`server_leases`).
    match state.endpoint().filter(|_| !matches!(state.config.storage, crate::Storage::Etcd(_))) {
        Some(endpoint) => write_endpoints(state, &BTreeSet::from([endpoint])).await,
        None => Ok(()),
    }
}

/// Makes `kubernetes.default` lead to these servers, if it does not already.
pub(crate) async fn write_endpoints(state: &Arc<State>, servers: &BTreeSet<IpAddr>) -> anyhow::Result<()> {
    let Some(any) = servers.first() else { return Ok(()) };
    let ports = json!([{"name": "https", "port": state.config.bind.port(), "protocol": "TCP"}]);
    let labels = json!({"endpointslice.kubernetes.io/skip-mirror": "true"});
    let addresses: Vec<Value> = servers.iter().map(|address| json!({"ip": address.to_string()})).collect();
    let endpoints = json!({"kind": "Endpoints", "apiVersion": "v1", "metadata": {"name": "kubernetes", "labels": labels},
        "subsets": [{"addresses": addresses, "ports": ports}]});
    put(state, "/api/v1/namespaces/default/endpoints", &endpoints, &["subsets"]).await?;
    let ready = |address: &IpAddr| json!({"addresses": [address.to_string()], "conditions": {"ready": true}});
    let slice = json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": if any.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": servers.iter().map(ready).collect::<Vec<_>>(), "ports": ports});
    put(state, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", &slice, &["endpoints", "ports"]).await
}

/// Creates the object unless it is there. Looked up first: a second `kubernetes` service would be refused for its
/// address before its name.
async fn create(state: &Arc<State>, path: &str, object: &Value) -> anyhow::Result<()> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default().replace('%', "%25");
    if send(state, Method::GET, &format!("{path}/{name}"), &Value::Null).await?.0 < 300 {
        return Ok(());
    }
    let (code, answer) = send(state, Method::POST, path, object).await?;
    anyhow::ensure!(code < 300 || code == 409, "{path}: {}", answer["message"]);
    Ok(())
}

/// Creates the object or brings it up to date, if any of `fields` differs.
async fn put(state: &Arc<State>, path: &str, object: &Value, fields: &[&str]) -> anyhow::Result<()> {
    let url = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
    let (code, found) = send(state, Method::GET, &url, &Value::Null).await?;
    if code < 300 && fields.iter().all(|field| found[field] == object[field]) {
        return Ok(());
    }
    let (code, answer) = send(state, Method::POST, path, object).await?;
    if code != 409 {
        anyhow::ensure!(code < 300, "{path}: {}", answer["message"]);
        return Ok(());
    }
    replace(state, url, object).await
}

async fn replace(state: &Arc<State>, url: String, object: &Value) -> anyhow::Result<()> {
    let (code, answer) = send(state, Method::PUT, &url, object).await?;
    let message = answer["message"].to_string();
    // Changed in between, or gone.
    anyhow::ensure!(code != 409 && code != 404, Raced { url, message });
    anyhow::ensure!(code < 300, "{url}: {message}");
    Ok(())
}
