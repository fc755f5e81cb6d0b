//! Node: a machine that runs pods.

use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use api::validation;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeStatus, Taint};
use serde_json::{Value, json};

use crate::column::Column;
use crate::unset::{items, items_mut, or_empty, text};
use crate::{SelectableField, Strategy, cells};

pub struct NodeStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Status", "Whether the node takes pods."),
    Column::string("Roles", "What the node is for."),
    Column::AGE,
    Column::string("Version", "The version of its kubelet."),
    Column::string("Internal-IP", "Its address inside the cluster.").wide(),
    Column::string("External-IP", "Its address from outside.").wide(),
    Column::string("OS-Image", "Its operating system.").wide(),
    Column::string("Kernel-Version", "Its kernel.").wide(),
    Column::string("Container-Runtime", "What runs its containers.").wide(),
];

impl Strategy for NodeStrategy {
    type Object = Node;
    // A kubelet registers with its status.
    const KEEPS_STATUS_ON_CREATE: bool = true;

    fn apply_defaults(&self, node: &mut Node) {
        let Some(status) = &mut node.status else { return };
        if status.allocatable.is_none() {
            status.allocatable.clone_from(&status.capacity);
        }
        for handler in items_mut(&mut status.runtime_handlers) {
            handler.name.get_or_insert_default();
        }
    }

    fn validate_create(&self, node: &Node) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let spec = node.spec.clone().unwrap_or_default();
        taints(&mut errors, &Path::new("spec.taints"), items(&spec.taints));
        pod_cidrs(&mut errors, items(&spec.pod_cidrs));
        errors
    }

    fn validate_update(&self, new: &Node, old: &Node) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let (new, old) = (new.spec.clone().unwrap_or_default(), old.spec.clone().unwrap_or_default());
        taints(&mut errors, &Path::new("spec.taints"), items(&new.taints));
        if items(&new.pod_cidrs) != items(&old.pod_cidrs) {
            pod_cidrs(&mut errors, items(&new.pod_cidrs));
        }
        if !items(&old.pod_cidrs).is_empty() && items(&new.pod_cidrs) != items(&old.pod_cidrs) {
            errors.forbidden("spec.podCIDRs", "node updates may not change podCIDR except from \"\" to valid");
        }
        if text(&old.provider_id).is_some() && new.provider_id != old.provider_id {
            errors.forbidden("spec.providerID", "node updates may not change providerID except from \"\" to valid");
        }
        errors
    }

    fn validate_status_update(&self, new: &Node, _: &Node) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let mut seen = BTreeSet::new();
        for (i, address) in new.status.as_ref().map(|s| items(&s.addresses)).unwrap_or_default().iter().enumerate() {
            if !seen.insert((&address.type_, &address.address)) {
                errors.duplicate(format!("status.addresses[{i}]"), address);
            }
        }
        errors
    }

    fn selectable_fields(&self) -> &'static [SelectableField] {
        const { &[SelectableField::new("spec.unschedulable", &["spec", "unschedulable"]).or("false")] }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, node: &Node, now: Timestamp) -> Vec<Value> {
        let status = node.status.clone().unwrap_or_default();
        let ready = items(&status.conditions).iter().find(|condition| condition.type_ == "Ready");
        let mut state = match ready {
            None => "Unknown",
            Some(condition) if condition.status == "True" => "Ready",
            Some(_) => "NotReady",
        }
        .to_owned();
        if node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)) {
            state.push_str(",SchedulingDisabled");
        }
        let info = status.node_info.clone().unwrap_or_default();
        let known = |text: &str| if text.is_empty() { "<unknown>".to_owned() } else { text.to_owned() };
        let mut kernel = known(&info.kernel_version);
        if !info.architecture.is_empty() {
            kernel.push_str(&format!(" ({})", info.architecture));
        }
        vec![
            cells::name(&node.metadata),
            json!(state),
            cells::joined(&roles(node)),
            cells::age(&node.metadata, now),
            json!(info.kubelet_version),
            address(&status, "InternalIP"),
            address(&status, "ExternalIP"),
            json!(known(&info.os_image)),
            json!(kernel),
            json!(known(&info.container_runtime_version)),
        ]
    }
}

fn address(status: &NodeStatus, kind: &str) -> Value {
    let found = items(&status.addresses).iter().find(|address| address.type_ == kind);
    json!(found.map_or("<none>", |address| address.address.as_str()))
}

/// From labels `node-role.kubernetes.io/<role>` and `kubernetes.io/role=<role>`.
fn roles(node: &Node) -> Vec<String> {
    let mut roles = BTreeSet::new();
    for (key, value) in node.metadata.labels.iter().flatten() {
        if let Some(role) = key.strip_prefix("node-role.kubernetes.io/").filter(|role| !role.is_empty()) {
            roles.insert(role.to_owned());
        } else if key == "kubernetes.io/role" && !value.is_empty() {
            roles.insert(value.clone());
        }
    }
    roles.into_iter().collect()
}

fn taints(errors: &mut FieldErrors, path: &Path<'_>, taints: &[Taint]) {
    let mut seen = BTreeSet::new();
    for (i, taint) in taints.iter().enumerate() {
        let path = path.index(i);
        errors.invalid_each(path.child("key"), &taint.key, validation::qualified_name(&taint.key));
        let value = or_empty(&taint.value);
        let messages = validation::label_value(value);
        if !messages.is_empty() {
            errors.invalid(path.child("value"), value, messages.join(";"));
        }
        match taint.effect.as_str() {
            "" => errors.required(path.child("effect"), ""),
            "NoSchedule" | "PreferNoSchedule" | "NoExecute" => {}
            other => {
                errors.not_supported(path.child("effect"), other, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
            }
        }
        if !seen.insert((&taint.key, &taint.effect)) {
            errors.push(api::field::FieldError {
                detail: "taints must be unique by key and effect pair".to_owned(),
                ..api::field::FieldError::duplicate(path, taint)
            });
        }
    }
}

fn pod_cidrs(errors: &mut FieldErrors, ranges: &[String]) {
    for (i, range) in ranges.iter().enumerate() {
        crate::address::cidr(errors, &Path::new("spec.podCIDRs").index(i), range);
    }
}
