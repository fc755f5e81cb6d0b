//! What scheduling needs to know of a pod, worked out once when the pod is seen.

mod catalogue;
mod class;
mod group;
mod resources;

use std::sync::Arc;

use api::cached::Pod;
use api::meta::Meta as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Volume;

pub(crate) use catalogue::{Catalogue, ClassId, GroupId, ResourceId};
pub(crate) use class::{Class, HostPort};
pub(crate) use group::{Group, OwnerKind, Spread, Term};
pub(crate) use resources::{Requests, Resources, limits};

/// A pod with its scheduling facts.
#[derive(Debug, Clone)]
pub(crate) struct PodInfo {
    pub(crate) pod: Arc<Pod>,
    pub(crate) key: String,
    pub(crate) uid: Arc<str>,
    pub(crate) priority: i32,
    pub(crate) class: Arc<Class>,
    pub(crate) group: Arc<Group>,
    pub(crate) is_terminating: bool,
    /// What a running pod holds while it is resized; otherwise it holds what its class asks for.
    held: Option<Box<Requests>>,
}

impl PodInfo {
    /// A pod that waits for a node.
    pub(crate) fn pending(pod: Arc<Pod>, catalogue: &Catalogue) -> PodInfo {
        Self::new(pod, false, catalogue)
    }

    /// A pod that has a node.
    pub(crate) fn placed(pod: Arc<Pod>, catalogue: &Catalogue) -> PodInfo {
        Self::new(pod, true, catalogue)
    }

    fn new(pod: Arc<Pod>, is_placed: bool, catalogue: &Catalogue) -> PodInfo {
        let class = catalogue.class(&pod, is_placed);
        let held = is_placed.then(|| Requests::while_resizing(&pod, catalogue)).flatten();
        PodInfo {
            key: key(&pod),
            uid: pod.metadata.uid().into(),
            priority: pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0),
            held: held.filter(|held| *held != class.requests).map(Box::new),
            class,
            group: catalogue.group(&pod),
            is_terminating: pod.metadata.deletion_timestamp.is_some(),
            pod,
        }
    }

    /// What the pod takes from its node.
    pub(crate) fn held(&self) -> &Requests {
        self.held.as_deref().unwrap_or(&self.class.requests)
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.group.namespace
    }

    pub(crate) fn name(&self) -> &str {
        self.pod.metadata.name()
    }

    pub(crate) fn volumes(&self) -> &[Volume] {
        self.pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default()
    }

    /// Claims that the pod uses, and whether each was made for this pod from a template in it.
    pub(crate) fn claims(&self) -> impl Iterator<Item = (String, bool)> {
        self.volumes().iter().filter_map(|volume| api::claim::of_volume(self.name(), volume))
    }

    pub(crate) fn nominated_node(&self) -> Option<&str> {
        nominated_node(&self.pod)
    }

    /// When its containers started; the end of time if they have not yet.
    pub(crate) fn started(&self) -> Timestamp {
        let time = self.pod.status.as_ref().and_then(|status| status.start_time.as_ref());
        time.map_or(Timestamp::MAX, |time| time.0)
    }
}

pub(crate) fn key(pod: &Pod) -> String {
    let metadata = &pod.metadata;
    format!("{}/{}", metadata.namespace(), metadata.name())
}

pub(crate) fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|name| !name.is_empty())
}

pub(crate) fn nominated_node(pod: &Pod) -> Option<&str> {
    pod.status.as_ref().and_then(|status| status.nominated_node_name.as_deref()).filter(|name| !name.is_empty())
}

pub(crate) fn scheduler_name(pod: &Pod) -> &str {
    let name = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref());
    name.filter(|name| !name.is_empty()).unwrap_or("default-scheduler")
}

pub(crate) use api::pod::is_terminal;

pub(crate) fn has_gates(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref()).is_some_and(|gates| !gates.is_empty())
}
