//! RuntimeClass: a pod's class must exist; what the class costs and where it runs become part of the pod.

use std::sync::Arc;

use api::Status;
use api::pod::resources::parse;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::node::v1::RuntimeClass as Class;

use super::tolerations::merge;
use super::{Admitted, Attributes, Plugin, admitted, later};
use crate::cluster::Cluster;

pub(super) struct RuntimeClass;

const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

impl Plugin for RuntimeClass {
    fn admit<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        let Some(name) = class_name(attributes) else { return admitted() };
        later(async move {
            let class = find(cluster, attributes, &name).await?;
            apply(attributes, Arc::unwrap_or_clone(class))
        })
    }

    fn validate<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        let name = class_name(attributes);
        let spec = attributes.object_ref::<Pod>().and_then(|pod| pod.spec.as_ref());
        let overhead = spec.and_then(|spec| spec.overhead.as_ref());
        if !attributes.creates("", "pods") || (name.is_none() && overhead.is_none()) {
            return admitted();
        }
        later(async move {
            let class = match &name {
                Some(name) => Some(find(cluster, attributes, name).await?),
                None => None,
            };
            let fixed =
                class.and_then(|class| Arc::unwrap_or_clone(class).overhead).and_then(|overhead| overhead.pod_fixed);
            match (&fixed, overhead) {
                (Some(_), _) if parse(fixed.as_ref()) == parse(overhead) => Ok(()),
                (Some(_), _) => Err(attributes.forbidden(MISMATCH)),
                (None, None) => Ok(()),
                (None, Some(_)) => Err(attributes
                    .forbidden("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")),
            }
        })
    }
}

/// The class that a new pod names.
fn class_name(attributes: &Attributes<'_>) -> Option<String> {
    if !attributes.creates("", "pods") {
        return None;
    }
    attributes.object_ref::<Pod>()?.spec.as_ref()?.runtime_class_name.clone()
}

async fn find(cluster: &Cluster, attributes: &Attributes<'_>, name: &str) -> Result<Arc<Class>, Status> {
    if let Some(class) = cluster.objects().get("", name)? {
        return Ok(class);
    }
    // It may have been created a moment ago.
    cluster.caches.fresh().await?;
    cluster
        .objects()
        .get("", name)?
        .ok_or_else(|| attributes.forbidden(format!("pod rejected: RuntimeClass {name:?} not found")))
}

fn apply(attributes: &mut Attributes<'_>, class: Class) -> Result<(), Status> {
    let Some(spec) = attributes.object_ref::<Pod>().and_then(|pod| pod.spec.as_ref()) else { return Ok(()) };
    let fixed = class.overhead.and_then(|overhead| overhead.pod_fixed);
    let stated = spec.overhead.as_ref().filter(|overhead| !overhead.is_empty());
    if fixed.is_some() && stated.is_some() && parse(fixed.as_ref()) != parse(stated) {
        return Err(attributes.forbidden(MISMATCH));
    }
    let scheduling = class.scheduling.unwrap_or_default();
    let wanted = scheduling.node_selector.unwrap_or_default();
    let present = spec.node_selector.clone().unwrap_or_default();
    if let Some((key, value)) = wanted.iter().find(|(key, value)| present.get(*key).is_some_and(|own| own != *value)) {
        return Err(attributes.forbidden(format!(
            "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = {}",
            present[key]
        )));
    }
    if let Some(spec) = attributes.object_mut::<Pod>().and_then(|pod| pod.spec.as_mut()) {
        if fixed.is_some() {
            spec.overhead = fixed;
        }
        if !wanted.is_empty() {
            spec.node_selector.get_or_insert_default().extend(wanted);
        }
        if let Some(more) = scheduling.tolerations {
            spec.tolerations = Some(merge(spec.tolerations.take().unwrap_or_default(), more));
        }
    }
    Ok(())
}
