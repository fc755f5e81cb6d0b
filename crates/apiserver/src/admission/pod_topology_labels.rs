//! PodTopologyLabels: a pod learns the zone and region of its node when it is bound.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Binding, Pod};

use super::{Admitted, Attributes, Plugin, Verb, admitted};
use crate::state::State;

pub(super) struct PodTopologyLabels;

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

impl Plugin for PodTopologyLabels {
    fn admit<'a>(&'a self, state: &'a Arc<State>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        if attributes.verb != Verb::Create || !attributes.is("", "pods") {
            return admitted();
        }
        if let Some(binding) = attributes.object_mut::<Binding>() {
            if binding.target.kind.as_deref() == Some("Node") {
                let labels = of_node(state, binding.target.name.as_deref().unwrap_or_default());
                copy(&mut binding.metadata.labels, labels);
            }
        } else if let Some(pod) = attributes.object_mut::<Pod>() {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
            copy(&mut pod.metadata.labels, of_node(state, &node));
        }
        admitted()
    }
}

fn of_node(state: &State, name: &str) -> Vec<(String, String)> {
    let entry = state.caches.get("minions").filter(|_| !name.is_empty()).and_then(|cache| cache.get(name));
    let Some(entry) = entry else { return Vec::new() };
    let labels = entry.labels();
    LABELS.into_iter().filter_map(|key| Some((key.to_owned(), labels.get(key)?.clone()))).collect()
}

fn copy(target: &mut Option<BTreeMap<String, String>>, labels: Vec<(String, String)>) {
    if !labels.is_empty() {
        target.get_or_insert_default().extend(labels);
    }
}
