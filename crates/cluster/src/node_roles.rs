//! Roles of nodes, as `kubectl get nodes` shows them: kubeadm's label on the node of a server. Taints are for whoever wants them
//! (`--node-taint`): a small cluster runs its pods on its servers.

use anyhow::{Context, Result};
use client::{Client, Patch};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use crate::role::MANAGER;

pub(crate) const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// Says that a node is a server's. A kubelet may not say so itself.
pub(crate) async fn mark_server(client: &Client, node: &str) -> Result<()> {
    let wanted = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": {CONTROL_PLANE: ""}}});
    let written = client.all::<Node>().patch(node, &Patch::apply(MANAGER, wanted).force()).await;
    written.with_context(|| format!("labelling node {node}")).map(drop)
}
