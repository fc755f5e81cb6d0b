//! Volumes that only one pod may use: claims of that access mode, and disks of cloud providers on one node.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Volume;

use crate::cluster::{Cluster, NodeId, View};
use crate::framework::{Basis, Event, Plugin, Point, Rejection, State};
use crate::plugins::volume_binding::uses;
use crate::pod::PodInfo;

const NAME: &str = "VolumeRestrictions";

pub(crate) struct VolumeRestrictions;

impl Plugin for VolumeRestrictions {
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
        let disks: Vec<Volume> = pod.volumes().iter().filter(|volume| is_disk(volume)).cloned().collect();
        let mut exclusive = BTreeSet::new();
        for (name, _) in pod.claims().filter(|(_, is_made_for_pod)| !is_made_for_pod) {
            let Some(claim) = cluster.volumes.claim(&format!("{}/{name}", pod.namespace())) else {
                let reason = format!("persistentvolumeclaim {name:?} not found");
                return Err(Rejection::new(NAME, reason).unresolvable());
            };
            let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_ref());
            if modes.is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteOncePod")) {
                exclusive.insert(name);
            }
        }
        let is_used = |name: &&String| cluster.is_claim_used(&format!("{}/{name}", pod.namespace()));
        let conflicts = exclusive.iter().filter(is_used).count() as i64;
        if disks.is_empty() && conflicts == 0 {
            return Ok(None);
        }
        Ok(Some(Box::new(Restrictions { namespace: pod.namespace().to_owned(), disks, exclusive, conflicts })))
    }

    fn may_help(&self, pod: &PodInfo, event: &Event) -> bool {
        match event {
            Event::NodeAdded(_) => true,
            Event::ClaimAdded(claim) | Event::ClaimChanged(claim) => uses(pod, claim),
            Event::PodDeleted(gone) => {
                let shares_claim = gone.namespace() == pod.namespace()
                    && gone.claims().any(|(name, _)| pod.claims().any(|(other, _)| other == name));
                shares_claim || pod.volumes().iter().any(|volume| is_disk(volume) && conflicts(volume, gone))
            }
            _ => false,
        }
    }
}

struct Restrictions {
    namespace: String,
    disks: Vec<Volume>,
    /// Claims that one pod alone may use, and how many of them are used.
    exclusive: BTreeSet<String>,
    conflicts: i64,
}

impl State for Restrictions {
    fn refresh(&mut self, _cluster: &mut Cluster) -> bool {
        false
    }

    fn suppose(&mut self, _cluster: &mut Cluster, _node: NodeId, pod: &PodInfo, sign: i64) {
        if pod.namespace() == self.namespace {
            self.conflicts += sign * pod.claims().filter(|(name, _)| self.exclusive.contains(name)).count() as i64;
        }
    }

    fn filter(&self, _cluster: &Cluster, node: &View<'_>) -> u8 {
        if self.disks.iter().any(|disk| node.pods.iter().any(|pod| conflicts(disk, pod))) {
            1
        } else if self.conflicts > 0 {
            2
        } else {
            0
        }
    }

    fn explain(&self, code: u8) -> Rejection {
        let reason = match code {
            1 => "node(s) had no available disk",
            _ => {
                "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
            }
        };
        Rejection::new(NAME, reason)
    }
}

fn is_disk(volume: &Volume) -> bool {
    volume.gce_persistent_disk.is_some()
        || volume.aws_elastic_block_store.is_some()
        || volume.rbd.is_some()
        || volume.iscsi.is_some()
}

/// Whether a pod has the disk in a way that excludes another user.
fn conflicts(disk: &Volume, pod: &PodInfo) -> bool {
    let both_read = |one: Option<bool>, other: Option<bool>| one == Some(true) && other == Some(true);
    pod.volumes().iter().any(|held| {
        let gce = disk.gce_persistent_disk.as_ref().zip(held.gce_persistent_disk.as_ref());
        let ebs = disk.aws_elastic_block_store.as_ref().zip(held.aws_elastic_block_store.as_ref());
        let iscsi = disk.iscsi.as_ref().zip(held.iscsi.as_ref());
        let rbd = disk.rbd.as_ref().zip(held.rbd.as_ref());
        gce.is_some_and(|(a, b)| a.pd_name == b.pd_name && !both_read(a.read_only, b.read_only))
            || ebs.is_some_and(|(a, b)| a.volume_id == b.volume_id)
            || iscsi.is_some_and(|(a, b)| a.iqn == b.iqn && !both_read(a.read_only, b.read_only))
            || rbd.is_some_and(|(a, b)| {
                a.monitors.iter().any(|monitor| b.monitors.contains(monitor))
                    && a.pool.as_deref().unwrap_or("rbd") == b.pool.as_deref().unwrap_or("rbd")
                    && a.image == b.image
                    && !both_read(a.read_only, b.read_only)
            })
    })
}
