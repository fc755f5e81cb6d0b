//! PodTopologyLabels: a pod learns the zone and region of its node when it is bound.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Binding, Node, Pod};

use super::{Admitted, Attributes, Plugin, Verb, admitted};
use crate::cluster::Cluster;
use crate::watch_cache::Unreadable;

pub(super) struct PodTopologyLabels;

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

impl Plugin for PodTopologyLabels {
    fn admit<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        if attributes.verb != Verb::Create || !attributes.is("", "pods") {
            return admitted();
        }
        if let Some(binding) = attributes.object_mut::<Binding>() {
            if binding.target.kind.as_deref() == Some("Node") {
                match of_node(cluster, binding.target.name.as_deref().unwrap_or_default()) {
                    Ok(labels) => copy(&mut binding.metadata.labels, labels),
                    Err(unreadable) => return Err(unreadable.into()).into(),
                }
            }
        } else if let Some(pod) = attributes.object_mut::<Pod>() {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
            match of_node(cluster, &node) {
                Ok(labels) => copy(&mut pod.metadata.labels, labels),
                Err(unreadable) => return Err(unreadable.into()).into(),
            }
        }
        admitted()
    }
}

fn of_node(cluster: &Cluster, name: &str) -> Result<Vec<(String, String)>, Unreadable> {
    if name.is_empty() {
        return Ok(Vec::new());
    }
    let Some(entry) = cluster.objects().entry::<Node>("", name)? else { return Ok(Vec::new()) };
    let labels = entry.labels();
    Ok(LABELS.into_iter().filter_map(|key| Some((key.to_owned(), labels.get(key)?.clone()))).collect())
}

fn copy(target: &mut Option<BTreeMap<String, String>>, labels: Vec<(String, String)>) {
    if !labels.is_empty() {
        target.get_or_insert_default().extend(labels);
    }
}
