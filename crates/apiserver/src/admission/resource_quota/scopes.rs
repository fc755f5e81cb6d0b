//! Which objects a quota is about: its scopes and scope selector.

use api::quota;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, Pod, ResourceQuota as Quota, ScopedResourceSelectorRequirement,
};
use registry::Object;

/// Whether all scopes of the quota select the object.
pub(super) fn selects(quota: &Quota, object: &dyn Object) -> bool {
    requirements(quota).iter().all(|requirement| matches(requirement, object))
}

pub(super) fn requirements(quota: &Quota) -> Vec<ScopedResourceSelectorRequirement> {
    quota.spec.as_ref().map(quota::scopes).unwrap_or_default()
}

pub(super) fn matches(requirement: &ScopedResourceSelectorRequirement, object: &dyn Object) -> bool {
    if let Some(pod) = object.downcast_ref::<Pod>() {
        return quota::matches_pod(requirement, pod);
    }
    // Other kinds have no scopes, so a quota with scopes is never about them.
    let claim = object.downcast_ref::<PersistentVolumeClaim>();
    claim.is_some_and(|claim| quota::matches_volume_claim(requirement, claim))
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
