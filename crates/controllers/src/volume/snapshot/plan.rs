//! The next step of a snapshot: pure. Each step changes one object, whose event brings the snapshot back.

use std::sync::Arc;

use api::meta::Meta as _;
use api::quantity::{Format, Quantity};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::kinds::{
    API_VERSION, SnapshotError, SnapshotStatus, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent,
};
use super::secret::SecretReference;

pub(super) const SOURCE_FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
pub(super) const BOUND_FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
pub(in crate::volume) const CONTENT_FINALIZER: &str =
    "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
pub(super) const CLAIM_FINALIZER: &str = "snapshot.storage.kubernetes.io/pvc-as-source-protection";
pub(in crate::volume) const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
const DEFAULT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";

pub(super) struct Seen<'a> {
    pub(super) snapshot: &'a VolumeSnapshot,
    /// The content that the snapshot names, or that was made for it.
    pub(super) content: Option<&'a VolumeSnapshotContent>,
    pub(super) claim: Option<&'a PersistentVolumeClaim>,
    pub(super) volume: Option<&'a PersistentVolume>,
    pub(super) classes: &'a [Arc<VolumeSnapshotClass>],
    /// Claims are being made from the snapshot.
    pub(super) is_restoring: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    Nothing,
    /// On the snapshot: those that it should have.
    SetFinalizers(Vec<String>),
    SetClass(String),
    ProtectClaim,
    CreateContent(Value),
    /// The content learns which snapshot it is for.
    BindContent,
    MarkContent,
    DeleteContent,
    SetStatus(SnapshotStatus),
    /// It waits, and says so.
    Wait {
        reason: &'static str,
        message: String,
    },
    /// It cannot go on as it is: an event, and an error in its status.
    Fail {
        reason: &'static str,
        message: String,
    },
}

fn has(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|known| known == finalizer)
}

/// The name of the content that is made for a snapshot.
pub(super) fn content_name(snapshot: &VolumeSnapshot) -> String {
    format!("snapcontent-{}", snapshot.metadata.uid())
}

/// Whether the driver is still to read the claim's volume.
pub(super) fn is_unfinished(snapshot: &VolumeSnapshot) -> bool {
    let status = snapshot.status.as_ref();
    snapshot.metadata.deletion_timestamp.is_none()
        && snapshot.spec.source.persistent_volume_claim_name.is_some()
        && status.and_then(|status| status.creation_time.as_ref()).is_none()
}

pub(super) fn next(seen: &Seen<'_>) -> Step {
    let snapshot = seen.snapshot;
    let ours = [SOURCE_FINALIZER, BOUND_FINALIZER];
    if snapshot.metadata.deletion_timestamp.is_some() {
        return if ours.iter().any(|name| has(&snapshot.metadata, name)) { remove(seen) } else { Step::Nothing };
    }
    if !ours.iter().all(|name| has(&snapshot.metadata, name)) {
        let mut finalizers = snapshot.metadata.finalizers.clone().unwrap_or_default();
        finalizers.retain(|name| !ours.contains(&name.as_str()));
        finalizers.extend(ours.map(str::to_owned));
        return Step::SetFinalizers(finalizers);
    }
    match &snapshot.spec.source.volume_snapshot_content_name {
        Some(name) => given(seen, name),
        None => taken(seen),
    }
}

/// Whether a snapshot is on its way out and no content of its own keeps it.
pub(super) fn lets_go(snapshot: &VolumeSnapshot, content: Option<&VolumeSnapshotContent>) -> bool {
    snapshot.metadata.deletion_timestamp.is_some() && !content.is_some_and(|content| is_bound_to(content, snapshot))
}

fn remove(seen: &Seen<'_>) -> Step {
    if seen.is_restoring {
        let message = "Snapshot is being used to restore a PVC".to_owned();
        return Step::Wait { reason: "SnapshotDeletePending", message };
    }
    if let Some(content) = seen.content.filter(|content| is_bound_to(content, seen.snapshot)) {
        let annotations = content.metadata.annotations.as_ref();
        if annotations.is_none_or(|annotations| !annotations.contains_key(BEING_DELETED)) {
            return Step::MarkContent;
        }
        match content.spec.deletion_policy.as_str() {
            "Delete" if content.metadata.deletion_timestamp.is_none() => return Step::DeleteContent,
            "Delete" => return Step::Nothing, // the driver deletes first; the content's event comes
            _ => {}
        }
    }
    let mut finalizers = seen.snapshot.metadata.finalizers.clone().unwrap_or_default();
    finalizers.retain(|name| name != SOURCE_FINALIZER && name != BOUND_FINALIZER);
    Step::SetFinalizers(finalizers)
}

fn is_bound_to(content: &VolumeSnapshotContent, snapshot: &VolumeSnapshot) -> bool {
    let reference = &content.spec.volume_snapshot_ref;
    reference.name == snapshot.metadata.name
        && reference.namespace == snapshot.metadata.namespace
        && reference.uid.is_some()
        && reference.uid == snapshot.metadata.uid
}

/// From a content that somebody made.
fn given(seen: &Seen<'_>, name: &str) -> Step {
    let Some(content) = seen.content else {
        return Step::Fail { reason: "SnapshotContentMissing", message: "VolumeSnapshotContent is missing".into() };
    };
    if content.spec.source.snapshot_handle.is_none() {
        return Step::Fail {
            reason: "SnapshotContentMismatch",
            message: "VolumeSnapshotContent is dynamically provisioned while expecting a pre-provisioned one".into(),
        };
    }
    let reference = &content.spec.volume_snapshot_ref;
    let is_named =
        reference.name == seen.snapshot.metadata.name && reference.namespace == seen.snapshot.metadata.namespace;
    match reference.uid.as_deref() {
        None | Some("") if is_named => Step::BindContent,
        _ if is_bound_to(content, seen.snapshot) => report(seen, content),
        _ => Step::Fail {
            reason: "SnapshotContentMisbound",
            message: format!("VolumeSnapshotContent [{name}] is bound to a different snapshot"),
        },
    }
}

/// Taken of a claim's volume.
fn taken(seen: &Seen<'_>) -> Step {
    let snapshot = seen.snapshot;
    if let Some(content) = seen.content {
        return match is_bound_to(content, snapshot) {
            true => report(seen, content),
            false => Step::Fail {
                reason: "SnapshotContentMisbound",
                message: format!(
                    "VolumeSnapshotContent [{}] is bound to a different snapshot",
                    content.metadata.name()
                ),
            },
        };
    }
    if snapshot.status.as_ref().is_some_and(|status| status.bound_volume_snapshot_content_name.is_some()) {
        return Step::Fail { reason: "SnapshotContentMissing", message: "VolumeSnapshotContent is missing".into() };
    }
    match source(seen) {
        Ok(step) => step,
        Err((reason, error)) => {
            let what = match reason {
                "SetDefaultSnapshotClassFailed" => "Failed to set default snapshot class",
                _ => "Failed to create snapshot content",
            };
            Step::Fail { reason, message: format!("{what} with error {error}") }
        }
    }
}

fn source(seen: &Seen<'_>) -> Result<Step, (&'static str, String)> {
    let failed = |error: String| ("SnapshotContentCreationFailed", error);
    let name = seen.snapshot.spec.source.persistent_volume_claim_name.as_deref().unwrap_or_default();
    let claim = seen.claim.ok_or_else(|| failed(format!("persistentvolumeclaim {name:?} not found")))?;
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    let volume = seen.volume.filter(|_| bound).ok_or_else(|| {
        failed(format!("the PVC {name} is not yet bound to a PV, will not attempt to take a snapshot"))
    })?;
    let volume_name = volume.metadata.name();
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    let csi = csi.ok_or_else(|| failed(format!("cannot find CSI PersistentVolumeSource for volume {volume_name}")))?;
    let Some(class) = seen.snapshot.spec.volume_snapshot_class_name.as_deref() else {
        return default_class(seen.classes, &csi.driver).map(Step::SetClass);
    };
    let found = seen.classes.iter().find(|known| known.metadata.name.as_deref() == Some(class));
    let found = found.ok_or_else(|| {
        failed(format!("failed to retrieve snapshot class {class} from the informer: volumesnapshotclass.snapshot.storage.k8s.io {class:?} not found"))
    })?;
    if found.driver != csi.driver {
        return Err(failed(format!(
            "snapshot class {class} is of driver {}, and volume {volume_name} of driver {}",
            found.driver, csi.driver
        )));
    }
    if !has(&claim.metadata, CLAIM_FINALIZER) {
        return match claim.metadata.deletion_timestamp {
            None => Ok(Step::ProtectClaim),
            Some(_) => Err(failed(format!("the PVC {name} is being deleted"))),
        };
    }
    let mode = volume.spec.as_ref().and_then(|spec| spec.volume_mode.clone());
    let (meta, content) = (&seen.snapshot.metadata, content_name(seen.snapshot));
    let secret = SecretReference::of(found.parameters.as_ref(), &content, seen.snapshot);
    let secret = secret.map_err(|error| failed(error.to_string()))?;
    Ok(Step::CreateContent(json!({
        "apiVersion": API_VERSION, "kind": "VolumeSnapshotContent",
        "metadata": {
            "name": content, "finalizers": [CONTENT_FINALIZER],
            "annotations": secret.map_or_else(|| json!({}), |secret| secret.annotations()),
        },
        "spec": {
            "deletionPolicy": found.deletion_policy, "driver": csi.driver, "volumeSnapshotClassName": class,
            "source": { "volumeHandle": csi.volume_handle },
            "sourceVolumeMode": mode.unwrap_or_else(|| "Filesystem".into()),
            "volumeSnapshotRef": {
                "apiVersion": API_VERSION, "kind": "VolumeSnapshot", "namespace": meta.namespace, "name": meta.name, "uid": meta.uid,
            },
        },
    })))
}

fn default_class(classes: &[Arc<VolumeSnapshotClass>], driver: &str) -> Result<String, (&'static str, String)> {
    let is_default = |class: &&Arc<VolumeSnapshotClass>| {
        let annotations = class.metadata.annotations.as_ref();
        class.driver == driver && annotations.and_then(|all| all.get(DEFAULT_CLASS)).is_some_and(|it| it == "true")
    };
    let defaults: Vec<_> = classes.iter().filter(is_default).collect();
    match defaults.as_slice() {
        [] => Err(("SetDefaultSnapshotClassFailed", "cannot find default snapshot class".into())),
        [class] => Ok(class.metadata.name().to_owned()),
        several => {
            Err(("SetDefaultSnapshotClassFailed", format!("{} default snapshot classes were found", several.len())))
        }
    }
}

/// What the driver says of the content is what the snapshot shows.
fn report(seen: &Seen<'_>, content: &VolumeSnapshotContent) -> Step {
    let said = content.status.clone().unwrap_or_default();
    let created = said.creation_time.and_then(|time| Timestamp::from_nanosecond(i128::from(time)).ok());
    let wanted = SnapshotStatus {
        bound_volume_snapshot_content_name: content.metadata.name.clone(),
        creation_time: created.map(api::time::rfc3339),
        ready_to_use: Some(said.ready_to_use.unwrap_or(false)),
        restore_size: said.restore_size.map(|size| Quantity::new(size, Format::BinarySI).to_string()),
        error: said.error,
    };
    match &seen.snapshot.status {
        Some(shown) if *shown == wanted => Step::Nothing,
        _ => Step::SetStatus(wanted),
    }
}

/// The status of a snapshot that cannot go on.
pub(super) fn failed(snapshot: &VolumeSnapshot, message: &str, now: Timestamp) -> Option<SnapshotStatus> {
    let mut status = snapshot.status.clone().unwrap_or_default();
    if status.error.as_ref().and_then(|error| error.message.as_deref()) == Some(message) {
        return None;
    }
    let time = Some(api::time::rfc3339(now));
    status.error = Some(SnapshotError { time, message: Some(message.to_owned()) });
    status.ready_to_use = Some(false);
    Some(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(source: Value, change: impl FnOnce(&mut VolumeSnapshot)) -> VolumeSnapshot {
        let mut snapshot: VolumeSnapshot = serde_json::from_value(json!({
            "metadata": { "name": "s", "namespace": "default", "uid": "u", "finalizers": [SOURCE_FINALIZER, BOUND_FINALIZER] },
            "spec": { "source": source, "volumeSnapshotClassName": "fast" },
        }))
        .unwrap();
        change(&mut snapshot);
        snapshot
    }

    fn content(uid: Option<&str>, change: Value) -> VolumeSnapshotContent {
        let mut value = json!({
            "metadata": { "name": "snapcontent-u" },
            "spec": { "deletionPolicy": "Delete", "driver": "d", "source": { "snapshotHandle": "h" },
                "volumeSnapshotRef": { "namespace": "default", "name": "s", "uid": uid } },
        });
        for (key, change) in change.as_object().unwrap() {
            for (name, change) in change.as_object().unwrap() {
                value[key][name] = change.clone();
            }
        }
        serde_json::from_value(value).unwrap()
    }

    fn class(name: &str, driver: &str, is_default: bool) -> Arc<VolumeSnapshotClass> {
        let annotations = json!({ DEFAULT_CLASS: is_default.to_string() });
        let value = json!({ "metadata": { "name": name, "annotations": annotations }, "driver": driver, "deletionPolicy": "Retain" });
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn claim(phase: &str, finalizers: &[&str]) -> PersistentVolumeClaim {
        serde_json::from_value(json!({ "metadata": { "name": "c", "finalizers": finalizers }, "spec": { "volumeName": "v" }, "status": { "phase": phase } }))
            .unwrap()
    }

    fn word(step: &Step) -> &'static str {
        match step {
            Step::Nothing => "nothing",
            Step::SetFinalizers(list) if list.is_empty() => "let go",
            Step::SetFinalizers(_) => "protect",
            Step::SetClass(_) => "class",
            Step::ProtectClaim => "protect claim",
            Step::CreateContent(_) => "create",
            Step::BindContent => "bind",
            Step::MarkContent => "mark",
            Step::DeleteContent => "delete",
            Step::SetStatus(_) => "status",
            Step::Wait { reason, .. } | Step::Fail { reason, .. } => reason,
        }
    }

    fn of_claim() -> Value {
        json!({ "persistentVolumeClaimName": "c" })
    }

    #[test]
    fn a_snapshot_is_taken_of_a_bound_claim() {
        let volume: PersistentVolume = serde_json::from_value(
            json!({ "metadata": { "name": "v" }, "spec": { "csi": { "driver": "d", "volumeHandle": "vol" } } }),
        )
        .unwrap();
        let folder: PersistentVolume =
            serde_json::from_value(json!({ "metadata": { "name": "v" }, "spec": { "hostPath": { "path": "/" } } }))
                .unwrap();
        let fast = [class("fast", "d", false)];
        let plain = |snapshot: &mut VolumeSnapshot| snapshot.metadata.finalizers = None;
        let unnamed = |snapshot: &mut VolumeSnapshot| snapshot.spec.volume_snapshot_class_name = None;
        let ready = claim("Bound", &[CLAIM_FINALIZER]);
        for (name, snapshot, claim, volume, classes, expected) in [
            ("new", snapshot(of_claim(), plain), None, None, vec![], "protect"),
            ("no claim", snapshot(of_claim(), |_| {}), None, None, fast.to_vec(), "SnapshotContentCreationFailed"),
            (
                "pending",
                snapshot(of_claim(), |_| {}),
                Some(claim("Pending", &[])),
                None,
                fast.to_vec(),
                "SnapshotContentCreationFailed",
            ),
            (
                "not csi",
                snapshot(of_claim(), |_| {}),
                Some(ready.clone()),
                Some(&folder),
                fast.to_vec(),
                "SnapshotContentCreationFailed",
            ),
            (
                "no default",
                snapshot(of_claim(), unnamed),
                Some(ready.clone()),
                Some(&volume),
                fast.to_vec(),
                "SetDefaultSnapshotClassFailed",
            ),
            (
                "default",
                snapshot(of_claim(), unnamed),
                Some(ready.clone()),
                Some(&volume),
                vec![class("other", "e", true), class("mine", "d", true)],
                "class",
            ),
            (
                "two defaults",
                snapshot(of_claim(), unnamed),
                Some(ready.clone()),
                Some(&volume),
                vec![class("a", "d", true), class("b", "d", true)],
                "SetDefaultSnapshotClassFailed",
            ),
            (
                "no class",
                snapshot(of_claim(), |_| {}),
                Some(ready.clone()),
                Some(&volume),
                vec![],
                "SnapshotContentCreationFailed",
            ),
            (
                "another driver",
                snapshot(of_claim(), |_| {}),
                Some(ready.clone()),
                Some(&volume),
                vec![class("fast", "e", false)],
                "SnapshotContentCreationFailed",
            ),
            (
                "unprotected",
                snapshot(of_claim(), |_| {}),
                Some(claim("Bound", &[])),
                Some(&volume),
                fast.to_vec(),
                "protect claim",
            ),
            ("ready", snapshot(of_claim(), |_| {}), Some(ready.clone()), Some(&volume), fast.to_vec(), "create"),
        ] {
            let seen = Seen {
                snapshot: &snapshot,
                content: None,
                claim: claim.as_ref(),
                volume,
                classes: &classes,
                is_restoring: false,
            };
            assert_eq!(word(&next(&seen)), expected, "{name}: {:?}", next(&seen));
        }
    }

    #[test]
    fn security_a_content_says_which_secret_deletes_it() {
        let volume: PersistentVolume = serde_json::from_value(
            json!({ "metadata": { "name": "v" }, "spec": { "csi": { "driver": "d", "volumeHandle": "vol" } } }),
        )
        .unwrap();
        let (snapshot, claim) = (snapshot(of_claim(), |_| {}), claim("Bound", &[CLAIM_FINALIZER]));
        let key = |what: &str| format!("csi.storage.k8s.io/snapshotter-secret-{what}");
        let step = |parameters: Value| {
            let mut class = VolumeSnapshotClass::clone(&class("fast", "d", false));
            class.parameters = serde_json::from_value(parameters).unwrap();
            let (claim, volume, classes) = (Some(&claim), Some(&volume), &[Arc::new(class)]);
            next(&Seen { snapshot: &snapshot, content: None, claim, volume, classes, is_restoring: false })
        };
        for (parameters, expected) in [
            (json!(null), json!({})),
            (
                json!({ key("name"): "key-${volumesnapshot.name}", key("namespace"): "storage" }),
                json!({
                    "snapshot.storage.kubernetes.io/deletion-secret-name": "key-s",
                    "snapshot.storage.kubernetes.io/deletion-secret-namespace": "storage",
                }),
            ),
        ] {
            let Step::CreateContent(content) = step(parameters) else { panic!("no content") };
            assert_eq!(content["metadata"]["annotations"], expected);
        }
        let Step::Fail { reason, message } = step(json!({ key("name"): "key" })) else { panic!("no failure") };
        assert_eq!(reason, "SnapshotContentCreationFailed");
        assert!(
            message.starts_with("Failed to create snapshot content with error failed to get name and"),
            "{message}"
        );
    }

    #[test]
    fn a_snapshot_shows_what_its_content_says() {
        let given = json!({ "volumeSnapshotContentName": "snapcontent-u" });
        let done = json!({ "status": { "readyToUse": true, "restoreSize": 1_073_741_824, "creationTime": 1_700_000_000_000_000_000_i64 } });
        for (name, source, content, expected) in [
            ("missing", given.clone(), None, "SnapshotContentMissing"),
            ("unbound", given.clone(), Some(content(None, json!({}))), "bind"),
            ("another's", given.clone(), Some(content(Some("x"), json!({}))), "SnapshotContentMisbound"),
            ("bound", given.clone(), Some(content(Some("u"), json!({}))), "status"),
            (
                "made for a claim",
                given,
                Some(content(Some("u"), json!({ "spec": { "source": { "volumeHandle": "v" } } }))),
                "SnapshotContentMismatch",
            ),
            ("taken", of_claim(), Some(content(Some("u"), done.clone())), "status"),
        ] {
            let snapshot = snapshot(source, |_| {});
            let seen = Seen {
                snapshot: &snapshot,
                content: content.as_ref(),
                claim: None,
                volume: None,
                classes: &[],
                is_restoring: false,
            };
            assert_eq!(word(&next(&seen)), expected, "{name}");
        }
        let taken = snapshot(of_claim(), |_| {});
        let content = content(Some("u"), done);
        let step = |snapshot: &VolumeSnapshot| {
            let (content, claim, volume) = (Some(&content), None, None);
            next(&Seen { snapshot, content, claim, volume, classes: &[], is_restoring: false })
        };
        let Step::SetStatus(status) = step(&taken) else { panic!("no status") };
        assert_eq!(status.restore_size.as_deref(), Some("1Gi"));
        assert_eq!(status.creation_time.as_deref(), Some("2023-11-14T22:13:20Z"));
        assert_eq!(status.ready_to_use, Some(true));
        assert!(is_unfinished(&taken));
        let shown = VolumeSnapshot { status: Some(status), ..taken };
        assert_eq!(step(&shown), Step::Nothing);
        assert!(!is_unfinished(&shown));
    }

    #[test]
    fn a_deleted_snapshot_takes_its_content_along_or_leaves_it() {
        let deleted = snapshot(of_claim(), |snapshot| {
            snapshot.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
        });
        let marked = json!({ "metadata": { "annotations": { BEING_DELETED: "yes" } } });
        let going = json!({ "metadata": { "annotations": { BEING_DELETED: "yes" }, "deletionTimestamp": "2024-01-01T00:00:00Z" } });
        let kept =
            json!({ "metadata": { "annotations": { BEING_DELETED: "yes" } }, "spec": { "deletionPolicy": "Retain" } });
        for (name, content, is_restoring, expected) in [
            ("in use", Some(content(Some("u"), json!({}))), true, "SnapshotDeletePending"),
            ("first", Some(content(Some("u"), json!({}))), false, "mark"),
            ("then", Some(content(Some("u"), marked)), false, "delete"),
            ("the driver's turn", Some(content(Some("u"), going)), false, "nothing"),
            ("retained", Some(content(Some("u"), kept)), false, "let go"),
            ("another's", Some(content(Some("x"), json!({}))), false, "let go"),
            ("gone", None, false, "let go"),
        ] {
            let seen = Seen {
                snapshot: &deleted,
                content: content.as_ref(),
                claim: None,
                volume: None,
                classes: &[],
                is_restoring,
            };
            assert_eq!(word(&next(&seen)), expected, "{name}");
        }
    }
}
