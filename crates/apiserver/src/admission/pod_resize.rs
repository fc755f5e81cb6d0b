//! PodResizeValidator: a running pod cannot be resized beyond its node.

use std::sync::Arc;

use api::Status;
use api::pod::resources::{Amounts, Side, parse, with_overhead};
use k8s_openapi::api::core::v1::{Node, Pod};

use super::{Admitted, Attributes, Plugin, Verb, admitted};
use crate::cluster::Cluster;

pub(super) struct PodResizeValidator;

impl Plugin for PodResizeValidator {
    fn validate<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        let applies =
            attributes.verb == Verb::Update && attributes.subresource == "resize" && attributes.is("", "pods");
        let (true, Some(new), Some(old)) = (applies, attributes.object_ref::<Pod>(), attributes.old_ref::<Pod>())
        else {
            return admitted();
        };
        if new.spec.as_ref().map(|spec| (&spec.containers, &spec.init_containers, &spec.resources))
            == old.spec.as_ref().map(|spec| (&spec.containers, &spec.init_containers, &spec.resources))
        {
            return admitted();
        }
        check(cluster, attributes, new).into()
    }
}

fn check(cluster: &Cluster, attributes: &Attributes<'_>, pod: &Pod) -> Result<(), Status> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let Some(name) = spec.node_name.as_deref().filter(|name| !name.is_empty()) else { return Ok(()) };
    let Some(node) = cluster.objects().get::<Node>("", name)? else {
        return Err(attributes.forbidden(format!("node {name:?} not found")));
    };
    let system = node.metadata.labels.as_ref().and_then(|labels| labels.get("kubernetes.io/os"));
    if let Some(system) = system.filter(|system| *system != "linux") {
        let message = format!("pod resize is only supported on linux nodes, node {name:?} is {system:?}");
        return Err(attributes.forbidden(message).with_cause("UnsupportedPlatform", "", ""));
    }
    let requests = with_overhead(spec, Side::Requests);
    let allocatable = parse(node.status.as_ref().and_then(|status| status.allocatable.as_ref()));
    let amount = |amounts: &Amounts, name: &str| amounts.get(name).cloned().unwrap_or_default();
    let mut lacking = Vec::new();
    let (cpu, has) = (amount(&requests, "cpu"), amount(&allocatable, "cpu"));
    if cpu > has {
        lacking.push(format!("cpu, requested: {}, allocatable: {}", cpu.milli_value(), has.milli_value()));
    }
    let (memory, has) = (amount(&requests, "memory"), amount(&allocatable, "memory"));
    if memory > has {
        lacking.push(format!("memory, requested: {}, allocatable: {}", memory.value(), has.value()));
    }
    if lacking.is_empty() {
        return Ok(());
    }
    let message = format!("node didn't have enough allocatable resources: {}", lacking.join("; "));
    Err(attributes.forbidden(message).with_cause("NodeCapacity", "", ""))
}
