//! Reading and writing the facts that a Deployment keeps on its ReplicaSets: hash, revision, sizes.

use std::collections::BTreeMap;

use api::meta::Meta as _;
use api::sort::CompactCollect as _;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::int_or_percent::{Round, resolve};
use crate::owners::controller_reference;

pub(super) const HASH_LABEL: &str = "pod-template-hash";
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
pub(super) const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub(super) const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
pub(super) const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
pub(super) const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// About a hundred revisions.
const MAX_HISTORY_CHARS: usize = 2000;

/// A Deployment's annotations that are not copied to its ReplicaSets.
const NOT_COPIED: [&str; 6] = [LAST_APPLIED, REVISION, REVISION_HISTORY, DESIRED_REPLICAS, MAX_REPLICAS, ROLLBACK_TO];

pub(super) fn annotation<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.annotation(name)
}

fn number(meta: &ObjectMeta, name: &str) -> Option<i32> {
    annotation(meta, name)?.parse().ok()
}

pub(super) fn revision(set: &ReplicaSet) -> i64 {
    annotation(&set.metadata, REVISION).and_then(|text| text.parse().ok()).unwrap_or_default()
}

pub(super) fn desired_replicas(set: &ReplicaSet) -> Option<i32> {
    number(&set.metadata, DESIRED_REPLICAS)
}

pub(super) fn max_replicas(set: &ReplicaSet) -> Option<i32> {
    number(&set.metadata, MAX_REPLICAS)
}

pub(super) fn size(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

pub(super) fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or_default()
}

pub(super) fn actual(set: &ReplicaSet) -> i32 {
    set.status.as_ref().map_or(0, |status| status.replicas)
}

pub(super) fn name(meta: &ObjectMeta) -> &str {
    meta.name()
}

/// Age first, name as the tie-breaker.
pub(super) fn by_age(set: &ReplicaSet) -> (Option<jiff::Timestamp>, &str) {
    (set.metadata.creation_timestamp.as_ref().map(|time| time.0), name(&set.metadata))
}

pub(super) fn same_template(left: &PodTemplateSpec, right: &PodTemplateSpec) -> bool {
    let without_hash = |template: &PodTemplateSpec| {
        let mut template = template.clone();
        let metadata = template.metadata.get_or_insert_default();
        if let Some(labels) = &mut metadata.labels {
            labels.remove(HASH_LABEL);
            if labels.is_empty() {
                metadata.labels = None;
            }
        }
        template
    };
    without_hash(left) == without_hash(right)
}

/// Writes the counts against which a later scaling is recognised. True if that changed anything.
pub(super) fn set_sizes(set: &mut ReplicaSet, desired: i32, max: i32) -> bool {
    let annotations = set.metadata.annotations.get_or_insert_default();
    let mut changed = false;
    for (name, value) in [(DESIRED_REPLICAS, desired), (MAX_REPLICAS, max)] {
        let value = value.to_string();
        if annotations.get(name) != Some(&value) {
            annotations.insert(name.into(), value);
            changed = true;
        }
    }
    changed
}

/// Brings the annotations of the new ReplicaSet up to date with its Deployment and with `new_revision`.
pub(super) fn set_new_annotations(set: &mut ReplicaSet, deployment: &Deployment, new_revision: i64) {
    let annotations = set.metadata.annotations.get_or_insert_default();
    for (key, value) in deployment.metadata.annotations.iter().flatten() {
        if !NOT_COPIED.contains(&key.as_str()) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    let old = annotations.get(REVISION).cloned();
    let old_number = old.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0);
    if old_number < new_revision {
        annotations.insert(REVISION.into(), new_revision.to_string());
        // A set that becomes current again (rollback) remembers the numbers it once had.
        if let Some(old) = old {
            let history = annotations.get(REVISION_HISTORY).cloned().unwrap_or_default();
            annotations.insert(REVISION_HISTORY.into(), longer_history(&history, &old));
        }
    }
}

fn longer_history(history: &str, revision: &str) -> String {
    if history.is_empty() {
        return revision.to_owned();
    }
    let mut history = format!("{history},{revision}");
    while history.len() > MAX_HISTORY_CHARS {
        let Some(cut) = history.find(',') else { break };
        history.drain(..=cut);
    }
    history
}

/// The annotations a Deployment takes back from the ReplicaSet it rolls back to.
pub(super) fn rolled_back_annotations(deployment: &Deployment, set: &ReplicaSet) -> BTreeMap<String, String> {
    let keep = deployment.metadata.annotations.iter().flatten().filter(|(key, _)| NOT_COPIED.contains(&key.as_str()));
    let take = set.metadata.annotations.iter().flatten().filter(|(key, _)| !NOT_COPIED.contains(&key.as_str()));
    keep.chain(take).map(|(key, value)| (key.clone(), value.clone())).compact_collect()
}

/// The ReplicaSet of the Deployment's present template, of `replicas` pods and not yet in the API.
pub(super) fn new_replica_set(
    deployment: &Deployment,
    spec: &DeploymentSpec,
    hash: &str,
    new_revision: i64,
) -> ReplicaSet {
    let mut template = spec.template.clone();
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(HASH_LABEL.into(), hash.into());
    let labels = labels.clone();
    let mut selector = spec.selector.clone();
    selector.match_labels.get_or_insert_default().insert(HASH_LABEL.into(), hash.into());
    // Names have at most 253 characters; the hash must survive.
    let base: String = name(&deployment.metadata).chars().take(253 - 1 - hash.len()).collect();
    let mut set = ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{base}-{hash}")),
            namespace: deployment.metadata.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![controller_reference(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(0),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    };
    set_new_annotations(&mut set, deployment, new_revision);
    set
}

/// A short, stable name for a template. The alphabet has no vowels and no look-alikes.
pub(crate) fn template_hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    // FNV-1a over the JSON form, whose maps are ordered.
    let mut hash: u32 = 0x811c_9dc5;
    let json = serde_json::to_vec(template).unwrap_or_default();
    let suffix = collisions.map(|count| count.to_le_bytes()).unwrap_or_default();
    for byte in json.iter().chain(&suffix) {
        hash = (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    }
    hash.to_string().bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()])).collect()
}

/// How many pods may exist above, and be missing below, the wanted number while rolling. Never both zero.
pub(super) fn surge_and_unavailable(spec: &DeploymentSpec) -> (i32, i32) {
    let replicas = spec.replicas.unwrap_or(1);
    if !is_rolling(spec) || replicas == 0 {
        return (if is_rolling(spec) { rolling_numbers(spec, replicas).0 } else { 0 }, 0);
    }
    let (surge, unavailable) = rolling_numbers(spec, replicas);
    (surge, unavailable.min(replicas))
}

fn rolling_numbers(spec: &DeploymentSpec, replicas: i32) -> (i32, i32) {
    let rolling = spec.strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
    let quarter = k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::String("25%".into());
    let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref()).unwrap_or(&quarter);
    let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref()).unwrap_or(&quarter);
    let (surge, unavailable) = (resolve(surge, replicas, Round::Up), resolve(unavailable, replicas, Round::Down));
    // Both together are a number of pods, too.
    let surge = surge.min(i32::MAX - replicas.max(0));
    // Both can round to zero; then nothing could ever move.
    (surge, if surge == 0 && unavailable == 0 { 1 } else { unavailable })
}

pub(super) fn is_rolling(spec: &DeploymentSpec) -> bool {
    spec.strategy.as_ref().and_then(|strategy| strategy.type_.as_deref()).unwrap_or("RollingUpdate") == "RollingUpdate"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_keeps_the_latest_revisions() {
        assert_eq!(longer_history("", "1"), "1");
        assert_eq!(longer_history("1,2", "3"), "1,2,3");
        let long = (1..=600).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
        let history = longer_history(&long, "601");
        assert!(history.len() <= MAX_HISTORY_CHARS && history.ends_with(",601") && !history.starts_with("1,"));
    }

    #[test]
    fn hashes_are_stable_and_safe() {
        let template = PodTemplateSpec::default();
        let hash = template_hash(&template, None);
        assert_eq!(hash, template_hash(&template, None));
        assert_ne!(hash, template_hash(&template, Some(1)));
        assert!(hash.bytes().all(|byte| b"bcdfghjklmnpqrstvwxz2456789".contains(&byte)), "{hash}");
    }

    #[test]
    fn the_hash_label_does_not_make_a_template_different() {
        let mut labelled = PodTemplateSpec::default();
        labelled.metadata.get_or_insert_default().labels = Some([(HASH_LABEL.to_owned(), "x".to_owned())].into());
        assert!(same_template(&labelled, &PodTemplateSpec::default()));
        labelled.spec = Some(Default::default());
        assert!(!same_template(&labelled, &PodTemplateSpec::default()));
    }
}
