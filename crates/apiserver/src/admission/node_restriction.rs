//! NodeRestriction: a kubelet writes its own node, the pods bound to it and its own lease, and nothing else.

use std::sync::Arc;

use api::Status;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};

use super::{Admitted, Attributes, Plugin, Verb};
use crate::state::State;

pub(super) struct NodeRestriction;

const MIRROR: &str = "kubernetes.io/config.mirror";
/// Labels below these prefixes are for administrators, to keep workloads away from nodes that may be taken over.
const RESTRICTED: &str = "node-restriction.kubernetes.io/";

impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn validate<'a>(&'a self, state: &'a Arc<State>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        Box::pin(std::future::ready(check(state, attributes)))
    }
}

fn check(state: &State, attributes: &Attributes<'_>) -> Result<(), Status> {
    let user = attributes.user;
    let Some(node) = user.name.strip_prefix("system:node:").filter(|_| user.in_group("system:nodes")) else {
        return Ok(());
    };
    match (&*attributes.resource.group, &*attributes.resource.plural) {
        ("", "pods") => pods(state, attributes, node),
        ("", "nodes") => nodes(attributes, node),
        ("coordination.k8s.io", "leases") => {
            let own = attributes.namespace == "kube-node-lease" && attributes.name == node;
            let named =
                attributes.object_ref::<Lease>().is_none_or(|lease| lease.metadata.name.as_deref() == Some(node));
            if own && named {
                return Ok(());
            }
            Err(attributes
                .forbidden(format!("can only access node lease with the same name as the requesting node {node:?}")))
        }
        _ => Ok(()),
    }
}

fn pods(state: &State, attributes: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let bound_here = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
    let is_mirror =
        |pod: &Pod| pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR));
    match (attributes.verb, attributes.subresource) {
        (Verb::Create, "") => {
            let Some(pod) = attributes.object_ref::<Pod>() else { return Ok(()) };
            if !is_mirror(pod) {
                return Err(attributes.forbidden(format!(
                    "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
                )));
            }
            if !bound_here(pod) {
                return Err(attributes
                    .forbidden(format!("node {node:?} can only create pods with spec.nodeName set to itself")));
            }
            let spec = pod.spec.clone().unwrap_or_default();
            if spec.service_account_name.is_some_and(|name| !name.is_empty()) {
                return Err(
                    attributes.forbidden(format!("node {node:?} can not create pods that reference a service account"))
                );
            }
            Ok(())
        }
        (Verb::Delete, _) | (Verb::Update, "status") => {
            let old = attributes.old.and_then(|old| old.downcast_ref::<Pod>());
            match old {
                Some(pod) if !bound_here(pod) => {
                    let what =
                        if attributes.verb == Verb::Delete { "delete pods" } else { "update pod status for pods" };
                    Err(attributes.forbidden(format!("node {node:?} can only {what} with spec.nodeName set to itself")))
                }
                _ => Ok(()),
            }
        }
        (Verb::Create, "eviction") => {
            let key = format!("{}/{}", attributes.namespace, attributes.name);
            match state.peek::<Pod>("pods", &key) {
                Some(pod) if bound_here(&pod) => Ok(()),
                _ => {
                    Err(attributes
                        .forbidden(format!("node {node:?} can only evict pods with spec.nodeName set to itself")))
                }
            }
        }
        _ => Err(attributes.forbidden(format!("unexpected operation on pods by node {node:?}"))),
    }
}

fn nodes(attributes: &Attributes<'_>, node: &str) -> Result<(), Status> {
    if attributes.name != node {
        return Err(attributes.forbidden(format!("node {node:?} is not allowed to modify node {:?}", attributes.name)));
    }
    let Some(new) = attributes.object_ref::<Node>() else { return Ok(()) };
    let old = attributes.old.and_then(|old| old.downcast_ref::<Node>());
    let labels = |node: &Node| node.metadata.labels.clone().unwrap_or_default();
    let before = old.map(labels).unwrap_or_default();
    let changed: Vec<String> = labels(new)
        .into_iter()
        .filter(|(key, value)| key.contains(RESTRICTED) && before.get(key) != Some(value))
        .map(|(key, _)| key)
        .collect();
    if !changed.is_empty() {
        return Err(attributes.forbidden(format!("is not allowed to modify labels: {}", changed.join(", "))));
    }
    let taints = |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    if attributes.verb == Verb::Update && old.is_some_and(|old| taints(old) != taints(new)) {
        return Err(attributes.forbidden(format!("node {node:?} is not allowed to modify taints")));
    }
    Ok(())
}
