//! A node takes no more volumes of a CSI driver than the driver says it can.
//!
//! Counted are the volumes of pods on the node and whatever VolumeAttachments say is there, each volume once.

use std::collections::BTreeMap;

use api::meta::Meta as _;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::CSINode;

use crate::cluster::{Cluster, View, Volumes, claim_class};
use crate::framework::{Basis, Event, Plugin, Point, Rejection, State};
use crate::plugins::volume_binding::uses;
use crate::pod::PodInfo;

const NAME: &str = "NodeVolumeLimits";
/// The code of "too many"; those above it name a driver that is missing, and the last a claim.
const TOO_MANY: u8 = 1;
const NO_CLAIM: u8 = u8::MAX;

pub(crate) struct NodeVolumeLimits;

/// Volumes by what tells them apart, with their drivers.
type Drivers = BTreeMap<String, String>;

impl Plugin for NodeVolumeLimits {
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
        let (mut wanted, mut missing) = (Drivers::new(), None);
        for (name, is_made_for_pod) in pod.claims() {
            let key = format!("{}/{name}", pod.namespace());
            let Some(claim) = cluster.volumes.claim(&key) else {
                // Said of each node: whoever binds claims says before what this one waits for.
                missing = Some(format!("looking up PVC {key}: persistentvolumeclaim {name:?} not found"));
                break;
            };
            if is_made_for_pod && !claim.metadata.is_controlled_by(&pod.uid) {
                let reason = format!("PVC {key} was not created for pod {} (pod is not owner)", pod.key);
                return Err(Rejection::new(NAME, reason).unresolvable());
            }
            wanted.extend(counted(claim, &cluster.volumes));
        }
        wanted.extend(inline(pod));
        if wanted.is_empty() && missing.is_none() {
            return Ok(None);
        }
        let mut required: Vec<String> =
            wanted.values().filter(|name| cluster.volumes.is_required(name)).cloned().collect();
        required.sort();
        required.dedup();
        required.truncate(usize::from(NO_CLAIM - TOO_MANY - 1));
        Ok(Some(Box::new(Limits { wanted, required, missing })))
    }

    fn may_help(&self, pod: &PodInfo, event: &Event) -> bool {
        match event {
            Event::CsiNodeAdded => true,
            Event::CsiNodeChanged { old, new } => has_grown(old, new),
            Event::ClaimAdded(claim) => uses(pod, claim),
            Event::PodDeleted(gone) => has_volumes(gone),
            Event::AttachmentDeleted => has_volumes(pod),
            _ => false,
        }
    }
}

fn has_volumes(pod: &PodInfo) -> bool {
    pod.claims().next().is_some() || inline(pod).next().is_some()
}

/// Whether some driver takes more than before, or is new.
fn has_grown(old: &CSINode, new: &CSINode) -> bool {
    new.spec.drivers.iter().any(|driver| {
        let count = |driver: &k8s_openapi::api::storage::v1::CSINodeDriver| driver.allocatable.as_ref()?.count;
        match old.spec.drivers.iter().find(|before| before.name == driver.name) {
            None => true,
            Some(before) => match (count(before), count(driver)) {
                (Some(before), Some(now)) => now > before,
                (Some(_), None) => true,
                (None, _) => false,
            },
        }
    })
}

/// What a claim's volume counts as. One that is not made yet counts for the provisioner of its class.
fn counted(claim: &PersistentVolumeClaim, volumes: &Volumes) -> Option<(String, String)> {
    let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
    if let Some(volume) = volumes.volume(name) {
        let csi = api::volume_migration::csi_source(volume)?;
        return Some((format!("{}/{}", csi.driver, csi.volume_handle), csi.driver.clone()));
    }
    let provisioner = &volumes.class(claim_class(claim))?.provisioner;
    // No handle of a driver begins with a space.
    Some((format!("{provisioner}/ {}", client::object_key(claim)), provisioner.clone()))
}

/// Inline volumes of drivers that were part of Kubernetes once count for those that took the work over.
fn inline(pod: &PodInfo) -> impl Iterator<Item = (String, String)> + '_ {
    pod.volumes().iter().filter_map(|volume| {
        let csi = api::volume_migration::inline(volume, pod.namespace()).ok()??.spec?.csi?;
        Some((format!("{}/{}", csi.driver, csi.volume_handle), csi.driver))
    })
}

struct Limits {
    wanted: Drivers,
    /// Drivers without which no pod is to come to a node.
    required: Vec<String>,
    /// What is said of a claim that is not there.
    missing: Option<String>,
}

impl State for Limits {
    fn refresh(&mut self, _cluster: &mut Cluster) -> bool {
        false
    }

    fn filter(&self, cluster: &Cluster, node: &View<'_>) -> u8 {
        if self.missing.is_some() {
            return NO_CLAIM;
        }
        let volumes = &cluster.volumes;
        let drivers = volumes.csi_node(node.name()).map(|node| node.spec.drivers.as_slice()).unwrap_or_default();
        let is_missing = |name: &String| !drivers.iter().any(|driver| driver.name == *name);
        if let Some(at) = self.required.iter().position(is_missing) {
            return u8::try_from(at).unwrap_or_default() + TOO_MANY + 1;
        }
        let limits: BTreeMap<&str, i32> = drivers
            .iter()
            .filter_map(|driver| Some((driver.name.as_str(), driver.allocatable.as_ref()?.count?)))
            .filter(|(name, _)| self.wanted.values().any(|wanted| wanted == name))
            .collect();
        if limits.is_empty() {
            return 0;
        }
        let mut present: Drivers = node
            .pods
            .iter()
            .flat_map(|pod| pod.claims().map(move |(name, _)| format!("{}/{name}", pod.namespace())))
            .filter_map(|key| counted(volumes.claim(&key)?, volumes))
            .chain(node.pods.iter().flat_map(|pod| inline(pod)))
            .collect();
        present.extend(volumes.attached(node.name()));
        let exceeds = |(driver, limit): (&&str, &i32)| {
            let has = present.values().filter(|name| name == driver).count();
            let new = self.wanted.iter().filter(|(id, name)| name == driver && !present.contains_key(*id)).count();
            new > 0 && has + new > usize::try_from(*limit).unwrap_or_default()
        };
        if limits.iter().any(exceeds) { TOO_MANY } else { 0 }
    }

    fn explain(&self, code: u8) -> Rejection {
        if let Some(missing) = &self.missing {
            return Rejection::new(NAME, missing.clone()).unresolvable();
        }
        match usize::from(code - TOO_MANY).checked_sub(1).and_then(|at| self.required.get(at)) {
            Some(driver) => {
                Rejection::new(NAME, format!("{driver} CSI driver is not installed on the node")).unresolvable()
            }
            None => Rejection::new(NAME, "node(s) exceed max volume count"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::cached::Pod;
    use k8s_openapi::api::core::v1::{Node, PersistentVolume};
    use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass, VolumeAttachment};
    use serde_json::{Value, json};

    use super::*;
    use crate::config::Configuration;
    use crate::offline::{Offline, Outcome};

    fn made<K: api::read::Read>(value: Value) -> Arc<K> {
        Arc::new(api::codec::from_value(&value).unwrap())
    }

    /// One node whose driver takes two volumes; bound claims `a` to `d`, and `later`, which has no volume yet.
    fn cluster(limit: Option<i32>) -> Offline {
        let mut cluster = Offline::new(&Configuration::default(), 1).unwrap();
        let node: Arc<Node> = made(
            json!({ "metadata": { "name": "n" }, "status": { "allocatable": { "cpu": "8", "memory": "8Gi", "pods": "50" } } }),
        );
        cluster.set_node(node);
        let volumes = &mut cluster.cluster.volumes;
        let drivers = json!([{ "name": "d", "nodeID": "n", "allocatable": { "count": limit } }]);
        volumes.set_csi_node("n", Some(made(json!({ "metadata": { "name": "n" }, "spec": { "drivers": drivers } }))));
        let class =
            json!({ "metadata": { "name": "s" }, "provisioner": "d", "volumeBindingMode": "WaitForFirstConsumer" });
        volumes.set_class("s", Some(made::<StorageClass>(class)));
        for name in ["a", "b", "c", "d"] {
            let spec = json!({ "csi": { "driver": "d", "volumeHandle": name }, "storageClassName": "s", "accessModes": ["ReadWriteOnce"] });
            volumes.set_volume(
                name,
                Some(made::<PersistentVolume>(json!({ "metadata": { "name": name }, "spec": spec }))),
            );
            let meta = json!({ "name": name, "namespace": "default", "annotations": { "pv.kubernetes.io/bind-completed": "yes" } });
            let claim = json!({ "metadata": meta, "spec": { "volumeName": name, "storageClassName": "s" } });
            volumes.set_claim(&format!("default/{name}"), Some(made(claim)));
        }
        let later =
            json!({ "metadata": { "name": "later", "namespace": "default" }, "spec": { "storageClassName": "s" } });
        volumes.set_claim("default/later", Some(made(later)));
        cluster
    }

    fn pod(name: &str, claims: &[&str]) -> Arc<Pod> {
        let volume = |claim: &&str| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } });
        let volumes: Vec<_> = claims.iter().map(volume).collect();
        made(json!({
            "metadata": { "name": name, "namespace": "default", "uid": name },
            "spec": { "containers": [{ "name": "c" }], "volumes": volumes },
        }))
    }

    fn attachment(name: &str, volume: &str) -> Arc<VolumeAttachment> {
        let spec = json!({ "attacher": "d", "nodeName": "n", "source": { "persistentVolumeName": volume } });
        made(json!({ "metadata": { "name": name }, "spec": spec }))
    }

    #[test]
    fn volumes_are_counted_once_wherever_they_are_seen() {
        for (limit, present, attached, wanted, fits) in [
            (Some(2), vec![], vec![], vec!["a", "b"], true),
            (Some(2), vec![], vec![], vec!["a", "b", "c"], false),
            (Some(2), vec!["a"], vec![], vec!["b"], true),
            (Some(2), vec!["a", "b"], vec![], vec!["c"], false),
            (Some(2), vec!["a", "b"], vec![], vec!["a"], true),
            (Some(2), vec!["a", "b"], vec![], vec!["later"], false),
            (Some(2), vec!["a"], vec!["a"], vec!["b"], true),
            (Some(2), vec!["a"], vec!["c"], vec!["b"], false),
            (Some(2), vec!["a"], vec!["c"], vec!["c"], true),
            (Some(0), vec![], vec![], vec!["a"], false),
            (Some(0), vec![], vec![], vec![], true),
            (None, vec!["a", "b"], vec![], vec!["c"], true),
        ] {
            let mut cluster = cluster(limit);
            for claim in &present {
                let mut pod = Pod::clone(&pod(&format!("on-{claim}"), &[claim]));
                pod.spec.as_mut().unwrap().node_name = Some("n".into());
                cluster.set_pod(&Arc::new(pod));
            }
            for volume in &attached {
                cluster.cluster.volumes.set_attachment(volume, Some(attachment(volume, volume)));
            }
            let outcome = cluster.schedule(pod("new", &wanted));
            let case = format!("{limit:?} {present:?} {attached:?} {wanted:?}: {outcome:?}");
            match &outcome {
                Outcome::Placed { .. } => assert!(fits, "{case}"),
                Outcome::Unplaced { message } => {
                    assert!(!fits && message.contains("1 node(s) exceed max volume count"), "{case}");
                }
                Outcome::Preempts { .. } => panic!("{case}"),
            }
        }
    }

    #[test]
    fn an_attachment_that_is_gone_counts_no_more() {
        let mut cluster = cluster(Some(1));
        cluster.cluster.volumes.set_attachment("x", Some(attachment("x", "b")));
        assert!(matches!(cluster.schedule(pod("new", &["a"])), Outcome::Unplaced { .. }));
        cluster.cluster.volumes.set_attachment("x", None);
        assert!(matches!(cluster.schedule(pod("new", &["a"])), Outcome::Placed { .. }));
    }

    #[test]
    fn inline_volumes_count_for_the_driver_that_took_them_over() {
        let using = |name: &str, disk: &str| -> Arc<Pod> {
            let volume = json!({ "name": "v", "awsElasticBlockStore": { "volumeID": disk } });
            made(json!({
                "metadata": { "name": name, "namespace": "default", "uid": name },
                "spec": { "containers": [{ "name": "c" }], "volumes": [volume] },
            }))
        };
        let mut cluster = cluster(None);
        let drivers = json!([{ "name": "ebs.csi.aws.com", "nodeID": "n", "allocatable": { "count": 2 } }]);
        let node = json!({ "metadata": { "name": "n" }, "spec": { "drivers": drivers } });
        cluster.cluster.volumes.set_csi_node("n", Some(made(node)));
        let mut here = Pod::clone(&using("here", "vol-1"));
        here.spec.as_mut().unwrap().node_name = Some("n".into());
        cluster.set_pod(&Arc::new(here));
        let inline = json!({ "csi": { "driver": "ebs.csi.aws.com", "volumeHandle": "vol-2" } });
        let source = json!({ "inlineVolumeSpec": inline });
        let spec = json!({ "attacher": "ebs.csi.aws.com", "nodeName": "n", "source": source });
        let attachment = made(json!({ "metadata": { "name": "x" }, "spec": spec }));
        cluster.cluster.volumes.set_attachment("x", Some(attachment));
        assert!(matches!(cluster.schedule(using("new", "vol-3")), Outcome::Unplaced { .. }));
        assert!(
            matches!(cluster.schedule(using("same", "aws:///vol-2")), Outcome::Placed { .. }),
            "it is there already"
        );
    }

    /// Each plug-in has its own words for a claim that is not there, and the binder's come first.
    #[test]
    fn a_claim_that_is_still_to_be_made_is_waited_for() {
        let volume = json!({ "name": "v", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } });
        let pod: Arc<Pod> = made(json!({
            "metadata": { "name": "new", "namespace": "default", "uid": "new" },
            "spec": { "containers": [{ "name": "c" }], "volumes": [volume] },
        }));
        let waits = "waiting for ephemeral volume controller to create the persistentvolumeclaim \"new-v\"";
        let without = "profiles: [{plugins: {multiPoint: {disabled: [{name: VolumeBinding}]}}}]";
        let own = "1 looking up PVC default/new-v: persistentvolumeclaim \"new-v\" not found";
        for (profiles, expected) in [("", waits), (without, own)] {
            let header = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
            let configuration = Configuration::parse(&format!("{header}{profiles}")).unwrap();
            let mut cluster = Offline::new(&configuration, 1).unwrap();
            let status = json!({ "allocatable": { "cpu": "8", "memory": "8Gi", "pods": "50" } });
            cluster.set_node(made(json!({ "metadata": { "name": "n" }, "status": status })));
            let Outcome::Unplaced { message } = cluster.schedule(pod.clone()) else { panic!("placed") };
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_driver_may_have_to_be_there_first() {
        let mut cluster = cluster(None);
        let driver = json!({ "metadata": { "name": "d" }, "spec": { "preventPodSchedulingIfMissing": true } });
        cluster.cluster.volumes.set_driver("d", Some(made::<CSIDriver>(driver)));
        cluster.cluster.volumes.set_csi_node("n", None);
        let Outcome::Unplaced { message } = cluster.schedule(pod("new", &["a"])) else { panic!("placed") };
        assert!(message.contains("d CSI driver is not installed on the node"), "{message}");
    }

    #[test]
    fn events_that_make_room_wake_the_pod() {
        let node = |count: Option<i32>| -> Arc<CSINode> {
            let drivers = json!([{ "name": "d", "nodeID": "n", "allocatable": { "count": count } }]);
            made(json!({ "metadata": { "name": "n" }, "spec": { "drivers": drivers } }))
        };
        let catalogue = Offline::new(&Configuration::default(), 1).unwrap().cluster.catalogue;
        let info = |name: &str, claims: &[&str]| Arc::new(PodInfo::pending(pod(name, claims), &catalogue));
        let claim = |name: &str| -> Arc<PersistentVolumeClaim> {
            made(json!({ "metadata": { "name": name, "namespace": "default" } }))
        };
        let waiting = info("new", &["a"]);
        for (event, expected) in [
            (Event::CsiNodeAdded, true),
            (Event::CsiNodeChanged { old: node(Some(1)), new: node(Some(2)) }, true),
            (Event::CsiNodeChanged { old: node(Some(1)), new: node(None) }, true),
            (Event::CsiNodeChanged { old: node(Some(2)), new: node(Some(1)) }, false),
            (Event::CsiNodeChanged { old: node(None), new: node(Some(1)) }, false),
            (Event::ClaimAdded(claim("a")), true),
            (Event::ClaimAdded(claim("b")), false),
            (Event::PodDeleted(info("gone", &["b"])), true),
            (Event::PodDeleted(info("gone", &[])), false),
            (Event::AttachmentDeleted, true),
            (Event::VolumeAdded, false),
        ] {
            assert_eq!(NodeVolumeLimits.may_help(&waiting, &event), expected, "{event:?}");
        }
    }
}
