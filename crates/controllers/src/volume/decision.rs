//! What happens to a claim and to a volume next: decided from what the caches show, never awaiting.

use std::sync::Arc;

use api::cached::Pod;
use api::meta::Meta as _;
use api::sort::CompactSort as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::matching::{best, claim_class, default_class, is_for, is_of_other_mode, unsuitable};
use super::protection::claims_of;
use crate::pods;

pub(super) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub(super) const BOUND_BY: &str = "pv.kubernetes.io/bound-by-controller";
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub(super) const PROVISIONER_NOTE: &str = "volume.kubernetes.io/storage-provisioner";
pub(super) const BETA_PROVISIONER_NOTE: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// On volumes that a removed plug-in made: the driver that has its work now.
const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// Kept volumes until their plug-in had deleted them.
const IN_TREE_FINALIZER: &str = "kubernetes.io/pv-controller";
/// What this binary provisioned before it had a driver: hostPath volumes, which stay readable and are still deleted. Claims of
/// its classes get volumes of the driver.
pub const LOCAL_PATH: &str = "cox.dev/local-path";
/// Provisioners that were part of Kubernetes start with this.
const IN_TREE: &str = "kubernetes.io/";
/// Those whose work CSI drivers have taken over (`csi-translation-lib`, v1.36, and our own).
const MIGRATED: [(&str, &str); 8] = [
    (LOCAL_PATH, api::node_volumes::DRIVER),
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/azure-file", "file.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
    ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
];

/// The removed plug-in whose work a driver has taken over.
pub(super) fn plugin_before(driver: &str) -> Option<&'static str> {
    let mut migrated = MIGRATED.iter().filter(|(old, _)| old.starts_with(IN_TREE));
    migrated.find(|(_, new)| *new == driver).map(|(old, _)| *old)
}

/// The driver that has the work of a removed plug-in now.
fn driver_after(plugin: &str) -> Option<&'static str> {
    let mut migrated = MIGRATED.iter().filter(|(old, _)| old.starts_with(IN_TREE));
    migrated.find(|(old, _)| *old == plugin).map(|(_, new)| *new)
}

/// Metadata as the sidecars of a driver must find it that has taken over the work of a removed plug-in: with its name on what that
/// has provisioned, and on nothing else (`updateMigrationAnnotations`, v1.36).
fn with_driver(meta: &ObjectMeta, provisioner: &str) -> ObjectMeta {
    let mut changed = meta.clone();
    match driver_after(provisioner) {
        Some(driver) => {
            changed.annotations.get_or_insert_default().insert(MIGRATED_TO.to_owned(), driver.to_owned());
        }
        None if annotation(meta, MIGRATED_TO).is_some_and(|noted| !noted.is_empty()) => {
            changed.annotations.get_or_insert_default().remove(MIGRATED_TO);
        }
        None => {}
    }
    changed
}

/// A volume that a removed plug-in made, as the driver's sidecars must find it: without its name none of them deletes the volume
/// (`updateVolumeMigrationAnnotationsAndFinalizers`, v1.36). None if it is so already.
pub(super) fn handed_to_driver(volume: &PersistentVolume) -> Option<PersistentVolume> {
    let maker = annotation(&volume.metadata, PROVISIONED_BY)?;
    let mut metadata = with_driver(&volume.metadata, maker);
    if let Some(finalizers) = metadata.finalizers.as_mut().filter(|_| driver_after(maker).is_some()) {
        finalizers.retain(|finalizer| finalizer != IN_TREE_FINALIZER);
    }
    (metadata != volume.metadata).then(|| PersistentVolume { metadata, ..volume.clone() })
}

/// The same of a claim that waits for a removed plug-in, or has got its volume by one (`updateClaimMigrationAnnotations`, v1.36).
pub(super) fn claim_handed_to_driver(claim: &PersistentVolumeClaim) -> Option<PersistentVolumeClaim> {
    let provisioner = annotation(&claim.metadata, PROVISIONER_NOTE);
    let provisioner = provisioner.or_else(|| annotation(&claim.metadata, BETA_PROVISIONER_NOTE))?;
    let metadata = with_driver(&claim.metadata, provisioner);
    (metadata != claim.metadata).then(|| PersistentVolumeClaim { metadata, ..claim.clone() })
}

/// What the binder sees besides the claim.
pub(super) struct Seen<'a> {
    pub(super) volumes: &'a [Arc<PersistentVolume>],
    pub(super) classes: &'a [Arc<StorageClass>],
    /// Pods that use the claim.
    pub(super) pods: &'a [Arc<Pod>],
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum ForClaim {
    Bind(Arc<PersistentVolume>),
    /// It was bound, and what it was bound to is gone or another's.
    Lose {
        reason: &'static str,
        message: &'static str,
    },
    /// It stays as it is; events are normal unless they warn.
    Wait(Option<Notice>),
    GiveClass(Arc<StorageClass>),
    /// By an external provisioner of this name.
    HandOver {
        provisioner: String,
    },
    /// Nothing that anybody but a person can put right: what the claim is told, and the error.
    Refuse {
        message: String,
        why: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) warns: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

fn normal(reason: &'static str, message: impl Into<String>) -> ForClaim {
    ForClaim::Wait(Some(Notice { warns: false, reason, message: message.into() }))
}

fn warning(reason: &'static str, message: impl Into<String>) -> ForClaim {
    ForClaim::Wait(Some(Notice { warns: true, reason, message: message.into() }))
}

pub(super) fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotation(key)
}

pub(super) fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

fn is_free(volume: &PersistentVolume) -> bool {
    volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none())
}

pub(super) fn for_claim(claim: &PersistentVolumeClaim, seen: &Seen<'_>) -> ForClaim {
    let named = |name: &str| seen.volumes.iter().find(|volume| volume.metadata.name.as_deref() == Some(name));
    if annotation(&claim.metadata, BIND_COMPLETED).is_some() {
        let lose = |reason, message| ForClaim::Lose { reason, message };
        let Some(name) = volume_name(claim) else {
            let message = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
            return lose("ClaimLost", message);
        };
        return match named(name) {
            None => lose("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!"),
            Some(volume) if is_free(volume) || is_owned(volume, claim) => ForClaim::Bind(volume.clone()),
            Some(_) => lose("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly"),
        };
    }
    if let Some(name) = volume_name(claim) {
        return match named(name) {
            None => ForClaim::Wait(None),
            Some(volume) if is_for(volume, claim) => ForClaim::Bind(volume.clone()),
            Some(volume) if is_free(volume) => match unsuitable(volume, claim) {
                None => ForClaim::Bind(volume.clone()),
                Some(why) => warning("VolumeMismatch", format!("Cannot bind to requested volume {name:?}: {why}")),
            },
            Some(volume) => {
                let message = format!("volume {name:?} already bound to a different claim.");
                match annotation(&claim.metadata, BOUND_BY) {
                    None => warning("FailedBinding", message),
                    Some(_) => {
                        let (key, owner) = (pods::key(claim), claim_key(volume).unwrap_or_default());
                        let what = format!("invalid binding of claim {key:?} to volume {name:?}");
                        ForClaim::Refuse { message, why: format!("{what}: volume already claimed by {owner:?}") }
                    }
                }
            }
        };
    }
    without_volume(claim, seen)
}

fn without_volume(claim: &PersistentVolumeClaim, seen: &Seen<'_>) -> ForClaim {
    let name = claim_class(claim).unwrap_or_default();
    let class = seen.classes.iter().find(|class| class.metadata.name.as_deref() == Some(name));
    let is_delayed = class.is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
    let node = annotation(&claim.metadata, SELECTED_NODE);
    // The scheduler alone chooses for claims that wait for it; it reserves what it has chosen.
    if let Some(volume) = best(claim, seen.volumes).filter(|volume| !is_delayed || is_for(volume, claim)) {
        return ForClaim::Bind(volume);
    }
    if let Some(default) = default_class(seen.classes).filter(|_| claim_class(claim).is_none()) {
        return ForClaim::GiveClass(default);
    }
    let Some(class) = class else {
        return match name {
            "" => normal("FailedBinding", "no persistent volumes available for this claim and no storage class is set"),
            _ => warning("ProvisioningFailed", format!("storageclass.storage.k8s.io {name:?} not found")),
        };
    };
    if is_delayed && node.is_none() {
        return wait_for_consumer(claim, seen.pods);
    }
    let provisioner = class.provisioner.as_str();
    match MIGRATED.iter().find(|(old, _)| *old == provisioner) {
        Some((_, driver)) => ForClaim::HandOver { provisioner: (*driver).to_owned() },
        None if provisioner.starts_with(IN_TREE) => {
            warning("ProvisioningFailed", format!("no volume plugin matched name: {provisioner}"))
        }
        None => ForClaim::HandOver { provisioner: provisioner.to_owned() },
    }
}

fn wait_for_consumer(claim: &PersistentVolumeClaim, pods: &[Arc<Pod>]) -> ForClaim {
    let key = pods::key(claim);
    let is_waiting =
        |pod: &&Arc<Pod>| pods::node_name(pod).is_empty() && !pods::is_finished(pod) && claims_of(pod).contains(&key);
    let mut names: Vec<_> = pods.iter().filter(is_waiting).filter_map(|pod| pod.metadata.name.as_deref()).collect();
    names.compact_sort();
    match names.as_slice() {
        [] => normal("WaitForFirstConsumer", "waiting for first consumer to be created before binding"),
        [name] => normal("WaitForPodScheduled", format!("waiting for pod {name} to be scheduled")),
        names => normal("WaitForPodScheduled", format!("waiting for pods {} to be scheduled", names.join(","))),
    }
}

/// The volume names the claim, with its uid.
fn is_owned(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    reference.is_some_and(|reference| reference.uid.is_some() && reference.uid == claim.metadata.uid)
        || is_for(volume, claim)
}

/// `namespace/name` of the claim that a volume names.
pub(super) fn claim_key(volume: &PersistentVolume) -> Option<String> {
    let reference = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some(format!(
        "{}/{}",
        reference.namespace.as_deref().unwrap_or_default(),
        reference.name.as_deref().unwrap_or_default()
    ))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ForVolume {
    Available,
    Bound,
    /// The claim's own turn completes the binding.
    WakeClaim,
    /// It never will: one is a device, and the other a file system.
    Mismatch,
    /// Nobody has it any more.
    Release,
    /// The claim has another volume.
    Unbind,
}

/// `claim` is the one that the volume names, if it is there with the uid that the volume names.
pub(super) fn for_volume(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> ForVolume {
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    match reference.map(|reference| reference.uid.as_deref().unwrap_or_default()) {
        None | Some("") => return ForVolume::Available,
        Some(_) => {}
    }
    let Some(claim) = claim else { return ForVolume::Release };
    match volume_name(claim) {
        None if is_of_other_mode(volume, claim) => ForVolume::Mismatch,
        None => ForVolume::WakeClaim,
        name if name == volume.metadata.name.as_deref() => ForVolume::Bound,
        Some(_) if annotation(&volume.metadata, PROVISIONED_BY).is_some() && policy(volume) == "Delete" => {
            ForVolume::Release
        }
        Some(_) => ForVolume::Unbind,
    }
}

fn policy(volume: &PersistentVolume) -> &str {
    let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    policy.unwrap_or("Retain")
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reclaim {
    /// It is kept, or its own provisioner deletes it.
    Leave,
    /// A hostPath volume that this binary made.
    Delete,
    /// The volume becomes Failed, with an event.
    Fail { reason: &'static str, message: String },
}

/// What becomes of a released volume.
pub(super) fn reclaim(volume: &PersistentVolume) -> Reclaim {
    let name = volume.metadata.name();
    let is_migrated = annotation(&volume.metadata, MIGRATED_TO).is_some_and(|driver| !driver.is_empty());
    let is_csi = volume.spec.as_ref().is_some_and(|spec| spec.csi.is_some());
    match (policy(volume), annotation(&volume.metadata, PROVISIONED_BY)) {
        _ if is_migrated => Reclaim::Leave,
        ("Retain", _) => Reclaim::Leave,
        ("Recycle", _) => {
            Reclaim::Fail { reason: "VolumeFailedRecycle", message: "No recycler plugin found for the volume!".into() }
        }
        ("Delete", Some(LOCAL_PATH)) => Reclaim::Delete,
        // Its provisioner deletes it whoever made the object, as long as it is Released.
        ("Delete", None) if is_csi => Reclaim::Leave,
        ("Delete", Some(provisioner))
            if !provisioner.starts_with(IN_TREE) || MIGRATED.iter().any(|(old, _)| *old == provisioner) =>
        {
            Reclaim::Leave
        }
        ("Delete", _) => Reclaim::Fail {
            reason: "VolumeFailedDelete",
            message: format!(
                "error getting deleter volume plugin for volume {name:?}: no deletable volume plugin matched"
            ),
        },
        _ => Reclaim::Fail {
            reason: "VolumeUnknownReclaimPolicy",
            message: "Volume has unrecognized PersistentVolumeReclaimPolicy".into(),
        },
    }
}

/// Whether a volume is released and its folder to be deleted.
pub(super) fn is_to_delete(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> bool {
    for_volume(volume, claim) == ForVolume::Release && reclaim(volume) == Reclaim::Delete
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volume(name: &str, change: Value) -> Arc<PersistentVolume> {
        let mut value = json!({
            "metadata": { "name": name },
            "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "" },
            "status": { "phase": "Available" },
        });
        merge(&mut value, change);
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn claim(change: Value) -> PersistentVolumeClaim {
        let mut value = json!({
            "metadata": { "name": "c", "namespace": "default", "uid": "u" },
            "spec": { "resources": { "requests": { "storage": "1Gi" } }, "accessModes": ["ReadWriteOnce"], "storageClassName": "" },
        });
        merge(&mut value, change);
        serde_json::from_value(value).unwrap()
    }

    fn merge(value: &mut Value, change: Value) {
        match (value, change) {
            (Value::Object(value), Value::Object(change)) => {
                for (key, change) in change {
                    merge(value.entry(key).or_insert(Value::Null), change);
                }
            }
            (value, change) => *value = change,
        }
    }

    fn class(name: &str, provisioner: &str, mode: &str) -> Arc<StorageClass> {
        Arc::new(
            serde_json::from_value(
                json!({ "metadata": { "name": name }, "provisioner": provisioner, "volumeBindingMode": mode }),
            )
            .unwrap(),
        )
    }

    fn reserved(uid: &str) -> Value {
        json!({ "spec": { "claimRef": { "namespace": "default", "name": "c", "uid": uid } } })
    }

    #[test]
    fn security_a_volume_that_was_kept_or_given_away_is_not_deleted() {
        let made = |change: Value| {
            let mut value = json!({
                "metadata": { "annotations": { PROVISIONED_BY: LOCAL_PATH } },
                "spec": { "persistentVolumeReclaimPolicy": "Delete", "claimRef": { "namespace": "default", "name": "c", "uid": "u" } },
                "status": { "phase": "Released" },
            });
            merge(&mut value, change);
            volume("v", value)
        };
        let owner = claim(json!({ "spec": { "volumeName": "v" } }));
        assert!(is_to_delete(&made(json!({})), None));
        assert!(!is_to_delete(&made(json!({})), Some(&owner)), "bound again");
        assert!(!is_to_delete(&made(json!({ "spec": { "claimRef": null } })), None), "free again");
        assert!(!is_to_delete(&made(json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } })), None), "kept");
    }

    fn elsewhere() -> Value {
        json!({ "spec": { "claimRef": { "namespace": "default", "name": "other", "uid": "o" } } })
    }

    /// The decision in a word, and what is said about it.
    fn summary(decision: ForClaim) -> (&'static str, String) {
        match decision {
            ForClaim::Bind(volume) => ("bind", volume.metadata.name.clone().unwrap()),
            ForClaim::Lose { reason, .. } => ("lose", reason.into()),
            ForClaim::Wait(None) => ("wait", String::new()),
            ForClaim::Wait(Some(notice)) => {
                (if notice.warns { "warn" } else { "say" }, format!("{}: {}", notice.reason, notice.message))
            }
            ForClaim::GiveClass(class) => ("class", class.metadata.name.clone().unwrap()),
            ForClaim::HandOver { provisioner } => ("hand over", provisioner),
            ForClaim::Refuse { why, .. } => ("refuse", why),
        }
    }

    #[test]
    fn claims_that_were_bound() {
        let bound = |name: Value| {
            claim(json!({ "metadata": { "annotations": { BIND_COMPLETED: "yes" } }, "spec": { "volumeName": name } }))
        };
        for (claim, volumes, expected) in [
            (bound(json!("v")), vec![volume("v", reserved("u"))], ("bind", "v")),
            (bound(json!("v")), vec![volume("v", json!({}))], ("bind", "v")),
            (bound(json!("v")), vec![], ("lose", "ClaimLost")),
            (bound(json!(null)), vec![volume("v", json!({}))], ("lose", "ClaimLost")),
            (bound(json!("v")), vec![volume("v", elsewhere())], ("lose", "ClaimMisbound")),
            (bound(json!("v")), vec![volume("v", reserved("former"))], ("lose", "ClaimMisbound")),
        ] {
            let seen = Seen { volumes: &volumes, classes: &[], pods: &[] };
            let (what, detail) = summary(for_claim(&claim, &seen));
            assert_eq!((what, detail.as_str()), expected);
        }
    }

    #[test]
    fn claims_that_name_a_volume() {
        let with = |change: Value| {
            let mut claim = claim(change);
            claim.spec.as_mut().unwrap().volume_name = Some("v".into());
            claim
        };
        let mismatch = |why: &str| format!("VolumeMismatch: Cannot bind to requested volume \"v\": {why}");
        let block = json!({ "spec": { "volumeMode": "Block" } });
        let gold = json!({ "spec": { "volumeAttributesClassName": "gold" } });
        let exclusive = json!({ "spec": { "accessModes": ["ReadWriteOncePod"] } });
        let misbound = "invalid binding of claim \"default/c\" to volume \"v\"";
        for (claim, volumes, expected) in [
            (with(json!({})), vec![], ("wait", String::new())),
            (with(json!({})), vec![volume("v", json!({}))], ("bind", "v".into())),
            (with(json!({})), vec![volume("v", reserved(""))], ("bind", "v".into())),
            (
                with(json!({ "spec": { "resources": { "requests": { "storage": "2Gi" } } } })),
                vec![volume("v", json!({}))],
                ("warn", mismatch("requested PV is too small")),
            ),
            (
                with(json!({ "spec": { "storageClassName": "fast" } })),
                vec![volume("v", json!({}))],
                ("warn", mismatch("storageClassName does not match")),
            ),
            (with(block.clone()), vec![volume("v", json!({}))], ("warn", mismatch("incompatible volumeMode"))),
            (with(exclusive.clone()), vec![volume("v", json!({}))], ("warn", mismatch("incompatible accessMode"))),
            (with(exclusive.clone()), vec![volume("v", exclusive)], ("bind", "v".into())),
            (
                with(gold.clone()),
                vec![volume("v", json!({}))],
                ("warn", mismatch("volumeAttributesClassName does not match")),
            ),
            (with(gold.clone()), vec![volume("v", gold)], ("bind", "v".into())),
            (
                with(json!({})),
                vec![volume("v", elsewhere())],
                ("warn", "FailedBinding: volume \"v\" already bound to a different claim.".into()),
            ),
            (
                with(json!({ "metadata": { "annotations": { BOUND_BY: "yes" } } })),
                vec![volume("v", elsewhere())],
                ("refuse", format!("{misbound}: volume already claimed by \"default/other\"")),
            ),
        ] {
            let seen = Seen { volumes: &volumes, classes: &[], pods: &[] };
            assert_eq!(summary(for_claim(&claim, &seen)), expected);
        }
    }

    #[test]
    fn claims_that_wait_or_are_provisioned() {
        let of = |class: &str| claim(json!({ "spec": { "storageClassName": class } }));
        let chosen = |class: &str| {
            claim(
                json!({ "metadata": { "annotations": { SELECTED_NODE: "n" } }, "spec": { "storageClassName": class } }),
            )
        };
        let mut unset = claim(json!({}));
        unset.spec.as_mut().unwrap().storage_class_name = None;
        let mut default = StorageClass::clone(&class("default", "csi.example", "Immediate"));
        default.metadata.annotations =
            Some([("storageclass.kubernetes.io/is-default-class".to_owned(), "true".to_owned())].into());
        let classes = [
            class("now", "csi.example", "Immediate"),
            class("later", "csi.example", "WaitForFirstConsumer"),
            class("folder", LOCAL_PATH, "WaitForFirstConsumer"),
            class("none", "kubernetes.io/no-provisioner", "Immediate"),
            class("ebs", "kubernetes.io/aws-ebs", "Immediate"),
            Arc::new(default),
        ];
        let pod = |name: &str, node: &str| -> Arc<Pod> {
            Arc::new(
                api::codec::from_value(&json!({
                    "metadata": { "name": name, "namespace": "default" },
                    "spec": { "nodeName": node, "containers": [], "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "c" } }] },
                }))
                .unwrap(),
            )
        };
        let later = |name: &str, change: Value| {
            let mut change = change;
            merge(&mut change, json!({ "spec": { "storageClassName": "later" } }));
            volume(name, change)
        };
        let no_volume = "FailedBinding: no persistent volumes available for this claim and no storage class is set";
        for (claim, volumes, pods, expected) in [
            (of(""), vec![], vec![], ("say", no_volume)),
            (unset, vec![], vec![], ("class", "default")),
            (
                of("gone"),
                vec![],
                vec![],
                ("warn", "ProvisioningFailed: storageclass.storage.k8s.io \"gone\" not found"),
            ),
            (of("now"), vec![], vec![], ("hand over", "csi.example")),
            (of("ebs"), vec![], vec![], ("hand over", "ebs.csi.aws.com")),
            (
                of("none"),
                vec![],
                vec![],
                ("warn", "ProvisioningFailed: no volume plugin matched name: kubernetes.io/no-provisioner"),
            ),
            (
                of("later"),
                vec![later("v", json!({}))],
                vec![],
                ("say", "WaitForFirstConsumer: waiting for first consumer to be created before binding"),
            ),
            (of("later"), vec![later("v", reserved("u"))], vec![], ("bind", "v")),
            (
                of("later"),
                vec![],
                vec![pod("a", ""), pod("run", "n")],
                ("say", "WaitForPodScheduled: waiting for pod a to be scheduled"),
            ),
            (
                of("later"),
                vec![],
                vec![pod("b", ""), pod("a", "")],
                ("say", "WaitForPodScheduled: waiting for pods a,b to be scheduled"),
            ),
            (chosen("later"), vec![], vec![pod("a", "")], ("hand over", "csi.example")),
            (chosen("folder"), vec![], vec![], ("hand over", "local.cox")),
        ] {
            let seen = Seen { volumes: &volumes, classes: &classes, pods: &pods };
            let (what, detail) = summary(for_claim(&claim, &seen));
            assert_eq!((what, detail.as_str()), expected);
        }
    }

    #[test]
    fn volumes_follow_their_claims() {
        let dynamic = |uid: &str| {
            let mut change = reserved(uid);
            let note = json!({ "metadata": { "annotations": { PROVISIONED_BY: "csi.example" } }, "spec": { "persistentVolumeReclaimPolicy": "Delete" } });
            merge(&mut change, note);
            volume("v", change)
        };
        let on = |name: &str| claim(json!({ "spec": { "volumeName": name } }));
        for (volume, claim, expected) in [
            (volume("v", json!({})), None, ForVolume::Available),
            (volume("v", reserved("")), None, ForVolume::Available),
            (volume("v", reserved("u")), None, ForVolume::Release),
            (volume("v", reserved("u")), Some(claim(json!({}))), ForVolume::WakeClaim),
            (
                volume("v", reserved("u")),
                Some(claim(json!({ "spec": { "volumeMode": "Block" } }))),
                ForVolume::Mismatch,
            ),
            (volume("v", reserved("u")), Some(on("v")), ForVolume::Bound),
            (volume("v", reserved("u")), Some(on("w")), ForVolume::Unbind),
            (dynamic("u"), Some(on("w")), ForVolume::Release),
            (dynamic("u"), Some(on("v")), ForVolume::Bound),
        ] {
            assert_eq!(for_volume(&volume, claim.as_ref()), expected, "{volume:?}");
        }
    }

    #[test]
    fn released_volumes_are_reclaimed_by_their_makers() {
        let of = |policy: &str, by: Option<&str>| {
            let annotations = by.map(|by| json!({ PROVISIONED_BY: by }));
            reclaim(&volume(
                "v",
                json!({ "metadata": { "annotations": annotations }, "spec": { "persistentVolumeReclaimPolicy": policy } }),
            ))
        };
        assert_eq!(of("Retain", Some(LOCAL_PATH)), Reclaim::Leave);
        assert_eq!(of("Delete", Some(LOCAL_PATH)), Reclaim::Delete);
        assert_eq!(of("Delete", Some("csi.example")), Reclaim::Leave);
        assert_eq!(of("Delete", Some("kubernetes.io/gce-pd")), Reclaim::Leave);
        let failed = |reclaim: Reclaim| match reclaim {
            Reclaim::Fail { reason, .. } => reason,
            _ => "",
        };
        assert_eq!(failed(of("Delete", None)), "VolumeFailedDelete");
        assert_eq!(failed(of("Recycle", None)), "VolumeFailedRecycle");
        assert_eq!(failed(of("Burn", None)), "VolumeUnknownReclaimPolicy");
        for (annotations, expected) in
            [(json!(null), Reclaim::Leave), (json!({ MIGRATED_TO: "csi.example" }), Reclaim::Leave)]
        {
            let made = json!({
                "metadata": { "annotations": annotations },
                "spec": { "persistentVolumeReclaimPolicy": "Delete", "csi": { "driver": "csi.example", "volumeHandle": "h" } },
            });
            assert_eq!(reclaim(&volume("v", made)), expected, "{annotations}");
        }
    }

    #[test]
    fn volumes_of_removed_plugins_are_their_successors() {
        let made = |by: &str, more: Value| {
            let mut change = json!({ "metadata": { "annotations": { PROVISIONED_BY: by }, "finalizers": [IN_TREE_FINALIZER, "other"] } });
            merge(&mut change, more);
            volume("v", change)
        };
        for (maker, expected) in [
            ("kubernetes.io/aws-ebs", Some("ebs.csi.aws.com")),
            ("kubernetes.io/host-path", None),
            (LOCAL_PATH, None),
            ("csi.example", None),
        ] {
            let changed = handed_to_driver(&made(maker, json!({})));
            let driver = changed.as_ref().and_then(|volume| annotation(&volume.metadata, MIGRATED_TO));
            assert_eq!(driver, expected, "{maker}");
            assert_eq!(
                changed.and_then(|volume| volume.metadata.finalizers),
                expected.map(|_| vec!["other".to_owned()])
            );
        }
        let done = json!({ "metadata": { "annotations": { MIGRATED_TO: "ebs.csi.aws.com" }, "finalizers": null } });
        assert_eq!(handed_to_driver(&made("kubernetes.io/aws-ebs", done)), None, "once");
        assert_eq!(handed_to_driver(&volume("v", json!({}))), None);
        // Nobody else's is.
        let other = json!({ "metadata": { "annotations": { MIGRATED_TO: "ebs.csi.aws.com" }, "finalizers": null } });
        let changed = handed_to_driver(&made("csi.example", other)).unwrap();
        assert_eq!(annotation(&changed.metadata, MIGRATED_TO), None);
        assert_eq!(plugin_before("ebs.csi.aws.com"), Some("kubernetes.io/aws-ebs"));
        assert_eq!(plugin_before(api::node_volumes::DRIVER), None);
    }

    #[test]
    fn claims_of_removed_plugins_are_their_successors() {
        for (annotations, expected) in [
            (json!({ PROVISIONER_NOTE: "kubernetes.io/aws-ebs" }), Some(Some("ebs.csi.aws.com"))),
            (json!({ BETA_PROVISIONER_NOTE: "kubernetes.io/gce-pd" }), Some(Some("pd.csi.storage.gke.io"))),
            (json!({ PROVISIONER_NOTE: "ebs.csi.aws.com", BETA_PROVISIONER_NOTE: "kubernetes.io/aws-ebs" }), None),
            (json!({ PROVISIONER_NOTE: "csi.example", MIGRATED_TO: "ebs.csi.aws.com" }), Some(None)),
            (json!({ PROVISIONER_NOTE: "kubernetes.io/aws-ebs", MIGRATED_TO: "ebs.csi.aws.com" }), None),
            (json!({ MIGRATED_TO: "ebs.csi.aws.com" }), None),
            (json!(null), None),
        ] {
            let claim = claim(json!({ "metadata": { "annotations": annotations } }));
            let changed = claim_handed_to_driver(&claim);
            let noted = changed.as_ref().map(|claim| annotation(&claim.metadata, MIGRATED_TO));
            assert_eq!(noted, expected, "{annotations}");
        }
    }
}
