//! LimitPodHardAntiAffinityTopology: a pod may keep others off its node, not off a whole zone.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::{Admitted, Attributes, Plugin, admitted};
use crate::cluster::Cluster;

pub(super) struct LimitPodHardAntiAffinityTopology;

const HOSTNAME: &str = "kubernetes.io/hostname";

impl Plugin for LimitPodHardAntiAffinityTopology {
    fn validate<'a>(&'a self, _: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        if !attributes.writes("", "pods") {
            return admitted();
        }
        let affinity = attributes.object_ref::<Pod>().and_then(|pod| pod.spec.as_ref()?.affinity.as_ref());
        let terms = affinity
            .and_then(|affinity| affinity.pod_anti_affinity.as_ref())
            .and_then(|far| far.required_during_scheduling_ignored_during_execution.as_deref());
        match terms.unwrap_or_default().iter().find(|term| term.topology_key != HOSTNAME) {
            None => admitted(),
            Some(term) => Err(attributes.forbidden(format!(
                "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {} but only key {HOSTNAME} is allowed",
                term.topology_key
            )))
            .into(),
        }
    }
}
