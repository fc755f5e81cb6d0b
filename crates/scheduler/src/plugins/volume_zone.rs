//! A volume that lives in a zone or region takes its pod there.

use crate::cluster::{Cluster, View, claim_class};
use crate::framework::{Basis, Event, Plugin, Point, Rejection, State};
use crate::plugins::volume_binding::uses;
use crate::pod::PodInfo;

const NAME: &str = "VolumeZone";
const TOPOLOGY_LABELS: [(&str, &str); 4] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
];

pub(crate) struct VolumeZone;

impl Plugin for VolumeZone {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter]
    }

    fn basis(&self) -> Basis {
        Basis::Cluster
    }

    fn prepare(&self, pod: &PodInfo, cluster: &mut Cluster) -> Result<Option<Box<dyn State>>, Rejection> {
        let reject = |reason: String| Rejection::new(NAME, reason).unresolvable();
        let mut zones = Vec::new();
        for (name, _) in pod.claims().filter(|(_, is_made_for_pod)| !is_made_for_pod) {
            let volumes = &cluster.volumes;
            let claim = volumes.claim(&format!("{}/{name}", pod.namespace()));
            let claim = claim.ok_or_else(|| reject(format!("persistentvolumeclaim {name:?} not found")))?;
            let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
            if volume.is_empty() {
                let class = claim_class(claim);
                if class.is_empty() {
                    return Err(reject("PersistentVolumeClaim had no pv name and storageClass name".into()));
                }
                let found = volumes.class(class);
                let found = found.ok_or_else(|| reject(format!("storageclass.storage.k8s.io {class:?} not found")))?;
                match found.volume_binding_mode.as_deref() {
                    None => return Err(reject(format!("VolumeBindingMode not set for StorageClass {class:?}"))),
                    Some("WaitForFirstConsumer") => continue,
                    Some(_) => return Err(reject("PersistentVolume had no name".into())),
                }
            }
            let found = volumes.volume(volume);
            let found = found.ok_or_else(|| reject(format!("persistentvolume {volume:?} not found")))?;
            for (key, stable) in TOPOLOGY_LABELS {
                if let Some(value) = found.metadata.labels.as_ref().and_then(|labels| labels.get(key)) {
                    let values = value.split("__").map(|zone| zone.trim().to_owned()).collect();
                    zones.push(Zone { key, stable, values });
                }
            }
        }
        Ok((!zones.is_empty()).then(|| Box::new(Zones(zones)) as Box<dyn State>))
    }

    fn may_help(&self, pod: &PodInfo, event: &Event) -> bool {
        match event {
            Event::ClaimAdded(claim) | Event::ClaimChanged(claim) => uses(pod, claim),
            Event::StorageClassAdded(class) => class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
            Event::VolumeAdded | Event::VolumeChanged | Event::NodeAdded(_) => true,
            Event::NodeChanged { change, .. } => change.labels,
            _ => false,
        }
    }
}

/// Where one of the volumes is.
struct Zone {
    key: &'static str,
    /// The label that took the place of `key`.
    stable: &'static str,
    values: Vec<String>,
}

struct Zones(Vec<Zone>);

impl State for Zones {
    fn refresh(&mut self, _cluster: &mut Cluster) -> bool {
        false
    }

    fn filter(&self, _cluster: &Cluster, node: &View<'_>) -> u8 {
        // A node outside every topology is in a cluster without zones.
        if TOPOLOGY_LABELS.iter().all(|(key, _)| node.row.label(key).is_none()) {
            return 0;
        }
        let is_there = |zone: &Zone| {
            let value = node.row.label(zone.key).or_else(|| node.row.label(zone.stable));
            value.is_some_and(|value| zone.values.iter().any(|zone| zone == value))
        };
        u8::from(!self.0.iter().all(is_there))
    }

    fn explain(&self, _code: u8) -> Rejection {
        Rejection::new(NAME, "node(s) had no available volume zone").unresolvable()
    }
}
