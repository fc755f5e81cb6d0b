//! Whether the claims of a StatefulSet go with it: owner references say so, and the garbage collector does the rest.

use api::cached::Pod;
use client::Resource;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::owners::controller_reference;

fn refers_to<K: Resource>(reference: &OwnerReference, owner: &K) -> bool {
    reference.api_version == K::API_VERSION
        && reference.kind == K::KIND
        && Some(&reference.name) == owner.metadata().name.as_ref()
}

/// The owners that the claim of `pod` should have. `is_wanted` says whether the pod's ordinal is within the replicas.
pub(super) fn owners(claim: &ObjectMeta, set: &StatefulSet, pod: &Pod, is_wanted: bool) -> Vec<OwnerReference> {
    let present = claim.owner_references.iter().flatten();
    let (ours, mut others): (Vec<_>, Vec<_>) =
        present.cloned().partition(|reference| refers_to(reference, set) || refers_to(reference, pod));
    drop(ours);
    // A claim that something else manages is left to it.
    if others.iter().any(|reference| reference.controller == Some(true)) {
        return others;
    }
    let policy = set.spec.as_ref().and_then(|spec| spec.persistent_volume_claim_retention_policy.as_ref());
    let deletes = |when: Option<&str>| when == Some("Delete");
    let when_deleted = deletes(policy.and_then(|policy| policy.when_deleted.as_deref()));
    let when_scaled = deletes(policy.and_then(|policy| policy.when_scaled.as_deref()));
    if when_scaled && !is_wanted {
        others.push(controller_reference(pod));
    } else if when_deleted {
        others.push(controller_reference(set));
    }
    others
}

/// A claim that goes with an earlier pod of this name: the next pod waits until it is gone.
pub(super) fn is_doomed(claim: &PersistentVolumeClaim, pod_name: &str) -> bool {
    let owners = claim.metadata.owner_references.iter().flatten();
    claim.metadata.deletion_timestamp.is_some()
        || owners.into_iter().any(|owner| owner.kind == "Pod" && owner.api_version == "v1" && owner.name == pod_name)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::{StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec};

    use super::*;

    #[test]
    fn claims_go_with_whom_the_policy_says() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("db-0".into());
        pod.metadata.uid = Some("pod".into());
        let set = |deleted: &str, scaled: &str| {
            let policy = StatefulSetPersistentVolumeClaimRetentionPolicy {
                when_deleted: Some(deleted.into()),
                when_scaled: Some(scaled.into()),
            };
            let spec = StatefulSetSpec {
                persistent_volume_claim_retention_policy: Some(policy),
                ..StatefulSetSpec::default()
            };
            let mut set = StatefulSet { spec: Some(spec), ..StatefulSet::default() };
            set.metadata.name = Some("db".into());
            set.metadata.uid = Some("set".into());
            set
        };
        let claim =
            |owners: &[OwnerReference]| ObjectMeta { owner_references: Some(owners.to_vec()), ..ObjectMeta::default() };
        let stranger = OwnerReference { uid: "other".into(), controller: Some(true), ..OwnerReference::default() };
        let stale = OwnerReference { uid: "earlier".into(), ..controller_reference(&pod) };
        for (deleted, scaled, present, is_wanted, expected) in [
            ("Retain", "Retain", vec![], true, vec![]),
            ("Retain", "Retain", vec![], false, vec![]),
            ("Delete", "Retain", vec![], true, vec!["set"]),
            ("Delete", "Retain", vec![], false, vec!["set"]),
            ("Retain", "Delete", vec![], true, vec![]),
            ("Retain", "Delete", vec![], false, vec!["pod"]),
            ("Delete", "Delete", vec![], true, vec!["set"]),
            ("Delete", "Delete", vec![], false, vec!["pod"]),
            ("Retain", "Retain", vec![controller_reference(&set("", ""))], true, vec![]),
            ("Delete", "Delete", vec![stale], true, vec!["set"]),
            ("Delete", "Delete", vec![stranger], true, vec!["other"]),
        ] {
            let owners = owners(&claim(&present), &set(deleted, scaled), &pod, is_wanted);
            let uids: Vec<_> = owners.iter().map(|owner| owner.uid.as_str()).collect();
            assert_eq!(uids, expected, "{deleted} {scaled} {present:?} {is_wanted}");
        }
    }
}
