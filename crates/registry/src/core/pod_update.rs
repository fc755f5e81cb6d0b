//! What may change once a Pod exists.

use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use api::pod::is_mirror;
use api::sort::{CompactCollect as _, CompactSort as _};
use api::validation as rules;
use k8s_openapi::api::core::v1::{
    Container, NodeAffinity, NodeSelectorRequirement, Pod, PodSpec, ResourceRequirements, Toleration,
};
use serde_json::Value;

use super::pod_spec;
use super::pod_validation::{annotations_update, metadata_and_spec};
use crate::metadata::{pruned, same};
use crate::unset::{items, text};

/// A pod's spec is fixed but for images, a shorter deadline, more tolerations and fewer gates.
pub(super) fn update(new: &Pod, old: &Pod) -> FieldErrors {
    let mut errors = pod_spec::template::forgive(metadata_and_spec(new), || metadata_and_spec(old));
    annotations_update(&mut errors, new, old);
    let (Some(new), Some(old)) = (&new.spec, &old.spec) else { return errors };
    let path = Path::new("spec");
    for (name, new, old) in [
        ("containers", &*new.containers, &*old.containers),
        ("initContainers", items(&new.init_containers), items(&old.init_containers)),
    ] {
        if new.len() != old.len() {
            errors.forbidden(path.child(name), "pod updates may not add or remove containers");
            return errors;
        }
    }
    if !deadline(&mut errors, new.active_deadline_seconds, old.active_deadline_seconds) {
        return errors;
    }
    added_tolerations(&mut errors, items(&new.tolerations), items(&old.tolerations));
    let gates: BTreeSet<&str> = items(&old.scheduling_gates).iter().map(|gate| gate.name.as_str()).compact_collect();
    for gate in items(&new.scheduling_gates) {
        if !gates.contains(gate.name.as_str()) {
            let place = format!("spec.schedulingGates[{}]", gate.name);
            errors.forbidden(place, "only deletion is allowed, but found new scheduling gate");
        }
    }
    if new == old {
        return errors;
    }
    let munged = with_old_mutable_fields(&mut errors, new, old);
    if !same(&munged, old) {
        let detail = format!(
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n{}",
            differences(&pruned(old), &pruned(&munged))
        );
        errors.forbidden(path, detail);
    }
    errors
}

/// `pods/ephemeralcontainers`: containers are added to what is there (`ValidatePodEphemeralContainersUpdate`, v1.36).
pub fn ephemeral_containers_update(new: &Pod, old: &Pod) -> FieldErrors {
    if is_mirror(&old.metadata) {
        return refused("static pods do not support ephemeral containers");
    }
    let mut errors = pod_spec::template::forgive(metadata_and_spec(new), || metadata_and_spec(old));
    let containers = |pod: &'_ Pod| pod.spec.as_ref().and_then(|spec| spec.ephemeral_containers.clone());
    let new = containers(new).unwrap_or_default();
    for container in containers(old).unwrap_or_default() {
        let problem = match new.iter().find(|candidate| candidate.name == container.name) {
            None => "removed",
            Some(found) if !same(found, &container) => "changed",
            Some(_) => continue,
        };
        let detail = format!("existing ephemeral containers {:?} may not be {problem}", container.name);
        errors.forbidden("spec.ephemeralContainers", detail);
    }
    errors
}

/// `pods/resize`: CPU and memory of containers, and nothing else (`ValidatePodResize`, v1.36).
pub fn resize_update(new: &Pod, old: &Pod) -> FieldErrors {
    if is_mirror(&old.metadata) {
        return refused("static pods cannot be resized");
    }
    let mut errors = pod_spec::template::forgive(metadata_and_spec(new), || metadata_and_spec(old));
    let (Some(new_spec), Some(old_spec)) = (&new.spec, &old.spec) else { return errors };
    if old_spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return refused("windows pods cannot be resized");
    }
    let class = old.status.as_ref().and_then(|status| text(&status.qos_class));
    let class = class.unwrap_or_else(|| api::pod::qos::of_spec(old.spec.as_ref()).as_str());
    if class != api::pod::qos::of_spec(new.spec.as_ref()).as_str() {
        errors.invalid("spec", class, "Pod QOS Class may not change as a result of resizing");
    }
    let running = old.status.iter().flat_map(|status| items(&status.container_statuses));
    let mut running = running.filter(|status| status.state.as_ref().is_some_and(|state| state.running.is_some()));
    if running.next().is_some_and(|status| status.resources.is_none()) {
        errors.forbidden("spec", "Pod running on node without support for resize");
    }
    if let Some(before) = &old_spec.resources {
        match &new_spec.resources {
            None => errors.forbidden("spec.resources", "pod-level resources cannot be removed"),
            Some(after) => kept(&mut errors, "spec.resources", "pod-level resource", after, before),
        }
    }
    let mut munged = new_spec.clone();
    munged.resources = with_old_amounts(munged.resources.as_ref(), old_spec.resources.as_ref());
    if !same(&munged.resources, &old_spec.resources) {
        errors.forbidden("spec", "only cpu and memory resources are mutable at pod-level");
    }
    let none = ResourceRequirements::default();
    let lists = [
        ("containers", &mut munged.containers, &*old_spec.containers),
        ("initContainers", munged.init_containers.get_or_insert_default(), items(&old_spec.init_containers)),
    ];
    for (name, new, old) in lists {
        for (i, (new, old)) in new.iter_mut().zip(old).enumerate() {
            let resources = |container: &'_ Container| container.resources.clone().unwrap_or_else(|| none.clone());
            let place = format!("spec.{name}[{i}]");
            kept(&mut errors, &format!("{place}.resources"), "resource", &resources(new), &resources(old));
            let is_changed = !same(new, old);
            new.resources = with_old_amounts(new.resources.as_ref(), old.resources.as_ref());
            let is_init = name == "initContainers";
            match same(new, old) {
                true => {}
                false if is_init => {
                    let detail = "only cpu and memory resources for init or sidecar containers are mutable";
                    errors.forbidden(&*place, detail);
                }
                false => errors.forbidden("spec", "only cpu and memory resources are mutable"),
            }
            let restarts =
                || items(&new.resize_policy).iter().any(|policy| policy.restart_policy == "RestartContainer");
            if is_changed && is_init && new.restart_policy.as_deref() != Some("Always") && restarts() {
                let detail = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
                errors.forbidden(&*place, detail);
            }
        }
    }
    errors
}

/// A refusal of the whole; its place reads as upstream's empty path does.
fn refused(detail: &str) -> FieldErrors {
    let mut errors = FieldErrors::default();
    errors.forbidden("[]", detail);
    errors
}

/// What is asked for may become more or less, but cannot be taken back.
fn kept(errors: &mut FieldErrors, place: &str, what: &str, new: &ResourceRequirements, old: &ResourceRequirements) {
    for (name, new, old) in [("requests", &new.requests, &old.requests), ("limits", &new.limits, &old.limits)] {
        let has = |key: &String| new.as_ref().is_some_and(|new| new.contains_key(key));
        if !old.iter().flatten().all(|(key, _)| has(key)) {
            errors.forbidden(format!("{place}.{name}"), format!("{what} {name} cannot be removed"));
        }
    }
}

/// New requirements with the old amounts of what a resize may change.
fn with_old_amounts(
    new: Option<&ResourceRequirements>,
    old: Option<&ResourceRequirements>,
) -> Option<ResourceRequirements> {
    let mut new = new?.clone();
    let none = ResourceRequirements::default();
    let old = old.unwrap_or(&none);
    for (new, old) in [(&mut new.requests, &old.requests), (&mut new.limits, &old.limits)] {
        let amounts = new.get_or_insert_default();
        for name in ["cpu", "memory"] {
            amounts.remove(name);
            amounts.extend(old.iter().flatten().filter(|(key, _)| *key == name).map(|(k, v)| (k.clone(), v.clone())));
        }
    }
    Some(new)
}

fn deadline(errors: &mut FieldErrors, new: Option<i64>, old: Option<i64>) -> bool {
    let path = "spec.activeDeadlineSeconds";
    match (new, old) {
        (Some(new), _) if !(0..=i64::from(i32::MAX)).contains(&new) => {
            errors.invalid_each(path, new, rules::in_range(new, 0, i64::from(i32::MAX)));
            return false;
        }
        (Some(new), Some(old)) if old < new => {
            errors.invalid(path, new, "must be less than or equal to previous value");
            return false;
        }
        (None, Some(_)) => {
            errors.invalid(path, new, "must not update from a positive integer to nil value");
        }
        _ => {}
    }
    true
}

fn added_tolerations(errors: &mut FieldErrors, new: &[Toleration], old: &[Toleration]) {
    if new == old {
        return;
    }
    let without_time =
        |toleration: &Toleration| pruned(&Toleration { toleration_seconds: None, ..toleration.clone() }).to_string();
    // A body has room for tens of thousands: they are not compared each with each.
    let present: BTreeSet<String> = new.iter().map(without_time).compact_collect();
    if !old.iter().all(|old| present.contains(&without_time(old))) {
        errors.forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds");
    }
}

/// The new spec with everything that may change put back, so that what differs still may not.
fn with_old_mutable_fields(errors: &mut FieldErrors, new: &PodSpec, old: &PodSpec) -> PodSpec {
    let mut munged = new.clone();
    let put_back = |new: &mut [Container], old: &[Container]| {
        for (new, old) in new.iter_mut().zip(old) {
            new.image.clone_from(&old.image);
        }
    };
    put_back(&mut munged.containers, &old.containers);
    if let (Some(new), Some(old)) = (&mut munged.init_containers, &old.init_containers) {
        put_back(new, old);
    }
    munged.active_deadline_seconds = old.active_deadline_seconds;
    munged.scheduling_gates.clone_from(&old.scheduling_gates);
    munged.tolerations.clone_from(&old.tolerations);
    if old.termination_grace_period_seconds.is_some_and(|grace| grace < 0)
        && munged.termination_grace_period_seconds == Some(1)
    {
        munged.termination_grace_period_seconds = old.termination_grace_period_seconds;
    }
    if !items(&old.scheduling_gates).is_empty() {
        let kept =
            old.node_selector.iter().flatten().all(|(key, value)| {
                munged.node_selector.as_ref().and_then(|selector| selector.get(key)) == Some(value)
            });
        if !kept {
            errors.invalid(
                "spec.nodeSelector",
                munged.node_selector.clone().unwrap_or_default(),
                "only additions to spec.nodeSelector are allowed (no mutations or deletions)",
            );
        }
        munged.node_selector.clone_from(&old.node_selector);
        let old_affinity = old.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let new_affinity = munged.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        narrowed_affinity(errors, new_affinity, old_affinity);
        if munged.affinity.is_some() || old_affinity.is_some() {
            munged.affinity.get_or_insert_default().node_affinity = old_affinity.cloned();
        }
    }
    munged
}

/// While a pod is gated, the choice of its nodes becomes narrower only: terms get more requirements
/// (`validateNodeAffinityMutation`, v1.36).
fn narrowed_affinity(errors: &mut FieldErrors, new: Option<&NodeAffinity>, old: Option<&NodeAffinity>) {
    const PLACE: &str = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let terms = |affinity: Option<&NodeAffinity>| {
        let required =
            affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.clone());
        required.map(|required| required.node_selector_terms).unwrap_or_default()
    };
    let (new, old) = (terms(new), terms(old));
    if !old.is_empty() && old.len() != new.len() {
        errors.invalid(PLACE, &new, "no additions/deletions to non-empty NodeSelectorTerms list are allowed");
        return;
    }
    for (i, (new, old)) in new.iter().zip(&old).enumerate() {
        let only_adds = |new: &[NodeSelectorRequirement], old: &[NodeSelectorRequirement]| new.starts_with(old);
        let (new_labels, old_labels) = (items(&new.match_expressions), items(&old.match_expressions));
        let (new_fields, old_fields) = (items(&new.match_fields), items(&old.match_fields));
        // A term without requirements selects nothing: with one, it would be wider.
        let was_empty = old_labels.is_empty() && old_fields.is_empty();
        let is_empty = new_labels.is_empty() && new_fields.is_empty();
        if was_empty && !is_empty || !only_adds(new_labels, old_labels) || !only_adds(new_fields, old_fields) {
            errors.invalid(format!("{PLACE}[{i}]"), new, "only additions are allowed (no mutations or deletions)");
        }
    }
}

/// The fields that differ, one per line.
pub(super) fn differences(old: &Value, new: &Value) -> String {
    fn walk(lines: &mut Vec<String>, path: &str, old: Option<&Value>, new: Option<&Value>) {
        if old == new {
            return;
        }
        if let (Some(Value::Object(old)), Some(Value::Object(new))) = (old, new) {
            let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
            keys.compact_sort();
            keys.dedup();
            for key in keys {
                walk(lines, &format!("{path}.{key}"), old.get(key), new.get(key));
            }
            return;
        }
        let shown = |value: Option<&Value>| value.map_or("nil".to_owned(), Value::to_string);
        lines.push(format!("- {}: {}", path.trim_start_matches('.'), shown(old)));
        lines.push(format!("+ {}: {}", path.trim_start_matches('.'), shown(new)));
    }
    let mut lines = Vec::new();
    walk(&mut lines, "", Some(old), Some(new));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use api::pod::MIRROR;
    use serde_json::json;

    use super::super::pod_validation::tests::pod;
    use super::super::pod_validation::{APP_ARMOR, create, status_update};
    use super::*;

    #[test]
    fn gated_pods_choose_among_fewer_nodes() {
        let required = |terms: Value| json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
        let label = |key: &str| json!({"key": key, "operator": "Exists"});
        let gated = |affinity: &Value| {
            pod(|pod| {
                pod["spec"]["schedulingGates"] = json!([{"name": "a.io/g"}]);
                if !affinity.is_null() {
                    pod["spec"]["affinity"] = affinity.clone();
                }
            })
        };
        let one = required(json!([{"matchExpressions": [label("a")]}]));
        for (old, new, expected) in [
            (Value::Null, one.clone(), ""),
            (one.clone(), required(json!([{"matchExpressions": [label("a"), label("b")]}])), ""),
            (
                one.clone(),
                required(json!([{"matchExpressions": [label("b")]}])),
                "nodeSelectorTerms[0]: Invalid value: ",
            ),
            (
                one.clone(),
                required(json!([{"matchExpressions": [label("a")]}, {"matchExpressions": [label("b")]}])),
                "no additions/deletions to non-empty NodeSelectorTerms list are allowed",
            ),
            (one.clone(), Value::Null, "no additions/deletions to non-empty NodeSelectorTerms list are allowed"),
        ] {
            let found = update(&gated(&new), &gated(&old)).to_string();
            assert!(if expected.is_empty() { found == "[]" } else { found.contains(expected) }, "{old} {new}: {found}");
        }
    }

    #[test]
    fn what_was_wrong_before_keeps_no_finalizer() {
        let old = pod(|pod| {
            pod["spec"]["containers"][0]["lifecycle"] = json!({"stopSignal": "SIGUSR1"});
            pod["metadata"]["annotations"] = json!({format!("{APP_ARMOR}other"): "unconfined"});
        });
        let mut new = old.clone();
        new.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        assert_eq!(create(&old).len(), 2);
        assert_eq!(update(&new, &old).to_string(), "[]");
    }

    #[test]
    fn security_what_was_decided_by_stays_on_a_pod() {
        let annotated = |key: &str, value: &str| pod(|pod| pod["metadata"]["annotations"] = json!({key: value}));
        let plain = pod(|_| {});
        let app_armor = "container.apparmor.security.beta.kubernetes.io/a";
        for (new, old, allowed) in [
            (annotated("a", "b"), plain.clone(), true),
            (annotated(MIRROR, "x"), plain.clone(), false),
            (plain.clone(), annotated(MIRROR, "x"), false),
            (annotated(MIRROR, "y"), annotated(MIRROR, "x"), false),
            (annotated(MIRROR, "x"), annotated(MIRROR, "x"), true),
            (annotated(app_armor, "unconfined"), plain.clone(), false),
            (plain.clone(), annotated(app_armor, "unconfined"), false),
        ] {
            for errors in [update(&new, &old), status_update(&new, &old)] {
                let refused = errors.to_string().contains("may not");
                assert_eq!(!refused, allowed, "{:?} -> {:?}", old.metadata.annotations, new.metadata.annotations);
            }
        }
    }

    /// Compared each with each, these would keep a thread busy for an hour.
    #[test]
    fn security_many_tolerations_are_compared_once() {
        let tolerations: Vec<Value> =
            (0..20_000).map(|number| json!({"key": format!("k{number}"), "operator": "Exists"})).collect();
        let old = pod(|pod| pod["spec"]["tolerations"] = json!(tolerations));
        assert!(update(&old, &old).is_empty());
        let fewer = pod(|pod| pod["spec"]["tolerations"] = json!(tolerations[1..]));
        assert!(update(&fewer, &old).to_string().contains("existing toleration can not be modified"));
    }

    #[test]
    fn only_a_few_fields_change() {
        let old = pod(|_| {});
        let mut image = old.clone();
        image.spec.as_mut().unwrap().containers[0].image = Some("c:2".to_owned());
        assert!(update(&image, &old).is_empty());
        assert!(update(&pod(|p| p["spec"]["activeDeadlineSeconds"] = json!(5)), &old).is_empty());
        assert!(update(&pod(|p| p["spec"]["tolerations"] = json!([{"operator": "Exists"}])), &old).is_empty());
        // Absent and false are the same.
        assert!(update(&pod(|p| p["spec"]["hostNetwork"] = json!(false)), &old).is_empty());
        let errors = update(&pod(|p| p["spec"]["nodeName"] = json!("n")), &old).to_string();
        assert!(errors.starts_with("spec: Forbidden: pod updates may not change fields other than"), "{errors}");
        assert!(errors.contains("+ nodeName: \"n\""), "{errors}");
    }
}
