//! Network policies on every node: what their enforcement may see, and where pods announce themselves.

use std::path::PathBuf;

use anyhow::{Context, Result};
use client::{Client, Patch};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use serde_json::json;

use crate::options::Options;

const ROLE: &str = "cox:network-policy";
const MANAGER: &str = "cox";

/// Lets nodes see who their pods' peers are. The proxy's identity is the first node's and that of nodes in namespaces; a
/// machine that has joined is its node.
pub(crate) async fn ensure_role(client: &Client) -> Result<()> {
    let group = "rbac.authorization.k8s.io";
    let role = json!({
        "apiVersion": format!("{group}/v1"),
        "kind": "ClusterRole",
        "metadata": {"name": ROLE},
        "rules": [
            {"apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["list", "watch"]},
            {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        ],
    });
    let binding = json!({
        "apiVersion": format!("{group}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": {"name": ROLE},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": ROLE},
        "subjects": [
            {"apiGroup": group, "kind": "User", "name": "system:kube-proxy"},
            {"apiGroup": group, "kind": "Group", "name": "system:nodes"},
        ],
    });
    let roles = client.all::<ClusterRole>();
    roles.patch(ROLE, &Patch::apply(MANAGER, role).force()).await.context("writing the role of network policies")?;
    let bindings = client.all::<ClusterRoleBinding>();
    let bound = bindings.patch(ROLE, &Patch::apply(MANAGER, binding).force()).await;
    bound.context("binding the role of network policies").map(drop)
}

/// Where pods announce themselves.
pub(crate) fn socket(options: &Options) -> PathBuf {
    options.run_dir.join("policy.sock")
}
