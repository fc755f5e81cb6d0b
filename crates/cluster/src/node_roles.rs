//! Roles of nodes, as `kubectl get nodes` shows them: kubeadm's label on the node of a server. Taints are for whoever wants them
//! (`--node-taint`): a small cluster runs its pods on its servers. With kubeadm's taint comes its other label, that load
//! balancers pass the node by.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use client::{Client, Patch};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use crate::role::MANAGER;

pub(crate) const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

const NOT_FOR_LOAD_BALANCERS: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Says that a node is a server's, which registered with these taints. A kubelet may not say so itself.
pub(crate) async fn mark_server(client: &Client, node: &str, taints: &[String]) -> Result<()> {
    let labels = labels(taints);
    let wanted = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels}});
    let written = client.all::<Node>().patch(node, &Patch::apply(MANAGER, wanted).force()).await;
    written.with_context(|| format!("labelling node {node}")).map(drop)
}

fn labels(taints: &[String]) -> BTreeMap<&'static str, &'static str> {
    let mut labels = BTreeMap::from([(CONTROL_PLANE, "")]);
    let key = |taint: &String| taint.split(['=', ':']).next() == Some(CONTROL_PLANE);
    if taints.iter().any(key) {
        labels.insert(NOT_FOR_LOAD_BALANCERS, "");
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_for_servers_alone_is_labelled_as_kubeadm_does() {
        for (taints, expected) in [
            (&[][..], &[CONTROL_PLANE][..]),
            (&["dedicated=gpu:NoSchedule"][..], &[CONTROL_PLANE][..]),
            (&["node-role.kubernetes.io/control-plane-2:NoSchedule"][..], &[CONTROL_PLANE][..]),
            (&["node-role.kubernetes.io/control-plane:NoSchedule"][..], &[CONTROL_PLANE, NOT_FOR_LOAD_BALANCERS][..]),
            (
                &["a:NoExecute", "node-role.kubernetes.io/control-plane=:NoExecute"][..],
                &[CONTROL_PLANE, NOT_FOR_LOAD_BALANCERS][..],
            ),
        ] {
            let taints: Vec<String> = taints.iter().map(|taint| (*taint).to_owned()).collect();
            assert_eq!(labels(&taints).into_keys().collect::<Vec<_>>(), expected, "{taints:?}");
        }
    }
}
