//! What a cluster lays out for machines that join: where it is, what its nodes must know, and what those who come may do.
//!
//! Names, groups and rights are kubeadm's where kubeadm has them, so that its users and tools find what they know.

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::{Client, Patch};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, Role, RoleBinding};
use serde_json::{Value, json};

use super::token::DEFAULT_GROUP;
use crate::settings::ClusterSettings;

/// The signed object that anybody may read.
pub(crate) const INFO_NAMESPACE: &str = "kube-public";
pub(crate) const INFO_NAME: &str = "cluster-info";
/// What nodes must know, for those who come with a token.
pub(crate) const SETTINGS_NAMESPACE: &str = "kube-system";
pub(crate) const SETTINGS_NAME: &str = "cox-config";
const SETTINGS_KEY: &str = "settings";
/// Whom nodes are to trust, the one that signs first.
pub(crate) const AUTHORITY_KEY: &str = "authority";

const MANAGER: &str = "cox";
const RBAC: &str = "rbac.authorization.k8s.io";

/// Writes all of it; doing so again changes nothing.
pub(crate) async fn publish(client: &Client, server: &str, ca: &str, settings: &ClusterSettings) -> Result<()> {
    publish_info(client, server, ca).await.context("publishing cluster-info")?;
    publish_settings(client, ca, settings).await.context("publishing the settings of nodes")?;
    let [bootstrap, csr] = ["system:node-bootstrapper", "system:certificates.k8s.io:certificatesigningrequests"];
    let (for_others, for_itself) = (format!("{csr}:nodeclient"), format!("{csr}:selfnodeclient"));
    for (name, role, group) in [
        // Who comes with a token may ask for a node's certificate, and gets it.
        ("kubeadm:kubelet-bootstrap", bootstrap, DEFAULT_GROUP),
        ("kubeadm:node-autoapprove-bootstrap", for_others.as_str(), DEFAULT_GROUP),
        ("kubeadm:node-autoapprove-certificate-rotation", for_itself.as_str(), "system:nodes"),
        // The proxy of a machine that has joined is its node.
        ("cox:node-proxier", "system:node-proxier", "system:nodes"),
    ] {
        bind(client, name, role, group).await.with_context(|| format!("binding the role {role}"))?;
    }
    Ok(())
}

async fn publish_info(client: &Client, server: &str, ca: &str) -> Result<()> {
    let cluster = json!({"server": server, "certificate-authority-data": STANDARD.encode(ca)});
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "", "cluster": cluster}],
        "contexts": [],
        "current-context": "",
        "preferences": {},
        "users": [],
    });
    let data = json!({"kubeconfig": yaml_serde::to_string(&kubeconfig)?});
    put_map(client, INFO_NAMESPACE, INFO_NAME, data).await?;
    let anybody = json!({"apiGroup": RBAC, "kind": "User", "name": "system:anonymous"});
    let role = "kubeadm:bootstrap-signer-clusterinfo";
    allow_reading(client, INFO_NAMESPACE, role, INFO_NAME, &["get"], &[anybody]).await
}

async fn publish_settings(client: &Client, ca: &str, settings: &ClusterSettings) -> Result<()> {
    let data = json!({SETTINGS_KEY: serde_json::to_string_pretty(settings)?, AUTHORITY_KEY: ca});
    put_map(client, SETTINGS_NAMESPACE, SETTINGS_NAME, data).await?;
    let group = |name: &str| json!({"apiGroup": RBAC, "kind": "Group", "name": name});
    let readers = [group(DEFAULT_GROUP), group("system:nodes")];
    allow_reading(client, SETTINGS_NAMESPACE, "cox:config", SETTINGS_NAME, &["get"], &readers).await
}

/// What the cluster tells its nodes, and those who come with a token.
pub(crate) async fn cluster_settings(client: &Client) -> Result<ClusterSettings> {
    let map = client.namespaced::<ConfigMap>(SETTINGS_NAMESPACE).get(SETTINGS_NAME).await;
    let text = map.context("asking for its settings")?.data.unwrap_or_default().remove(SETTINGS_KEY);
    let text = text.context("the cluster's settings are empty: was it made by 'cox up'?")?;
    serde_json::from_str(&text).context("reading the cluster's settings")
}

/// Applied, so that signatures, which others write, stay.
async fn put_map(client: &Client, namespace: &str, name: &str, data: Value) -> Result<()> {
    let metadata = json!({"name": name, "namespace": namespace});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
    client.namespaced::<ConfigMap>(namespace).patch(name, &Patch::apply(MANAGER, map).force()).await?;
    Ok(())
}

/// Lets some read one ConfigMap.
pub(crate) async fn allow_reading(
    client: &Client,
    namespace: &str,
    role: &str,
    map: &str,
    verbs: &[&str],
    subjects: &[Value],
) -> Result<()> {
    let version = format!("{RBAC}/v1");
    let metadata = json!({"name": role, "namespace": namespace});
    let rule = json!({"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [map], "verbs": verbs});
    let object = json!({"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": [rule]});
    let binding = json!({
        "apiVersion": version,
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": role},
        "subjects": subjects,
    });
    client.namespaced::<Role>(namespace).patch(role, &Patch::apply(MANAGER, object).force()).await?;
    client.namespaced::<RoleBinding>(namespace).patch(role, &Patch::apply(MANAGER, binding).force()).await?;
    Ok(())
}

async fn bind(client: &Client, name: &str, role: &str, group: &str) -> Result<()> {
    let binding = json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": group}],
    });
    client.all::<ClusterRoleBinding>().patch(name, &Patch::apply(MANAGER, binding).force()).await?;
    Ok(())
}
