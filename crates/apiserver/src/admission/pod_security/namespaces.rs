//! Writes to namespaces: labels must be right, and a stricter one brings a warning about pods that would not pass.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use api::meta::Meta as _;
use api::sort::CompactSort as _;
use api::{GroupKind, Status};
use k8s_openapi::api::core::v1::{Namespace, Pod};

use super::super::{Attributes, Verb};
use super::checks::{reasons, violations};
use super::exemptions::Settings;
use super::policy::{LevelVersion, Policy};
use super::subject::Subject;
use crate::cluster::Cluster;

/// A warning about existing pods may not hold up the write: this many pods, and this long.
const MAX_PODS: usize = 3000;
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) fn validate(settings: &Settings, cluster: &Cluster, attributes: &Attributes<'_>) -> Result<(), Status> {
    if !attributes.subresource.is_empty() {
        return Ok(());
    }
    let Some(namespace) = attributes.object_ref::<Namespace>() else { return Ok(()) };
    let labels = namespace.metadata.labels.as_ref();
    let (policy, errors) = Policy::of(labels, settings.defaults);
    let invalid = |errors| Err(Status::invalid(&GroupKind::new("", "Namespace"), attributes.name, errors));
    let warn_if_exempt = || {
        let exempt = settings.exempts_namespace(attributes.name);
        if exempt && !policy.is_privileged() && !policy.is_equivalent(&settings.defaults) {
            attributes.warn(format!(
                "namespace {:?} is exempt from Pod Security, and the policy ({}) will be ignored",
                attributes.name,
                policy.describe(labels)
            ));
        }
        exempt
    };
    if attributes.verb == Verb::Create {
        if !errors.is_empty() {
            return invalid(errors);
        }
        warn_if_exempt();
        return Ok(());
    }
    let old = attributes.old_ref::<Namespace>().and_then(|old| old.metadata.labels.as_ref());
    let (before, old_errors) = Policy::of(old, settings.defaults);
    // Labels that were wrong before may stay: they must not block other changes.
    if !errors.is_empty() && errors.to_string() != old_errors.to_string() {
        return invalid(errors);
    }
    let relaxed = policy.enforce.version == before.enforce.version && policy.enforce.level <= before.enforce.level;
    if policy.enforce == before.enforce || policy.enforce.is_privileged() || relaxed || warn_if_exempt() {
        return Ok(());
    }
    let pods = cluster.objects().list::<Pod>(Some(attributes.name))?;
    for warning in existing(settings, attributes.name, policy.enforce, pods) {
        attributes.warn(warning);
    }
    Ok(())
}

/// What to say about pods that would no longer be admitted.
fn existing(settings: &Settings, namespace: &str, enforce: LevelVersion, pods: Vec<Pod>) -> Vec<String> {
    let pods = by_importance(settings, pods);
    let total = pods.len();
    let deadline = Instant::now() + CHECK_TIMEOUT;
    let mut checked = 0;
    // Reasons -> the first pod by name, and how many there are.
    let mut found: BTreeMap<String, (String, usize)> = BTreeMap::new();
    for pod in pods.iter().take(MAX_PODS) {
        checked += 1;
        if let Some(spec) = &pod.spec {
            let violations = violations(enforce, &Subject::new(&pod.metadata, spec));
            if !violations.is_empty() {
                let name = pod.metadata.name().to_owned();
                let entry = found.entry(reasons(&violations)).or_insert_with(|| (name.clone(), 0));
                entry.0 = std::mem::take(&mut entry.0).min(name);
                entry.1 += 1;
            }
        }
        if Instant::now() > deadline {
            break;
        }
    }
    let mut warnings = Vec::new();
    if checked < total {
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {checked} of {total} existing pods"
        ));
    }
    if !found.is_empty() {
        warnings.push(format!(
            "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{enforce}\""
        ));
    }
    let mut lines: Vec<String> = found
        .into_iter()
        .map(|(reasons, (pod, count))| match count {
            1 => format!("{pod}: {reasons}"),
            2 => format!("{pod} (and 1 other pod): {reasons}"),
            _ => format!("{pod} (and {} other pods): {reasons}", count - 1),
        })
        .collect();
    lines.compact_sort();
    warnings.extend(lines);
    warnings
}

/// One pod of each controller first: the others are most likely like it.
fn by_importance(settings: &Settings, pods: Vec<Pod>) -> Vec<Pod> {
    let mut seen = BTreeSet::new();
    let (mut first, mut rest) = (Vec::new(), Vec::new());
    for pod in pods {
        if pod.spec.as_ref().is_some_and(|spec| settings.is_exempt_class(spec)) {
            continue;
        }
        let controller = pod.metadata.controller().map(|owner| owner.uid.clone());
        if controller.is_some_and(|uid| !seen.insert(uid)) {
            rest.push(pod);
        } else {
            first.push(pod);
        }
    }
    first.append(&mut rest);
    first
}

#[cfg(test)]
mod tests {
    use super::super::policy::{Level, Version};
    use super::*;

    #[test]
    fn existing_pods_are_counted_by_reason() {
        let pod = |name: &str, spec: serde_json::Value| -> Pod {
            serde_json::from_value(serde_json::json!({"metadata": {"name": name}, "spec": spec})).unwrap()
        };
        let host = serde_json::json!({"hostNetwork": true, "containers": []});
        let pods = vec![
            pod("c", host.clone()),
            pod("b", host.clone()),
            pod("a", host),
            pod("p", serde_json::json!({"containers": [{"name": "x", "securityContext": {"privileged": true}}]})),
            pod("fine", serde_json::json!({"containers": []})),
        ];
        let enforce = LevelVersion { level: Level::Baseline, version: Version::Latest };
        let settings = Settings::new(None).unwrap();
        assert_eq!(
            existing(&settings, "ns", enforce, pods),
            [
                "existing pods in namespace \"ns\" violate the new PodSecurity enforce level \"baseline:latest\"",
                "a (and 2 other pods): host namespaces",
                "p: privileged",
            ]
        );
    }
}
