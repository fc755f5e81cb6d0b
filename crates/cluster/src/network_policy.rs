//! Network policies on every node: what their enforcement may see, and where pods announce themselves.

use std::path::PathBuf;

use anyhow::Result;
use client::Client;
use policy::cluster_policy::{GROUP, PLURAL};
use serde_json::json;

use crate::options::Options;
use crate::role::{self, Role};

/// Lets nodes see who their pods' peers are, and which ranges services have. The proxy's identity is the first node's and that of nodes in namespaces; a
/// machine that has joined is its node.
pub(crate) async fn ensure_role(client: &Client) -> Result<()> {
    let role = Role {
        name: "cox:network-policy",
        whose: "network policies",
        rules: json!([
            {"apiGroups": [""], "resources": ["pods", "namespaces", "nodes"], "verbs": ["list", "watch"]},
            {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies", "servicecidrs"], "verbs": ["list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            {"apiGroups": [GROUP], "resources": [PLURAL], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [GROUP], "resources": [format!("{PLURAL}/status")], "verbs": ["patch"]},
            {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
                "resourceNames": [format!("{PLURAL}.{GROUP}")], "verbs": ["get", "list", "watch"]},
        ]),
        subjects: json!([
            {"apiGroup": role::GROUP, "kind": "User", "name": "system:kube-proxy"},
            {"apiGroup": role::GROUP, "kind": "Group", "name": "system:nodes"},
        ]),
    };
    role::ensure(client, role).await
}

/// Where pods announce themselves.
pub(crate) fn socket(options: &Options) -> PathBuf {
    options.run_dir.join("policy.sock")
}
