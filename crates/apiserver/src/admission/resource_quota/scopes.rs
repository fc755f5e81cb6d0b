//! Which objects a quota is about: its scopes and scope selector.

use api::pod::qos;
use k8s_openapi::api::core::v1::{
    Affinity, PersistentVolumeClaim, Pod, PodAffinityTerm, ResourceQuota as Quota, ScopedResourceSelectorRequirement,
};
use registry::Object;

/// Whether all scopes of the quota select the object.
pub(super) fn selects(quota: &Quota, object: &dyn Object) -> bool {
    requirements(quota).iter().all(|requirement| matches(requirement, object))
}

/// Scopes and scope selector in one form.
pub(super) fn requirements(quota: &Quota) -> Vec<ScopedResourceSelectorRequirement> {
    let Some(spec) = &quota.spec else { return Vec::new() };
    let scopes = spec.scopes.iter().flatten().map(|scope| ScopedResourceSelectorRequirement {
        scope_name: scope.clone(),
        operator: "Exists".to_owned(),
        values: None,
    });
    let selector = spec.scope_selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten().cloned());
    scopes.chain(selector).collect()
}

pub(super) fn matches(requirement: &ScopedResourceSelectorRequirement, object: &dyn Object) -> bool {
    if let Some(pod) = object.downcast_ref::<Pod>() {
        return of_pod(requirement, pod);
    }
    // Other kinds have no scopes, so a quota with scopes is never about them.
    object.downcast_ref::<PersistentVolumeClaim>().is_some_and(|claim| of_claim(requirement, claim))
}

pub(super) fn is_terminating(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds).is_some_and(|seconds| seconds >= 0)
}

fn of_pod(requirement: &ScopedResourceSelectorRequirement, pod: &Pod) -> bool {
    let is_best_effort = || qos::class(pod) == qos::Class::BestEffort;
    let spec = pod.spec.as_ref();
    match requirement.scope_name.as_str() {
        "Terminating" => is_terminating(pod),
        "NotTerminating" => !is_terminating(pod),
        "BestEffort" => is_best_effort(),
        "NotBestEffort" => !is_best_effort(),
        "PriorityClass" => {
            let class = spec.and_then(|spec| spec.priority_class_name.as_deref()).filter(|class| !class.is_empty());
            named(requirement, &class.into_iter().collect::<Vec<_>>())
        }
        "CrossNamespacePodAffinity" => {
            spec.and_then(|spec| spec.affinity.as_ref()).is_some_and(|affinity| terms(affinity).any(crosses_namespaces))
        }
        _ => false,
    }
}

fn of_claim(requirement: &ScopedResourceSelectorRequirement, claim: &PersistentVolumeClaim) -> bool {
    if requirement.scope_name != "VolumeAttributesClass" {
        return false;
    }
    let status = claim.status.as_ref();
    let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let current = status.and_then(|status| status.current_volume_attributes_class_name.as_deref());
    let target =
        status.and_then(|status| status.modify_volume_status.as_ref()?.target_volume_attributes_class_name.as_deref());
    let classes: Vec<&str> =
        [wanted, current, target].into_iter().flatten().filter(|class| !class.is_empty()).collect();
    named(requirement, &classes)
}

fn named(requirement: &ScopedResourceSelectorRequirement, names: &[&str]) -> bool {
    let listed = || requirement.values.iter().flatten().any(|value| names.contains(&value.as_str()));
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => !names.is_empty(),
        "DoesNotExist" => names.is_empty(),
        _ => false,
    }
}

fn terms(affinity: &Affinity) -> impl Iterator<Item = &PodAffinityTerm> {
    let near = affinity.pod_affinity.iter();
    let far = affinity.pod_anti_affinity.iter();
    let required = near
        .clone()
        .flat_map(|near| near.required_during_scheduling_ignored_during_execution.iter().flatten())
        .chain(far.clone().flat_map(|far| far.required_during_scheduling_ignored_during_execution.iter().flatten()));
    let preferred = near
        .flat_map(|near| near.preferred_during_scheduling_ignored_during_execution.iter().flatten())
        .chain(far.flat_map(|far| far.preferred_during_scheduling_ignored_during_execution.iter().flatten()));
    required.chain(preferred.map(|weighted| &weighted.pod_affinity_term))
}

fn crosses_namespaces(term: &PodAffinityTerm) -> bool {
    term.namespace_selector.is_some() || term.namespaces.as_ref().is_some_and(|namespaces| !namespaces.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn scopes_select_pods() {
        let quota = |spec: Value| -> Quota { serde_json::from_value(json!({"spec": spec})).unwrap() };
        let scope = |name: &str| quota(json!({"scopes": [name]}));
        let class = |operator: &str, values: Value| {
            quota(json!({"scopeSelector": {"matchExpressions": [
                {"scopeName": "PriorityClass", "operator": operator, "values": values}]}}))
        };
        let plain = json!({"containers": []});
        let deadline = json!({"containers": [], "activeDeadlineSeconds": 5});
        let sized = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]});
        let high = json!({"containers": [], "priorityClassName": "high"});
        let far = json!({"containers": [], "affinity": {"podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": {
                "topologyKey": "x", "namespaceSelector": {}}}]}}});
        for (quota, spec, selected) in [
            (scope("Terminating"), &deadline, true),
            (scope("Terminating"), &plain, false),
            (scope("NotTerminating"), &plain, true),
            (scope("BestEffort"), &plain, true),
            (scope("BestEffort"), &sized, false),
            (scope("NotBestEffort"), &sized, true),
            (class("In", json!(["high"])), &high, true),
            (class("In", json!(["low"])), &high, false),
            (class("NotIn", json!(["high"])), &plain, true),
            (class("Exists", json!([])), &high, true),
            (class("Exists", json!([])), &plain, false),
            (class("DoesNotExist", json!([])), &plain, true),
            (scope("CrossNamespacePodAffinity"), &far, true),
            (scope("CrossNamespacePodAffinity"), &plain, false),
        ] {
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            assert_eq!(selects(&quota, &pod), selected, "{:?} {spec}", quota.spec);
        }
        let service = k8s_openapi::api::core::v1::Service::default();
        assert!(!selects(&scope("NotTerminating"), &service) && selects(&quota(json!({})), &service));
    }
}
