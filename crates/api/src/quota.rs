//! What objects count for in a ResourceQuota, and which of them one is about.
//!
//! Flow: admission charges by these rules before an object is written, the controller counts by them afterwards; where the two
//! differed, what is used would never come to rest.

use k8s_openapi::api::core::v1::{
    Affinity, PersistentVolumeClaim, PodAffinityTerm, ResourceQuotaSpec, ScopedResourceSelectorRequirement, Service,
};
use k8s_openapi::api::resource::v1::{DeviceRequest, ResourceClaim};

use crate::beta_annotations;
use crate::pod::resources::{Amounts, add, max};
use crate::pod::{AnyPod, qos};
use crate::quantity::{Format, Quantity};
use crate::sort::CompactSort as _;

const CLASS_SUFFIX: &str = ".storageclass.storage.k8s.io/";
/// After the name of a device class: how many of its devices claims may ask for.
pub const DEVICES_SUFFIX: &str = ".deviceclass.resource.k8s.io/devices";
/// All devices of a class are as many as one claim can get.
const MOST_DEVICES: i64 = 32;

fn count(number: usize) -> Quantity {
    Quantity::new(i64::try_from(number).unwrap_or(i64::MAX), Format::DecimalSI)
}

pub fn of_pod(pod: &impl AnyPod) -> Amounts {
    let mut usage = crate::pod::resources::quota_usage(pod);
    usage.insert("count/pods".to_owned(), count(1));
    usage
}

pub fn of_service(service: &Service) -> Amounts {
    let spec = service.spec.as_ref();
    let ports = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    let chosen = ports.iter().filter(|port| port.node_port.is_some_and(|port| port != 0)).count();
    let allocates = spec.and_then(|spec| spec.allocate_load_balancer_node_ports) != Some(false);
    let (node_ports, balancers) = match spec.and_then(|spec| spec.type_.as_deref()) {
        Some("NodePort") => (ports.len(), 0),
        // Node ports are perhaps not allocated yet: what counts is whether they will be.
        Some("LoadBalancer") if allocates => (ports.len(), 1),
        Some("LoadBalancer") => (chosen, 1),
        _ => (0, 0),
    };
    let usage = [
        ("count/services", 1),
        ("services", 1),
        ("services.nodeports", node_ports),
        ("services.loadbalancers", balancers),
    ];
    usage.map(|(name, number)| (name.to_owned(), count(number))).into()
}

pub fn of_volume_claim(claim: &PersistentVolumeClaim) -> Amounts {
    const PLURAL: &str = "persistentvolumeclaims";
    let mut usage = Amounts::from([(format!("count/{PLURAL}"), count(1)), (PLURAL.to_owned(), count(1))]);
    let Some(spec) = &claim.spec else { return usage };
    let class = beta_annotations::claim_class(claim).filter(|class| !class.is_empty());
    if let Some(class) = class {
        usage.insert(format!("{class}{CLASS_SUFFIX}{PLURAL}"), count(1));
    }
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let allocated = claim.status.as_ref().and_then(|status| status.allocated_resources.as_ref());
    // A volume that was to grow may have grown, whatever is wished now.
    let storage = [requests, allocated].into_iter().filter_map(|list| Quantity::parse(&list?.get("storage")?.0).ok());
    if let Some(amount) = storage.max() {
        if let Some(class) = class {
            usage.insert(format!("{class}{CLASS_SUFFIX}requests.storage"), amount.clone());
        }
        usage.insert("requests.storage".to_owned(), amount);
    }
    usage
}

pub fn of_resource_claim(claim: &ResourceClaim) -> Amounts {
    let mut usage = Amounts::from([("count/resourceclaims.resource.k8s.io".to_owned(), count(1))]);
    let devices = claim.spec.devices.as_ref();
    for request in devices.into_iter().flat_map(|devices| devices.requests.iter().flatten()) {
        add(&mut usage, &of_device_request(request));
    }
    usage
}

/// The devices of each class that a request may be given: of alternatives, the worst.
fn of_device_request(request: &DeviceRequest) -> Amounts {
    let devices = |class: &str, mode: Option<&str>, number: Option<i64>| {
        let number = match mode {
            Some("ExactCount") | None => number.unwrap_or(1),
            Some("All") => MOST_DEVICES,
            Some(_) => 0,
        };
        Amounts::from([(format!("{class}{DEVICES_SUFFIX}"), Quantity::new(number, Format::DecimalSI))])
    };
    let alternatives = request.first_available.iter().flatten();
    let alternatives =
        alternatives.map(|one| devices(&one.device_class_name, one.allocation_mode.as_deref(), one.count));
    let exactly = request.exactly.iter();
    let exactly = exactly.map(|one| devices(&one.device_class_name, one.allocation_mode.as_deref(), one.count));
    let mut worst = Amounts::new();
    alternatives.chain(exactly).for_each(|amounts| max(&mut worst, amounts));
    worst
}

/// Scopes and scope selector of a quota in one form. All of them must match.
pub fn scopes(spec: &ResourceQuotaSpec) -> Vec<ScopedResourceSelectorRequirement> {
    let scopes = spec.scopes.iter().flatten().map(|scope| ScopedResourceSelectorRequirement {
        scope_name: scope.clone(),
        operator: "Exists".to_owned(),
        values: None,
    });
    let selector = spec.scope_selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten().cloned());
    scopes.chain(selector).collect()
}

pub fn is_terminating(pod: &impl AnyPod) -> bool {
    pod.spec().and_then(|spec| spec.active_deadline_seconds).is_some_and(|seconds| seconds >= 0)
}

pub fn matches_pod(scope: &ScopedResourceSelectorRequirement, pod: &impl AnyPod) -> bool {
    let is_best_effort = || qos::class(pod) == qos::Class::BestEffort;
    let spec = pod.spec();
    match scope.scope_name.as_str() {
        "Terminating" => is_terminating(pod),
        "NotTerminating" => !is_terminating(pod),
        "BestEffort" => is_best_effort(),
        "NotBestEffort" => !is_best_effort(),
        "PriorityClass" => {
            let class = spec.and_then(|spec| spec.priority_class_name.as_deref()).filter(|class| !class.is_empty());
            named(scope, &class.into_iter().collect::<Vec<_>>())
        }
        "CrossNamespacePodAffinity" => {
            spec.and_then(|spec| spec.affinity.as_ref()).is_some_and(|affinity| terms(affinity).any(crosses_namespaces))
        }
        _ => false,
    }
}

pub fn matches_volume_claim(scope: &ScopedResourceSelectorRequirement, claim: &PersistentVolumeClaim) -> bool {
    scope.scope_name == "VolumeAttributesClass" && named(scope, &volume_attributes_classes(claim))
}

/// The classes that a claim has, had or is about to have, each once.
pub fn volume_attributes_classes(claim: &PersistentVolumeClaim) -> Vec<&str> {
    let status = claim.status.as_ref();
    let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let current = status.and_then(|status| status.current_volume_attributes_class_name.as_deref());
    let target =
        status.and_then(|status| status.modify_volume_status.as_ref()?.target_volume_attributes_class_name.as_deref());
    let mut classes: Vec<&str> =
        [wanted, current, target].into_iter().flatten().filter(|class| !class.is_empty()).collect();
    classes.compact_sort();
    classes.dedup();
    classes
}

/// Whether one of the names is as the scope says, or the lack of any.
fn named(scope: &ScopedResourceSelectorRequirement, names: &[&str]) -> bool {
    let is_listed = |name: &&str| scope.values.iter().flatten().any(|value| value == name);
    match scope.operator.as_str() {
        "In" => names.iter().any(is_listed),
        "NotIn" => names.is_empty() || !names.iter().all(is_listed),
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
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    fn shown(usage: &Amounts) -> Vec<String> {
        usage.iter().map(|(name, amount)| format!("{name}={amount}")).collect()
    }

    #[test]
    fn claims_count_the_devices_they_may_get() {
        let of = |requests: Value| -> Vec<String> {
            let claim = json!({"metadata": {}, "spec": {"devices": {"requests": requests}}});
            let mut usage = of_resource_claim(&serde_json::from_value(claim).unwrap());
            assert_eq!(usage.remove("count/resourceclaims.resource.k8s.io").unwrap().value(), 1);
            shown(&usage)
        };
        let exactly = |class: &str, mode: &str, count: i64| json!({"deviceClassName": class, "allocationMode": mode, "count": count});
        let one = |class: &str, mode: &str, count: i64| json!({"name": "r", "exactly": exactly(class, mode, count)});
        let gpu = |count: i64| format!("gpu.deviceclass.resource.k8s.io/devices={count}");
        assert_eq!(of(json!([])), Vec::<String>::new());
        assert_eq!(of(json!([one("gpu", "ExactCount", 2), one("gpu", "ExactCount", 1)])), [gpu(3)]);
        assert_eq!(of(json!([one("gpu", "All", 0)])), [gpu(32)]);
        assert_eq!(of(json!([{"name": "r", "exactly": {"deviceClassName": "gpu"}}])), [gpu(1)]);
        let mut alternatives = Vec::new();
        for (class, count) in [("gpu", 4), ("gpu", 2), ("nic", 1)] {
            let mut one = exactly(class, "ExactCount", count);
            one["name"] = json!(format!("{class}-{count}"));
            alternatives.push(one);
        }
        let nic = "nic.deviceclass.resource.k8s.io/devices=1".to_owned();
        assert_eq!(of(json!([{"name": "r", "firstAvailable": alternatives}])), [gpu(4), nic]);
    }

    #[test]
    fn volumes_count_with_the_largest_size_they_may_have() {
        for (wished, allocated, expected) in
            [("1Gi", None, "1Gi"), ("1Gi", Some("3Gi"), "3Gi"), ("4Gi", Some("3Gi"), "4Gi")]
        {
            let mut claim = json!({"metadata": {}, "spec": {"resources": {"requests": {"storage": wished}}}});
            if let Some(allocated) = allocated {
                claim["status"] = json!({"allocatedResources": {"storage": allocated}});
            }
            let usage = of_volume_claim(&serde_json::from_value(claim).unwrap());
            assert_eq!(usage["requests.storage"].to_string(), expected);
        }
    }

    #[test]
    fn classes_of_volume_attributes_are_a_scope() {
        let claim = |wanted: &str, current: &str| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"metadata": {}, "spec": {"volumeAttributesClassName": wanted},
                "status": {"currentVolumeAttributesClassName": current}}))
            .unwrap()
        };
        for (operator, values, claim, expected) in [
            ("In", json!(["gold"]), claim("gold", ""), true),
            ("In", json!(["gold"]), claim("silver", "gold"), true),
            ("In", json!(["gold"]), claim("silver", ""), false),
            ("NotIn", json!(["gold"]), claim("", ""), true),
            ("NotIn", json!(["gold"]), claim("gold", "gold"), false),
            ("NotIn", json!(["gold"]), claim("silver", "gold"), true),
            ("Exists", json!(null), claim("gold", ""), true),
            ("Exists", json!(null), claim("", ""), false),
            ("DoesNotExist", json!(null), claim("", ""), true),
        ] {
            let scope = json!({"scopeName": "VolumeAttributesClass", "operator": operator, "values": values});
            let scope = serde_json::from_value(scope).unwrap();
            assert_eq!(matches_volume_claim(&scope, &claim), expected, "{operator} {values} {claim:?}");
            assert!(!matches_pod(&scope, &Pod::default()));
        }
    }
}
